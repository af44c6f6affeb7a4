"""The concretizations of one fusion for the sizes of its calls, each with its segmentation.

With ResizeExtents.AUTO a resize is keyed by its exact extents until it meets others; from then on its axis stays
dynamic. Earlier concretizations remain valid and are reused if their guards hold.

Must not know: plans, kernels.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.config import Options, ResizeExtents
from tracefuse.dynamic.concretization import Concretization
from tracefuse.dynamic.concretize import concretize, depends_on_sizes
from tracefuse.ir.reference import check_requirements
from tracefuse.partition.deferred_segmentation import DeferredSegmentation
from tracefuse.partition.segmentation import Segmentation, segment_fusion
from tracefuse.passes.pipeline import passes_at, run_passes

MOST_CONCRETIZATIONS = 64
"""Segmentations per fusion; the oldest is evicted first."""
register(Cache(
    "compiler.concretizations.Concretizations._segmentations", "segmentations of concretized fusions",
    "concretized reshapes and resizes, guards", f"{MOST_CONCRETIZATIONS}, the oldest go", "an executable",
    "with the executable",
))  # fmt: skip
register(Cache(
    "compiler.concretizations.Concretizations._first", "the first extents that a resize met", "value, axis, position",
    "resizes of the fusion", "an executable", "with the executable",
))  # fmt: skip


class Concretizations:
    """The concretizations of a fusion, `original`, under the option `concretize_resize_extents`."""

    def __init__(self, original: DeferredSegmentation, options: Options) -> None:
        self.original, self.options, self.mode = original, options, options.resizes
        self.is_fixed = not depends_on_sizes(original.original)
        self._segmentations: BoundedTable[Hashable, Segmentation] = BoundedTable(MOST_CONCRETIZATIONS)
        self._first: dict[tuple[int, int, int], tuple[tuple[int, int, int], int]] = {}
        self._dynamic: set[tuple[int, int, int]] = set()

    def peek(self, sizes: Mapping[int, int]) -> Concretization:
        """The concretization for a call with these sizes, as if it came next; records nothing."""
        return self._concretize(sizes)[0]

    def at(self, sizes: Mapping[int, int]) -> tuple[Segmentation, Concretization]:
        """The segmentation for these sizes. Raises ShapeError if they are impossible."""
        concrete, first = self._concretize(sizes)
        for resize in first.resizes:
            if resize.is_exact and self.mode is ResizeExtents.AUTO:
                self._first.setdefault(resize.place, (resize.key, resize.step))
        self._dynamic |= self._moved(first)
        if concrete.is_original:
            return self.original.segmentation, concrete
        if concrete.key not in self._segmentations:
            merge = self.original.merge
            fusion = run_passes(passes_at("after concretization"), concrete.fusion, self.options)
            self._segmentations[concrete.key] = segment_fusion(
                fusion, merge=merge, sizes=None if merge is None else sizes, options=self.options
            )
        return self._segmentations[concrete.key], concrete

    def _concretize(self, sizes: Mapping[int, int]) -> tuple[Concretization, Concretization]:
        """(the concretization of a call, the same with every resized axis static)."""
        original = self.original.original
        if self.is_fixed:
            concrete = first = Concretization(original, original, (), (), ())
        elif self.mode in (ResizeExtents.OFF, ResizeExtents.STEPS):
            concrete = first = concretize(original, sizes, dynamic=None, in_steps=self.mode is ResizeExtents.STEPS)
        else:
            concrete = first = concretize(original, sizes)
            dynamic = self._dynamic | self._moved(first)
            if dynamic and self.mode is ResizeExtents.AUTO:
                concrete = concretize(original, sizes, dynamic=dynamic)
        if not concrete.is_original:
            check_requirements(concrete.fusion, sizes)
        return concrete, first

    def _moved(self, exact: Concretization) -> set[tuple[int, int, int]]:
        """The resized axes that have met other extents than these."""
        keys = {r.place: (r.key, r.step) for r in exact.resizes if r.is_exact}
        return {place for place, key in keys.items() if self._first.get(place, key) != key}
