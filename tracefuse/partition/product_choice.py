"""Which matrix products become sums in kernels: small ones, by the sizes of a call, each with guards.

Must not know: kernels, targets.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracefuse.dynamic.guards import Guard
from tracefuse.ir.fusion import Fusion
from tracefuse.passes.small_products import ProductBounds, ProductSizes, product_sizes
from tracefuse.schedule.sizes import Sizes

REASON = "a small product joins the kernels around it"


def small_products(
    fusion: Fusion, values: Mapping[int, int], bounds: ProductBounds
) -> tuple[frozenset[int], tuple[Guard, ...]]:
    """Returns the results of the small products, and the guards of the choice. values: the sizes of a call, by id."""
    sizes, chosen = Sizes(values), set()
    for node in fusion.nodes:
        product = product_sizes(fusion, node)
        terms = bounds.complex_terms if node.compute.is_complex else bounds.vector_terms
        if product is not None and _is_small(product, bounds, sizes, terms):
            chosen.add(node.outputs[0])
    return frozenset(chosen), tuple(sizes.guards)


def _is_small(product: ProductSizes, bounds: ProductBounds, sizes: Sizes, vector_terms: int) -> bool:
    extents = (product.rows, product.terms, product.columns)
    if not product.stacked and product.rows == product.columns == 1:  # of two vectors: read once, in any kernel
        return True
    if bounds.vector and not product.stacked and 1 in (product.rows, product.columns):
        if product.columns == 1 and vector_terms and sizes.at_most(product.terms, vector_terms, REASON):
            return True
        return all(sizes.at_most(extent, bounds.vector, REASON) for extent in extents if extent != 1)
    if product.terms == 1:  # an outer product: there is nothing to sum
        return True
    if bounds.work and sizes.at_most(product.work, bounds.work, REASON):
        return True
    if not product.stacked and not bounds.alone:
        return False
    limits = [(product.terms, bounds.alone), (product.columns, bounds.alone)]
    if product.stacked:
        limits = [(product.terms, bounds.terms), (product.columns, bounds.columns), (product.rows, bounds.rows)]
    return all(sizes.at_most(extent, most, REASON) for extent, most in limits)
