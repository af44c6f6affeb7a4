"""A plan for slice after slice: written once as a Python function, so that a slice pays for its launches alone.

    def bind(a):                        from the arguments of one slice and the memory of its results
        t0, e1s, t1048576, = a
        x0 = ...                        everything that is the same for all slices
        def lane(stream):
            b0_0 = ...                  memory that the slices on a stream use one after the other
            def one(p0, p1048576):      where a slice is
                run(stream, p0, p1048576, x0)
            return one
        return lane

Knows: plans, how a call of one is written. Must not know: loops, how a plan is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from segments import Alias, Allocate, Launch, Release, name_of
from tracefuse.generated_code import compile_function
from tracefuse.ir.extents import evaluate, product
from tracefuse.runtime.call_code import CallWriter
from tracefuse.runtime.compiled_segment import CompiledSegment
from tracefuse.runtime.launch_code import Names
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.targets.target import Target

Bind: TypeAlias = Callable[[Sequence[Any]], Callable[[Any], Callable[..., None]]]


@dataclass(frozen=True, slots=True)
class LaneCode:
    """bind: gives, from the arguments and the memory of the results of one slice, what `Lane.make` is."""

    bind: Bind
    text: str


def compile_lane(plan: Plan, target: Target) -> LaneCode | None:
    """The plan for slice after slice, None where it is more than kernels that write into given memory."""
    fusion = plan.segmentation.fusion
    computed = any(not fusion.values[node.outputs[0]].is_tensor for node in fusion.nodes)
    if computed or not all(map(_is_simple, plan.program.instructions)):
        return None
    writer = _LaneWriter(plan, target)
    text = writer.lane_text()
    names = {**writer.names, **target.calls.names(), "min": min, "max": max}
    return LaneCode(compile_function(text, "bind", names, "slice"), text)


def lane_room(plan: Plan, sizes: Mapping[Any, int]) -> int:
    """The bytes that a lane of `plan` has, for the extents of a slice by id."""
    total = plan.rooms.bytes_of(sizes)
    for instruction in plan.program.instructions:
        match instruction:
            case Allocate(value, spec) if value not in plan.rooms.slots:
                total += evaluate(product(spec.extents), sizes) * spec.dtype.itemsize  # type: ignore[attr-defined]
            case Launch(step, _, _, CompiledSegment() as segment):
                own = enumerate(segment.scratch)
                left = [one for k, one in own if (step, k) not in plan.rooms.scratch]
                total += sum(dtype.itemsize * evaluate(size, sizes) for dtype, size in left)
    return total


def _cell() -> Any:
    """Where the kernels of a launch note positions outside their axis."""
    return np.zeros(1, np.int64)


def _is_simple(instruction: object) -> bool:
    if isinstance(instruction, Launch):
        return isinstance(instruction.label, CompiledSegment) and instruction.label.code is not None
    return isinstance(instruction, Allocate | Alias | Release)


class _LaneWriter(CallWriter):
    def __init__(self, plan: Plan, target: Target) -> None:
        super().__init__(plan, target, False)
        loose = [n for n in self.fusion.scalar_inputs if not self.fusion.values[n].dtype.is_integer]
        self.scalars = [name_of(number) for number in loose]
        self.loose = re.compile("|".join(rf"\b{name}\b" for name in self.scalars) or "(?!)")
        self.renamed = {i.value: i.original for i in plan.program.instructions if isinstance(i, Alias)}

    def lane_text(self) -> str:
        inputs = (*self.fusion.inputs, *self.plan.memory)
        tensors = (*self.fusion.tensor_inputs, *self.plan.memory)
        lane = [f"    {line}" for line in self._memory()]
        launches = [i for i in self.plan.program.instructions if isinstance(i, Launch)]
        calls = [f"        {line}" for launch in launches for line in self._calls(launch)]
        named = [self._tensor(number) for number in tensors]
        # Kernels are given addresses of what the function itself has to keep alive.
        held = [f"held=({', '.join(self.holders)},)"] if self.holders else []
        lines = [
            "def bind(a):",
            f"    {', '.join(map(name_of, inputs))}, = a",
            *(f"    {name_of(value)} = {name_of(memory)}" for value, memory in self.renamed.items()),
            *self._shapes(),
            *(f"    {mark} = {text}" for text, mark in self.shared.items()),
            "    def lane(stream):",
            *lane,
            f"        def one({', '.join([*named, *self.scalars, *held])}):",
            *(calls or ["            pass"]),
            "        return one",
            "    return lane",
            "",
        ]
        return "\n".join(lines)

    def _once(self, text: str) -> str:
        """Arithmetic that is the same for all slices is done when they are bound."""
        if text.isidentifier() or text.isdigit() or self.loose.search(text):
            return text
        return self.shared.setdefault(text, f"x{len(self.shared)}")

    def _memory(self) -> Iterator[str]:
        for position, room in enumerate(self.rooms.rooms):
            if room.spans:
                yield from self._room(position, room)
        for instruction in self.plan.program.instructions:
            match instruction:
                case Allocate(value, spec) if value not in self.rooms.slots:
                    yield from self._allocate(value, spec)
                case Launch(step, _, _, CompiledSegment() as segment):
                    yield from self._scratch(step, segment)

    def _calls(self, launch: Launch) -> Iterator[str]:
        segment = launch.label
        assert isinstance(segment, CompiledSegment)
        assert segment.code is not None
        names = self._names(launch)
        if segment.code.noted:
            yield f"    {names.cell} = {self._name('cell', _cell)}()"
        stream = [] if self.calls.stream_text() is None else ["stream"]
        for function, arguments in zip(segment.functions, self._arguments(launch), strict=True):
            run = self._name(f"run_{segment}_".replace(" ", "_"), self.target.compiler.entry(function))
            yield f"    {run}({', '.join([*stream, *arguments])})"
        yield from segment.code.checks(names, self._name("raise_noted", segment.code.raise_noted))

    def _tensor(self, number: int) -> str:
        """What kernels are given for a value."""
        memory = self.renamed.get(number, number)
        return f"p{memory}" if self.calls.addresses else name_of(memory)

    def _names(self, launch: Launch) -> Names:
        names = super()._names(launch)
        return Names(self._tensor, names.array, names.value, names.scratch, names.cell)
