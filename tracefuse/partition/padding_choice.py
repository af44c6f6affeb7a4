"""Which matrix products of halves are padded: large ones with unaligned rows, by the sizes of a call, with guards.

Must not know: kernels, targets.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import Extent, product
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.passes.padded_products import Padding, PaddingBounds
from tracefuse.passes.small_products import ProductSizes, product_sizes
from tracefuse.schedule.sizes import Sizes

REASON = "a library reads the aligned rows of a large product of halves faster"


def padded_products(
    fusion: Fusion, values: Mapping[int, int], bounds: PaddingBounds
) -> tuple[Mapping[int, Padding], tuple[Guard, ...]]:
    """Returns the padding of each product that is padded, and the guards of the choice. values: sizes, by id."""
    sizes, chosen = Sizes(values), dict[int, Padding]()
    for node in fusion.nodes:
        extents = product_sizes(fusion, node)
        if extents is None or not _has_halves(fusion, node) or 1 in (extents.rows, extents.columns):
            continue
        padding = _padding(extents, product(fusion.shape_of(node.outputs[0])), sizes, bounds)
        if padding is not None:
            chosen[node.outputs[0]] = padding
    return chosen, tuple(sizes.guards)


def _has_halves(fusion: Fusion, node: Node) -> bool:
    numbers = (*node.inputs, *node.outputs)
    return node.compute.is_half and all(fusion.values[n].dtype.is_half and len(fusion.shape_of(n)) > 1 for n in numbers)


def _padding(extents: ProductSizes, results: Extent, sizes: Sizes, bounds: PaddingBounds) -> Padding | None:
    """Returns how to pad a product of so many results; None if it gains nothing."""
    if sizes.at_most(results * extents.terms, bounds.work - 1, REASON):
        return None
    terms = not sizes.is_multiple(extents.terms, bounds.multiple, REASON)
    columns = not sizes.is_multiple(extents.columns, bounds.multiple, REASON)
    if not (terms or columns):
        return None
    narrow = [sizes.at_most(extent, bounds.least - 1, REASON) for extent in (extents.rows, extents.columns)]
    if narrow[0] or (terms and narrow[1]):
        return None
    return Padding(bounds.multiple, terms, columns)
