"""Where the intermediates of a call on a GPU live: slots of one allocation, for which a call pays once.

Values that are never alive together share a slot, and so do scratch buffers. A slot is known to fit where its size is
the same expression of the sizes of the call, so that slots are chosen once for all sizes. Only what kernels alone read
and write has no need of an array; results and the operands of library calls are arrays of their own.

Knows: host programs, sizes. Must not know: devices, kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from segments import (
    Alias,
    AllocateBuffer,
    CopyBuffer,
    HostLoop,
    HostOp,
    Instruction,
    Launch,
    Program,
    Release,
    Select,
    in_order,
    inputs_of,
    outputs_of,
)
from tracefuse.ir.extents import Extent, evaluate, floordiv, product
from tracefuse.runtime.host_program import Allocation

ALIGNMENT = 256
"""Bytes that a slot is a multiple of: what CUDA's own allocations start at, so that every kernel may count on it."""
MOST_SPANS = 4
"""Different slot sizes of one allocation. With more, slots that are too small for what is alive would add up, and each
intermediate is allocated and released by itself."""


@dataclass(slots=True)
class Room:
    """One allocation. spans: the bytes of each slot."""

    spans: list[Extent] = field(default_factory=list)
    free: list[int] = field(default_factory=list)

    def take(self, span: Extent) -> int:
        """A slot of that size that nothing lives in, a new one where there is none."""
        for position in reversed(range(len(self.free))):
            if self.spans[self.free[position]] == span:
                return self.free.pop(position)
        self.spans.append(span)
        return len(self.spans) - 1

    def give(self, slot: int) -> None:
        """Nothing lives in a slot any more."""
        self.free.append(slot)


@dataclass(frozen=True, slots=True)
class Rooms:
    """slots: (group, slot) of values by number; scratch: likewise of each launch's buffers, by step and position.

    groups: the instructions: all, or those of each graph and what stands between graphs. rooms: one for each group,
    without slots where it needs none. alone: the allocated values that only kernels read and write.
    """

    groups: tuple[tuple[Instruction, ...], ...]
    rooms: tuple[Room, ...]
    slots: Mapping[int, tuple[int, int]]
    scratch: Mapping[tuple[int, int], tuple[int, int]]
    alone: frozenset[int]

    def bytes_of(self, sizes: Mapping[Any, int]) -> int:
        """The bytes of all rooms, for extents by id."""
        return sum(evaluate(span, sizes) for room in self.rooms for span in room.spans)


NO_ROOMS = Rooms((), (), {}, {}, frozenset())
"""Of a program that allocates each value by itself."""


def span_of(elements: Extent, itemsize: int) -> Extent:
    """The bytes of a slot for so many elements."""
    return floordiv(elements * itemsize + (ALIGNMENT - 1), ALIGNMENT) * ALIGNMENT


def lay_out(
    program: Program, is_library: Sequence[bool], scratch: Mapping[int, Sequence[Extent]], *, slots: bool, graph: bool
) -> Rooms:
    """The groups and rooms of a program. is_library: of the launch of each step; scratch: see `choose_rooms`.

    slots: whether values may live in slots. graph: launches that follow each other are one graph, which makes a group.
    """
    groups = graph_groups(program.instructions, is_library) if graph else (program.instructions,)
    alone = for_kernels_alone(program, is_library) if slots else frozenset()
    return choose_rooms(groups, alone, scratch if slots else {})


def graph_groups(
    instructions: Sequence[Instruction], is_library: Sequence[bool]
) -> tuple[tuple[Instruction, ...], ...]:
    """The instructions of each graph and what stands between graphs: library calls and copies."""
    groups: list[list[Instruction]] = [[]]
    for instruction in instructions:
        alone = isinstance(instruction, CopyBuffer) or (
            isinstance(instruction, Launch) and is_library[instruction.step]
        )
        if alone:
            groups += [[instruction], []]
        else:
            groups[-1].append(instruction)
    return tuple(tuple(group) for group in groups if group)


def for_kernels_alone(program: Program, is_library: Sequence[bool]) -> frozenset[int]:
    """The allocated values that only kernels read and write. is_library: of the launch of each step."""
    allocated: set[int] = set()
    others: set[int] = set(program.outputs)
    for instruction in program.instructions:
        match instruction:
            case AllocateBuffer(value):
                allocated.add(value)
            case Alias(value, original):
                others |= {value, original}
            case CopyBuffer(source, target):
                others |= {source, target}
            case Launch(step, inputs, outputs) if is_library[step]:
                others |= {*inputs, *outputs}
            case HostOp() | HostLoop():
                inside = in_order([instruction])
                others |= {value for one in inside for value in (*inputs_of(one), *outputs_of(one))}
                others |= {one.original for one in inside if isinstance(one, Select)}
    return frozenset(allocated - others)


def choose_rooms(
    groups: Sequence[Sequence[Instruction]], alone: frozenset[int], scratch: Mapping[int, Sequence[Extent]]
) -> Rooms:
    """Slots for what is allocated and released within a group of instructions, one room a group.

    alone: what may live in a slot; scratch: the bytes of each launch's buffers, by step.
    """
    rooms: list[Room] = []
    slots: dict[int, tuple[int, int]] = {}
    buffers: dict[tuple[int, int], tuple[int, int]] = {}
    for position, group in enumerate(groups):
        inside = {i.value for i in group if isinstance(i, Release)} & alone
        room, own, used = Room(), {}, {}
        for instruction in group:
            match instruction:
                case AllocateBuffer(value, Allocation() as spec) if value in inside:
                    own[value] = room.take(span_of(product(spec.extents), spec.dtype.itemsize))
                case Launch(step):
                    taken = [room.take(span) for span in scratch.get(step, ())]
                    used.update({(step, k): slot for k, slot in enumerate(taken)})
                    for slot in taken:
                        room.give(slot)
                case Release(value) if value in own:
                    room.give(own[value])
        fits = len(set(room.spans)) <= MOST_SPANS
        rooms.append(room if fits else Room())
        if fits:
            slots |= {value: (position, slot) for value, slot in own.items()}
            buffers |= {key: (position, slot) for key, slot in used.items()}
    return Rooms(tuple(map(tuple, groups)), tuple(rooms), slots, buffers, alone)
