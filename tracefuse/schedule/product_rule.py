"""The rule for a product of matrices with what is computed from its result: one segment.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from segments import Verdict, yes
from tracefuse.schedule.merge_rule import FusionRule
from tracefuse.schedule.product_facts import product_of
from tracefuse.schedule.refusal_codes import RegionRefusal


class ProductRule(FusionRule):
    """The rule over a product and the elementwise nodes before and after it."""

    template = "product"

    def accepts(self, steps: tuple[int, ...]) -> Verdict:
        """Accepts the product as a unit."""
        products = [facts for node in self.nodes if (facts := product_of(self.fusion, node)) is not None]
        if len(products) != 1 or len(steps) != len(self.nodes):
            return RegionRefusal.NO_PRODUCT()
        return yes(products[0])
