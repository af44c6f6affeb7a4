"""A segmentation that is made when it is first asked for.

Calls of a fusion whose reshapes and resizes are concretized run the segmentations of its concretizations: its own,
which takes as long, serves reports alone.

Must not know: kernels, targets.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from segments import Predicate
from segments.lazy_dataclasses import dataclass
from tracefuse.config import Options
from tracefuse.ir.fusion import Fusion
from tracefuse.partition import predicates
from tracefuse.partition.segmentation import Segmentation, segment_fusion


@dataclass(eq=False)
class DeferredSegmentation:
    """The arguments of `segment_fusion`; those that `Segmentation` has as well have its names."""

    original: Fusion
    merge: Predicate | None = None
    options: Options | None = None
    sizes: Mapping[int, int] | None = None

    @functools.cached_property
    def segmentation(self) -> Segmentation:
        """The segmentation. Raises segments.SegmentationError if the predicate fails."""
        return segment_fusion(self.original, merge=self.merge, sizes=self.sizes, options=self.options)

    @classmethod
    def of(cls, segmentation: Segmentation | DeferredSegmentation) -> DeferredSegmentation:
        """Wraps a segmentation that exists."""
        if isinstance(segmentation, DeferredSegmentation):
            return segmentation
        deferred = cls(segmentation.original, segmentation.merge)
        deferred.__dict__["segmentation"] = segmentation
        return deferred


def merge_of(options: Options, merge: Predicate | None) -> Predicate | None:
    """The predicate for the partition: the user's, unless the options disable fusion."""
    return predicates.one_op_a_segment if options.disables("fusion") else merge
