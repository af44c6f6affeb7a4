"""The concretizations of one fusion that its calls have met, each with its segmentation.

With ResizeExtents.AUTO a resize is keyed by its exact extents until it meets others; from then on its axis stays
dynamic. Earlier concretizations stay correct and are reused where their guards hold.

Knows: concretization, segmentation. Must not know: plans, kernels.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.config import Options, ResizeExtents
from tracefuse.dynamic.concretization import Concretization
from tracefuse.dynamic.concretize import concretize, depends_on_sizes
from tracefuse.ir.reference import check_requirements
from tracefuse.partition.segmentation import Segmentation, segment_fusion
from tracefuse.passes.pipeline import passes_at, run_passes

MOST_CONCRETIZATIONS = 64
"""Segmentations kept; the one made first goes first."""
register(Cache(
    "compiler.concretizations.Concretizations._made", "segmentations of concretized fusions",
    "concretized reshapes and resizes, guards", f"{MOST_CONCRETIZATIONS}, the oldest go", "an executable",
    "with the executable",
))  # fmt: skip
register(Cache(
    "compiler.concretizations.Concretizations._first", "the first extents that a resize met", "value, axis, position",
    "resizes of the fusion", "an executable", "with the executable",
))  # fmt: skip


class Concretizations:
    """Of the fusion that `segmentation` splits, as the option `concretize_resize_extents` says."""

    def __init__(self, segmentation: Segmentation, options: Options) -> None:
        self.segmentation, self.options, self.mode = segmentation, options, options.resizes
        self.is_fixed = not depends_on_sizes(segmentation.original)
        self._made: BoundedTable[Hashable, Segmentation] = BoundedTable(MOST_CONCRETIZATIONS)
        self._first: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self._dynamic: set[tuple[int, int, int]] = set()

    def peek(self, sizes: Mapping[int, int]) -> Concretization:
        """What a call with these sizes would run; with AUTO, as if it came next."""
        return self._for_call(sizes)[0]

    def at(self, sizes: Mapping[int, int]) -> tuple[Segmentation, Concretization]:
        """The segmentation for these sizes. Raises ShapeError where they have no meaning."""
        found, first = self._for_call(sizes)
        for resize in first.resizes:
            if resize.is_exact and self.mode is ResizeExtents.AUTO:
                self._first.setdefault(resize.place, resize.key)
        self._dynamic |= self._moved(first)
        if found.is_original:
            return self.segmentation, found
        if found.key not in self._made:
            merge = self.segmentation.merge
            fusion = run_passes(passes_at("after concretization"), found.fusion, self.options)
            self._made[found.key] = segment_fusion(
                fusion, merge=merge, sizes=None if merge is None else sizes, options=self.options
            )
        return self._made[found.key], found

    def _for_call(self, sizes: Mapping[int, int]) -> tuple[Concretization, Concretization]:
        """(what a call runs, what it would run with every resized axis static)."""
        original = self.segmentation.original
        if self.is_fixed:
            found = first = Concretization(original, original, (), (), ())
        elif self.mode is ResizeExtents.OFF:
            found = first = concretize(original, sizes, dynamic=None)
        else:
            found = first = concretize(original, sizes)
            dynamic = self._dynamic | self._moved(first)
            if dynamic and self.mode is ResizeExtents.AUTO:
                found = concretize(original, sizes, dynamic=dynamic)
        if not found.is_original:
            check_requirements(found.fusion, sizes)
        return found, first

    def _moved(self, exact: Concretization) -> set[tuple[int, int, int]]:
        """The resized axes that have met other sizes than these."""
        keys = {r.place: r.key for r in exact.resizes if r.is_exact}
        return {place for place, key in keys.items() if self._first.get(place, key) != key}
