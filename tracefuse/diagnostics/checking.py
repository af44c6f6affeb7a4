"""Check mode: compares the results of each segment with the reference implementation, under an error bound.

A checked segment copies its inputs, runs, synchronizes, and compares every element of its results on the host. If one
differs, check mode compiles and runs growing prefixes of the segment to find the first op that differs. It also checks
that the segment changes no input that it only reads.

Must not know: frontends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.diagnostics.error_bounds import bounded_outputs
from tracefuse.errors import DeviceError, InternalError
from tracefuse.ir.control_flow import ControlFlow
from tracefuse.ir.error_models import Bounded
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.reference import evaluate
from tracefuse.passes.rewriter import needed_for, with_nodes
from tracefuse.runtime.compiled_segment import CompiledSegment
from tracefuse.runtime.memory.spans import span
from tracefuse.runtime.targets.target import Target

RunAlone: TypeAlias = Callable[[Fusion, Sequence[Any]], Sequence[Any]]
"""Compiles a fusion and runs it without checks."""

REPORT = "a bug of tracefuse: please report it with the script that options(dump='fusion') writes"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first element of an array outside of its error bound. count: such elements, out of `size`."""

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
    """The first element that differs from (values, bounds) by more than its bound; None if there is none."""
    value, bound = expected
    computed = np.asarray(actual).astype(value.dtype)
    with np.errstate(all="ignore"):
        same = computed == value
        if value.dtype.kind in "fc":
            same |= (np.abs(computed - value) <= bound) | (np.isnan(computed) & np.isnan(value))
    wrong = ~(same | np.isinf(bound))
    if not wrong.any():
        return None
    at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    place = tuple(map(int, at))
    return Difference(place, computed[at].item(), value[at].item(), float(bound[at]), int(wrong.sum()), wrong.size)


class CheckedSegment:
    """Runs a segment and checks its results.

    inputs: value numbers of its arguments in the original fusion. Raises InternalError for a wrong element or a changed
    input, OutOfRangeError for an index outside of its axis, DeviceError for a launch that failed on the device.
    """

    def __init__(self, segment: CompiledSegment, position: int, target: Target, run_alone: RunAlone) -> None:
        self.part, self.run, self.target, self.run_alone = segment.part, segment.run, target, run_alone
        self.name = f"segment {position} ({segment.template})"
        self.count = len(segment.inputs)
        self.inputs = tuple(dict.fromkeys((*segment.inputs, *segment.part.segment.original_inputs)))

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any] | None:
        self._wait("work before")
        saved = [self._copy(value) for value in inputs]
        on_host = [self._host(value) for value in saved]
        arguments = self._own_arguments(on_host)
        self._check_indices(arguments)
        new_outputs = self.run(inputs[: self.count], outputs)
        self._wait("")
        results = outputs if new_outputs is None else new_outputs
        self._check_inputs(inputs, on_host, results)
        self._check_results(arguments, self._own_arguments(saved), results)
        return new_outputs

    def _wait(self, work: str) -> None:
        """Synchronizes. Raises DeviceError if a launch failed. work: the launched work, if not the segment."""
        try:
            self.target.device.synchronize()
        except DeviceError as error:
            raise DeviceError(
                f"{work} {self.name} failed on the device: {error.message}".lstrip(),
                hint="a GPU fault ends the CUDA context: start a new process", where=self._line(),
            ) from None  # fmt: skip

    # -- arguments --------------------------------------------------------------------------------------------------

    def _copy(self, value: Any) -> Any:
        return value.copy() if hasattr(value, "strides") else value

    def _host(self, value: Any) -> Any:
        return self.target.device.on_host(value) if hasattr(value, "strides") else value

    def _own_arguments(self, values: Sequence[Any]) -> list[Any]:
        """The values in the order of the inputs of the segment's own definition."""
        named = dict(zip(self.inputs, values, strict=True))
        return [named[self.part.segment.index_map[number]] for number in self.part.fusion.inputs]

    def _check_indices(self, arguments: Sequence[Any]) -> None:
        """Raises OutOfRangeError for an index out of range, which a GPU kernel would clamp."""
        evaluate(self.part.fusion, arguments)

    # -- results ------------------------------------------------------------------------------------------------------

    def _check_inputs(self, inputs: Sequence[Any], before: Sequence[Any], results: Sequence[Any]) -> None:
        """Raises InternalError if an input that shares no byte with a result has changed."""
        for number, value, old in zip(self.inputs, inputs, before, strict=True):
            if not hasattr(value, "strides") or self._shares(value, results):
                continue
            if self._host(value).tobytes() != old.tobytes():
                raise InternalError(f"{self.name} changed its input T{number}", hint=REPORT, where=self._line())

    def _shares(self, value: Any, results: Sequence[Any]) -> bool:
        value_span = span(self.target.device, value)
        return any(value_span.shares_bytes_with(span(self.target.device, result)) for result in results)

    def _check_results(self, arguments: Sequence[Any], inputs: Sequence[Any], results: Sequence[Any]) -> None:
        fusion = self.part.fusion
        bounded = dict(zip(fusion.outputs, bounded_outputs(fusion, arguments), strict=True))
        for number, result in zip(self.part.segment.outputs, results, strict=True):
            difference = first_difference(self._host(result), bounded[number])
            if difference is not None:
                raise self._error(arguments, inputs, number, difference)

    def _error(
        self, arguments: Sequence[Any], inputs: Sequence[Any], output: int, difference: Difference
    ) -> InternalError:
        hint = REPORT
        first = self._first_wrong(arguments, inputs)
        if first is None:
            node, number = self._node_of(output), output
            hint = f"each of its ops is correct when compiled alone, so the difference comes from fusing them; {hint}"
        else:
            node, number, difference = first
        value = self.part.segment.value_map.get(number, number)
        return InternalError(
            f"{self.name} differs from the reference implementation, first at {node.op.name}: T{value}{difference}",
            hint=hint,
            where=node.where,
        )

    def _first_wrong(self, arguments: Sequence[Any], inputs: Sequence[Any]) -> tuple[Node, int, Difference] | None:
        """The first op of the segment whose result is wrong when only it and its producers are compiled."""
        fusion = self.part.fusion
        for node in fusion.nodes:
            number = node.outputs[0]
            if not fusion.values[number].is_tensor:
                continue
            alone = with_nodes(replace(fusion, outputs=(number,), aliases={}), needed_for(fusion, (number,)))
            (result,) = self.run_alone(alone, inputs)
            difference = first_difference(self._host(result), bounded_outputs(alone, arguments)[0])
            if difference is not None:
                return node, number, difference
        return None

    def _node_of(self, number: int) -> Node:
        return next(node for node in self.part.fusion.nodes if number in node.outputs)

    def _line(self) -> str | None:
        return next((node.where for node in self.part.fusion.nodes if node.where), None)


def checked(segment: CompiledSegment, position: int, target: Target, run_alone: RunAlone) -> CompiledSegment:
    """The segment with every run checked.

    An effect is not: the reference implementation would be a second one. Nor is control flow: each segment of its
    sub-fusions is checked, at every step.
    """
    op = None if segment.part.library is None else segment.part.library.op
    if isinstance(op, ControlFlow) or (op is not None and op.effect):
        return segment
    check = CheckedSegment(segment, position, target, run_alone)
    return replace(segment, run=check, inputs=check.inputs, code=None)
