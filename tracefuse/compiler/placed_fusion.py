"""A segmented fusion with one executable per device and set of options, created at the first call that needs it.

The arguments determine the device. Arrays of other libraries enter as NumPy or CuPy arrays that share their memory, and
results leave as arrays of the caller's library.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracefuse import config
from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.compiler.executable import Executable
from tracefuse.compiler.reference_executable import EvaluatedExecutable
from tracefuse.config import Options
from tracefuse.dynamic.concretization import Concretization
from tracefuse.ir.fusion import Fusion
from tracefuse.partition import segment_table
from tracefuse.partition.segmentation import Segmentation
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.devices.shape_dtype import FOREIGN
from tracefuse.runtime.memory.buffer_facts import NO_BUFFER_USE, OutputBufferUse, returned
from tracefuse.runtime.memory.call_facts import check_arguments
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.targets.resolution import resolve_target, target_for

MOST_EXECUTABLES = 64
"""Executables per definition, one for each device and set of options; the oldest is evicted first."""
register(Cache(
    "compiler.placed_fusion.PlacedFusion._executables", "executables", "target, device, options",
    f"{MOST_EXECUTABLES}, the oldest go", "a `FusionDefinition`", "with the definition",
))  # fmt: skip


class CacheInfo(NamedTuple):
    """Counts of traces, of compiled plans, and of calls that hit the cache."""

    traces: int
    compiles: int
    hits: int

    def _repr_html_(self) -> str:
        return segment_table.html_of(self)


class PlacedFusion:
    """A segmented fusion that can be called with arrays of any supported library and device."""

    def __init__(self, segmentation: Segmentation, decorator: Mapping[str, Any] | None = None) -> None:
        self.segmentation = segmentation
        self.decorator = decorator  # the options of the fused function that recorded the fusion
        self._executables: BoundedTable[tuple[str, int | None, Options], Executable] = BoundedTable(MOST_EXECUTABLES)
        self._compiles_dropped = 0
        # Executables of NumPy or CuPy arrays, which such arguments may try without any conversion.
        self._native_executables: list[Executable] = []
        self._shared_kind: str | None = None  # the library of the arrays of the last call in full, if it is another one
        self._returned = len(returned(self.fusion))
        self.hits = 0

    @classmethod
    def from_executable(
        cls, executable: Executable, device: int | None, decorator: Mapping[str, Any] | None = None
    ) -> PlacedFusion:
        """Wraps an executable. decorator: the options of the function, which a `with` block overrides."""
        placed = cls(executable.segmentation, decorator)
        target, device = resolve_target(executable.options.target, device)
        placed._executables[target, device, executable.options] = executable
        return placed

    @property
    def fusion(self) -> Fusion:
        return self.segmentation.original

    @property
    def compiles(self) -> int:
        """The number of plans built, on all devices."""
        return self._compiles_dropped + sum(executable.compiles for executable in self._executables.values())

    @property
    def executables(self) -> tuple[Executable, ...]:
        """One executable for each device and set of options that calls have used."""
        return tuple(self._executables.values())

    def __call__(self, arguments: Sequence[Any], outputs: Sequence[Any] | None = None) -> list[Any]:
        """Runs the fusion and returns its outputs in order. outputs: an output buffer or None for each.

        Raises as `Executable.__call__`, and DeviceError for arrays on two devices.
        """
        results = self.attempt(arguments, outputs)
        return self._call_in_full(arguments, outputs) if results is None else results

    def attempt(self, arguments: Sequence[Any], outputs: Sequence[Any] | None = None) -> list[Any] | None:
        """As a call, if a plan for NumPy or CuPy arrays fits the arguments, shared if they are of another library.

        Else None, with nothing run.
        """
        if len(arguments) != len(self.fusion.inputs) or config.overrides() is not None:
            return None
        results = self._attempt(arguments, outputs)
        if results is None and self._shared_kind is not None and outputs is None:
            results = self._attempt_shared(arguments, self._shared_kind)
        if results is not None:
            self.hits += 1
        return results

    def call_at(
        self, place: tuple[str, int | None], arguments: Sequence[Any], outputs: Sequence[Any] | None = None
    ) -> list[Any]:
        """As a call. place: the kind of the results and the GPU (None for the host) of a fusion without arrays."""
        return self._call_in_full(arguments, outputs, place)

    def _attempt(self, arguments: Sequence[Any], outputs: Sequence[Any] | None) -> list[Any] | None:
        """The outputs, if a plan for NumPy or CuPy arrays fits the arguments as they are; else None."""
        use = NO_BUFFER_USE
        if outputs is not None:
            buffers = [buffer for buffer in outputs if buffer is not None]
            if len(outputs) != self._returned:
                return None
            if buffers:
                use, arguments = OutputBufferUse.of(outputs), [*arguments, *buffers]
        for executable in self._native_executables:
            plans = executable.plans
            results = plans.attempt(arguments) if use is NO_BUFFER_USE else plans.attempt_into(arguments, use)
            if results is not None:
                return results
        return None

    def _attempt_shared(self, arguments: Sequence[Any], kind: str) -> list[Any] | None:
        """As `_attempt`, for arrays of a kind of another library."""
        shared = [arrays.kind_of(argument) == kind for argument in arguments]
        pairs = list(zip(arguments, shared, strict=True))
        if not any(shared) or not all(arrays.can_enter(kind, a) for a, is_shared in pairs if is_shared):
            return None
        enter, leave = arrays.entering(kind), arrays.leaving(kind)
        native_arguments = [enter(a) if is_shared else a for a, is_shared in pairs]
        results = self._attempt(native_arguments, None)
        if results is None:
            return None
        arrays.hold(kind, native_arguments)
        return list(map(leave, results))

    def _call_in_full(
        self, arguments: Sequence[Any], outputs: Sequence[Any] | None, place: tuple[str, int | None] | None = None
    ) -> list[Any]:
        check_arguments(self.fusion, arguments)
        kind, device = self._place(arguments) if place is None else place
        native_arguments = [self._enter(kind, argument) for argument in arguments]
        if outputs is not None or self.fusion.aliases:
            arrays.check_can_change(kind, "an output buffer")
        buffers = None if outputs is None else [None if o is None else arrays.entering(kind)(o) for o in outputs]
        if config.resolve(self.decorator).target == "reference":
            results = EvaluatedExecutable(self.fusion)(native_arguments, buffers)
        else:
            executable = self._executable(device)
            before = executable.compiles
            results = executable(native_arguments, buffers)
            self.hits += executable.compiles == before
            if config.overrides() is None:
                self._shared_kind = kind if kind in FOREIGN else self._shared_kind
                if executable not in self._native_executables:
                    self._native_executables = [executable, *self._native_executables]
        arrays.hold(kind, native_arguments)
        leave = arrays.leaving(kind)
        padded = outputs or [None] * len(results)
        return [leave(result) if buffer is None else buffer for result, buffer in zip(results, padded, strict=True)]

    def steps(self, arguments: Sequence[Any]) -> Generator[dict[int, Any], None, list[Any]]:
        """Runs segment by segment: yields the live values before the first and after each one, returns the outputs.

        Live arrays are NumPy or CuPy arrays.
        """
        check_arguments(self.fusion, arguments)
        kind, device = self._place(arguments)
        native_arguments = [self._enter(kind, argument) for argument in arguments]
        outputs = yield from self._executable(device).steps(native_arguments)
        return list(map(arrays.leaving(kind), outputs))

    def plan_for(self, arguments: Sequence[Any]) -> tuple[Plan, Mapping[int, int]]:
        """The plan of a call with these arguments (arrays or ShapeDtypes), and the extent values; nothing runs."""
        check_arguments(self.fusion, arguments)
        return self._executable(self._place(arguments)[1]).plan_for(arguments)

    def concretization(self, arguments: Sequence[Any]) -> Concretization:
        """The concretized fusion for these arguments (arrays or ShapeDtypes); nothing is compiled or run."""
        check_arguments(self.fusion, arguments)
        return self._executable(self._place(arguments)[1]).concretization(arguments)

    def _place(self, arguments: Sequence[Any]) -> tuple[str, int | None]:
        numbered = zip(self.fusion.inputs, arguments, strict=True)
        return arrays.place_of([(a, f"input T{n}") for n, a in numbered if self.fusion.values[n].is_tensor])

    def _enter(self, kind: str, argument: Any) -> Any:
        return (
            argument
            if isinstance(argument, bool | int | float | complex | np.generic)
            else arrays.entering(kind)(argument)
        )

    def _executable(self, device: int | None) -> Executable:
        options = config.resolve(self.decorator)
        target, device = resolve_target(options.target, device)
        key = (target, device, options)
        executable = self._executables.get(key)
        if executable is None:
            executable = Executable(self.segmentation, target_for(target, device or 0), options=options)
            if len(self._executables) == MOST_EXECUTABLES:
                self._compiles_dropped += next(iter(self._executables.values())).compiles
            self._executables[key] = executable
        return executable
