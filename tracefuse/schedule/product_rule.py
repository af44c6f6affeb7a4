"""The rule for a matrix product with what follows from it elementwise, which is one segment.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from segments import Verdict, yes
from tracefuse.passes.product_match import fused_products
from tracefuse.schedule.merge_rule import FusionRule
from tracefuse.schedule.product_facts import ProductFacts
from tracefuse.schedule.refusal_codes import RegionRefusal


class ProductRule(FusionRule):
    """The rule over the nodes of one product and of what follows from it."""

    template = "product"

    def accepts(self, steps: tuple[int, ...]) -> Verdict:
        """Accepts the nodes as a unit."""
        products = fused_products(self.fusion)
        if len(products) != 1 or len(steps) != len(self.nodes) or products[0].outputs != self.fusion.outputs:
            return RegionRefusal.NO_PRODUCT()
        return yes(ProductFacts(products[0]))
