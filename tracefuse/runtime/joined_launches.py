"""Joins independent launches of equal kernels, so that a target launches them together.

A launch waits for later ones of the same kernel until something needs its results or could change what it reads. Its
outputs must be new allocations, which overlap with nothing that another launch reads or writes. Memory that a launch
still reads is released after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from segments import Alias, AllocateBuffer, Instruction, Launch, Release

LEAST = 4
"""Fewer launches are not worth the compilation of a kernel that takes several."""

KernelOf: TypeAlias = Callable[[Launch], "Hashable | None"]
"""The kernel of a launch, equal for launches that can be joined; None for a launch that cannot be."""


@dataclass(frozen=True, slots=True)
class JoinedLaunches:
    """Independent launches of one kernel, at least LEAST."""

    launches: tuple[Launch, ...]


def join_launches(
    group: Sequence[Instruction], kernel_of: KernelOf, shared: Collection[int]
) -> Iterator[Instruction | JoinedLaunches]:
    """Yields the instructions, with launches joined and moved behind the allocations of launches that they can join.

    shared: the values that may share memory with others, as those in the slots of an arena and in output buffers.
    """
    waiting = _Waiting()
    new = {i.value for i in group if isinstance(i, AllocateBuffer)} - set(shared)
    allocations: list[AllocateBuffer] = []  # of the next launch: after what waits has released memory
    for instruction in group:
        match instruction:
            case AllocateBuffer():
                allocations.append(instruction)
            case Release(value) if value in waiting.touched:
                waiting.releases.append(instruction)
            case Release():
                yield instruction
            case Launch() if new.issuperset(instruction.outputs) and (kernel := kernel_of(instruction)) is not None:
                if not waiting.written.isdisjoint(instruction.inputs):
                    yield from waiting.flush()
                yield from allocations
                allocations.clear()
                waiting.add(kernel, instruction)
            case _:
                yield from waiting.flush()
                yield from allocations
                allocations.clear()
                if isinstance(instruction, Alias):
                    new -= {instruction.value, instruction.original}
                yield instruction
    yield from waiting.flush()
    yield from allocations


@dataclass(slots=True)
class _Waiting:
    """The launches that wait, by kernel. written, touched: the values that they write, and that they read or write."""

    launches: dict[Hashable, list[Launch]] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    touched: set[int] = field(default_factory=set)
    releases: list[Release] = field(default_factory=list)

    def add(self, kernel: Hashable, launch: Launch) -> None:
        self.launches.setdefault(kernel, []).append(launch)
        self.written.update(launch.outputs)
        self.touched.update((*launch.inputs, *launch.outputs))

    def flush(self) -> Iterator[Instruction | JoinedLaunches]:
        """Yields all launches, then the releases of what they touch."""
        for launches in self.launches.values():
            yield from [JoinedLaunches(tuple(launches))] if len(launches) >= LEAST else launches
        yield from self.releases
        self.launches, self.written, self.touched, self.releases = {}, set(), set(), []
