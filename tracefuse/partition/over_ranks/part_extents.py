"""Extents of the parts of a rank, as expressions of the extents that its fusion knows.

Where all parts of an axis are equal, the whole axis is a multiple of the part. Otherwise the extent of the whole axis
is a scalar of the call, and the extent of the part depends on the rank's place in the mesh.

Must not know: single ops, devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import (
    Extent,
    Symbol,
    ceildiv,
    divide_exactly,
    floordiv,
    maximum,
    minimum,
    substitute,
)
from tracefuse.ir.shardings import DeviceMesh
from tracefuse.partition.over_ranks.size_facts import SizeFacts, divides


class PartExtents:
    """The extents of a rank's parts. complete: for symbols of split axes, the extent of the whole axis.

    lengths: extents of parts that are axes of inputs, by whole extent and mesh axes. scalars: the numbers of those with
    the rank's place, by mesh axis.
    """

    def __init__(self, builder: FusionBuilder, mesh: DeviceMesh, facts: SizeFacts) -> None:
        self.builder, self.mesh, self.facts = builder, mesh, facts
        self.complete: dict[Symbol, Extent] = {}
        self.lengths: dict[tuple[Extent, tuple[str, ...]], Extent] = {}
        self.scalars: dict[str, int] = {}

    def count(self, names: Sequence[str]) -> int:
        """Returns the number of parts along mesh axes."""
        return math.prod(self.mesh.size(name) for name in names)

    def is_even(self, extent: Extent, names: Sequence[str]) -> bool:
        """Whether all parts of an axis are equal. extent: in the fusion over the mesh, as in the other methods."""
        parts = self.count(names)
        return parts == 1 or bool(self.facts.ask(divides, extent, parts))

    def of_whole(self, extent: Extent) -> Extent:
        """Returns the extent of a whole axis."""
        return substitute(self.facts.fusion.canonical(extent), self.complete)

    def ceiling(self, extent: Extent, names: tuple[str, ...]) -> Extent:
        """Returns the extent of the first part, which no part exceeds."""
        complete, parts = self.of_whole(extent), self.count(names)
        exact = divide_exactly(complete, parts)
        if exact is not None:
            return exact
        return floordiv(complete, parts) if self.is_even(extent, names) else ceildiv(complete, parts)

    def length(self, extent: Extent, names: tuple[str, ...]) -> Extent:
        """Returns the extent of this rank's part."""
        if not names:
            return self.of_whole(extent)
        if self.is_even(extent, names):
            return self.ceiling(extent, names)
        known = self.lengths.get((self.facts.fusion.canonical(extent), names))
        if known is not None:
            return known
        left = self.of_whole(extent) - self.place(names) * self.ceiling(extent, names)
        return minimum(maximum(left, 0), self.ceiling(extent, names))

    def place(self, names: Sequence[str]) -> Extent:
        """Returns which part this rank has."""
        place: Extent = 0
        for name in names:
            coordinate = self.builder.values[self.scalars[name]].extent
            assert coordinate is not None
            place = place * self.mesh.size(name) + (coordinate if self.mesh.size(name) > 1 else 0)
        return place
