"""Splits a fusion into segments: the partitioner applies the merge rule, and each group becomes a fusion of its own.

Segmentation needs no sizes, because the definition alone decides which nodes one kernel can hold.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias, cast

import segments
from segments import Predicate
from segments.lazy_dataclasses import dataclass, replace
from tracefuse import config
from tracefuse.config import Options
from tracefuse.ir.control_flow import ControlFlow
from tracefuse.ir.extents import Extent, evaluate
from tracefuse.ir.fusion import Fusion, Node, Requirement
from tracefuse.ir.op_kinds import Pointwise, Reduction
from tracefuse.ir.region_kind import FusedRegion
from tracefuse.ir.scan_kind import Scan, is_library_call
from tracefuse.ir.structure import fusion_key
from tracefuse.ir.subfusion import StepGraph, step_graph
from tracefuse.partition import predicates
from tracefuse.partition.epilogue_choice import EPILOGUE, product_in
from tracefuse.partition.row_update_choice import ROW_UPDATE
from tracefuse.partition.slicing import Sliced
from tracefuse.partition.stream_marks import slice_part, with_streams
from tracefuse.partition.tiled_product_choice import TILED_PRODUCT
from tracefuse.passes.attention_regions import ATTENTION, ATTENTION_GRADIENT
from tracefuse.passes.pipeline import passes_at, run_passes
from tracefuse.schedule.attention_rule import AttentionRule
from tracefuse.schedule.loop_facts import LoopRefusal
from tracefuse.schedule.merge_rule import FusionRule
from tracefuse.schedule.product_rule import ProductRule
from tracefuse.schedule.recomputation import values_to_store
from tracefuse.schedule.row_column_rule import may_be_row_column
from tracefuse.schedule.row_update_rule import RowUpdateRule

_RULES: Mapping[FusedRegion, type[FusionRule]] = {
    ATTENTION: AttentionRule, ATTENTION_GRADIENT: AttentionRule, ROW_UPDATE: RowUpdateRule, TILED_PRODUCT: ProductRule,
    EPILOGUE: ProductRule,
}  # fmt: skip

Equality: TypeAlias = tuple[Extent, Extent]

MAX_ASSUMPTION_ROUNDS = 4
"""The limit on rounds of assuming extents equal. Each round can merge regions that then meet another such pair."""

MATERIALIZED = "materialized: recomputing it for each consumer costs more than storing it"


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One segment.

    segment: its interface. fusion: its nodes, with local numbers. decomposed: the same with composites decomposed, from
    which a kernel is generated. library: the node of a library call, None for kernels. slices: the fusion of one slice,
    for a stream-parallel segment.
    """

    segment: segments.Segment
    fusion: Fusion
    decomposed: Fusion
    rule: FusionRule
    library: Node | None
    slices: Sliced | None = None

    @property
    def steps(self) -> tuple[int, ...]:
        return self.segment.steps

    @property
    def facts(self) -> object:
        """The merge rule's facts about its nodes, by local numbers."""
        return self.rule.whole.facts

    @property
    def originals(self) -> Mapping[int, int]:
        """The number in the fusion of each value at its border, by local number."""
        return self.segment.index_map

    @property
    def template(self) -> str:
        """The kind of kernel that it needs, "library", the name of a control-flow op, "attention",
        "row_update", "product", "scan", "reduction" or "pointwise"."""
        if self.library is not None:
            return self.library.op.name if isinstance(self.library.op, ControlFlow) else "library"
        if self.rule.template:
            return self.rule.template
        if any(isinstance(n.op, Scan) for n in self.fusion.nodes):
            return "scan"
        return "reduction" if any(isinstance(n.op, Reduction) for n in self.fusion.nodes) else "pointwise"


@dataclass(frozen=True, slots=True, eq=False)
class Segmentation:
    """A fusion and its segments, in the order in which they run.

    assumed: the pairs of extents that are assumed equal. Each plan has a guard for each pair; `fusion` requires them,
    `original` does not. merge: the user's predicate. divided_attentions: by the number of its second product, why an
    attention is not one segment. divided_products: by its number, why a library computes a product without its
    epilogue. result_orders: of outputs that a call permutes back, their axes from the outermost in memory.
    """

    fusion: Fusion
    steps: StepGraph
    partition: segments.Partition
    segments: tuple[Part, ...]
    original: Fusion
    assumed: tuple[Equality, ...]
    merge: Predicate | None
    divided_attentions: Mapping[int, str] = field(default_factory=dict)
    divided_products: Mapping[int, str] = field(default_factory=dict)
    result_orders: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


