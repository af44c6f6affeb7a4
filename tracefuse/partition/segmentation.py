"""Splitting a fusion: the merge rule applied by the partitioner, and each group as a definition of its own.

This needs no sizes: what may be one kernel follows from the definition alone.

Knows: fusions, the merge rule, the partitioner. Must not know: kernels, devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

import segments
from segments import Predicate
from tracefuse import config
from tracefuse.config import Options
from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import Extent, evaluate
from tracefuse.ir.fusion import Fusion, Node, Requirement
from tracefuse.ir.op_kinds import Library, Pointwise, Reduction
from tracefuse.ir.subfusion import StepGraph, step_graph
from tracefuse.partition import predicates
from tracefuse.partition.slicing import Sliced
from tracefuse.partition.stream_marks import sliced_part, with_streams
from tracefuse.passes.pipeline import passes_at, run_passes
from tracefuse.schedule.loop_facts import LoopRefusal
from tracefuse.schedule.merge_rule import FusionRule
from tracefuse.schedule.recomputation import places, worth_storing
from tracefuse.schedule.row_column_rule import may_be_row_column

Equality: TypeAlias = tuple[Extent, Extent]

MOST_ASSUMPTIONS = 4
"""Rounds of assuming extents equal: each may bring regions together that meet the next such pair."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One segment.

    segment: its border. fusion: its definition, with local numbers. written: the same with composites written out,
    which is what a kernel is made from. library: the node that a library runs, if that is what the segment is. slices:
    the definition for one slice, where it is computed on streams.
    """

    segment: segments.Segment
    fusion: Fusion
    written: Fusion
    rule: FusionRule
    library: Node | None
    slices: Sliced | None = None

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
    """A fusion, how its steps split, and the parts in the order in which they run.

    assumed: the pairs of extents that are taken to be equal, which each plan guards; `fusion` requires them, `original`
    does not. merge: the predicate that it was split with.
    """

    fusion: Fusion
    steps: StepGraph
    partition: segments.Partition
    segments: tuple[Part, ...]
    original: Fusion
    assumed: tuple[Equality, ...]
    merge: Predicate | None


def segment_fusion(
    fusion: Fusion, *, merge: Predicate | None = None, sizes: Mapping[int, int] | None = None, strict: bool = False,
    options: Options | None = None,
) -> Segmentation:  # fmt: skip
    """Splits `fusion` into as few segments as the templates and `merge` allow.

    merge: called with two `rules.Group`s, which have `sizes` (extent values by id) where they are known; it can only
    forbid. Extents that would have to be equal for a merge are assumed to be, unless the sizes say otherwise.
    strict: what the rule takes pair by pair and refuses as a whole is an error, and not split further.
    options: for the passes that run on segments; by default those in force.
    Raises segments.SegmentationError where the predicate fails.
    """
    options = config.resolve() if options is None else options
    assumed: list[Equality] = []
    found = _split(fusion, fusion, merge, sizes, (), strict, options)
    for _ in range(MOST_ASSUMPTIONS):
        known, count = found.fusion, len(assumed)
        for pair in perhaps_equal(found):
            if _may_be_equal(pair, known, sizes):
                assumed.append(pair)
                known = assuming(fusion, assumed)
        if len(assumed) == count:
            break
        found = _split(fusion, known, merge, sizes, tuple(assumed), strict, options)
    return found


def _may_be_equal(pair: Equality, fusion: Fusion, sizes: Mapping[int, int] | None) -> bool:
    """Whether nothing known of the fusion or of the sizes speaks against equality, or settles it already."""
    if isinstance(fusion.canonical(pair[0]) - fusion.canonical(pair[1]), int):
        return False
    if sizes is None:
        return not any(isinstance(extent, int) for extent in pair) and is_possible(assuming(fusion, [pair]))
    return _are_equal(pair, sizes)


def is_possible(fusion: Fusion) -> bool:
    """Whether nothing that is required is known to be false."""
    for one in fusion.requirements:
        difference = fusion.canonical(one.right) - fusion.canonical(one.left)
        if isinstance(difference, int) and not one.holds(0, difference):
            return False
    return True


def _are_equal(pair: Equality, sizes: Mapping[int, int]) -> bool:
    return evaluate(pair[0], sizes) == evaluate(pair[1], sizes)


def for_sizes(
    segmentation: Segmentation, sizes: Mapping[int, int], options: Options | None = None
) -> tuple[Segmentation, tuple[Guard, ...]]:
    """The segmentation that fits these sizes, and the guards under which it does."""
    if not all(_are_equal(pair, sizes) for pair in segmentation.assumed):
        segmentation = segment_fusion(segmentation.original, merge=segmentation.merge, sizes=sizes, options=options)
    reason = "rows of equal length share a kernel"
    guards = [Guard(a, "==", b, reason) for a, b in segmentation.assumed]
    apart = [pair for pair in perhaps_equal(segmentation) if not _are_equal(pair, sizes)]
    return segmentation, (*guards, *(Guard(a, "!=", b, reason) for a, b in apart))


def _split(
    original: Fusion, fusion: Fusion, merge: Predicate | None, sizes: Mapping[int, int] | None,
    assumed: tuple[Equality, ...], strict: bool, options: Options,
) -> Segmentation:  # fmt: skip
    graph = step_graph(fusion)
    kept = dict.fromkeys(kept_boundaries(graph), "a boundary is kept between them")
    while True:
        split = segments.partition(
            graph.graph,
            FusionRule(fusion, graph.graph, graph.nodes, bounded=True),
            merge=with_streams(fusion, merge),
            view=predicates.viewer(fusion, graph.nodes, sizes),
            keep_boundaries=kept,
            strict=strict,
            unites=may_be_row_column,
        )
        parts = tuple(_part(graph, border, options) for border in graph.segments_of(split))
        apart = _kept_apart(parts, strict)
        if not apart:
            apart = dict.fromkeys(
                sorted(_worth_storing(parts)),
                "materialized: recomputing it for each consumer costs more than storing it",
            )
        if apart.keys() <= kept.keys():
            return Segmentation(fusion, graph, split, parts, original, assumed, merge)
        kept = {**apart, **kept}


def _kept_apart(parts: Sequence[Part], strict: bool) -> dict[int, str]:
    """The values around composites of segments that no kernel can hold once these are written out, and why not."""
    kept: dict[int, str] = {}
    for part in parts:
        if part.written is part.fusion or part.rule.whole:
            continue
        if strict:
            raise segments.SegmentationError(f"steps {part.steps} are no kernel when written out: {part.rule.whole}")
        composites = [node for node in part.fusion.nodes if isinstance(node.op, Reduction) and node.op.steps]
        values = {part.segment.value_map[v] for node in composites for v in (*node.inputs, *node.outputs)}
        reason = f"written out, no kernel can hold what would be one segment with it: {part.rule.whole}"
        kept.update(dict.fromkeys(sorted(value for value in values if value >= 0), reason))
    return kept


def _worth_storing(parts: Sequence[Part]) -> set[int]:
    """The values, by their numbers in the whole, that are stored so that costly work is done once."""
    kernels = [part for part in parts if part.library is None and part.slices is None]
    found = [(part, worth_storing(part.written, places(part.written, part.rule))) for part in kernels]
    return {part.segment.value_map[v] for part, v in found if v is not None and v in part.segment.value_map}


def perhaps_equal(segmentation: Segmentation) -> tuple[Equality, ...]:
    """The pairs of extents that kept segments apart only because they are not known to be equal."""
    verdicts = [*segmentation.partition.boundaries.values(), *(r.verdict for r in segmentation.partition.refusals)]
    liftable = [verdict for verdict in verdicts if verdict.code is LoopRefusal.PERHAPS_EQUAL]
    pairs = [pair for verdict in liftable for pair in cast("Sequence[Equality]", verdict.details["extents"])]
    return tuple(dict.fromkeys(pairs))


def assuming(fusion: Fusion, equal: Iterable[Equality]) -> Fusion:
    """`fusion` where these extents are taken to be equal: the plans made from it have a guard for each."""
    hint = "the segmentation of this definition takes them to be equal"
    extra = [Requirement(a, "==", b, "{left} elements and {right}", hint) for a, b in equal]
    return replace(fusion, requirements=(*fusion.requirements, *extra))


def kept_boundaries(graph: StepGraph) -> tuple[int, ...]:
    """The values whose makers end their segment."""
    ending = (node for node in graph.nodes if isinstance(node.op, Pointwise) and node.op.ends_segment)
    return tuple(output for node in ending for output in node.outputs)


def prepare_lowering(part: Part, options: Options) -> tuple[Fusion, FusionRule]:
    """The fusion that a kernel is made from, after the passes that run before lowering, and the rule over it."""
    written = run_passes(passes_at("before lowering"), part.written, options)
    if written is part.written:
        return written, part.rule
    inner = step_graph(written)
    return written, FusionRule(written, inner.graph, inner.nodes)


def _part(graph: StepGraph, border: segments.Segment, options: Options) -> Part:
    fusion = graph.extract(border)
    library = next((node for node in fusion.nodes if isinstance(node.op, Library)), None)
    written = fusion if library is not None else run_passes(passes_at("in partitioning"), fusion, options)
    inner = step_graph(written)
    slices = sliced_part(graph.fusion, border, fusion)
    return Part(border, fusion, written, FusionRule(written, inner.graph, inner.nodes), library, slices)
