"""Attentions as one node each, which becomes a segment by itself.

Must not know: segments, kernels, sizes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.region_kind import FusedRegion, region_of
from tracefuse.passes.attention_match import Attention
from tracefuse.passes.rewriter import needed_for, with_nodes

ATTENTION = FusedRegion(name="attention", doc="softmax(f(query @ key.T)) @ value, as one kernel.")
"""The op that stands for the nodes of an attention."""


def with_attention(fusion: Fusion, match: Attention) -> Fusion | None:
    """Returns the fusion with one node for an attention; None if another node both follows from it and leads to it."""
    producers = fusion.producers
    nodes = [producers[number] for number in match.steps]
    region = region_of(ATTENTION, fusion, nodes, match.outputs)
    kept = [node for node in fusion.nodes if not node.outputs or node.outputs[0] not in match.core]
    last = fusion.nodes.index(producers[match.result])
    place = sum(node.outputs[0] not in match.core if node.outputs else 1 for node in fusion.nodes[:last])
    ordered = _in_order(fusion, [*kept[:place], region, *kept[place:]])
    if ordered is None:
        return None
    rewritten = with_nodes(fusion, ordered)
    live = {number for node in needed_for(rewritten, rewritten.outputs) for number in node.outputs}
    # Host scalars stay, because a call evaluates the scalars of the recorded fusion.
    kept = [n for n in rewritten.nodes if n.outputs[0] in live or not rewritten.values[n.outputs[0]].is_tensor]
    return with_nodes(rewritten, kept)


def _in_order(fusion: Fusion, nodes: Sequence[Node]) -> list[Node] | None:
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
