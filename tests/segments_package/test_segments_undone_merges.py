"""Tests rules that accept merges pairwise and refuse the union: the groups split again, or strict mode raises."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segments import Edge, Graph, SegmentationError, Step, Verdict, no, partition, yes
from segments.partition import MAX_RESTARTS
from tests.segments_package.graph_chains import chain
from tests.segments_package.segments_strategies import SetRule, graphs, rules
from tests.segments_package.test_segments_partition import check_partition, colour_allows, layered
from tests.session.samples import times


@dataclass
class Credulous(SetRule):
    """Merges everything, whatever the full check says."""

    def merge(self, a: object, b: object, edges: tuple[Edge, ...]) -> Verdict:
        assert isinstance(a, frozenset)
        assert isinstance(b, frozenset)
        self.merges += 1
        return yes(a | b)


@given(st.data())
@settings(max_examples=times(30), deadline=None)
def test_groups_that_the_full_check_refuses_are_split_again(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    drawn = data.draw(rules(graph))
    rule = Credulous(**{field.name: getattr(drawn, field.name) for field in fields(drawn)})
    # A step alone is always taken.
    rule.takes = lambda steps: yes(steps) if len(steps) == 1 else drawn.takes(steps)  # type: ignore[method-assign]
    split = partition(graph, rule, merge=data.draw(st.sampled_from([None, colour_allows])))
    check_partition(graph, rule, split)
    assert rule.merges <= (MAX_RESTARTS + 1) * 12 * (len(graph.steps) + 1)


def test_a_merge_whose_union_is_refused_is_undone_and_the_boundary_says_why() -> None:
    class RefusesThree(Credulous):
        def takes(self, steps: frozenset[int]) -> Verdict:
            return no("three are too many", count=len(steps)) if len(steps) == 3 else yes(steps)

    graph = chain(3)
    split = partition(graph, RefusesThree(graph))
    assert split.groups == ((0, 1), (2,))
    reason = "merging them leads to a group that is refused as a whole: three are too many (count=3)"
    assert split.boundaries[0, 1].reason == reason
    # The whole graph, the union that was taken back, and the pair that then stayed apart.
    assert [(refusal.first, refusal.second) for refusal in split.refusals] == [
        ((0, 1, 2), ()), ((0, 1, 2), ()), ((0, 1), (2,)),
    ]  # fmt: skip


def test_a_rule_that_refuses_every_group_leaves_each_step_alone_after_a_bounded_time() -> None:
    class RefusesAll(Credulous):
        def takes(self, steps: frozenset[int]) -> Verdict:
            return no("never") if len(steps) > 1 else yes(steps)

    graph = layered(240)
    for cheap in (frozenset[int](), frozenset({0})):
        rule = RefusesAll(graph, cheap_steps=cheap)
        split = partition(graph, rule)
        assert split.groups == tuple((step,) for step in range(len(graph.steps)))
        assert {verdict.reason for verdict in split.boundaries.values()} == {
            "merging them leads to a group that is refused as a whole: never"
        }
        assert rule.merges <= (MAX_RESTARTS + 1) * 10 * len(graph.steps)


def test_a_rule_that_contradicts_itself_is_an_error_that_names_both_answers_in_the_strict_mode() -> None:
    class Liar(Credulous):
        def accepts(self, steps: tuple[int, ...]) -> Verdict:
            return no("never")

    graph = Graph([Step((0,), (1,), "exp"), Step((1,), (2,), "sum")], [0], [2])
    with pytest.raises(SegmentationError) as caught:
        partition(graph, Liar(graph), strict=True)
    assert str(caught.value) == (
        "the rule contradicts itself: merge accepted the last merge, of the group of step 0 (exp) with that of "
        "step 1 (sum), but accepts refused the whole (0, 1): never"
    )
    with pytest.raises(SegmentationError, match=r"copies of the cheap steps \(0,\) into step 1 \(sum\)"):
        partition(graph, Liar(graph, cheap_steps=frozenset({0})), strict=True)
    assert partition(graph, Liar(graph, cheap_steps=frozenset({0}))).groups == ((0,), (1,))


def test_a_group_that_is_too_long_as_a_whole_is_halved_until_each_part_is_accepted() -> None:
    class RefusesMany(Credulous):
        def takes(self, steps: frozenset[int]) -> Verdict:
            return no("too many", count=len(steps)) if len(steps) > 10 else yes(steps)

    graph = chain(64)
    split = partition(graph, RefusesMany(graph))
    assert all(5 <= len(group) <= 10 for group in split.groups[:-2])  # the last units were kept apart before
    assert [step for group in split.groups for step in group] == list(range(64))
    apart = partition(graph, RefusesMany(graph), merge=lambda first, second: True)
    assert all(len(group) == 1 for group in apart.groups[:-2])
