"""The ops of a segment, also of one that a single node stands for: an attention, a product with what follows it.

Such a node has the nodes that it replaces as an attribute; the segment's own fusion computes them one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import evaluate
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.region_kind import FusedRegion
from tracefuse.partition.segmentation import Part, Segmentation


@dataclass(frozen=True, slots=True)
class SegmentNodes:
    """The nodes of a segment in a fusion that has their values. sizes: of its symbols and integer scalars, by id.

    originals: the same nodes with the numbers of the segmented fusion.
    """

    fusion: Fusion
    nodes: Sequence[Node]
    sizes: Mapping[Any, int] | None
    originals: Sequence[Node]


def nodes_of(segmentation: Segmentation, part: Part, sizes: Mapping[Any, int] | None) -> SegmentNodes:
    """Returns the nodes of a segment. sizes: of the segmented fusion, if they are known."""
    nodes = [segmentation.steps.nodes[step] for step in part.steps]
    regions = [node for node in nodes if isinstance(node.op, FusedRegion)]
    if not regions:
        return SegmentNodes(segmentation.fusion, nodes, sizes, nodes)
    originals = [inner for region in regions for inner in region.attributes["nodes"]]
    local_sizes = None if sizes is None else _local_sizes(segmentation.fusion, part, sizes)
    return SegmentNodes(part.fusion, part.fusion.nodes, local_sizes, originals)


def _local_sizes(fusion: Fusion, part: Part, sizes: Mapping[Any, int]) -> Mapping[Any, int]:
    """Returns the sizes of the symbols of a segment's fusion, and of its integer inputs."""
    original = part.segment.index_map
    result: dict[Any, int] = {}
    for key, number, axis in part.fusion.axis_ids():
        result[key] = evaluate(fusion.values[original[number]].shape[axis], sizes)
    for number in part.fusion.scalar_inputs:
        if original[number] in sizes:
            result[number] = sizes[original[number]]
    return result
