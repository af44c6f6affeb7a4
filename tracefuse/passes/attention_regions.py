"""Attentions as one node each, which becomes a segment by itself.

Must not know: segments, kernels, sizes.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence

from segments.lazy_dataclasses import replace
from tracefuse.dtypes import DType
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.region_kind import FusedRegion, region_of
from tracefuse.ops.roles import CAST
from tracefuse.passes.attention_match import Attention
from tracefuse.passes.gradient_match import AttentionGradient
from tracefuse.passes.rewriter import needed_for, with_nodes

ATTENTION = FusedRegion(name="attention", doc="softmax(f(query @ key.T)) @ value, as one kernel.")
"""The op that replaces the nodes of an attention."""
ATTENTION_GRADIENT = FusedRegion(name="attention_gradient", doc="Gradients of an attention, as one kernel.")
"""The op that replaces the nodes of its gradients with respect to query, or to key and value."""


def with_regions(fusion: Fusion, matches: Sequence[Attention | AttentionGradient]) -> Fusion | None:
    """Returns the fusion with one node for each match; None if other nodes follow from one and lead to it.

    Nodes that others need too stay, and are computed again in each region.
    """
    producers = fusion.producers
    position = {node.outputs[0]: k for k, node in enumerate(fusion.nodes) if node.outputs}
    matched = {number for match in matches for number in match.outputs}
    placed = [(k, node) for k, node in enumerate(fusion.nodes) if matched.isdisjoint(node.outputs)]
    for match in matches:
        nodes, added = _with_rounded_weights(fusion, [producers[number] for number in match.steps], match)
        placed.append((position[match.steps[-1]], region_of(_op_of(match), fusion, nodes, match.outputs, added)))
    ordered = ordered_by_reads([node for _, node in sorted(placed, key=lambda position_and_node: position_and_node[0])])
    if ordered is None:
        return None
    rewritten = with_nodes(fusion, ordered)
    live = {number for node in needed_for(rewritten, rewritten.outputs) for number in node.outputs}
    # Host scalars stay, because a call evaluates the scalars of the recorded fusion.
    live_nodes = [n for n in rewritten.nodes if n.outputs[0] in live or not rewritten.values[n.outputs[0]].is_tensor]
    return with_nodes(rewritten, live_nodes)


def _with_rounded_weights(
    fusion: Fusion, nodes: Sequence[Node], match: Attention | AttentionGradient
) -> tuple[list[Node], dict[int, DType]]:
    """Returns the nodes with the weights rounded to halves before each product, as kernels do, and the casts' types."""
    half = fusion.values[match.outputs[-1] if isinstance(match, AttentionGradient) else match.result].dtype
    products = (
        {match.product} if isinstance(match, Attention) else {weighted_sum.product for weighted_sum in match.sums}
    )
    free = itertools.count(max(fusion.values) + 1)
    result: list[Node] = []
    added: dict[int, DType] = {}
    for node in nodes:
        weights = node.operands[0] if node.outputs[0] in products else None
        if isinstance(weights, int) and fusion.values[weights].dtype is not half:
            number = next(free)
            added[number] = half
            result.append(Node(CAST, (weights,), {"dtype": half}, half, (number,), node.where))
            node = replace(node, operands=(number, *node.operands[1:]))
        result.append(node)
    return result, added


def _op_of(match: Attention | AttentionGradient) -> FusedRegion:
    return ATTENTION if isinstance(match, Attention) else ATTENTION_GRADIENT


def ordered_by_reads(nodes: Sequence[Node]) -> list[Node] | None:
    """Returns the nodes in an order in which each follows those that it reads, as close to theirs as possible."""
    made_by = {number: k for k, node in enumerate(nodes) for number in node.outputs}
    missing: list[int] = []
    readers: Mapping[int, list[int]] = {k: [] for k in range(len(nodes))}
    for k, node in enumerate(nodes):
        before = {made_by[number] for number in node.inputs if number in made_by}
        missing.append(len(before))
        for position in before:
            readers[position].append(k)
    ready = [k for k, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    ordered: list[Node] = []
    while ready:
        k = heapq.heappop(ready)
        ordered.append(nodes[k])
        for reader in readers[k]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    return ordered if len(ordered) == len(nodes) else None
