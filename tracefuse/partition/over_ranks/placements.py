"""How ranks compute the nodes of a fusion: which axes they split, and the sharding of the result.

Must not know: single ops, devices.
"""

from __future__ import annotations

from typing import TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.partition.over_ranks.links import Link
from tracefuse.partition.over_ranks.partial_sums import NONE, Names

Spec: TypeAlias = tuple[tuple[str, ...], ...]
"""For each axis of a value, the mesh axes that split it."""


@dataclass(frozen=True, slots=True)
class Placed:
    """How ranks compute a node.

    splits: the links that are split, with their mesh axes. result: the sharding of the result after its exchanges.
    terms: the mesh axes over which the node takes terms of its operands. stays: those over which the result is left as
    terms.
    """

    splits: tuple[tuple[Link, tuple[str, ...]], ...]
    result: Spec
    terms: Names = NONE
    stays: Names = NONE

    @property
    def computed(self) -> Spec:
        """The sharding of the result before parts of sums are combined."""
        axes = {link.result: names for link, names in self.splits if link.result is not None}
        return tuple(axes.get(axis, ()) for axis in range(len(self.result)))

    @property
    def used(self) -> Names:
        """The mesh axes that split a link."""
        return frozenset(name for _, names in self.splits for name in names)

    @property
    def summed(self) -> Names:
        """The mesh axes over which the node adds elements of other ranks."""
        return frozenset(
            name for link, names in self.splits if link.combine in ("sum", "mean") for name in names
        )  # fmt: skip

    def operand(self, position: int, rank: int) -> Spec:
        """Returns the sharding in which the node reads an operand of `rank` axes."""
        axes = {link.operands[position]: names for link, names in self.splits if position in link.operands}
        return tuple(axes.get(axis, ()) for axis in range(rank))
