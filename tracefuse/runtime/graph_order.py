"""Which launches of a CUDA graph must follow which: launches that share no memory may run at the same time.

A launch follows those that wrote what it reads, and those that read or wrote the memory that it writes. Slots of an
arena are reused, so two values may have one memory. A launch that writes memory of the caller, which may overlap any
other, is apart from all others; library calls, which share a workspace, run one after the other.

Must not know: targets.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import field
from typing import TypeAlias

from segments.instructions import Alias, AllocateBuffer, Instruction, Launch
from segments.lazy_dataclasses import dataclass
from tracefuse.runtime.arena import ArenaPlan
from tracefuse.runtime.compiled_segment import CompiledSegment

LaunchOrder: TypeAlias = tuple[tuple[int, ...], ...]
"""For each function of the launches of a graph, the positions of the functions that it follows directly."""


def launch_order(group: Sequence[Instruction], arenas: ArenaPlan, reused: Collection[int]) -> LaunchOrder:
    """Returns the order of the launches of a group.

    reused: values in memory that the call does not allocate.
    """
    fresh = {instruction.value for instruction in group if isinstance(instruction, AllocateBuffer)} - {*reused}
    order, names = _Order(), dict[int, int]()
    slots: dict[int, set[Hashable]] = {}
    for (step, _), slot in arenas.scratch.items():
        slots.setdefault(step, set()).add(slot)

    def place(value: int) -> Hashable:
        value = names.get(value, value)
        return arenas.slots.get(value, value)

    for instruction in group:
        if isinstance(instruction, Alias):
            names[instruction.value] = names.get(instruction.original, instruction.original)
        if not isinstance(instruction, Launch):
            continue
        segment = instruction.label
        assert isinstance(segment, CompiledSegment)
        written = [names.get(value, value) for value in instruction.outputs]
        scratch = slots.get(instruction.step, set())
        if segment.part.library is not None:
            scratch = {*scratch, _WORKSPACE}
        apart = not all(value in fresh for value in written)
        order.add({*map(place, instruction.inputs)}, {*map(place, written), *scratch}, len(segment.functions), apart)
    return tuple(order.after)


_WORKSPACE = "workspace of a library"


@dataclass(slots=True)
class _Order:
    """The functions so far. before: the set of all that each follows, as bits. latest: the last barrier."""

    after: list[tuple[int, ...]] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    writers: dict[Hashable, int] = field(default_factory=dict)
    readers: dict[Hashable, list[int]] = field(default_factory=dict)
    barrier: int | None = None

    def add(self, read: Collection[Hashable], written: Collection[Hashable], functions: int, apart: bool) -> None:
        """Adds a launch of several functions, one after the other. apart: it follows all, and all later follow it."""
        if apart:
            needed = set(range(self.barrier or 0, len(self.after)))  # the barrier follows all before
        else:
            needed = {self.writers[p] for p in (*read, *written) if p in self.writers}
            needed |= {reader for p in written for reader in self.readers.get(p, ())}
            needed |= set() if self.barrier is None else {self.barrier}
        for _ in range(functions):
            self._append(needed)
            needed = {len(self.after) - 1}
        last = len(self.after) - 1
        for p in read:
            self.readers.setdefault(p, []).append(last)
        for p in written:
            self.writers[p], self.readers[p] = last, []
        if apart:
            self.barrier = last

    def _append(self, needed: Collection[int]) -> None:
        """Appends a function that follows `needed`, directly only those that no other of them follows."""
        direct: list[int] = []
        covered = 0
        for position in sorted(needed, reverse=True):
            if not covered >> position & 1:
                direct.append(position)
                covered |= self.before[position] | 1 << position
        self.after.append(tuple(direct))
        self.before.append(covered)
