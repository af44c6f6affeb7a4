"""Chooses a tiling by the cost model, for the size classes of a call.

The first tiling of an offer is used unless the model finds another clearly cheaper. The choice holds for a box of size
classes around those of the call; the box is guarded, and grows as far as every class in it has the same choice.

Must not know: targets, kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import field

from segments.lazy_dataclasses import dataclass
from tracefuse.schedule.cost import Price, Rates, price
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.tilings import Offer, Tiling

CLEARLY = 0.95
"""A tiling is used in place of the first one if its price is below this fraction of the price of the first one."""

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PricedTiling:
    """A tiling of an offer, its price at the size classes of a call, and whether the call uses it.

    measured: the microseconds of a launch of its kernels, if they were measured.
    """

    tiling: Tiling
    price: Price
    is_chosen: bool
    measured: float | None = None

    def __str__(self) -> str:
        chosen = ", chosen" if self.is_chosen else ""
        measured = "" if self.measured is None else f", measured {self.measured:.1f} us"
        return f"{self.tiling}: {self.price}{measured}{chosen}"


@dataclass(frozen=True, slots=True)
class TilingChooser:
    """Chooses tilings for the segments of a plan.

    rates: of the chip. forced: tilings by the names of problems, in place of the model's choice. own_classes: a choice
    holds for the size classes of the call alone. generic: the first tiling, without guards. measured: microseconds of
    tilings, by the names of problems.
    """

    rates: Rates = field(default_factory=Rates)
    forced: Mapping[str, Tiling] = field(default_factory=dict)
    own_classes: bool = False
    generic: bool = False
    measured: Mapping[str, Mapping[Tiling, float]] = field(default_factory=dict)

    def choose(self, name: str, offer: Offer, sizes: Sizes) -> tuple[Tiling, tuple[PricedTiling, ...]]:
        """Returns the tiling for a problem, and every tiling with its price; guards the size classes."""
        current = tuple(size_class.index(sizes) for size_class in offer.classes)
        forced = self.forced.get(name)
        if self.generic or len(offer.tilings) == 1:
            chosen = offer.tilings[0]
        elif self.own_classes or forced is not None:
            chosen = forced if forced in offer.tilings else offer.tilings[self._cheapest(offer, current)]
            _guard(offer, sizes, tuple((k, k) for k in current))
        else:
            cheapest: dict[tuple[int, ...], int] = {}
            box = self._box(offer, current, cheapest)
            chosen = offer.tilings[cheapest[current]]
            _guard(offer, sizes, box)
        prices = self._prices(offer, current) if len(offer.tilings) > 1 else ()
        pairs = zip(offer.tilings, prices, strict=False)
        times = self.measured.get(name, {})
        return chosen, tuple(PricedTiling(t, cost, t == chosen, times.get(t)) for t, cost in pairs)

    def _prices(self, offer: Offer, at: tuple[int, ...]) -> list[Price]:
        point = [size_class.representative(k) for size_class, k in zip(offer.classes, at, strict=True)]
        return [price(offer.work(tiling, point), self.rates) for tiling in offer.tilings]

    def _cheapest(self, offer: Offer, at: tuple[int, ...]) -> int:
        """Returns the position of the cheapest tiling that keeps the order of reductions, at some size classes."""
        totals = [estimate.total for estimate in self._prices(offer, at)]
        same = [k for k, tiling in enumerate(offer.tilings) if tiling.order == offer.tilings[0].order]
        best = min(same, key=totals.__getitem__)
        return best if totals[best] < CLEARLY * totals[0] else 0

    def _box(self, offer: Offer, current: tuple[int, ...], cheapest: dict[tuple[int, ...], int]) -> Box:
        """Returns the largest box around `current`, grown class by class, with one choice; fills in the choices."""

        def choice(at: tuple[int, ...]) -> int:
            if at not in cheapest:
                cheapest[at] = self._cheapest(offer, at)
            return cheapest[at]

        wanted = choice(current)
        box = [(k, k) for k in current]
        for axis, classes in enumerate(offer.classes):
            for step in (-1, 1):
                while 0 <= (at := box[axis][step > 0] + step) <= len(classes.edges):
                    slab = [range(low, high + 1) for low, high in box]
                    slab[axis] = range(at, at + 1)
                    if isinstance(classes.extent, int) or any(choice(p) != wanted for p in itertools.product(*slab)):
                        break
                    low, high = box[axis]
                    box[axis] = (at, high) if step < 0 else (low, at)
        return tuple(box)


def _guard(offer: Offer, sizes: Sizes, box: Box) -> None:
    for classes, (low, high) in zip(offer.classes, box, strict=True):
        classes.guard(sizes, low, high)