def segment_fusion(
    fusion: Fusion, *, merge: Predicate | None = None, sizes: Mapping[int, int] | None = None, strict: bool = False,
    options: Options | None = None, stored: Mapping[int, str] | None = None, known: Sequence[Part] = (),
) -> Segmentation:  # fmt: skip
    """Splits `fusion` into as few segments as the templates and `merge` allow.

    merge: called with two `rules.Group`s, which have `sizes` if these are given. It can only forbid merges. sizes:
    extent values by id. Extents that must be equal for a merge are assumed equal, unless the sizes differ. strict:
    raise an error, instead of splitting further, if the rule accepts each pair of nodes but not the group as a whole.
    options: for the passes that run on segments, by default the options in force. stored: values that end the segment
    of their producer, with the reasons. known: segments of another segmentation; what was found out about equal ones
    is used again. Raises segments.SegmentationError if the predicate fails.
    """
    options = config.resolve() if options is None else options
    assumed: list[Equality] = []
    stored = stored or {}
    rules = {fusion_key(part.fusion): part.rule for part in known if part.library is None and part.rule is not None}
    segmentation = _split(fusion, fusion, merge, sizes, (), strict, options, stored, rules)
    for _ in range(MAX_ASSUMPTION_ROUNDS):
        current, count = segmentation.fusion, len(assumed)
        for pair in perhaps_equal(segmentation):
            if _may_be_equal(pair, current, sizes):
                assumed.append(pair)
                current = assume_equal(fusion, assumed)
        if len(assumed) == count:
            break
        segmentation = _split(fusion, current, merge, sizes, tuple(assumed), strict, options, stored, rules)
    return segmentation


def _may_be_equal(pair: Equality, fusion: Fusion, sizes: Mapping[int, int] | None) -> bool:
    """Whether two extents can be assumed equal: neither the fusion nor the sizes decide it otherwise."""
    if isinstance(fusion.canonical(pair[0]) - fusion.canonical(pair[1]), int):
        return False
    if sizes is None:
        return not any(isinstance(extent, int) for extent in pair) and is_possible(assume_equal(fusion, [pair]))
    return are_equal(pair, sizes)


def is_possible(fusion: Fusion) -> bool:
    """Whether no requirement of the fusion is known to be false, and no size below its minimum follows from them."""
    if any(
        isinstance(value, int) and value < requirement.minimum for requirement, value in fusion.representatives.items()
    ):
        return False
    for requirement in fusion.requirements:
        difference = fusion.canonical(requirement.right) - fusion.canonical(requirement.left)
        if isinstance(difference, int) and not requirement.holds(0, difference):
            return False
    return True


def are_equal(pair: Equality, sizes: Mapping[int, int]) -> bool:
    """Whether a pair of extents is equal at some sizes."""
    return evaluate(pair[0], sizes) == evaluate(pair[1], sizes)


def _split(
    original: Fusion, fusion: Fusion, merge: Predicate | None, sizes: Mapping[int, int] | None,
    assumed: tuple[Equality, ...], strict: bool, options: Options, stored: Mapping[int, str],
    rules: dict[Hashable, FusionRule],
) -> Segmentation:  # fmt: skip
    graph = step_graph(fusion)
    boundaries = dict.fromkeys(values_to_store(fusion), MATERIALIZED)
    boundaries |= stored
    boundaries |= dict.fromkeys(kept_boundaries(graph), "the producer ends its segment")
    while True:
        split = segments.partition(
            graph.graph,
            FusionRule(fusion, graph.graph, graph.nodes, bounded=True),
            merge=with_streams(fusion, merge),
            view=predicates.viewer(fusion, graph.nodes, sizes),
            keep_boundaries=boundaries,
            strict=strict,
            unites=may_be_row_column,
        )
        parts = tuple(_extract_part(graph, interface, options, rules) for interface in graph.segments_of(split))
        isolated = _isolate_refused(parts, strict)
        if isolated.keys() <= boundaries.keys():
            return Segmentation(fusion, graph, split, parts, original, assumed, merge)
        boundaries = {**isolated, **boundaries}


