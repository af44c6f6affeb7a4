"""Which matrix products become sums in kernels: small ones, by the sizes of a call, each with guards.

Must not know: kernels, targets.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracefuse.dynamic.guards import Guard
from tracefuse.ir.fusion import Fusion
from tracefuse.passes.small_products import ProductSizes, product_sizes
from tracefuse.schedule.sizes import Sizes

MOST_TERMS = 16
MOST_ROWS = MOST_COLUMNS = 64
"""The largest matrices of a stack whose products are sums: their elements are read from the caches, once per term."""

MOST_OF_ONE = 8
"""The most terms and columns of the product with a single matrix, which a library blocks well."""

REASON = "a small product joins the kernels around it"


def small_products(fusion: Fusion, values: Mapping[int, int]) -> tuple[frozenset[int], tuple[Guard, ...]]:
    """Returns the results of the small products, and the guards of the choice. values: the sizes of a call, by id."""
    sizes, chosen = Sizes(values), set()
    for node in fusion.nodes:
        product = product_sizes(fusion, node)
        if product is not None and _is_small(product, sizes):
            chosen.add(node.outputs[0])
    return frozenset(chosen), tuple(sizes.guards)


def _is_small(product: ProductSizes, sizes: Sizes) -> bool:
    bounds = [(product.terms, MOST_OF_ONE), (product.columns, MOST_OF_ONE)]
    if product.stacked:
        bounds = [(product.terms, MOST_TERMS), (product.columns, MOST_COLUMNS), (product.rows, MOST_ROWS)]
    return all(sizes.at_most(extent, most, REASON) for extent, most in bounds)
