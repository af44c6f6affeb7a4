"""Joins independent launches of equal kernels, so that a target launches them together, and the allocations for them.

A launch waits for later ones of the same kernel until something needs its results or could change what it reads. Its
outputs must be new allocations, which overlap with nothing that another launch reads or writes, or lie in the caller's
memory, of which it is known what overlaps it. Memory that a launch still reads is released after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import TypeAlias

from segments import Alias, AllocateBuffer, Instruction, Launch, Release
from segments.lazy_dataclasses import dataclass

LEAST = 4
"""Fewer launches are not worth the compilation of a kernel that takes several."""

KernelOf: TypeAlias = Callable[[Launch], "Hashable | None"]
"""The kernel of a launch, equal for launches that can be joined; None for a launch that cannot be."""


@dataclass(frozen=True, slots=True)
class JoinedLaunches:
    """Independent launches of one kernel, at least LEAST."""

    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class JoinedAllocations:
    """Allocations of the outputs of launches of one kernel, at least two."""

    allocations: tuple[AllocateBuffer, ...]


def join_allocations(
    instructions: Iterable[Instruction | JoinedLaunches], most: int
) -> Iterator[Instruction | JoinedLaunches | JoinedAllocations]:
    """Yields the instructions, with allocations in a row for launches that are joined in groups of up to `most`."""
    listed, waiting = list(instructions), dict[int, list[AllocateBuffer]]()
    joined = (i for i in listed if isinstance(i, JoinedLaunches))
    place = {value: k for k, one in enumerate(joined) for launch in one.launches for value in launch.outputs}
    for instruction in listed:
        if isinstance(instruction, AllocateBuffer) and instruction.value in place:
            waiting.setdefault(place[instruction.value], []).append(instruction)
            continue
        yield from _grouped(waiting, most)
        yield instruction
    yield from _grouped(waiting, most)


def _grouped(waiting: dict[int, list[AllocateBuffer]], most: int) -> Iterator[AllocateBuffer | JoinedAllocations]:
    for allocations in waiting.values():
        for start in range(0, len(allocations), most):
            some = allocations[start : start + most]
            yield JoinedAllocations(tuple(some)) if len(some) > 1 else some[0]
    waiting.clear()


def join_launches(
    group: Sequence[Instruction], kernel_of: KernelOf, shared: Collection[int],
    overlaps: Mapping[int, Collection[int]] = MappingProxyType({}),
) -> Iterator[Instruction | JoinedLaunches]:  # fmt: skip
    """Yields the instructions, with launches joined and moved behind the allocations of launches that they can join.

    shared: the values that may share memory with others, as those in the slots of an arena. overlaps: of results that
    lie in the caller's memory, all values that share it; there is none for results that may share it with others, too.
    """
    waiting = _Waiting()
    placed = {i.value for i in group if isinstance(i, Alias) and i.value in overlaps}
    new = {i.value for i in group if isinstance(i, AllocateBuffer)} - set(shared)
    for instruction in group:
        match instruction:
            case AllocateBuffer():
                waiting.allocations.append(instruction)
            case Release(value) if value in waiting.touched:
                waiting.releases.append(instruction)
            case Release():
                yield instruction
            case Alias(value) if value in placed:
                yield instruction
            case Launch(outputs=outputs) if (
                all(value in new or value in placed for value in outputs)
                and (kernel := kernel_of(instruction)) is not None
            ):
                written = {*outputs, *(other for value in outputs for other in overlaps.get(value, ()))}
                if waiting.conflicts(instruction, written):
                    yield from waiting.flush()
                yield from waiting.allocate()
                waiting.add(kernel, instruction, written)
            case _:
                yield from waiting.flush()
                yield from waiting.allocate()
                if isinstance(instruction, Alias):
                    new -= {instruction.value, instruction.original}
                yield instruction
    yield from waiting.flush()
    yield from waiting.allocate()


@dataclass(slots=True)
class _Waiting:
    """The launches that wait, by kernel. written, touched: the values that they write, and that they read or write.

    A value counts as written if a launch writes memory that the value shares. allocations: of the next launch, for
    after what waits has released memory.
    """

    launches: dict[Hashable, list[Launch]] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    touched: set[int] = field(default_factory=set)
    releases: list[Release] = field(default_factory=list)
    allocations: list[AllocateBuffer] = field(default_factory=list)

    def conflicts(self, launch: Launch, written: Collection[int]) -> bool:
        """Whether a launch that writes these values must run after those that wait."""
        return not (self.written.isdisjoint(launch.inputs) and self.touched.isdisjoint(written))

    def add(self, kernel: Hashable, launch: Launch, written: Collection[int]) -> None:
        self.launches.setdefault(kernel, []).append(launch)
        self.written.update(written)
        self.touched.update((*launch.inputs, *written))

    def allocate(self) -> Iterator[AllocateBuffer]:
        """Yields the allocations of the next launch."""
        yield from self.allocations
        self.allocations = []

    def flush(self) -> Iterator[Instruction | JoinedLaunches]:
        """Yields all launches, then the releases of what they touch."""
        for launches in self.launches.values():
            yield from [JoinedLaunches(tuple(launches))] if len(launches) >= LEAST else launches
        yield from self.releases
        self.launches, self.written, self.touched, self.releases = {}, set(), set(), []
