"""The facts of a matrix product with what follows from it elementwise, as a segment.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracefuse.passes.product_match import FusedProduct


@dataclass(frozen=True, slots=True)
class ProductFacts:
    """The facts of a product. match: its values by number."""

    match: FusedProduct
