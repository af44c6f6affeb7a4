"""Writes the allocations of arenas and the addresses of their slots, as lines of the function of a call.

Must not know: plans, kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent
from tracefuse.runtime.arena import ArenaPlan, slot_name
from tracefuse.runtime.targets.array_device import ArrayDevice


@dataclass(frozen=True, slots=True)
class ArenaCode:
    """Writes the lines of one plan.

    name: binds a name to an object. extent: writes an extent as text. hold: records that a variable keeps an allocation
    alive. plain: runs calls in which the slots of a graph take more than `most_kept` bytes, if there is such a limit.
    """

    plan: ArenaPlan
    device: ArrayDevice
    name: Callable[[str, Any], str]
    extent: Callable[[Extent], str]
    hold: Callable[[str], str]
    plain: Callable[..., Any] | None
    most_kept: int | None

    def allocation(self, position: int, is_graph: bool) -> Iterator[str]:
        """Writes the allocation of an arena, and the addresses of its slots. A graph asks for these if it needs them.

        is_graph: whether the launches of its group are a graph.
        """
        arena, sizes = self.plan.arenas[position], self._sizes(position)
        for size, name in sizes.items():
            yield f"    {name} = {self.extent(size)}"
        total = " + ".join(sizes[size] for size in arena.slot_sizes)
        allocate = "allocate"
        if is_graph:
            # A stream runs launches one after the other, so all calls on one can share an arena.
            if self.plain is not None:
                yield f"    if {total} > {self.most_kept}:"
                yield f"        return {self.name('plain', self.plain)}(a)"
            total = f"stream, {total}"
            allocate = self.name("persistent_arena", self.device.persistent_arena())
        yield f"    {self.hold(f'r{position}')} = {allocate}({total})"
        if not is_graph:
            yield from self.slots(position)

    def slots(self, position: int) -> Iterator[str]:
        """Writes the address of each slot of an arena."""
        sizes, address = self._sizes(position), f"r{position}.ptr"
        for slot, size in enumerate(self.plan.arenas[position].slot_sizes):
            yield f"    {slot_name((position, slot))} = {address}"
            address = f"{slot_name((position, slot))} + {sizes[size]}"

    def key(self, position: int) -> list[str]:
        """Returns what the addresses of the slots of an arena depend on."""
        return [f"r{position}.ptr", *self._sizes(position).values()]

    def _sizes(self, position: int) -> dict[Extent, str]:
        """Returns the variable of each size of the slots of an arena."""
        sizes = dict.fromkeys(self.plan.arenas[position].slot_sizes)
        return {size: f"n{position}_{k}" for k, size in enumerate(sizes)}
