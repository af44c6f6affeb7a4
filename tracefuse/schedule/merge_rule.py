"""The rule that a fusion is split by: regions of one kind of reduction, and row_column regions.

Groups grow as regions, by facts that merge at the cost of the smaller side. Whether two of them are together a
row_column region is seen from their steps alone, once nothing grows any more.

Knows: both kinds of regions. Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from segments import Edge, Verdict, no
from tracefuse.errors import InternalError
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.region import RegionRule, judge_region
from tracefuse.schedule.row_column_rule import RowColumnFacts, judge_row_column


class FusionRule(RegionRule):
    """The rule for a fusion (segments.Rule)."""

    def merge(self, a: object, b: object, edges: tuple[Edge, ...]) -> Verdict:
        if isinstance(a, RowColumnFacts) or isinstance(b, RowColumnFacts):
            return no("a row_column region does not grow")
        return super().merge(a, b, edges)

    def accepts(self, steps: tuple[int, ...]) -> Verdict:
        verdict = judge_region(self, steps)
        if verdict:
            return verdict
        row_column = judge_row_column(self, steps)
        return verdict if row_column is None else row_column


def facts_of(rule: FusionRule) -> Facts | RowColumnFacts:
    """The facts of a whole fusion; InternalError where the rule refuses what the segmenter accepted."""
    verdict = rule.whole
    if not verdict or not isinstance(verdict.facts, Facts | RowColumnFacts):
        raise InternalError(f"a segment is not schedulable: {verdict}")
    return verdict.facts
