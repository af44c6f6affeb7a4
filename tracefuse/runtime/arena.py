"""Assigns the intermediates of a call on a GPU to slots of an arena, which a call allocates once.

Values with disjoint lifetimes share a slot, and so do scratch buffers. Two values share a slot only if their sizes are
the same symbolic expression, so that one assignment serves all sizes. Only values that kernels alone read and write
live in an arena. Results and the operands of library calls are separate arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from segments import (
    Alias,
    AllocateBuffer,
    Communicate,
    CopyBuffer,
    EndCoalescing,
    HostLoop,
    HostOp,
    Instruction,
    Launch,
    Program,
    Release,
    Select,
    StartCoalescing,
    WaitRequest,
    in_order,
    inputs_of,
    outputs_of,
)
from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, evaluate, floordiv, product
from tracefuse.runtime.host_program import Allocation

ALIGNMENT = 256
"""Slot sizes are multiples of this many bytes. CUDA aligns its own allocations to it, so every kernel may assume it."""
MAX_SLOT_SIZES = 4
"""The limit on distinct slot sizes in one arena. Beyond it, idle slots of the wrong size would waste memory, so each
intermediate is allocated and released separately; not those of a graph, whose addresses must not change."""


def slot_name(slot: tuple[int, int]) -> str:
    """Returns the variable of the address of a slot, given its arena and its position there."""
    return f"q{slot[0]}_{slot[1]}"


@dataclass(slots=True)
class Arena:
    """One allocation. slot_sizes: the bytes of each slot. free: the slots that hold no live value."""

    slot_sizes: list[Extent] = field(default_factory=list)
    free: list[int] = field(default_factory=list)

    def acquire(self, size: Extent) -> int:
        """Returns a free slot of `size` bytes, or adds one."""
        for position in reversed(range(len(self.free))):
            if self.slot_sizes[self.free[position]] == size:
                return self.free.pop(position)
        self.slot_sizes.append(size)
        return len(self.slot_sizes) - 1

    def release(self, slot: int) -> None:
        """Marks a slot as free."""
        self.free.append(slot)


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """The arenas of a program and the slot of each intermediate.

    groups: the instructions, either all in one group or split at the boundaries of CUDA graphs. arenas: one for each
    group, without slots if the group needs none. slots: (group, slot) of values by number. scratch: (group, slot) of
    scratch buffers by step and position. kernel_only: the allocated values that only kernels read and write.
    """

    groups: tuple[tuple[Instruction, ...], ...]
    arenas: tuple[Arena, ...]
    slots: Mapping[int, tuple[int, int]]
    scratch: Mapping[tuple[int, int], tuple[int, int]]
    kernel_only: frozenset[int]

    def bytes_of(self, sizes: Mapping[Any, int]) -> int:
        """Returns the total bytes of all arenas. sizes: extent values by id."""
        return sum(evaluate(size, sizes) for arena in self.arenas for size in arena.slot_sizes)


NO_ARENAS = ArenaPlan((), (), {}, {}, frozenset())
"""For a program that allocates each value separately."""


def slot_bytes(elements: Extent, itemsize: int) -> Extent:
    """Returns the bytes of a slot for `elements` elements, rounded up to ALIGNMENT."""
    return floordiv(elements * itemsize + (ALIGNMENT - 1), ALIGNMENT) * ALIGNMENT


def plan_arenas(
    program: Program, is_library: Sequence[bool], scratch: Mapping[int, Sequence[Extent]], *, slots: bool, graph: bool
) -> ArenaPlan:
    """Plans the arenas of a program.

    is_library: for each step, whether its launch is a library call. scratch: see `assign_slots`. slots: whether values
    may live in slots. graph: consecutive launches form one CUDA graph, which is a group of its own.
    """
    groups = group_by_graph(program.instructions, is_library) if graph else (program.instructions,)
    kernel_only = find_kernel_only(program, is_library) if slots else frozenset()
    return assign_slots(groups, kernel_only, scratch if slots else {}, any_sizes=graph)


_BETWEEN_GRAPHS = CopyBuffer | Communicate | WaitRequest | StartCoalescing | EndCoalescing


def group_by_graph(
    instructions: Sequence[Instruction], is_library: Sequence[bool]
) -> tuple[tuple[Instruction, ...], ...]:
    """Splits instructions at the library calls and copies, which cannot be part of a CUDA graph."""
    groups: list[list[Instruction]] = [[]]
    for instruction in instructions:
        is_call = isinstance(instruction, Launch) and is_library[instruction.step]
        if is_call or isinstance(instruction, _BETWEEN_GRAPHS):
            groups += [[instruction], []]
        else:
            groups[-1].append(instruction)
    return tuple(tuple(group) for group in groups if group)


def find_kernel_only(program: Program, is_library: Sequence[bool]) -> frozenset[int]:
    """Returns the allocated values that only kernels read and write. is_library: as for `plan_arenas`."""
    allocated: set[int] = set()
    needs_array: set[int] = set(program.outputs)
    for instruction in program.instructions:
        match instruction:
            case AllocateBuffer(value):
                allocated.add(value)
            case Alias(value, original):
                needs_array |= {value, original}
            case CopyBuffer(source, target):
                needs_array |= {source, target}
            case Launch(step, inputs, outputs) if is_library[step]:
                needs_array |= {*inputs, *outputs}
            case Communicate(_, _, sources, targets):
                needs_array |= {*sources, *targets}
            case HostOp() | HostLoop():
                nested = in_order([instruction])
                needs_array |= {value for step in nested for value in (*inputs_of(step), *outputs_of(step))}
                needs_array |= {step.original for step in nested if isinstance(step, Select)}
    return frozenset(allocated - needs_array)


def assign_slots(
    groups: Sequence[Sequence[Instruction]], kernel_only: frozenset[int], scratch: Mapping[int, Sequence[Extent]], *,
    any_sizes: bool = False,
) -> ArenaPlan:  # fmt: skip
    """Assigns slots to the values that are allocated and released within one group of instructions.

    kernel_only: the values that may live in a slot. scratch: by step, the bytes of each scratch buffer of its launch.
    any_sizes: slots may have more than MAX_SLOT_SIZES sizes.
    """
    arenas: list[Arena] = []
    slots: dict[int, tuple[int, int]] = {}
    buffers: dict[tuple[int, int], tuple[int, int]] = {}
    for position, group in enumerate(groups):
        released = {i.value for i in group if isinstance(i, Release)} & kernel_only
        arena = Arena()
        value_slots: dict[int, int] = {}
        scratch_slots: dict[tuple[int, int], int] = {}
        for instruction in group:
            match instruction:
                case AllocateBuffer(value, Allocation() as spec) if value in released:
                    value_slots[value] = arena.acquire(slot_bytes(product(spec.extents), spec.dtype.itemsize))
                case Launch(step):
                    acquired = [arena.acquire(size) for size in scratch.get(step, ())]
                    scratch_slots.update({(step, k): slot for k, slot in enumerate(acquired)})
                    for slot in acquired:
                        arena.release(slot)
                case Release(value) if value in value_slots:
                    arena.release(value_slots[value])
        fits = any_sizes or len(set(arena.slot_sizes)) <= MAX_SLOT_SIZES
        arenas.append(arena if fits else Arena())
        if fits:
            slots |= {value: (position, slot) for value, slot in value_slots.items()}
            buffers |= {key: (position, slot) for key, slot in scratch_slots.items()}
    return ArenaPlan(tuple(map(tuple, groups)), tuple(arenas), slots, buffers, kernel_only)
