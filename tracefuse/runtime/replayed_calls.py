"""Calls that are replayed for sizes that come again, without Python code (`KernelCompiler.chain`).

For arguments of the same sizes a call allocates, launches and releases the same. What that is comes from a generated
function that reads the sizes as the call does and returns the shapes of arrays and the arguments of launches. A call
that updates arguments does so only if they share no memory with others. A call stays as it is where anything else
happens in it: library calls, output buffers, scalars that the host computes from floats.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from segments import Alias, AllocateBuffer, CopyBuffer, Instruction, Launch, Release, name_of
from segments.lazy_dataclasses import dataclass
from tracefuse.caches import Cache, register
from tracefuse.dtypes import DType
from tracefuse.dynamic.layouts import known_bounds
from tracefuse.generated_code import compile_function
from tracefuse.kernel.llvm.device_arrays import REMAINDER
from tracefuse.kernel.llvm.device_records import DeviceChain
from tracefuse.kernel.llvm.replay_copies import runs_of
from tracefuse.kernel.llvm.replay_records import (
    Allocated,
    Apart,
    Argument,
    ArrayArgument,
    ArrayBytes,
    CallValue,
    Copied,
    ErrorFlag,
    Launched,
    Released,
    ReplayChain,
    Step,
)
from tracefuse.partition.result_orders import inverse
from tracefuse.runtime.call_code import Call, CallWriter
from tracefuse.runtime.compiled_segment import CompiledSegment
from tracefuse.runtime.joined_launches import JoinedAllocations, JoinedLaunches
from tracefuse.runtime.launch_code import ArgumentNames
from tracefuse.runtime.memory.buffer_facts import returned
from tracefuse.runtime.memory.memory_code import memory_names
from tracefuse.runtime.moved_slices import moved, view_of_input
from tracefuse.runtime.targets.array_device import ArrayDevice

MOST_SEEN = 64
"""The sizes of a plan that are remembered until they come again; a call with more of them is not replayed."""

register(Cache(
    "runtime.replayed_calls._Learner._seen", "sizes that came once", "sizes of arguments", f"{MOST_SEEN}, then none",
    "the call of a plan", "with the plan",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Allocation:
    """An array that a call allocates: its number among the values, the text of its shape, its type."""

    number: int
    shape: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class _KernelLaunch:
    """A launch: what `KernelCompiler.replayable` returns and the texts of the arguments."""

    function: Any
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _FromArrays:
    """A step that depends on the arrays of a call: the text of the tuple that holds it. is_test: it is an `Apart`."""

    text: str
    is_test: bool = False


_Part = _Allocation | tuple[_Allocation, ...] | _KernelLaunch | _FromArrays | Released


def replayed(call: Call, writer: CallWriter, scalars: Callable[[Sequence[Any], Mapping[int, int]], Any]) -> Call:
    """Returns a call that is replayed for sizes that come again; the same call if it cannot be.

    call: gives results their order in memory. writer: wrote the call. scalars: as for `compile_call`.
    """
    listed = _Parts(writer)
    parts = listed.parts() if _is_plain(writer) else None
    if parts is None:
        return call
    writer.names["compute_scalars"] = scalars
    learner = _Learner(call, writer, parts, listed)
    chain = writer.target.compiler.chain(learner.run, writer.target.device.empty)
    if chain is None:
        return call
    learner.chain = weakref.ref(chain)
    return chain.function()


def _is_plain(writer: CallWriter) -> bool:
    """Whether the types, sizes, layouts and integers of arguments decide what a call does, and floats nothing else."""
    plan, fusion, memory = writer.plan, writer.fusion, writer.memory
    is_plain = plan.is_straight and plan.is_written and not any(arena.slot_sizes for arena in plan.arena_plan.arenas)
    is_plain = is_plain and not (plan.donated or plan.reused or memory.buffers)
    is_plain = is_plain and not (writer.target.device.uses_alignment and any(plan.layouts))
    is_plain = is_plain and all(
        b.is_nested and {*b.same, *b.shares} <= {b.memory, b.owner} for b in plan.output_buffers
    )
    kinds = {fusion.values[n].dtype.kind for n in fusion.scalar_inputs}
    computes_scalars = any(not fusion.values[node.outputs[0]].is_tensor for node in fusion.nodes)
    return is_plain and kinds <= ({"int", "uint"} if computes_scalars else {"int", "uint", "float"})


class _Parts:
    """Lists what a call does.

    updated: the arguments that it updates. views: by number, the argument of which a value is a slice. bindings: the
    lines that define the variables of slices and of other names of values. shortcut: the text of a copy that does all
    that the call does, or of None.
    """

    def __init__(self, writer: CallWriter) -> None:
        self._writer, self._numbers = writer, {value: k for k, value in enumerate(writer.fusion.inputs)}
        self._parts: list[_Part] = []
        self._count = self._first = len(writer.fusion.inputs)
        self._has_updated = False
        buffers = writer.plan.output_buffers
        self.updated = dict.fromkeys(b.memory if b.owner is None else b.owner for b in buffers)
        self.views = {b.memory: b.owner for b in buffers if b.owner is not None}
        self.bindings = [f"    {name_of(number)} = {text}" for number, text in writer.memory.slices()]
        self.shortcut = "None"

    def parts(self) -> tuple[list[_Part], list[int]] | None:
        """Returns the parts and the numbers of the results, None if there is anything else."""
        program = self._writer.plan.program
        if self.updated and len(self._writer.fusion.tensor_inputs) > 1:
            spans = (
                f"span_of({self._numbers[n]}, {name_of(n)}, {n in self.updated})"
                for n in self._writer.fusion.tensor_inputs
            )
            self._parts.append(_FromArrays(f"(Apart(({', '.join(spans)},)),)", True))
        for group in self._writer.arena_plan.groups:
            if not all(map(self._add, self._writer.joined(group))):
                return None
        results = [self._numbers.get(value, -1) for value in program.outputs]  # -1 for a number of the host
        if len(set(results)) < len(results) or min(results, default=self._first) < self._first:
            return None
        return self._parts, results

    def _add(self, instruction: Instruction | JoinedLaunches | JoinedAllocations) -> bool:
        match instruction:
            case AllocateBuffer():
                self._parts.append(self._allocated(instruction))
                return not self._has_updated  # a call whose array cannot be made starts again
            case JoinedAllocations(allocations):
                self._parts.append(tuple(map(self._allocated, allocations)))
                return not self._has_updated
            case Release(value):
                number = self._numbers.get(value)
                if number is not None and number >= self._first:
                    self._parts.append(Released(number))
                return True
            case Alias(value, original):
                if original in self.views:
                    self.views[value] = self.views[original]
                else:
                    self._numbers[value] = self._numbers[original]
                self.bindings.append(f"    {name_of(value)} = {name_of(original)}")
                return True
            case CopyBuffer(source, target) if self._writer.target.compiler.replays_copies:
                self._has_updated = True
                number = self._numbers.get(source, -1)
                target_text = f"{self._text(target)}, {name_of(target)}"
                self._parts.append(_FromArrays(f"(copied(CallValue({number}), {target_text}),)"))
                self._shorten(source, target_text)
                return number >= self._first
            case Launch():
                return self._launch(instruction)
            case JoinedLaunches(launches):
                return self._launch_together(launches)
        return False

    def _allocated(self, instruction: AllocateBuffer) -> _Allocation:
        spec: Any = instruction.spec
        shape = "".join(f"{self._writer.extent(extent)}, " for extent in spec.extents)
        return self._allocate(instruction.value, shape, spec.dtype)

    def _shorten(self, source: int, target: str) -> None:
        """Notes the copy that does what the call does, if that is to write a view of an argument."""
        launches = [one for group in self._writer.arena_plan.groups for one in group if isinstance(one, Launch)]
        writes = len(self._writer.plan.output_buffers)
        if self._writer.plan.program.outputs or writes > 1 or [tuple(one.outputs) for one in launches] != [(source,)]:
            return
        view = view_of_input(self._writer.fusion, source, self._writer.extent, name_of)
        if view is not None:
            self.shortcut = f"moved({self._numbers[view[0]]}, {name_of(view[0])}, {view[1]}, {target})"

    def _allocate(self, value: int | tuple[int, int], shape: str, dtype: DType) -> _Allocation:
        number, self._count = self._count, self._count + 1
        if isinstance(value, int):
            self._numbers[value] = number
        return _Allocation(number, f"({shape})", dtype)

    def _launch(self, launch: Launch) -> bool:
        segment, compiler = launch.label, self._writer.target.compiler
        if not isinstance(segment, CompiledSegment) or segment.code is None:
            return False
        kernels = [compiler.replayable(function) for function in segment.functions]
        if segment.lowered is None or None in kernels:
            return False
        if segment.code.checked_nodes and (self.updated or self._writer.calls.addresses):
            return False  # a call with an index out of range is run again
        if self._has_updated and segment.lowered.scratch:
            return False
        plain = ArgumentNames(name_of, name_of, name_of, str)
        sizes = zip(segment.code.scratch(plain), segment.lowered.scratch, strict=True)
        allocated = [self._allocate((launch.step, k), f"{size}, ", s.dtype) for k, (size, s) in enumerate(sizes)]
        scratch = [one.number for one in allocated]
        self._parts += allocated
        for kernel, arguments in zip(kernels, segment.code.arguments(self._names(scratch)), strict=True):
            self._parts.append(_KernelLaunch(kernel, tuple(arguments)))
        self._parts += map(Released, scratch)
        self._note_updates(launch)
        return True

    def _launch_together(self, launches: Sequence[Launch]) -> bool:
        texts: list[str] = []
        kernel = None
        for launch in launches:
            segment = launch.label
            assert isinstance(segment, CompiledSegment)
            assert segment.code is not None
            kernel = kernel or self._writer.target.compiler.replayable_together(segment.functions[0])
            texts += (f"({', '.join(arguments)},)" for arguments in segment.code.arguments(self._names(())))
            self._note_updates(launch)
        self._parts.append(_KernelLaunch(kernel, tuple(texts)))
        return kernel is not None

    def _names(self, scratch: Sequence[int]) -> ArgumentNames:
        return ArgumentNames(
            self._text, name_of, self._number_text, lambda k: f"CallValue({scratch[k]})", "ErrorFlag()"
        )

    def _note_updates(self, launch: Launch) -> None:
        self._has_updated |= any(n in self.views or self._numbers[n] < self._first for n in launch.outputs)

    def _text(self, value: int) -> str:
        owner = self.views.get(value)
        if owner is None:
            return f"CallValue({self._numbers[value]})"
        return f"CallValue({self._numbers[owner]}, distance({name_of(value)}, {name_of(owner)}))"

    def _number_text(self, value: int) -> str:
        fusion = self._writer.fusion
        is_float = value in fusion.scalar_inputs and fusion.values[value].dtype.is_floating
        return self._text(value) if is_float else name_of(value)


class _Learner:
    """Runs the calls that no record fits, and adds one for sizes that come a second time. chain: of the records."""

    def __init__(
        self, call: Call, writer: CallWriter, parts: tuple[list[_Part], list[int]], listed: _Parts
    ) -> None:  # fmt: skip
        self._call, self._bindings, self._shortcut = call, listed.bindings, listed.shortcut
        self._parts, self._results = parts
        orders, numbers = writer.plan.segmentation.result_orders, returned(writer.fusion)
        self._axes = {
            result: inverse(orders[number])
            for result, number in zip(self._results, numbers, strict=True) if number in orders
        }  # fmt: skip
        self._is_updated = [n in listed.updated for n in writer.fusion.inputs]
        values = [writer.fusion.values[n] for n in writer.fusion.inputs]
        layouts = dict(zip(writer.fusion.tensor_inputs, writer.plan.layouts, strict=True))
        self._is_strided = [layouts.get(n) is not None for n in writer.fusion.inputs]
        self._is_float = [not value.is_tensor and value.dtype.is_floating for value in values]
        self._device: ArrayDevice = writer.target.device
        self._describe: Callable[[Sequence[Any]], tuple[tuple[Any, ...], ...]] | None = None
        self._writer: CallWriter | None = writer
        self._seen: dict[tuple[Any, ...], None] = {}
        self._is_learning = True
        self.chain: Callable[[], ReplayChain | DeviceChain | None] = lambda: None

    def run(self, arguments: tuple[Any, ...]) -> list[Any] | None:
        """Runs a call, and adds a record for its sizes if they have come before."""
        outputs = self._call(arguments)
        if self._is_learning and outputs is not None:
            self._learn(arguments)
        return outputs

    def _learn(self, arguments: tuple[Any, ...]) -> None:
        key = tuple(map(self._argument, arguments, self._is_strided, self._is_float, self._is_updated))
        if key not in self._seen:
            self._seen[key] = None
            self._is_learning = len(self._seen) < MOST_SEEN
            return
        chain = self.chain()
        if chain is None or any(isinstance(argument, ArrayArgument) and 0 in argument.shape for argument in key):
            return
        steps = self._steps(arguments)
        is_added = steps is not None and chain.add(key, steps, self._results)
        self._is_learning = is_added and not chain.is_full

    def _argument(self, argument: Any, is_strided: bool, is_float: bool, is_updated: bool) -> Argument:
        if is_float:
            return None
        if isinstance(argument, int):
            return argument
        remainder = self._device.address(argument) % REMAINDER if self._device.uses_alignment else 0
        strides = argument.strides if is_strided else None
        return ArrayArgument(argument.dtype, argument.shape, strides, is_updated, remainder)

    def _steps(self, arguments: tuple[Any, ...]) -> list[Step] | None:
        """Returns the steps; None if a copy has too many loops."""
        steps: list[Step] = []
        *described, shortcut = self._described(arguments)
        if shortcut is not None:
            tests = (
                found[0]
                for part, found in zip(self._parts, described, strict=True)
                if isinstance(part, _FromArrays) and part.is_test
            )
            return [*tests, shortcut]
        for part, found in zip(self._parts, described, strict=True):
            match part:
                case _Allocation():
                    steps.append(self._allocated(part, found))
                case tuple():
                    steps.append(tuple(map(self._allocated, part, found)))
                case _KernelLaunch(function):
                    steps.append(Launched(function, found))
                case _FromArrays():
                    if found[0] is None:
                        return None
                    steps.append(found[0])
                case Released():
                    steps.append(part)
        return steps

    def _allocated(self, allocation: _Allocation, shape: tuple[int, ...]) -> Allocated:
        dtype, axes = allocation.dtype, self._axes.get(allocation.number)
        return Allocated(allocation.number, shape, dtype.numpy, self._device.free_owners(shape, dtype), dtype, axes)

    def _described(self, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
        """Returns for each part the shape or the arguments in a call, and nothing for a release; last the shortcut."""
        if self._describe is None:
            assert self._writer is not None
            self._describe, self._writer = _describing(self._writer, self._parts, self._bindings, self._shortcut), None
        return self._describe(arguments)


def _copied(source: CallValue, target: CallValue, view: Any) -> Copied | None:
    """Returns the copy of a contiguous array into a view."""
    contiguous = [math.prod(view.shape[axis + 1 :]) * view.itemsize for axis in range(view.ndim)]
    runs = runs_of(view.shape, contiguous, view.strides, view.itemsize)
    return None if runs is None else Copied(source, target, runs)


def _span_of(number: int, array: Any, is_updated: bool) -> ArrayBytes:
    start, end = known_bounds(array.shape, array.strides, array.itemsize)
    return ArrayBytes(CallValue(number, start), end - start, is_updated)


_NAMES: Mapping[str, Any] = {
    "CallValue": CallValue, "ErrorFlag": ErrorFlag, "min": min, "max": max, "copied": _copied,
    "span_of": _span_of, "Apart": Apart, "moved": moved,
}  # fmt: skip


def _describing(
    writer: CallWriter, parts: Sequence[_Part], bindings: Sequence[str], shortcut: str
) -> Callable[[Sequence[Any]], tuple[tuple[Any, ...], ...]]:
    """Compiles the function that returns what `_Learner._described` does."""

    def text(part: _Part) -> str:
        match part:
            case _Allocation(_, shape, _):
                return shape
            case tuple():
                return f"({', '.join(one.shape for one in part)},)"
            case _KernelLaunch(_, arguments):
                return f"({''.join(f'{argument}, ' for argument in arguments)})"
            case _FromArrays(text_of_step, _):
                return text_of_step
            case Released():
                return "()"

    inputs = ", ".join(map(name_of, writer.fusion.inputs))
    lines = ["def describe(a):", *([f"    {inputs}, = a"] if inputs else []), *writer.checks.shapes()]
    lines += [*writer.scalar_lines(), *bindings]
    lines += [f"    return ({''.join(f'{text(part)}, ' for part in parts)}{shortcut},)", ""]
    address = writer.target.device.address
    names = {**writer.names, **memory_names(writer.target.device), **_NAMES}
    names["distance"] = lambda view, owner: address(view) - address(owner)
    return compile_function("\n".join(lines), "describe", names, "replay")  # type: ignore[no-any-return]