def _isolate_refused(parts: Sequence[Part], strict: bool) -> dict[int, str]:
    """Returns values that end their segments, with reasons, for segments that the rule refuses by themselves.

    These are composites that do not fit one kernel when decomposed, whose operands and results it returns, and segments
    whose extents are equal by the rest of the fusion alone, of which it returns the values that steps pass on.
    """
    boundaries: dict[int, str] = {}
    for part in parts:
        composites = [node for node in part.fusion.nodes if isinstance(node.op, Reduction) and node.op.steps]
        is_divisible = composites or (len(part.steps) > 1 and part.library is None and not part.rule.template)
        if not is_divisible or part.rule.whole:
            continue
        if strict:
            raise segments.SegmentationError(
                f"no kernel can hold steps {part.steps} when decomposed: {part.rule.whole}"
            )
        values = {part.segment.value_map[v] for node in composites for v in (*node.inputs, *node.outputs)}
        reason = f"decomposed, the merged segment does not fit one kernel: {part.rule.whole}"
        if not composites:
            computed = [v for node in part.fusion.nodes for v in node.inputs if v in part.fusion.producers]
            values = {part.segment.value_map[v] for v in computed}
            reason = f"by itself, the merged segment does not fit one kernel: {part.rule.whole}"
        boundaries.update(dict.fromkeys(sorted(value for value in values if value >= 0), reason))
    return boundaries


def perhaps_equal(segmentation: Segmentation) -> tuple[Equality, ...]:
    """Returns the pairs of extents that prevented merges only because they are not known to be equal."""
    verdicts = [*segmentation.partition.boundaries.values(), *(r.verdict for r in segmentation.partition.refusals)]
    liftable = [verdict for verdict in verdicts if verdict.code is LoopRefusal.PERHAPS_EQUAL]
    pairs = [pair for verdict in liftable for pair in cast("Sequence[Equality]", verdict.details["extents"])]
    return tuple(dict.fromkeys(pairs))


def assume_equal(fusion: Fusion, equal: Iterable[Equality]) -> Fusion:
    """Returns `fusion` with the requirement that these extents are equal. Each plan has a guard for each pair."""
    hint = "the segmentation of this definition assumes that they are equal"
    extra = [Requirement(a, "==", b, "{left} elements and {right}", hint) for a, b in equal]
    return replace(fusion, requirements=(*fusion.requirements, *extra))


def kept_boundaries(graph: StepGraph) -> tuple[int, ...]:
    """Returns the values whose producers end their segment."""
    ending = (node for node in graph.nodes if isinstance(node.op, Pointwise) and node.op.ends_segment)
    return tuple(output for node in ending for output in node.outputs)


def prepare_lowering(part: Part, options: Options) -> tuple[Fusion, FusionRule]:
    """Runs the passes before lowering and returns the fusion that a kernel is generated from, with its rule."""
    decomposed = run_passes(passes_at("before lowering"), part.decomposed, options)
    if decomposed is part.decomposed:
        return decomposed, part.rule
    inner = step_graph(decomposed)
    return decomposed, type(part.rule)(decomposed, inner.graph, inner.nodes)


def _extract_part(
    graph: StepGraph, interface: segments.Segment, options: Options, rules: dict[Hashable, FusionRule]
) -> Part:
    """Extracts a segment. rules: the rules of earlier segments by their fusions; equal segments share one."""
    fusion = graph.extract(interface)
    regions = [op for step in interface.steps if isinstance(op := graph.nodes[step].op, FusedRegion)]
    if regions:
        inner = step_graph(fusion)
        product = product_in(fusion) if regions[0] is EPILOGUE else None
        return Part(interface, fusion, fusion, _RULES[regions[0]](fusion, inner.graph, inner.nodes), product)
    library = next((node for node in fusion.nodes if is_library_call(node.op)), None)
    key = fusion_key(fusion)
    rule = rules.get(key)
    if rule is None:
        decomposed = fusion if library is not None else run_passes(passes_at("in partitioning"), fusion, options)
        inner = step_graph(decomposed)
        rule = rules[key] = FusionRule(decomposed, inner.graph, inner.nodes)
    slices = slice_part(graph.fusion, interface, fusion)
    return Part(interface, fusion, rule.fusion, rule, library, slices)
