"""The rule for an attention: one segment, whose facts are the match of its nodes.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from segments import Verdict, yes
from tracefuse.passes.attention_match import Attention, attentions_in
from tracefuse.passes.gradient_match import AttentionGradient, gradients_in
from tracefuse.schedule.attention_facts import AttentionFacts
from tracefuse.schedule.merge_rule import FusionRule
from tracefuse.schedule.refusal_codes import RegionRefusal


class AttentionRule(FusionRule):
    """The rule over the nodes of one attention."""

    template = "attention"

    def accepts(self, steps: tuple[int, ...]) -> Verdict:
        """Accepts the attention as a unit."""
        attentions, _ = attentions_in(self.fusion)
        gradients, _ = gradients_in(self.fusion, attentions)
        matches: list[Attention | AttentionGradient] = [*attentions, *gradients]
        if len(matches) != 1 or len(steps) != len(self.nodes):
            return RegionRefusal.NO_ATTENTION()
        return yes(AttentionFacts(matches[0]))
