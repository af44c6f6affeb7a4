"""The merge rule that partitions a fusion into segments: regions with one kind of reduction, and row_column regions.

Groups grow as regions; merging the facts of two groups costs time linear in the smaller one. Once no group can grow,
two groups are tested for a row_column region from their steps.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from typing import ClassVar

from segments import Edge, Verdict
from tracefuse.errors import InternalError
from tracefuse.schedule.attention_facts import AttentionFacts
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.product_facts import ProductFacts
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.region_rule import RegionRule, judge_region
from tracefuse.schedule.row_column_rule import RowColumnFacts, judge_row_column
from tracefuse.schedule.row_update_facts import RowUpdateFacts


class FusionRule(RegionRule):
    """The merge rule for a fusion; implements segments.Rule.

    template: the kind of kernel of a segment, if the rule is for one kind only.
    """

    template: ClassVar[str] = ""

    def merge(self, a: object, b: object, edges: tuple[Edge, ...]) -> Verdict:
        if isinstance(a, RowColumnFacts) or isinstance(b, RowColumnFacts):
            return RegionRefusal.COMPLETE()
        return super().merge(a, b, edges)

    def pays(self, accepted: Verdict) -> Verdict:
        facts = accepted.facts
        return self.in_one_order(accepted, facts.rows if isinstance(facts, RowColumnFacts) else facts)

    def accepts(self, steps: tuple[int, ...]) -> Verdict:
        too_long = self.too_long(steps)
        if too_long is not None:
            return too_long
        verdict = judge_region(self, steps)
        if verdict:
            return verdict
        row_column = judge_row_column(self, steps)
        return verdict if row_column is None else row_column


def segment_facts(rule: FusionRule) -> Facts | RowColumnFacts | AttentionFacts | RowUpdateFacts | ProductFacts:
    """Returns the facts of a segment; raises InternalError if the rule refuses what the segmenter accepted."""
    verdict = rule.whole
    facts = verdict.facts
    kinds = Facts | RowColumnFacts | AttentionFacts | RowUpdateFacts | ProductFacts
    if not verdict or not isinstance(facts, kinds):
        raise InternalError(f"a segment is not schedulable: {verdict}")
    return facts


def facts_of(rule: FusionRule) -> Facts | RowColumnFacts:
    """Returns the facts of a segment with loops of its own, which attentions, row updates and products have not."""
    facts = segment_facts(rule)
    if isinstance(facts, AttentionFacts | RowUpdateFacts | ProductFacts):
        raise InternalError(f"a segment of kind {rule.template} has no loops of its own")
    return facts
