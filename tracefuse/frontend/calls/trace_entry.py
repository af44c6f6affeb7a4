"""An entry of the trace cache: a trace with its executable.

It matches a call against the trace (state that the trace read, captured arrays, guards), and assembles the result from
the outputs.

Must not know: options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse import pytrees
from tracefuse.compiler.executable import Executable
from tracefuse.compiler.reference_executable import EvaluatedExecutable
from tracefuse.dynamic.guard_failures import GuardFailure
from tracefuse.frontend.calls.call import CallArguments, Signature
from tracefuse.frontend.calls.compiled_stages import Environment
from tracefuse.frontend.calls.leaf_values import LeafValues, write_back
from tracefuse.frontend.recorded_trace import FROM_STAGE, Captured, Trace
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.captured.routes import CHANGED, CallRoots
from tracefuse.frontend.tracer.effects.printed_values import print_all, run_and_print
from tracefuse.frontend.tracer.values.result_leaves import ArgumentLeaf
from tracefuse.runtime.argument_leaves import LeafKind, array_key
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.memory.buffer_facts import OutputBufferUse, returned
from tracefuse.runtime.targets.array_device import ArrayDevice
from tracefuse.runtime.targets.cpu.cpu_target import cpu_target

_INT64 = range(-(2**63), 2**63)


@dataclass(slots=True, eq=False)
class Entry:
    """A trace with its executable, which is None if the result contains no computed array.

    guard: tests the arguments, None if there is nothing to test. single: the result is one output, not in a pytree.
    kind: the array library. device: the GPU, or None for the host. keys: the trace key of each argument, by path.
    before, cause: the sizes of the call that was traced, and the guard failure that led to this trace. values: of the
    call that was traced, if the function asked questions about computed values; such a call has run. device_of_stages:
    of such a function, the device that runs its stages. over_ranks: of a function over a mesh, what its ranks run.
    """

    trace: Trace
    executable: Executable | EvaluatedExecutable | None
    guard: Callable[[Sequence[Any]], bool] | None
    single: bool
    kind: str
    device: int | None
    keys: tuple[tuple[str, Any], ...] = ()
    before: Mapping[int, Any] = field(default_factory=dict)
    cause: GuardFailure | None = None
    values: Environment | None = None
    device_of_stages: ArrayDevice | None = None
    over_ranks: Any = None

    def take_values(self) -> Environment:
        """Returns the values of the traced call; the entry, which the tree keeps, forgets them."""
        values, self.values = self.values, None
        assert values is not None
        return values

    @property
    def compiles(self) -> int:
        """The number of plans built."""
        local = 0 if self.executable is None else self.executable.compiles
        return local if self.over_ranks is None else int(self.over_ranks.compiles)

    def facts_to_explain(self) -> dict[str, Any]:
        """The fields of an `Explanation` that the trace determines."""
        trace = self.trace
        return {
            "captured": tuple(capture.path for capture in trace.captured),
            "traced": tuple(map(str, (*trace.guards, *trace.scalar_guards))),
            "retraced": str(self.cause or ""),
            "prologue": () if trace.prologue is None else trace.prologue.listing(),
            "compared": tuple(f"{array.place.path}: {array.nbytes} bytes" for array in trace.bypassed),
            "unrolled": trace.unrolled,
        }

    @property
    def array_device(self) -> ArrayDevice:
        """The device that holds the arguments."""
        if self.device_of_stages is not None:
            return self.device_of_stages
        return (self.executable.target if isinstance(self.executable, Executable) else cpu_target()).device


def finish_call(
    entry: Entry, leaves: Sequence[Any], arguments: Sequence[Any], outputs: Sequence[Any], roots: CallRoots
) -> Any:
    """Writes the changed state back and returns the result.

    leaves: of the call. arguments, outputs: of the fusion.
    """
    trace = entry.trace
    values = LeafValues(trace.new_objects, lambda: trace.facts(arguments), leaves, outputs, roots)
    result = pytrees.unflatten(trace.structure, [values.of(leaf) for leaf in trace.results])
    if trace.writes:
        write_back(trace.writes, values, roots)
    return result


def match_arguments(entry: Entry, call: CallArguments) -> list[Any] | None:
    """The arguments of the fusion, or None if a guard of the trace fails for this call."""
    arguments = fusion_arguments(entry, call)
    if arguments is None or (entry.guard is not None and not entry.guard(arguments)):
        return None
    if entry.trace.scalar_guards:
        facts = entry.trace.facts(arguments)
        if not all(guard.holds(facts) for guard in entry.trace.scalar_guards):
            return None
    return arguments


def fusion_arguments(entry: Entry, call: CallArguments) -> list[Any] | None:
    """The arguments of the fusion, or None if state that the trace read or captured has changed.

    What a stage computes is None.
    """
    traced, roots = entry.trace, call.roots
    if not all(place.unchanged(roots) for place in traced.statics):
        return None
    if not all(array.unchanged(roots) for array in traced.bypassed):
        return None
    try:
        if any(first.read(roots) is not second.read(roots) for first, second in traced.pairs):
            return None
        if not all(are_apart(group, roots) for group in traced.apart):
            return None
        captured = [capture.read(roots) for capture in traced.captured]
    except CHANGED:
        return None
    if not all(map(fits, traced.captured, captured)):
        return None
    if traced.prologue is not None:
        results = traced.prologue.results([captured[position] for position in traced.prologue.captured])
        if results is None:
            return None
        captured += results
    enter = arrays.entering(entry.kind)
    arguments: list[Any] = []
    for origin in traced.sources:
        if origin == FROM_STAGE:
            arguments.append(None)
            continue
        leaf = None if origin < 0 else call.leaves[origin]
        if leaf is None:
            value = captured[-origin - 1]
            arguments.append(value.item() if isinstance(value, np.generic) else enter(value))
        else:
            arguments.append(leaf.number if leaf.kind is LeafKind.SCALAR else enter(leaf.value))
    if traced.host_sizes:
        traced.add_host_sizes(arguments)
    return arguments


def are_apart(group: Sequence[Place], roots: CallRoots) -> bool:
    """Whether places lead to different objects."""
    try:
        return len({id(place.read(roots)) for place in group}) == len(group)
    except CHANGED:
        return False


def fits(capture: Captured, array: Any) -> bool:
    """Whether `array`, now in the place of a captured one, has the type and rank that the trace assumed."""
    if capture.scalar:
        is_exact: Any = type(array) is capture.key
        return bool(is_exact and (capture.key is not int or array in _INT64))
    if array is capture.array:
        return True
    if arrays.kind_of(array) is None:
        return False
    return bool(array_key(array, arrays.dtype_of_argument(array, capture.path)) == capture.key)


def run_with_prints(entry: Entry, arguments: Sequence[Any], buffers: Sequence[Any] | None) -> list[Any]:
    """Runs an entry whose trace prints values, and returns the outputs. buffers: as `outputs` of `Executable`."""
    executable, prints, facts = entry.executable, entry.trace.prints, entry.trace.facts(arguments)
    if executable is None:
        print_all(prints, {}, (), facts)
        return []
    fusion = executable.fusion
    numbers = returned(fusion)
    count = entry.trace.output_count + len(entry.trace.updated_numbers)
    padded = None if buffers is None else [*buffers, *[None] * (len(numbers) - count)]
    if isinstance(executable, EvaluatedExecutable):
        outputs = executable(arguments, padded)
        print_all(prints, dict(zip(numbers, outputs, strict=True)), fusion.outputs, facts)
    else:
        outputs = run_and_print(prints, executable.steps(arguments, padded), fusion.outputs, facts)
    return outputs[:count]


def output_buffer_use(
    entry: Entry, call: CallArguments, signature: Signature, buffers: list[Any] | None
) -> OutputBufferUse:
    """Which outputs of a call have a buffer, and which of its arguments are donated."""
    if not signature.donated or entry.executable is None:
        return OutputBufferUse.of(buffers)
    leaves = {k for k, leaf in enumerate(call.leaves) if leaf.is_array and signature.is_donated(leaf.path)}
    if leaves:
        arrays.check_can_donate(entry.kind)
    numbers = {origin: n for n, origin in zip(entry.trace.fusion.inputs, entry.trace.sources, strict=True)}
    returned = {leaf.position for leaf in entry.trace.results if isinstance(leaf, ArgumentLeaf)}
    donated = [leaf for leaf in sorted(leaves) if leaf in numbers]
    returned_inputs = (numbers[leaf] for leaf in donated if leaf in returned)
    return OutputBufferUse.of(buffers, (numbers[leaf] for leaf in donated), returned_inputs)
