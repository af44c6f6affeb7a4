"""The rule for a row update: one segment, whose facts are those of its last node.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from segments import Verdict, yes
from tracefuse.schedule.merge_rule import FusionRule
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.row_update_facts import row_update_of


class RowUpdateRule(FusionRule):
    """The rule over the nodes of one row update and those that it reads."""

    template = "row_update"

    def accepts(self, steps: tuple[int, ...]) -> Verdict:
        """Accepts the row update as a unit."""
        updates = [facts for node in self.nodes if (facts := row_update_of(self.fusion, node)) is not None]
        if len(updates) != 1 or len(steps) != len(self.nodes):
            return RegionRefusal.NO_ROW_UPDATE()
        return yes(updates[0])
