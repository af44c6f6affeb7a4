"""Tests partitions of random and handwritten graphs."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segments import Edge, Graph, Partition, Step, Verdict, no, partition, yes
from tests.segments_package.graph_chains import chain
from tests.segments_package.segments_strategies import SetRule, graphs, rules
from tests.session.samples import times


def crossing(graph: Graph, split: Partition) -> dict[tuple[int, int], set[int]]:
    """Which values cross between which groups, found from the graph and the stored values alone."""
    home = {value: position for position, values in enumerate(split.stored) for value in values}
    pairs: dict[tuple[int, int], set[int]] = {}
    for position, steps in enumerate(split.groups):
        made = {value for step in steps for value in graph.steps[step].outputs}
        for step in steps:
            for value in graph.steps[step].inputs:
                if value not in made and graph.producer(value) is not None:
                    pairs.setdefault((home[value], position), set()).add(value)
    return pairs


def check_partition(graph: Graph, rule: SetRule, split: Partition) -> None:
    """Everything that holds for every partition: homes, order, no cycle, stored values, reasons."""
    home: dict[int, int] = {}
    for position, values in enumerate(split.stored):
        for value in values:
            assert value not in home, "a value is stored once"
            home[value] = position
            assert graph.producer(value) in split.groups[position]
    for value in graph.outputs:
        assert graph.producer(value) is None or value in home
    for step in range(len(graph.steps)):
        places = split.groups_of(step)
        assert places, "every step has a home"
        if len(places) > 1:
            assert step in rule.cheap_steps - rule.alone_steps
            assert not any(graph.is_output(value) for value in graph.steps[step].outputs)
            assert not rule.alone_steps.intersection(graph.readers_of(step))
    for steps in split.groups:
        assert steps == tuple(sorted(set(steps)))
        assert len(steps) == 1 or not rule.alone_steps.intersection(steps)
        assert len(steps) == 1 or rule.takes(frozenset(steps))
    pairs = crossing(graph, split)
    assert all(first < second for first, second in pairs), "groups are in order, so they make no cycle"
    assert set(split.boundaries) == set(pairs)
    assert all(not verdict and verdict.reason for verdict in split.boundaries.values())
    assert list(split.groups) == stable_order(split.groups, set(pairs))


def stable_order(groups: Sequence[tuple[int, ...]], pairs: Collection[tuple[int, int]]) -> list[tuple[int, ...]]:
    waiting = {position: {first for first, second in pairs if second == position} for position in range(len(groups))}
    ready = [(groups[position], position) for position, sources in waiting.items() if not sources]
    heapq.heapify(ready)
    order: list[tuple[int, ...]] = []
    while ready:
        steps, done = heapq.heappop(ready)
        order.append(steps)
        for position, sources in waiting.items():
            if done in sources:
                sources.remove(done)
                if not sources:
                    heapq.heappush(ready, (groups[position], position))
    return order


def group_cycle(pairs: Collection[tuple[int, int]], first: int, second: int) -> bool:
    """Whether a path of two edges or more leads from one group to the other."""
    stack = [target for source, target in pairs if source == first and target != second]
    seen: set[int] = set()
    while stack:
        group = stack.pop()
        if group == second:
            return True
        if group not in seen:
            seen.add(group)
            stack += [target for source, target in pairs if source == group]
    return False


def colour_allows(first: tuple[int, ...], second: tuple[int, ...]) -> Verdict:
    colours = {step % 3 for step in (*first, *second)}
    return yes() if len(colours) == 1 else no("two colours", colours=tuple(sorted(colours)))


@given(st.data())
@settings(max_examples=times(60), deadline=None)
def test_every_step_has_a_home_and_the_groups_run_in_order(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    rule = data.draw(rules(graph))
    check_partition(graph, rule, partition(graph, rule))


@given(st.data())
@settings(max_examples=times(40), deadline=None)
def test_a_predicate_over_groups_holds_for_every_group(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    rule = data.draw(rules(graph))
    split = partition(graph, rule, merge=colour_allows)
    check_partition(graph, rule, split)
    assert all(len({step % 3 for step in steps}) == 1 for steps in split.groups)


@given(st.data())
@settings(max_examples=times(40), deadline=None)
def test_no_group_has_both_sides_of_a_kept_boundary(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    rule = data.draw(rules(graph))
    values = [*graph.inputs, *(value for step in graph.steps for value in step.outputs)]
    kept = data.draw(st.sets(st.sampled_from(values), max_size=4)) if values else set()
    split = partition(graph, rule, keep_boundaries=kept)
    check_partition(graph, rule, split)
    for value in kept:
        maker = graph.producer(value)
        for reader in graph.readers(value) if maker is not None else ():
            assert not any(maker in steps and reader in steps for steps in split.groups)


@given(st.data())
@settings(max_examples=times(60), deadline=None)
def test_each_boundary_is_there_for_the_reason_that_it_gives(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    rule = data.draw(rules(graph))
    rule.facts_of_wholes = True
    merge = data.draw(st.sampled_from([None, colour_allows]))
    split = partition(graph, rule, merge=merge)
    pairs = crossing(graph, split)
    for (first, second), verdict in split.boundaries.items():
        union = frozenset(split.groups[first] + split.groups[second])
        if verdict.reason == "merging would create a cycle":
            assert group_cycle(pairs, first, second)
        elif verdict.reason == "this step always runs as a segment of its own":
            assert rule.alone_steps & union
        elif verdict.reason == "two colours":
            assert not colour_allows(split.groups[first], split.groups[second])
        else:
            assert str(verdict) == str(rule.takes(union))


@given(st.data())
@settings(max_examples=times(50), deadline=None)
def test_the_same_graph_splits_the_same_way_every_time(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    rule = data.draw(rules(graph))
    first, second = (partition(graph, rule) for _ in range(2))
    assert first.groups == second.groups
    assert first.stored == second.stored
    assert list(map(str, first.refusals)) == list(map(str, second.refusals))


@given(st.data())
@settings(max_examples=times(50), deadline=None)
def test_the_full_check_runs_once_for_a_final_group_of_several_steps(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    rule = data.draw(rules(graph))
    split = partition(graph, rule, merge=lambda first, second: True)
    assert sorted(rule.full_checks) == sorted(steps for steps in split.groups if len(steps) > 1)


def test_a_rule_that_accepts_all_makes_one_group_of_the_whole_graph() -> None:
    graph = chain(5)
    split = partition(graph, SetRule(graph))
    assert split.groups == ((0, 1, 2, 3, 4),)
    assert split.stored == ((5,),)
    assert not split.boundaries


def test_an_empty_graph_has_no_groups() -> None:
    graph = Graph([], [0], [0])
    assert partition(graph, SetRule(graph)).groups == ()


def test_whole_graphs_and_regions_that_are_refused_are_in_the_log() -> None:
    graph = chain(3)
    split = partition(graph, SetRule(graph, limit=2))
    assert str(split.refusals[0]) == "(0, 1, 2) as a whole: too many steps (count=3, limit=2)"
    assert str(split.refusals[1]) == "(0, 1) with (2,): too many steps (count=3, limit=2)"
    assert split.groups == ((0, 1), (2,))
    assert str(split.boundaries[0, 1]) == "too many steps (count=3, limit=2)"


def test_a_region_is_split_where_merging_it_would_create_a_cycle_through_a_step_that_is_never_merged() -> None:
    # a -> alone -> b, and a -> b
    graph = Graph([Step((0,), (1,)), Step((1,), (2,)), Step((1, 2), (3,)), Step((3,), (4,))], [0], [4])
    split = partition(graph, SetRule(graph, alone_steps=frozenset({1})))
    assert split.groups == ((0,), (1,), (2, 3))
    assert split.boundaries[0, 2].reason == "merging would create a cycle"
    assert str(split.boundaries[0, 1]) == "this step always runs as a segment of its own (step='step 1')"


def test_regions_of_different_depth_merge_later_when_no_cycle_comes_of_it() -> None:
    # x -> alone -> b <- c: c is at depth 0, b at depth 1, and nothing leads from c through the alone step.
    graph = Graph([Step((0,), (1,)), Step((5,), (2,)), Step((1, 2), (3,))], [0, 5], [3])
    assert partition(graph, SetRule(graph, alone_steps=frozenset({0}))).groups == ((0,), (1, 2))


def test_a_region_accepted_without_facts_grows_no_further() -> None:
    graph = Graph(
        [Step((0,), (1,)), Step((5,), (6,)), Step((6,), (2,)), Step((1, 2), (3,)), Step((3,), (4,))], [0, 5], [4]
    )
    rule = SetRule(graph, alone_steps=frozenset({0}), facts_of_wholes=False)
    split = partition(graph, rule)
    assert split.groups == ((0,), (1, 2), (3, 4))
    assert split.boundaries[1, 2].reason == "a region accepted as a whole is not merged further"


def test_movement_consumers_join_their_producer_first() -> None:
    # 0 feeds 1 and 2; groups take two steps, and the movement step wins over the earlier one.
    graph = Graph([Step((0,), (1,)), Step((1,), (2,)), Step((1,), (3,))], [0], [2, 3])
    assert partition(graph, SetRule(graph, limit=2)).groups == ((0, 1), (2,))
    rule = SetRule(graph, limit=2, movement_steps=frozenset({2}))
    assert partition(graph, rule).groups == ((0, 2), (1,))


def test_movement_edges_come_before_all_other_edges() -> None:
    graph = chain(3)
    assert partition(graph, SetRule(graph, limit=2)).groups == ((0, 1), (2,))
    rule = SetRule(graph, limit=2, movement_steps=frozenset({2}))
    assert partition(graph, rule).groups == ((0,), (1, 2))


def test_a_merged_group_is_offered_to_the_readers_of_what_joined_it_first() -> None:
    # 0 feeds 1 and 4, 1 feeds 3: once 1 has joined, 3 comes before 4.
    graph = Graph(
        [Step((0,), (1,)), Step((1,), (2,)), Step((9,), (3,)), Step((2,), (4,)), Step((1,), (5,))],
        [0, 9],
        [3, 4, 5],
    )
    assert partition(graph, SetRule(graph, limit=3)).groups == ((0, 1, 3), (2,), (4,))


def test_groups_that_share_only_an_extent_are_not_siblings() -> None:
    graph = Graph([Step((0, -1), (1,)), Step((9, -1), (2,))], [0, 9], [1, 2])
    assert partition(graph, SetRule(graph), merge=lambda first, second: True).groups == ((0,), (1,))


def test_siblings_with_a_common_input_merge_last() -> None:
    graph = Graph([Step((0,), (1,)), Step((0,), (2,)), Step((9,), (3,))], [0, 9], [1, 2, 3])
    split = partition(graph, SetRule(graph, limit=2))
    assert split.groups == ((0, 1), (2,))


def test_a_merged_group_is_offered_on_at_once() -> None:
    # The reader of the movement step can join only a group that already has the two before it.
    class Growing(SetRule):
        def takes(self, steps: frozenset[int]) -> Verdict:
            allowed = steps in ({0, 1}, {0, 1, 2}) or len(steps) == 1
            return yes(steps) if allowed else no("out of turn")

    graph = Graph([*chain(3).steps, Step((9,), (10,))], [0, 9], [3, 10])
    assert partition(graph, Growing(graph)).groups == ((0, 1, 2), (3,))


def test_a_cheap_step_is_copied_into_every_group_that_reads_it() -> None:
    graph = Graph([Step((0,), (1,)), Step((1, 5), (2,)), Step((1, 6), (3,))], [0, 5, 6], [2, 3])
    rule = SetRule(graph, limit=2, cheap_steps=frozenset({0}))
    split = partition(graph, rule)
    assert split.groups == ((0, 1), (0, 2))
    assert split.stored == ((2,), (3,))
    assert split.groups_of(0) == (0, 1)
    assert not split.boundaries


def test_cheap_steps_are_copied_with_the_cheap_steps_that_they_read() -> None:
    graph = Graph([Step((0,), (1,)), Step((1,), (2,)), Step((2,), (3,)), Step((2,), (4,))], [0], [3, 4])
    rule = SetRule(graph, limit=3, cheap_steps=frozenset({0, 1}))
    assert partition(graph, rule).groups == ((0, 1, 2), (0, 1, 3))


def test_a_cheap_step_whose_copy_is_refused_is_stored() -> None:
    graph = Graph([Step((0,), (1,)), Step((1,), (2,)), Step((1,), (3,))], [0], [2, 3])
    split = partition(graph, SetRule(graph, limit=1, cheap_steps=frozenset({0})))
    assert split.groups == ((0,), (1,), (2,))
    assert split.stored == ((1,), (2,), (3,))


def test_a_cheap_step_that_one_reader_refuses_is_copied_by_none() -> None:
    class OnlyOne(SetRule):
        def takes(self, steps: frozenset[int]) -> Verdict:
            return no("not with step 2") if 2 in steps and len(steps) > 1 else yes(steps)

    graph = Graph([Step((0,), (1,)), Step((1,), (2,)), Step((1,), (3,))], [0], [2, 3])
    split = partition(graph, OnlyOne(graph, cheap_steps=frozenset({0})))
    assert split.groups == ((0, 1), (2,))
    assert split.stored == ((1, 2), (3,))


@pytest.mark.parametrize("reason", ["output", "alone reader", "kept"])
def test_a_cheap_step_is_at_home_where_its_stored_value_is_needed(reason: str) -> None:
    graph = Graph(
        [Step((0,), (1,)), Step((1,), (2,)), Step((1,), (3,))], [0], [2, 3, 1] if reason == "output" else [2, 3]
    )
    rule = SetRule(
        graph,
        limit=2,
        cheap_steps=frozenset({0}),
        alone_steps=frozenset({2} if reason == "alone reader" else ()),
    )
    split = partition(graph, rule, keep_boundaries={1} if reason == "kept" else ())
    assert len(split.groups_of(0)) == 1
    assert any(1 in values for values in split.stored)


def test_a_predicate_forbids_copies_too() -> None:
    graph = Graph([Step((0,), (1,)), Step((1,), (2,))], [0], [2])
    split = partition(graph, SetRule(graph, cheap_steps=frozenset({0})), merge=lambda first, second: False)
    assert split.groups == ((0,), (1,))
    assert str(split.boundaries[0, 1]) == "<lambda> refused"


def wide(count: int) -> Graph:
    return Graph([Step((0,), (value,)) for value in range(1, count + 1)], [0], range(1, count + 1))


def layered(count: int) -> Graph:
    """Layers of 12 steps, each with an edge from its start to its middle and its end."""
    steps: list[Step] = []
    start = value = 0
    while len(steps) < count:
        for place in range(12):
            steps.append(Step((value, start) if place in (5, 11) else (value,), (value + 1,)))
            value += 1
        start = value
    return Graph(steps, [0], [value])


@pytest.mark.parametrize("limit", [1, 4, 10**9])
@pytest.mark.parametrize("make", [chain, wide, layered])
def test_the_rule_is_asked_a_number_of_times_that_grows_with_the_graph_and_not_its_square(
    make: object, limit: int
) -> None:
    class Counting(SetRule):
        """Facts are counts, so that this test does not pay for sets."""

        def facts(self, step: int) -> int:  # type: ignore[override]
            return 1

        def merge(self, a: object, b: object, edges: tuple[Edge, ...]) -> Verdict:
            assert isinstance(a, int)
            assert isinstance(b, int)
            self.merges += 1
            return yes(a + b) if a + b <= self.limit else no("too many steps")

        def accepts(self, steps: tuple[int, ...]) -> Verdict:
            return yes(len(steps)) if len(steps) <= self.limit else no("too many steps")

    assert callable(make)
    graph: Graph = make(600)
    rule = Counting(graph, limit=limit, alone_steps=frozenset(range(2, len(graph.steps), 50)))
    partition(graph, rule)
    assert rule.merges <= 10 * len(graph.steps)


def test_the_log_of_refusals_keeps_the_first_and_counts_the_rest() -> None:
    graph = wide(400)
    split = partition(graph, SetRule(graph, limit=1))
    assert len(split.refusals) == 1000
    assert split.refusals_dropped > 0
