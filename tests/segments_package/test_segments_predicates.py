"""A predicate of the user and kept boundaries forbid merges, and say so when they are wrong."""

from __future__ import annotations

import pytest

from segments import SegmentationError, partition
from tests.segments_package.graph_chains import chain
from tests.segments_package.segments_strategies import SetRule


def test_the_predicate_sees_groups_through_the_view_with_the_producer_first() -> None:
    graph = chain(3)
    seen: list[tuple[object, object]] = []

    def watch(first: object, second: object) -> bool:
        seen.append((first, second))
        return True

    partition(graph, SetRule(graph), merge=watch, view=lambda steps: f"group {steps}")
    assert seen == [("group (0,)", "group (1,)"), ("group (0, 1)", "group (2,)")]


def test_a_predicate_can_only_forbid() -> None:
    graph = chain(3)
    split = partition(graph, SetRule(graph, limit=1), merge=lambda first, second: True)
    assert split.groups == ((0,), (1,), (2,))


def test_a_predicate_that_raises_is_reported_with_the_two_groups() -> None:
    def broken(first: object, second: object) -> bool:
        raise ZeroDivisionError("no luck")

    graph = chain(2)
    with pytest.raises(SegmentationError) as caught:
        partition(graph, SetRule(graph), merge=broken)
    message = "the merge predicate broken failed on groups (0,) and (1,): ZeroDivisionError: no luck"
    assert str(caught.value) == message
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_predicate_that_returns_no_verdict_is_told_what_to_return() -> None:
    graph = chain(2)
    with pytest.raises(SegmentationError, match="returned None of type NoneType; it must return a bool"):
        partition(graph, SetRule(graph), merge=lambda first, second: None)  # type: ignore[arg-type, return-value]


def test_a_kept_boundary_must_be_a_value_of_the_graph() -> None:
    graph = chain(2)
    with pytest.raises(SegmentationError, match=r"keep_boundaries names values that the graph does not have: \[77\]"):
        partition(graph, SetRule(graph), keep_boundaries=[1, 77])


def test_a_kept_boundary_says_which_values_it_keeps() -> None:
    graph = chain(2)
    split = partition(graph, SetRule(graph), keep_boundaries=[1])
    assert split.groups == ((0,), (1,))
    assert str(split.boundaries[0, 1]) == "a boundary is kept between them (values=(1,))"
