"""The concretizations of one fusion that its calls have met, each with its segmentation.

In mode auto a resize is keyed by the very extents until it meets a second set of them; from then on that axis stays
dynamic. What was made before stays right, and is used again where its guards hold.

Knows: concretization, segmentation. Must not know: plans, kernels, options.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

from tracefuse.concretization import Concretization
from tracefuse.concretize import concretize
from tracefuse.evaluate import check_requirements
from tracefuse.rewrite import drop_dead_tensors
from tracefuse.segmentation import Segmentation, segment_fusion


class Concretizations:
    """Of the fusion that `segmentation` splits. mode: "auto", "on" or "off"."""

    def __init__(self, segmentation: Segmentation, mode: str) -> None:
        self.segmentation, self.mode = segmentation, mode
        self._made: dict[Hashable, Segmentation] = {}
        self._first: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self._loose: set[tuple[int, int, int]] = set()

    def peek(self, sizes: Mapping[int, int]) -> Concretization:
        """What a call with these sizes would run; in mode auto, as if it came next."""
        if self.mode == "off":
            return self._concretized(sizes, None)
        exact = self._concretized(sizes, ())
        if self.mode == "on":
            return exact
        loose = self._loose | self._moved(exact)
        return self._concretized(sizes, loose) if loose else exact

    def at(self, sizes: Mapping[int, int]) -> tuple[Segmentation, Concretization]:
        """The segmentation for these sizes. Raises ShapeError where they have no meaning."""
        if self.mode == "auto":
            exact = self._concretized(sizes, ())
            self._loose |= self._moved(exact)
            for resize in exact.resizes:
                if resize.is_exact:
                    self._first.setdefault(resize.place, resize.key)
        found = self.peek(sizes)
        if found.is_original:
            return self.segmentation, found
        if found.key not in self._made:
            merge = self.segmentation.merge
            fusion = drop_dead_tensors(found.fusion)
            self._made[found.key] = segment_fusion(fusion, merge=merge, sizes=None if merge is None else sizes)
        return self._made[found.key], found

    def _moved(self, exact: Concretization) -> set[tuple[int, int, int]]:
        """The resized axes that have met other sizes than these."""
        keys = {r.place: r.key for r in exact.resizes if r.is_exact}
        return {place for place, key in keys.items() if self._first.get(place, key) != key}

    def _concretized(
        self, sizes: Mapping[int, int], loose: Collection[tuple[int, int, int]] | None
    ) -> Concretization:  # fmt: skip
        found = concretize(self.segmentation.original, sizes, loose=loose)
        check_requirements(found.fusion, sizes)
        return found
