"""Which attentions a kernel computes, by the types, sizes and layouts of a call, each with guards.

Must not know: kernels, targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from segments.lazy_dataclasses import dataclass
from tracefuse.dynamic.guards import Guard
from tracefuse.dynamic.layouts import UNIT, Strided
from tracefuse.ir.extents import product
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ops.roles import ENDING_COPY, PERMUTE, PERMUTED_PRODUCT
from tracefuse.passes.attention_match import Attention, Factor, attentions_in
from tracefuse.passes.attention_regions import with_regions
from tracefuse.passes.gradient_match import AttentionGradient, gradients_in
from tracefuse.passes.rewriter import Rewriter
from tracefuse.passes.small_products import operand_orders
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import AttentionBounds

READ_ELSEWHERE = "the scores or the weights are read elsewhere"
REASON = "the features of an attention fill its tiles"


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """A fusion with one node for each attention that a kernel computes.

    guards: of the choice. refused: by the number of its second product, why an attention is computed in parts.
    """

    fusion: Fusion
    guards: tuple[Guard, ...]
    refused: Mapping[int, str]


def choose_attention(
    fusion: Fusion, values: Mapping[int, int], bounds: AttentionBounds, layouts: Sequence[Strided | None],
    aligned: frozenset[int],
) -> AttentionChoice:  # fmt: skip
    """Replaces the attentions that a kernel computes by one node each.

    values: the sizes of a call, by id. layouts: of the tensor inputs, None for C order. aligned: inputs that start at a
    multiple of 16 bytes.
    """
    sizes, refused = Sizes(values), dict[int, str]()
    layout_of = dict(zip(fusion.tensor_inputs, layouts, strict=False))
    rewritten = fusion
    while True:
        matches, resembling = _matches(rewritten)
        refused |= {number: why for number, why in resembling.items() if number in fusion.values}
        chosen = [match for match in matches if match.product not in refused]
        if not chosen:
            return AttentionChoice(fusion, tuple(sizes.guards), refused)
        reasons = {match.product: _unsuitable(rewritten, match, sizes, bounds) for match in chosen}
        refusals = {product: reason for product, reason in reasons.items() if reason is not None}
        if not refusals:
            readable = rewritten
            if not bounds.packs:
                readable = _with_readable_factors(rewritten, chosen, layout_of, aligned)
            if readable is not rewritten:
                rewritten = readable
                continue
            regions = with_regions(rewritten, chosen)
            if regions is None:
                refusals[chosen[-1].product] = "another value follows from its results and is read by it"
            else:
                computed = regions.producers
                rejected = (match for match in chosen if any(number in computed for number in _products(match)))
                refusals = dict.fromkeys((match.product for match in rejected), READ_ELSEWHERE)
                if not refusals:
                    return AttentionChoice(regions, tuple(sizes.guards), refused)
        refused |= refusals
        rewritten = fusion


def _matches(fusion: Fusion) -> tuple[list[Attention | AttentionGradient], dict[int, str]]:
    """Returns the attentions and the gradients of attention, and the reasons for what only resembles one."""
    attentions, refused = attentions_in(fusion)
    gradients, refused_gradients = gradients_in(fusion, attentions)
    return [*attentions, *gradients], {**refused_gradients, **refused}


def _products(match: Attention | AttentionGradient) -> list[int]:
    """Returns the products that give scores."""
    return [match.scores] if isinstance(match, Attention) else [product.number for product in match.products]


def _unsuitable(
    fusion: Fusion, match: Attention | AttentionGradient, sizes: Sizes, bounds: AttentionBounds
) -> str | None:  # fmt: skip
    """Returns why no kernel computes an attention of these sizes, or None; guards the sizes."""
    dtype = fusion.values[match.factors[0][0].number].dtype
    if dtype not in bounds.types:
        return f"its operands are {dtype.name}: a kernel takes {' and '.join(sorted(t.name for t in bounds.types))}"
    features_of = (bounds.features, bounds.gradient_features)
    if not dtype.is_half and bounds.float32_features is not None:
        features_of = bounds.float32_features
    most = features_of[isinstance(match, AttentionGradient)]
    if not most:
        return "no kernel computes gradients"
    lengths = fusion.shape_of(match.scores)[-2:]
    if any(sizes.at_most(extent, 0, "without keys, a product has no terms") for extent in lengths):
        return "there are no queries or no keys"
    if bounds.scores and sizes.at_most(product(lengths), bounds.scores, "the caches hold the scores of an attention"):
        return f"the caches hold up to {bounds.scores} scores"
    if bounds.keys and sizes.at_most(lengths[1], bounds.keys - 1, "an attention has fewer keys than a tile"):
        return f"there are fewer than {bounds.keys} keys"
    for factor, *_ in match.factors:
        extent = fusion.shape_of(factor.number)[factor.order[-1]]
        features = sizes.hint(extent)
        if features % bounds.multiple or not 0 < features <= most:
            sizes.require(extent, "==", features, "the features of an attention do not fill the tiles of a kernel")
            return f"{features} features: a kernel takes multiples of {bounds.multiple} up to {most}"
        sizes.require(extent, "==", features, REASON)
    return None


def _with_readable_factors(
    fusion: Fusion, matches: Sequence[Attention | AttentionGradient], layout_of: Mapping[int, Strided | None],
    aligned: frozenset[int],
) -> Fusion:  # fmt: skip
    """Returns the fusion with a copy of the first operand that a kernel cannot read in accesses of 16 bytes."""
    for factor, scores, position, is_key in (place for match in matches for place in match.factors):
        is_readable = factor.order[-1] == len(factor.order) - 1
        if is_readable and factor.number in fusion.tensor_inputs:
            layout = layout_of.get(factor.number)
            is_readable = factor.number in aligned and (layout is None or _is_wide(layout))
        if not is_readable:
            return _with_copy(fusion, factor, scores, position, is_key)
    return fusion


def _is_wide(layout: Strided) -> bool:
    """Whether the elements of the last axis are adjacent and those of no other axis."""
    return layout.aligned and layout.axes[-1:] == UNIT and UNIT not in layout.axes[:-1]


def _with_copy(fusion: Fusion, factor: Factor, product: int, position: int, is_key: bool) -> Fusion:
    """Returns the fusion in which a product reads a copy of an operand with its features innermost."""
    rewriter = Rewriter(fusion)
    plain = tuple(range(len(factor.order)))
    for node in fusion.nodes:
        if node.outputs[0] != product:
            rewriter.keep(node)
            continue
        dtype = fusion.values[factor.number].dtype
        source = factor.number
        if factor.order != plain:
            source = rewriter.node(PERMUTE, (source,), {"dims": factor.order}, dtype, (dtype,), where=node.where)[0]
        copy = rewriter.node(ENDING_COPY, (source,), {}, dtype, (dtype,), where=node.where)[0]
        factors = operand_orders(fusion, node)
        factors[position] = (copy, (*plain[:-2], plain[-1], plain[-2]) if is_key else plain)
        orders = dict(zip(PERMUTED_PRODUCT.orders, (order for _, order in factors), strict=True))
        operands = tuple(number for number, _ in factors)
        rewriter.keep(Node(PERMUTED_PRODUCT, operands, orders, node.compute, node.outputs, node.where))
    return rewriter.build()
