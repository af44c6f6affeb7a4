"""The rule that a fusion is split by: regions of one kind of reduction, and those that reduce both ways.

Groups grow as regions, by facts that merge at the cost of the smaller side. Whether two of them are together a region
that reduces over rows and over columns is seen from their steps alone, once nothing grows any more.

Knows: both kinds of regions. Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from segments import Edge, Verdict, no
from tracefuse.errors import InternalError
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.region import RegionRule, judge_region
from tracefuse.schedule.row_column_rule import Crosswise, judge_crosswise


class FusionRule(RegionRule):
    """The rule for a fusion (segments.Rule)."""

    def merge(self, a: object, b: object, edges: tuple[Edge, ...]) -> Verdict:
        if isinstance(a, Crosswise) or isinstance(b, Crosswise):
            return no("what reduces over rows and over columns grows no more")
        return super().merge(a, b, edges)

    def accepts(self, steps: tuple[int, ...]) -> Verdict:
        verdict = judge_region(self, steps)
        if verdict:
            return verdict
        both_ways = judge_crosswise(self, steps)
        return verdict if both_ways is None else both_ways


def facts_of(rule: FusionRule) -> Facts | Crosswise:
    """The facts of a whole fusion; InternalError where the rule refuses what the segmenter accepted."""
    verdict = rule.whole
    if not verdict or not isinstance(verdict.facts, Facts | Crosswise):
        raise InternalError(f"a segment is not schedulable: {verdict}")
    return verdict.facts
