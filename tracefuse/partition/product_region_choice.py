"""Which matrix products of halves one kernel computes with what follows from them, by the sizes of a call, with guards.

A product of few terms takes no longer than its operands and its result take to be read and stored, so a library call
and a second kernel, which reads the result and stores another one, take up to three times as long.

Must not know: kernels, targets.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracefuse.dynamic.guards import Guard
from tracefuse.ir.fusion import Fusion
from tracefuse.passes.attention_regions import with_regions
from tracefuse.passes.product_match import FusedProduct, fused_products
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import FusedProductBounds

REASON = "a product of few terms is one kernel with what follows from it"


def choose_fused_products(
    fusion: Fusion, values: Mapping[int, int], bounds: FusedProductBounds
) -> tuple[Fusion, tuple[Guard, ...]]:
    """Replaces the products that a kernel computes with what follows by one node each; returns the fusion and guards.

    values: the sizes of a call, by id.
    """
    sizes = Sizes(values)
    chosen = [match for match in fused_products(fusion) if _fits(fusion, match, sizes, bounds)]
    regions = with_regions(fusion, chosen) if chosen else None
    return fusion if regions is None else regions, tuple(sizes.guards)


def _fits(fusion: Fusion, match: FusedProduct, sizes: Sizes, bounds: FusedProductBounds) -> bool:
    rows, columns = fusion.shape_of(match.product)[-2:]
    terms = fusion.shape_of(match.left.number)[match.left.order[-1]]
    return (
        sizes.at_most(terms, bounds.terms, REASON)
        and not sizes.at_most(terms, 0, REASON)
        and not sizes.at_most(rows, bounds.rows - 1, REASON)
        and not sizes.at_most(columns, bounds.columns - 1, REASON)
        and not any(sizes.at_most(extent, 0, REASON) for extent in fusion.shape_of(match.product)[:-2])
    )
