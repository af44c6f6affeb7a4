"""Tests graphs, their errors, and groups under merging."""

from __future__ import annotations

import random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import segments.graph
from segments import Graph, GraphError, Quotient, Step
from tests.segments_package.segments_strategies import graphs
from tests.session.samples import times


@pytest.mark.parametrize(
    ("steps", "inputs", "outputs", "message"),
    [
        ([Step((0,), (1,), "exp"), Step((0,), (1,), "sin")], [0], [1],
         "value 1 is produced twice: by step 0 (exp) and by step 1 (sin)"),
        ([Step((), (0,))], [0], [0], "step 0 produces value 0, which is an input of the graph"),
        ([Step((7,), (1,), "exp")], [0], [1],
         "step 0 (exp) reads value 7, which no step produces and which is not an input of the graph"),
        ([Step((2,), (1,)), Step((0,), (2,))], [0], [1],
         "step 0 reads value 2 before step 1 produces it: steps must be in topological order"),
        ([Step((1,), (1,))], [0], [1],
         "step 0 reads value 1 before step 0 produces it: steps must be in topological order"),
        ([Step((0,), (-1,))], [0], [],
         "step 0 produces -1: negative numbers are extents of the inputs, which no step produces"),
        ([], [0, 1, 0], [], "input 0 is declared twice (inputs (0, 1, 0))"),
        ([Step((0,), (1,))], [0], [5], "output 5 is produced by no step and is not an input of the graph"),
    ],
)  # fmt: skip
def test_an_invalid_graph_is_refused_with_the_step_and_the_value(
    steps: list[Step], inputs: list[int], outputs: list[int], message: str
) -> None:
    with pytest.raises(GraphError) as caught:
        Graph(steps, inputs, outputs)
    assert str(caught.value) == message


def test_a_graph_knows_makers_readers_and_outputs() -> None:
    graph = Graph([Step((0, 0, -1), (1, 2)), Step((2, 0), (3,))], [0], [3, 0, 3])
    assert graph.producer(2) == 0
    assert graph.producer(0) is None
    assert graph.producer(-1) is None
    assert graph.readers(0) == (0, 1)
    assert graph.readers(3) == ()
    assert graph.readers(-1) == (0,)
    assert graph.is_output(0)
    assert not graph.is_output(2)
    assert graph.producers_of(1) == (0,)
    assert graph.readers_of(0) == (1,)
    assert graph.has(0)
    assert not graph.has(4)


def closure(graph: Graph) -> list[set[int]]:
    """For each step, the steps that a path leads to, found backwards by dynamic programming."""
    reach: list[set[int]] = [set() for _ in graph.steps]
    for step in reversed(range(len(graph.steps))):
        for later in range(step + 1, len(graph.steps)):
            if set(graph.steps[step].outputs) & set(graph.steps[later].inputs):
                reach[step] |= {later} | reach[later]
    return reach


@given(graphs(), st.data())
@settings(deadline=None)
def test_reachability_agrees_with_the_transitive_closure(graph: Graph, data: st.DataObject) -> None:
    reach = closure(graph)
    count = len(graph.steps)
    for first in range(count):
        assert graph.descendants((first,)) == reach[first]
        for second in range(count):
            assert graph.reaches(first, second) == (second in reach[first])
    steps = data.draw(st.sets(st.integers(0, count - 1))) if count else set()
    expected = any(
        between not in steps and between in reach[first] and second in reach[between]
        for first in steps
        for between in range(count)
        for second in steps
    )
    assert graph.merge_makes_cycle(steps) == expected


