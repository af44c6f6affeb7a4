"""Generates the Python function of a stream worker, in which a slice costs the host only its launches.

def bind(a):                              the arguments of one slice and its output buffers
    t0, e1, t1048576, = a
    x0 = ...                              arithmetic that is the same for all slices
    def start(stream):
        b0_0 = ...                        scratch memory, reused by all slices on the stream
        def run_slice(p0, p1048576):      the addresses of a slice
            run(stream, p0, p1048576, x0)
        return run_slice
    return start
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from segments import Alias, AllocateBuffer, Launch, Release, name_of
from segments.lazy_dataclasses import dataclass
from tracefuse.generated_code import compile_function
from tracefuse.ir.extents import evaluate, product
from tracefuse.runtime.call_code import CallWriter
from tracefuse.runtime.compiled_segment import CompiledSegment
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.targets.target import Target

Bind: TypeAlias = Callable[[Sequence[Any]], Callable[[Any], Callable[..., None]]]


@dataclass(frozen=True, slots=True)
class StreamWorkerCode:
    """bind: returns `StreamWorker.start` for the arguments and output buffers of one slice."""

    bind: Bind
    text: str


def compile_stream_worker(plan: Plan, target: Target) -> StreamWorkerCode | None:
    """Compiles a plan for a stream worker, None if it contains more than kernels that write to output buffers."""
    fusion = plan.segmentation.fusion
    computed = any(not fusion.values[node.outputs[0]].is_tensor for node in fusion.nodes)
    if computed or not all(map(_is_kernel_or_memory, plan.program.instructions)):
        return None
    writer = _WorkerWriter(plan, target)
    text = writer.worker_text()
    names = {**writer.names, **target.calls.names(), "min": min, "max": max}
    return StreamWorkerCode(compile_function(text, "bind", names, "slice"), text)


def worker_scratch_bytes(plan: Plan, sizes: Mapping[Any, int]) -> int:
    """Returns the scratch memory of a stream worker of `plan`, in bytes. sizes: the extents of a slice by id."""
    total = plan.arena_plan.bytes_of(sizes)
    for instruction in plan.program.instructions:
        match instruction:
            case AllocateBuffer(value, spec) if value not in plan.arena_plan.slots:
                total += evaluate(product(spec.extents), sizes) * spec.dtype.itemsize  # type: ignore[attr-defined]
            case Launch(step, _, _, CompiledSegment() as segment):
                scratch = enumerate(segment.scratch)
                without_slot = [entry for k, entry in scratch if (step, k) not in plan.arena_plan.scratch]
                total += sum(dtype.itemsize * evaluate(size, sizes) for dtype, size in without_slot)
    return total


def _new_error_flag() -> Any:
    """Returns the error flag that the kernels of a launch set for an index out of range."""
    return np.zeros(1, np.int64)


def _is_kernel_or_memory(instruction: object) -> bool:
    if isinstance(instruction, Launch):
        return isinstance(instruction.label, CompiledSegment) and instruction.label.code is not None
    return isinstance(instruction, AllocateBuffer | Alias | Release)


class _WorkerWriter(CallWriter):
    def __init__(self, plan: Plan, target: Target) -> None:
        super().__init__(plan, target, False)
        # The function of a slice takes these scalars, since `bind` runs only once for all their values.
        scalars = [n for n in self.fusion.scalar_inputs if not self.fusion.values[n].dtype.is_integer]
        self.scalars = [name_of(number) for number in scalars]
        self.scalar_pattern = re.compile("|".join(rf"\b{name}\b" for name in self.scalars) or "(?!)")
        self.aliases = {i.value: i.original for i in plan.program.instructions if isinstance(i, Alias)}

    def worker_text(self) -> str:
        inputs = (*self.fusion.inputs, *self.plan.memory)
        tensors = (*self.fusion.tensor_inputs, *self.plan.memory)
        allocations = [f"    {line}" for line in self._allocations()]
        launches = [i for i in self.plan.program.instructions if isinstance(i, Launch)]
        calls = [f"        {line}" for launch in launches for line in self._calls(launch)]
        parameters = [self._place_of(number) for number in tensors]
        # Kernels take the addresses of scratch memory. This default argument keeps the memory alive.
        keepalive = [f"keepalive=({', '.join(self.holders)},)"] if self.holders else []
        lines = [
            "def bind(a):",
            f"    {', '.join(map(name_of, inputs))}, = a",
            *(f"    {name_of(value)} = {name_of(memory)}" for value, memory in self.aliases.items()),
            *self.checks.shapes(),
            *(f"    {mark} = {text}" for text, mark in self.shared.items()),
            "    def start(stream):",
            *allocations,
            f"        def run_slice({', '.join([*parameters, *self.scalars, *keepalive])}):",
            *(calls or ["            pass"]),
            "        return run_slice",
            "    return start",
            "",
        ]
        return "\n".join(lines)

    def _once(self, text: str) -> str:
        """Moves arithmetic that is the same for all slices to `bind`."""
        if text.isidentifier() or text.isdigit() or self.scalar_pattern.search(text):
            return text
        return self.shared.setdefault(text, f"x{len(self.shared)}")

    def _allocations(self) -> Iterator[str]:
        for position, arena in enumerate(self.arena_plan.arenas):
            if arena.slot_sizes:
                yield from self.arenas.allocation(position, is_graph=False)
        for instruction in self.plan.program.instructions:
            match instruction:
                case AllocateBuffer(value, spec):
                    yield from self.allocations.one(value, spec)
                case Launch(step, _, _, CompiledSegment() as segment):
                    yield from self._scratch(step, segment)

    def _calls(self, launch: Launch) -> Iterator[str]:
        segment = launch.label
        assert isinstance(segment, CompiledSegment)
        assert segment.code is not None
        names = self._names(launch)
        if segment.code.checked_nodes:
            yield f"    {names.error_flag} = {self._name('new_error_flag', _new_error_flag)}()"
        stream = [] if self.calls.stream_text() is None else ["stream"]
        for function, arguments in zip(segment.functions, self._arguments(launch), strict=True):
            run = self._name(f"run_{segment}_".replace(" ", "_"), self.target.compiler.entry(function))
            yield f"    {run}({', '.join([*stream, *arguments])})"
        yield from segment.code.checks(names, self._name("raise_error", segment.code.raise_error))

    def _place_of(self, value: int) -> str:
        return super()._place_of(self.aliases.get(value, value))
