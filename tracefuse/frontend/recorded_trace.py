"""A trace: a recorded function with what a later call needs to run it.

Must not know: compilation, recording.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.dynamic.guard_failures import GuardFailure, first_failure
from tracefuse.dynamic.guards import Guard
from tracefuse.dynamic.layouts import STRIDE_NAME
from tracefuse.frontend.tracer.captured.bypassed_arrays import BypassedArray
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.captured.prologue import Prologue
from tracefuse.frontend.tracer.captured.routes import CallRoots
from tracefuse.frontend.tracer.effects.printed_values import Print
from tracefuse.frontend.tracer.record.assumptions import ScalarGuard
from tracefuse.frontend.tracer.values.host_numbers import HostNumber
from tracefuse.frontend.tracer.values.result_leaves import NewObject, ResultLeaf, Write
from tracefuse.generated_code import compile_expression
from tracefuse.ir.extents import Symbol, python_text
from tracefuse.ir.fusion import Fusion
from tracefuse.runtime.devices import cuda_arrays

FROM_STAGE = -(1 << 62)
"""The source of an input that the call computes, in a stage or from its numbers and sizes, see `Trace`."""


@dataclass(slots=True, eq=False)
class Captured:
    """A captured array or number. place: where calls read it; None: this object itself.

    key: the type and rank that an array must have, the class of a number. scalar: whether it is a number.
    """

    place: Place | None
    array: Any
    key: Any
    scalar: bool = False

    @property
    def path(self) -> str:
        return self.place.path if self.place is not None else "a constant array"

    def read(self, roots: CallRoots) -> Any:
        return self.array if self.place is None else self.place.read(roots)


@dataclass(slots=True, eq=False)
class Trace:
    """A recorded function.

    guards: facts about sizes that the recording assumed; scalar_guards: about scalars. sources: for each input of the
    fusion the position of its leaf, -(k + 1) for the k-th of the captured arrays and the results of the prologue, or
    FROM_STAGE for what the call computes. host_sizes: the inputs that are sizes which the host computes, and how.
    statics: the state that the function read, to be compared at every call. bypassed: arrays among it, compared by
    contents. results: the origin of each leaf of the result. structure: the pytree of the result. device:
    the GPU of the arguments or of `device=`, or None. prints: the values that a call prints. sizes: extents and scalars
    of the traced call. pairs: places that must lead to the same object at every call. updated_numbers: the leaves of
    0-d arrays that the function updates in place; the last outputs that are returned are their new values. apart:
    groups of places that must lead to different objects. writes: the changes of the state, in order. new_objects: what
    each call creates for the result and for the state. output_count: the outputs that are for the result and for the
    state. conditions: under which numbers are what Python computes, for messages; with some, the last output that is
    returned is whether all hold. unrolled: long loops that are unrolled, with their lines and reasons.
    weak_outputs: the positions of outputs that promote as Python numbers, as arrays of JAX. by_jax: whether JAX has
    traced a call without arrays, which returns arrays of JAX.
    """

    fusion: Fusion
    guards: tuple[Guard, ...]
    scalar_guards: tuple[ScalarGuard, ...]
    sources: tuple[int, ...]
    captured: tuple[Captured, ...]
    statics: tuple[Place, ...]
    results: tuple[ResultLeaf, ...]
    structure: Any
    names: tuple[str, ...] = field(default=())
    device: int | None = None
    prints: tuple[Print, ...] = ()
    sizes: Mapping[int, Any] = field(default_factory=dict)
    pairs: tuple[tuple[Place, Place], ...] = ()
    prologue: Prologue | None = None
    bypassed: tuple[BypassedArray, ...] = ()
    updated_numbers: tuple[int, ...] = ()
    apart: tuple[tuple[Place, ...], ...] = ()
    writes: tuple[Write, ...] = ()
    new_objects: tuple[NewObject, ...] = ()
    output_count: int = 0
    conditions: tuple[str, ...] = ()
    unrolled: tuple[str, ...] = ()
    weak_outputs: frozenset[int] = frozenset()
    host_sizes: tuple[tuple[int, HostNumber], ...] = ()
    by_jax: bool = False

    @property
    def reads_state(self) -> bool:
        """Whether a call reads anything but its arguments."""
        return bool(self.captured or self.statics or self.bypassed or self.pairs or self.apart or self.prologue)

    def place(self, kind: str) -> tuple[str, int | None]:
        """Returns the kind and the device of the results of a call without arrays. kind: the default."""
        if self.by_jax:
            return "jax", None
        return (kind, None) if self.device is None else ("cupy", self.device)

    def facts(self, arguments: Sequence[Any]) -> dict[int, Any]:
        """Extents and scalars of a call, for arguments in the order of the fusion's inputs."""
        by_value = dict(zip(self.fusion.inputs, arguments, strict=True))
        facts: dict[int, Any] = {key: by_value[value].shape[axis] for key, value, axis in self.fusion.axis_ids()}
        for number in self.fusion.scalar_inputs:
            facts[number] = by_value[number]
        return facts

    def add_host_sizes(self, arguments: list[Any]) -> None:
        """Computes the sizes that the host computes, for the arguments of a call without other stages."""
        positions = {number: position for position, number in enumerate(self.fusion.inputs)}
        sizes = dict(self.host_sizes)
        if any(arguments[position] is None and number not in sizes for number, position in positions.items()):
            return  # stages of the call compute these numbers, and then the sizes
        for number, read in self.host_sizes:
            arguments[positions[number]] = int(read(self.facts(arguments)))

    def place_constants(self, kind: str, device: int | None) -> None:
        """Copies arrays that the recording created to the GPU of CuPy arguments."""
        for capture in self.captured:
            if (
                kind == "cupy"
                and device is not None
                and capture.place is None
                and isinstance(capture.array, np.ndarray)
            ):
                capture.array = cuda_arrays.to_device(capture.array, device)

    @property
    def runs(self) -> bool:
        """Whether a call computes a value or checks its sizes."""
        return bool(self.fusion.outputs or self.fusion.requirements)

    def never_one(self) -> tuple[Guard, ...]:
        """The guards that the trace key implies: no symbolic extent of an argument is 1."""
        reason = "an extent of 1 is another trace"
        symbolic = (self.fusion.values[v].shape[axis] for _, v, axis in self.fusion.axis_ids())
        return tuple(Guard(extent, "!=", 1, reason) for extent in symbolic if not isinstance(extent, int))

    def guard_failure(self, arguments: Sequence[Any], before: Mapping[int, Any]) -> GuardFailure | None:
        """The first guard that fails for these arguments. before: the extents and scalars of the traced call."""
        return first_failure(self.fusion, self.guards, before, self.facts(arguments))

    def guard_function(self) -> Callable[[Sequence[Any]], bool] | None:
        """Compiles the guards into a function of the arguments, in the fusion's order; None without guards."""
        if not self.guards:
            return None
        axis_of = {key: (self.fusion.inputs.index(value), axis) for key, value, axis in self.fusion.axis_ids()}

        def name(symbol: Symbol) -> str:
            assert symbol.id is not None
            if symbol.id >= 0:
                return f"int(a[{self.fusion.inputs.index(symbol.id)}])"
            position, axis = axis_of[symbol.id]
            return f"a[{position}].shape[{axis}]"

        def fact(symbol: Symbol) -> str:
            match = STRIDE_NAME.fullmatch(symbol.name) if symbol.id is None else None
            if match is None:
                return name(symbol)
            number, axis = map(int, match.groups())
            itemsize = self.fusion.values[number].dtype.itemsize
            return f"(a[{self.fusion.inputs.index(number)}].strides[{axis}] // {itemsize})"

        tests = dict.fromkeys(
            f"{python_text(g.left, fact)} {g.relation} {python_text(g.right, fact)}" for g in self.guards
        )
        return compile_expression("a", " and ".join(tests), "guards of a trace")
