"""Tilings: the variants of a template for a region, as data, and the size classes on which their prices depend.

A size class bounds an extent: the chooser prices tilings for a representative of each class, never for the sizes of a
call, and guards the classes in which the choice is the same. So every call that a plan serves has the same tiling.

Must not know: targets, kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent
from tracefuse.schedule.cost import Work
from tracefuse.schedule.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Tiling:
    """A variant of a template: named factors, such as the side of a tile in elements.

    order: equal for tilings whose reductions combine elements in the same order, so that their results have equal bits.
    """

    factors: tuple[tuple[str, int], ...] = ()
    order: int = 0

    @classmethod
    def of(cls, order: int = 0, **factors: int) -> Tiling:
        return cls(tuple(factors.items()), order)

    def __getitem__(self, name: str) -> int:
        return dict(self.factors)[name]

    def get(self, name: str, otherwise: int) -> int:
        return dict(self.factors).get(name, otherwise)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.factors)


@dataclass(frozen=True, slots=True)
class SizeClasses:
    """Classes of an extent: class k holds the values above edges[k - 1] and up to edges[k]; the last has no bound."""

    extent: Extent
    edges: tuple[int, ...]
    reason: str

    def index(self, sizes: Sizes) -> int:
        """Returns the class of a call's size, without a guard."""
        value = sizes.hint(self.extent)
        return next((k for k, edge in enumerate(self.edges) if value <= edge), len(self.edges))

    def representative(self, index: int) -> float:
        """Returns a size in the middle of a class: the geometric mean of its bounds. An empty extent counts as 1."""
        if isinstance(self.extent, int):
            return max(self.extent, 1)
        low = self.edges[index - 1] + 1 if index else max(self.edges[0] // 4, 1)
        high = self.edges[index] if index < len(self.edges) else 8 * self.edges[-1]
        return math.sqrt(low * high)

    def guard(self, sizes: Sizes, low: int, high: int) -> None:
        """Guards that the size is in the classes from `low` to `high`."""
        if high < len(self.edges):
            sizes.at_most(self.extent, self.edges[high], self.reason)
        if low > 0:
            sizes.at_most(self.extent, self.edges[low - 1], self.reason)


Point: TypeAlias = Sequence[float]
"""A representative size for each of an offer's size classes."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a template offers for a region.

    tilings: the legal ones; the first one is used where no other is clearly better. work: what a tiling does at
    representative sizes of `classes`.
    """

    tilings: tuple[Tiling, ...]
    classes: tuple[SizeClasses, ...] = ()
    work: Callable[[Tiling, Point], Work] = lambda tiling, point: Work()


@dataclass(frozen=True, slots=True)
class Tiled:
    """The decision of a template that offers tilings: that of its verdict, and the selected tiling."""

    decision: Any
    tiling: Tiling
