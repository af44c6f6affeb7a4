"""A segmented fusion on every device that it is called on: one executable each, made when it is first needed.

Arrays say where they are. They come in as NumPy or CuPy arrays that share their memory and results leave as the kind
that came in.

Knows: executables, kinds of arrays, options. Must not know: how a fusion was recorded, what is printed.
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
from tracefuse.runtime.memory.buffer_facts import NO_BUFFER_USE, OutputBufferUse, returned
from tracefuse.runtime.memory.call_facts import check_arguments
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.targets.resolution import resolve_target, target_for

MOST_EXECUTABLES = 64
"""Executables kept, one for each device and set of options; the oldest goes first."""
register(Cache(
    "compiler.placed_fusion.PlacedFusion._executables", "executables", "target, device, options",
    f"{MOST_EXECUTABLES}, the oldest go", "a `FusionDefinition`", "with the definition",
))  # fmt: skip


class CacheInfo(NamedTuple):
    """How often something was traced, how many sets of kernels were built, how many calls found what they needed."""

    traces: int
    compiles: int
    hits: int

    def _repr_html_(self) -> str:
        return segment_table.html_of(self)


class PlacedFusion:
    """A segmentation that can be called with arrays of any kind, anywhere."""

    def __init__(self, segmentation: Segmentation, decorator: Mapping[str, Any] | None = None) -> None:
        self.segmentation = segmentation
        self.decorator = decorator  # the options of the fused function that it comes from
        self._executables: BoundedTable[tuple[str, int | None, Options], Executable] = BoundedTable(MOST_EXECUTABLES)
        self._compiles_dropped = 0
        # Of NumPy and CuPy arrays alone, whose calls need no look at what the arrays are.
        self._own: list[Executable] = []
        self._returned = len(returned(self.fusion))
        self.hits = 0

    @classmethod
    def from_executable(
        cls, executable: Executable, device: int | None, decorator: Mapping[str, Any] | None = None
    ) -> PlacedFusion:
        """What is compiled already, as it is. decorator: the options of the function, weaker than a `with` block's."""
        made = cls(executable.segmentation, decorator)
        target, device = resolve_target(executable.options.target, device)
        made._executables[target, device, executable.options] = executable
        return made

    @property
    def fusion(self) -> Fusion:
        return self.segmentation.original

    @property
    def compiles(self) -> int:
        """How many plans were built, on all devices."""
        return self._compiles_dropped + sum(executable.compiles for executable in self._executables.values())

    @property
    def executables(self) -> tuple[Executable, ...]:
        """One for each device and set of options that it was called with."""
        return tuple(self._executables.values())

    def __call__(self, arguments: Sequence[Any], outputs: Sequence[Any] | None = None) -> list[Any]:
        """The outputs, in the order of the fusion, into `outputs` where they are given.

        Raises as `Executable`, DeviceError for arrays on two devices.
        """
        if len(arguments) == len(self.fusion.inputs) and config.overrides() is None:
            found = self._attempt(arguments, outputs)
            if found is not None:
                self.hits += 1
                return found
        return self._called(arguments, outputs)

    def _attempt(self, arguments: Sequence[Any], outputs: Sequence[Any] | None) -> list[Any] | None:
        """The outputs, where a plan that was built for NumPy or CuPy arrays fits."""
        use = NO_BUFFER_USE
        if outputs is not None:
            buffers = [buffer for buffer in outputs if buffer is not None]
            if len(outputs) != self._returned:
                return None
            if buffers:
                use, arguments = OutputBufferUse.of(outputs), [*arguments, *buffers]
        for executable in self._own:
            plans = executable.plans
            found = plans.attempt(arguments) if use is NO_BUFFER_USE else plans.attempt_into(arguments, use)
            if found is not None:
                return found
        return None

    def _called(self, arguments: Sequence[Any], outputs: Sequence[Any] | None) -> list[Any]:
        check_arguments(self.fusion, arguments)
        kind, device = self._place(arguments)
        entered = [self._entered(kind, argument) for argument in arguments]
        if outputs is not None or self.fusion.aliases:
            arrays.check_can_change(kind, "the memory of a result")
        given = None if outputs is None else [None if o is None else arrays.entering(kind)(o) for o in outputs]
        if config.resolve(self.decorator).target == "reference":
            made = EvaluatedExecutable(self.fusion)(entered, given)
        else:
            executable = self._executable(device)
            before = executable.compiles
            made = executable(entered, given)
            self.hits += executable.compiles == before
            if kind in ("numpy", "cupy") and config.overrides() is None and executable not in self._own:
                self._own = [executable, *self._own]
        arrays.hold(kind, entered)
        leave = arrays.leaving(kind)
        own = outputs or [None] * len(made)
        return [leave(result) if buffer is None else buffer for result, buffer in zip(made, own, strict=True)]

    def steps(self, arguments: Sequence[Any]) -> Generator[dict[int, Any], None, list[Any]]:
        """Runs, yielding what is live before the first segment and after each one; returns the outputs.

        What is yielded are NumPy or CuPy arrays.
        """
        check_arguments(self.fusion, arguments)
        kind, device = self._place(arguments)
        entered = [self._entered(kind, argument) for argument in arguments]
        outputs = yield from self._executable(device).steps(entered)
        return list(map(arrays.leaving(kind), outputs))

    def plan_for(self, arguments: Sequence[Any]) -> tuple[Plan, Mapping[int, int]]:
        """The plan of a call with arguments like these (arrays or ShapeDtypes), and the extent values; nothing runs."""
        check_arguments(self.fusion, arguments)
        return self._executable(self._place(arguments)[1]).plan_for(arguments)

    def concretization(self, arguments: Sequence[Any]) -> Concretization:
        """What the fusion becomes for arguments like these (arrays or ShapeDtypes); nothing is compiled or run."""
        check_arguments(self.fusion, arguments)
        return self._executable(self._place(arguments)[1]).concretization(arguments)

    def _place(self, arguments: Sequence[Any]) -> tuple[str, int | None]:
        numbered = zip(self.fusion.inputs, arguments, strict=True)
        return arrays.place_of([(a, f"input T{n}") for n, a in numbered if self.fusion.values[n].is_tensor])

    def _entered(self, kind: str, argument: Any) -> Any:
        return (
            argument
            if isinstance(argument, bool | int | float | complex | np.generic)
            else arrays.entering(kind)(argument)
        )

    def _executable(self, device: int | None) -> Executable:
        options = config.resolve(self.decorator)
        target, device = resolve_target(options.target, device)
        key = (target, device, options)
        found = self._executables.get(key)
        if found is None:
            found = Executable(self.segmentation, target_for(target, device or 0), options=options)
            if len(self._executables) == MOST_EXECUTABLES:
                self._compiles_dropped += next(iter(self._executables.values())).compiles
            self._executables[key] = found
        return found
