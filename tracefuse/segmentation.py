"""Splitting a fusion: the merge rule applied by the partitioner, and each group as a definition of its own.

This needs no sizes: what may be one kernel follows from the definition alone.

Knows: fusions, the merge rule, the partitioner. Must not know: kernels, devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import segments
from tracefuse import rules
from tracefuse.decompose import decompose
from tracefuse.extract import StepGraph, step_graph
from tracefuse.ir import Fusion, Node
from tracefuse.ops.row import Library, Pointwise, Reduction
from tracefuse.schedule.region import FusionRule


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One segment.

    segment: its border. fusion: its definition, with local numbers. written: the same with composites written out,
    which is what a kernel is made from. library: the node that a library runs, if that is what the segment is.
    """

    segment: segments.Segment
    fusion: Fusion
    written: Fusion
    rule: FusionRule
    library: Node | None

    @property
    def steps(self) -> tuple[int, ...]:
        return self.segment.steps

    @property
    def template(self) -> str:
        """What kind of kernel it needs: "library", "reduction" or "pointwise"; sizes decide the rest."""
        if self.library is not None:
            return "library"
        return "reduction" if any(isinstance(n.op, Reduction) for n in self.fusion.nodes) else "pointwise"


@dataclass(frozen=True, slots=True, eq=False)
class Segmentation:
    """A fusion, how its steps split, and the parts in the order in which they run."""

    fusion: Fusion
    steps: StepGraph
    partition: segments.Partition
    segments: tuple[Part, ...]


def segment_fusion(
    fusion: Fusion, *, merge: segments.Predicate | None = None, sizes: Mapping[int, int] | None = None
) -> Segmentation:
    """Splits `fusion` into as few segments as the templates and `merge` allow.

    merge: called with two `rules.Group`s, which have `sizes` (extent values by id) where they are known; it can only
    forbid. Raises segments.SegmentationError where it fails.
    """
    graph = step_graph(fusion)
    split = segments.partition(
        graph.graph,
        FusionRule(fusion, graph.graph, graph.nodes),
        merge=merge,
        view=rules.viewer(fusion, graph.nodes, sizes),
        keep_boundaries=kept_boundaries(graph),
    )
    return Segmentation(fusion, graph, split, tuple(_part(graph, border) for border in graph.segments_of(split)))


def kept_boundaries(graph: StepGraph) -> tuple[int, ...]:
    """The values whose makers end their segment."""
    ending = (node for node in graph.nodes if isinstance(node.op, Pointwise) and node.op.ends_segment)
    return tuple(output for node in ending for output in node.outputs)


def _part(graph: StepGraph, border: segments.Segment) -> Part:
    fusion = graph.extract(border)
    library = next((node for node in fusion.nodes if isinstance(node.op, Library)), None)
    written = fusion if library is not None else decompose(fusion)
    inner = step_graph(written)
    return Part(border, fusion, written, FusionRule(written, inner.graph, inner.nodes), library)
