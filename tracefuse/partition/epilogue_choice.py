"""Which products a library computes with their epilogues, as one segment.

An epilogue pays where its result is stored in any case: the product itself is then neither stored nor read again. Where
a kernel goes on from the result, it computes the epilogue as well.

Must not know: kernels, targets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from tracefuse.dynamic.guards import Guard
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.region_kind import FusedRegion, region_of
from tracefuse.partition.stream_marks import on_streams
from tracefuse.passes.attention_regions import ordered_by_reads
from tracefuse.passes.product_epilogues import EpilogueMatch, epilogues_of, readers_of
from tracefuse.passes.rewriter import needed_for, with_nodes
from tracefuse.schedule.product_facts import product_of
from tracefuse.schedule.sizes import Sizes

EPILOGUE = FusedRegion(name="product_epilogue", doc="A product of matrices and its epilogue, as one library call.")
"""The op that replaces a product and the nodes of its epilogue."""

Refusal: TypeAlias = Callable[[Fusion, EpilogueMatch], "str | None"]
"""Returns why the library of a target does not compute a product with an epilogue, None if it does."""


def choose_epilogues(
    fusion: Fusion, stored: Collection[int], values: Mapping[int, int], refusal: Refusal
) -> tuple[Fusion, tuple[Guard, ...], dict[int, str]]:
    """Replaces the products that a library computes with an epilogue by one node each.

    stored: the values that are stored in any case. values: the sizes of a call, by id. Returns the fusion, the guards
    and, by the number of a product, why it is computed apart from what follows.
    """
    refused: dict[int, str] = {}
    sizes = Sizes(values)
    if on_streams(fusion):
        return fusion, (), refused
    readers = readers_of(fusion)
    chosen: dict[int, EpilogueMatch] = {}
    for node in fusion.nodes:
        facts = product_of(fusion, node)
        if facts is None:
            continue
        matches = [match for match in epilogues_of(fusion, node, readers) if match.result in stored]
        reasons = [refusal(fusion, match) for match in matches]
        accepted = [match for match, reason in zip(matches, reasons, strict=True) if reason is None]
        if accepted and not sizes.at_most(facts.extents(fusion)[2], 0, "a sum without terms is no product"):
            chosen[node.outputs[0]] = accepted[-1]
        elif matches and not accepted:
            refused[node.outputs[0]] = str(reasons[-1])
    rewritten = _with_regions(fusion, chosen) if chosen else fusion
    return fusion if rewritten is None else rewritten, tuple(sizes.guards), refused


def product_in(fusion: Fusion) -> Node:
    """Returns the product among the nodes of a region that `choose_epilogues` made."""
    return next(node for node in fusion.nodes if product_of(fusion, node) is not None)


def _with_regions(fusion: Fusion, chosen: Mapping[int, EpilogueMatch]) -> Fusion | None:
    """Returns the fusion with one node for each match; None if its nodes cannot be ordered.

    Nodes that spread a bias over rows stay if others read them, too.
    """
    results = {match.result: match for match in chosen.values()}
    position = {number: k for k, node in enumerate(fusion.nodes) for number in node.outputs}
    nodes: list[Node] = []
    for node in fusion.nodes:
        match = results.get(node.outputs[0]) if node.outputs else None
        if match is not None:
            inside = sorted((match.product, *match.nodes), key=lambda n: position[n.outputs[0]])
            node = region_of(EPILOGUE, fusion, inside, {match.result}, {})
        nodes.append(node)
    ordered = ordered_by_reads(nodes)
    if ordered is None:
        return None
    replaced = with_nodes(fusion, ordered)
    live = {number for node in needed_for(replaced, replaced.outputs) for number in node.outputs}
    kept = (n for n in replaced.nodes if n.outputs[0] in live or not replaced.values[n.outputs[0]].is_tensor)
    return with_nodes(replaced, list(kept))
