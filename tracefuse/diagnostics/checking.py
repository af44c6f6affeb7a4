"""Check mode: what each segment computes is compared with its NumPy meaning, under the propagated error bound.

A segment is wrapped: its inputs are copied, it runs, the host waits for it, and every element that it made is compared
on the host. Where one differs, the ops of the segment are compiled and run one more at a time, to name the first that
differs. What a segment only reads must be as it was.

Knows: compiled segments, the NumPy meaning and its error bounds. Must not know: frontends, how a plan is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from tracefuse.diagnostics.error_bounds import bounded_outputs
from tracefuse.errors import DeviceError, InternalError
from tracefuse.ir.error_models import Bounded
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.reference import evaluate
from tracefuse.passes.rewriter import needed_for, with_nodes
from tracefuse.runtime.compiled_segment import CompiledSegment
from tracefuse.runtime.memory.spans import span
from tracefuse.runtime.targets.target import Target

RunAlone: TypeAlias = Callable[[Fusion, Sequence[Any]], Sequence[Any]]
"""Compiles a fusion and runs it, with nothing checked."""

REPORT = "a bug of tracefuse: please report it with the script that options(dump='fusion') writes"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first element of an array that is not within its bound. count: how many there are, of `size`."""

    place: tuple[int, ...]
    actual: Any
    expected: Any
    bound: Any
    count: int
    size: int

    def __str__(self) -> str:
        within = f" within {self.bound:.3g}" if self.bound else ""
        return (
            f"{list(self.place)} is {self.actual}, not {self.expected}{within} ({self.count} of {self.size} elements)"
        )


def first_difference(actual: Any, expected: Bounded) -> Difference | None:
    """Where an array first differs from (values, bounds) by more than the bound; an infinite bound says nothing."""
    value, bound = expected
    own = np.asarray(actual).astype(value.dtype)
    with np.errstate(all="ignore"):
        same = own == value
        if value.dtype.kind in "fc":
            same |= (np.abs(own - value) <= bound) | (np.isnan(own) & np.isnan(value))
    wrong = ~(same | np.isinf(bound))
    if not wrong.any():
        return None
    at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    place = tuple(map(int, at))
    return Difference(place, own[at].item(), value[at].item(), float(bound[at]), int(wrong.sum()), wrong.size)


class CheckedSegment:
    """Runs a segment and raises where it is wrong.

    inputs: what it is given, by number in the original. Raises InternalError for a wrong element or a changed input,
    OutOfRangeError for an index outside of its axis, DeviceError for a launch that failed on the device.
    """

    def __init__(self, segment: CompiledSegment, position: int, target: Target, run_alone: RunAlone) -> None:
        self.part, self.run, self.target, self.run_alone = segment.part, segment.run, target, run_alone
        self.name = f"segment {position} ({segment.template})"
        self.count = len(segment.inputs)
        self.inputs = tuple(dict.fromkeys((*segment.inputs, *segment.part.segment.original_inputs)))

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any] | None:
        self._wait("work before")
        saved = [self._copied(value) for value in inputs]
        on_host = [self._host(value) for value in saved]
        arguments = self._in_order(on_host)
        self._check_indices(arguments)
        made = self.run(inputs[: self.count], outputs)
        self._wait("")
        results = outputs if made is None else made
        self._check_inputs(inputs, on_host, results)
        self._check_results(arguments, self._in_order(saved), results)
        return made

    def _wait(self, what: str) -> None:
        """Raises where a launch failed. what: what was launched, if it is not the segment itself."""
        try:
            self.target.device.synchronize()
        except DeviceError as error:
            raise DeviceError(
                f"{what} {self.name} failed on the device: {error.message}".lstrip(),
                hint="after a fault of a GPU nothing runs there any more: start a new process", where=self._line(),
            ) from None  # fmt: skip

    # -- what it is given ---------------------------------------------------------------------------------------------

    def _copied(self, value: Any) -> Any:
        return value.copy() if hasattr(value, "strides") else value

    def _host(self, value: Any) -> Any:
        return self.target.device.on_host(value) if hasattr(value, "strides") else value

    def _in_order(self, values: Sequence[Any]) -> list[Any]:
        """The arguments of the segment's own definition."""
        named = dict(zip(self.inputs, values, strict=True))
        return [named[self.part.segment.index_map[number]] for number in self.part.fusion.inputs]

    def _check_indices(self, arguments: Sequence[Any]) -> None:
        """Raises for an index out of range, which a GPU moves into the array."""
        evaluate(self.part.fusion, arguments)

    # -- what it made -------------------------------------------------------------------------------------------------

    def _check_inputs(self, inputs: Sequence[Any], before: Sequence[Any], results: Sequence[Any]) -> None:
        """Raises where an input that shares no byte with a result is not what it was."""
        for number, value, old in zip(self.inputs, inputs, before, strict=True):
            if not hasattr(value, "strides") or self._shares(value, results):
                continue
            if self._host(value).tobytes() != old.tobytes():
                raise InternalError(f"{self.name} changed its input T{number}", hint=REPORT, where=self._line())

    def _shares(self, value: Any, results: Sequence[Any]) -> bool:
        own = span(self.target.device, value)
        return any(own.shares_bytes_with(span(self.target.device, result)) for result in results)

    def _check_results(self, arguments: Sequence[Any], given: Sequence[Any], results: Sequence[Any]) -> None:
        fusion = self.part.fusion
        bounded = dict(zip(fusion.outputs, bounded_outputs(fusion, arguments), strict=True))
        for number, result in zip(self.part.segment.outputs, results, strict=True):
            found = first_difference(self._host(result), bounded[number])
            if found is not None:
                raise self._error(arguments, given, number, found)

    def _error(self, arguments: Sequence[Any], given: Sequence[Any], output: int, found: Difference) -> InternalError:
        hint = REPORT
        first = self._first_wrong(arguments, given)
        if first is None:
            node, number = self._maker(output), output
            hint = f"each of its ops is right alone, so the difference comes from how they are put together; {hint}"
        else:
            node, number, found = first
        value = self.part.segment.value_map.get(number, number)
        return InternalError(
            f"{self.name} is not its NumPy meaning, first at {node.op.name}: T{value}{found}",
            hint=hint,
            where=node.where,
        )

    def _first_wrong(self, arguments: Sequence[Any], given: Sequence[Any]) -> tuple[Node, int, Difference] | None:
        """The first op of the segment that is wrong where it and what it needs are compiled alone."""
        fusion = self.part.fusion
        for node in fusion.nodes:
            number = node.outputs[0]
            if not fusion.values[number].is_tensor:
                continue
            alone = with_nodes(replace(fusion, outputs=(number,), aliases={}), needed_for(fusion, (number,)))
            (result,) = self.run_alone(alone, given)
            found = first_difference(self._host(result), bounded_outputs(alone, arguments)[0])
            if found is not None:
                return node, number, found
        return None

    def _maker(self, number: int) -> Node:
        return next(node for node in self.part.fusion.nodes if number in node.outputs)

    def _line(self) -> str | None:
        return next((node.where for node in self.part.fusion.nodes if node.where), None)


def checked(segment: CompiledSegment, position: int, target: Target, run_alone: RunAlone) -> CompiledSegment:
    """The segment with every run of it compared."""
    check = CheckedSegment(segment, position, target, run_alone)
    return replace(segment, run=check, inputs=check.inputs, code=None)
