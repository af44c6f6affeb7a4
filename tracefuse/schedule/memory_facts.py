"""The memory layout of a segment's tensors, as templates see it: strides, alignment, and buffers of the caller.

Must not know: targets, kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion, Shape
from tracefuse.schedule.nest import contiguous_strides


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """The memory layout of the tensors of a segment.

    strides: in elements, of the tensor inputs and of the outputs in `placed`. aligned: inputs that start at a multiple
    of 16 bytes. misaligned: inputs whose elements are not aligned to their own size. placed: outputs whose buffers have
    strides of their own or are not aligned to 16 bytes; all other outputs are contiguous and aligned. supplied: outputs
    in buffers of the caller, of any alignment. shared: tensors that may alias another tensor, because of an
    update in place. starts: offsets in elements of the first elements of outputs that are slices of their buffers.
    """

    strides: Mapping[int, Shape]
    aligned: frozenset[int] = frozenset()
    misaligned: frozenset[int] = frozenset()
    placed: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()
    supplied: frozenset[int] = frozenset()
    starts: Mapping[int, Extent] = field(default_factory=dict)

    def output_strides(self, fusion: Fusion, output: int) -> Shape:
        """Returns the strides of an output, in elements."""
        strides = self.strides.get(output) if output in self.placed else None
        return contiguous_strides(fusion.shape_of(output)) if strides is None else strides