@given(st.data(), st.sampled_from([1, 2, 1 << 40]))
@settings(max_examples=times(60), deadline=None)
def test_a_quotient_merges_exactly_the_pairs_without_a_cycle_and_keeps_its_order(data: st.DataObject, gap: int) -> None:
    count = data.draw(st.integers(2, 14))
    values: dict[int, tuple[int, set[int]]] = {}  # value -> its maker and its readers
    for number in range(data.draw(st.integers(0, 20))):
        maker = data.draw(st.integers(0, count - 2))
        values[number] = (maker, data.draw(st.sets(st.integers(maker + 1, count - 1), min_size=1, max_size=4)))
    edges: list[dict[int, list[int]]] = [{} for _ in range(count)]
    for value, (maker, readers) in values.items():
        for reader in readers:
            edges[maker].setdefault(reader, []).append(value)
    with mock.patch.object(segments.graph, "_GAP", gap):
        quotient = Quotient(edges)
        groups = {node: {node} for node in range(count)}
        for _ in range(data.draw(st.integers(1, count))):
            if len(groups) < 2:
                break
            first, second = data.draw(st.lists(st.sampled_from(sorted(groups)), min_size=2, max_size=2, unique=True))
            plan = quotient.plan(first, second)
            assert (plan is None) == makes_cycle(groups, values, first, second)
            if plan is not None:
                union = groups.pop(first) | groups.pop(second)
                groups[quotient.merge(plan)] = union
            check_quotient(quotient, groups, values)


@pytest.mark.parametrize("seed", range(12))
def test_a_quotient_of_forty_nodes_keeps_its_order_through_all_merges(seed: int) -> None:
    chance = random.Random(seed)
    count = 40
    values: dict[int, tuple[int, set[int]]] = {}
    edges: list[dict[int, list[int]]] = [{} for _ in range(count)]
    for value in range(30 + 5 * seed):
        maker = chance.randrange(count - 1)
        reader = chance.randrange(maker + 1, count)
        values[value] = (maker, {reader})
        edges[maker].setdefault(reader, []).append(value)
    quotient = Quotient(edges)
    groups = {node: {node} for node in range(count)}
    for _ in range(150):
        if len(groups) < 2:
            break
        first, second = chance.sample(sorted(groups), 2)
        plan = quotient.plan(first, second)
        assert (plan is None) == makes_cycle(groups, values, first, second)
        if plan is not None:
            union = groups.pop(first) | groups.pop(second)
            groups[quotient.merge(plan)] = union
        check_quotient(quotient, groups, values)


def links(groups: dict[int, set[int]], values: dict[int, tuple[int, set[int]]]) -> dict[tuple[int, int], set[int]]:
    home = {node: group for group, nodes in groups.items() for node in nodes}
    found: dict[tuple[int, int], set[int]] = {}
    for value, (maker, readers) in values.items():
        for reader in readers:
            if home[maker] != home[reader]:
                found.setdefault((home[maker], home[reader]), set()).add(value)
    return found


def makes_cycle(groups: dict[int, set[int]], values: dict[int, tuple[int, set[int]]], first: int, second: int) -> bool:
    pairs = set(links(groups, values))

    def path_around(start: int, goal: int) -> bool:
        stack = [target for source, target in pairs if source == start and target != goal]
        seen: set[int] = set()
        while stack:
            group = stack.pop()
            if group == goal:
                return True
            if group not in seen:
                seen.add(group)
                stack += [target for source, target in pairs if source == group]
        return False

    return path_around(first, second) or path_around(second, first)


def check_quotient(quotient: Quotient, groups: dict[int, set[int]], values: dict[int, tuple[int, set[int]]]) -> None:
    assert sorted(quotient.groups()) == sorted(groups)
    for group, nodes in groups.items():
        assert {quotient.find(node) for node in nodes} == {group}
    pairs = links(groups, values)
    for first in groups:
        assert set(quotient.consumers(first)) == {target for source, target in pairs if source == first}
        for second in groups:
            assert set(quotient.values(first, second)) == pairs.get((first, second), set())
    assert len({quotient.label(group) for group in groups}) == len(groups)
    assert all(quotient.label(first) < quotient.label(second) for first, second in pairs)
    for value, (maker, _) in values.items():
        outside = sum(value in crossing for crossing in pairs.values())
        assert quotient.outside_readers(value) == outside, (value, maker)


def test_a_quotient_takes_edges_in_topological_order_only() -> None:
    with pytest.raises(GraphError, match="edge from node 1 to node 0 is not in topological order"):
        Quotient([{}, {0: [3]}])
