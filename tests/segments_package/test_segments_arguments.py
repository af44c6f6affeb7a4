"""Tests the live values of a run."""

from __future__ import annotations

import pytest

from segments import ArgumentManager, ProgramError, build_segment
from tests.segments_package.test_segments_index_map import WORKED, WORKED_EXTENTS

BOUND = {-1: 2, -2: 3, -3: 2, -4: 3}


def test_the_worked_example_has_the_live_values_of_the_documentation() -> None:
    first, second = (build_segment(WORKED, steps, extents_of=WORKED_EXTENTS.__getitem__) for steps in ((0, 1), (2,)))
    manager = ArgumentManager({0: "x", 1: "y"}, BOUND)
    assert list(manager.live) == [0, 1, -1, -2, -3, -4]
    assert manager.gather(first) == ["x"]
    manager.store(first, ["row"])
    assert manager.release([0]) == ["x"]
    assert list(manager.live) == [1, 3, -1, -2, -3, -4]
    assert manager.gather(second) == ["y", "row"]
    manager.store(second, ["sum"])
    assert manager.release([1, 3]) == ["y", "row"]
    assert list(manager.live) == [4, -1, -2, -3, -4]
    assert manager.outputs([4]) == ("sum",)


def test_an_extent_of_a_released_tensor_is_gathered_as_a_scalar() -> None:
    segment = build_segment(WORKED, (2,), extents_of=WORKED_EXTENTS.__getitem__, needs_extents=[-2])
    manager = ArgumentManager({0: "x", 1: "y", 3: "row"}, BOUND)
    manager.release([0])
    assert manager.gather(segment) == ["y", "row", 3]


def test_what_is_not_live_is_named_with_what_is() -> None:
    manager = ArgumentManager({0: "x"}, {-1: 2})
    manager.release([0])
    with pytest.raises(ProgramError) as caught:
        manager[0]
    assert str(caught.value) == "t0 is not live: it was never bound or produced, or has been released (live: e1)"
    with pytest.raises(ProgramError, match="t7 is not live"):
        manager.outputs([7])
    with pytest.raises(ProgramError, match=r"live: none"):
        ArgumentManager()[0]


def test_release_lets_go_of_all_or_of_nothing() -> None:
    manager = ArgumentManager({0: "x"}, {-1: 2})
    with pytest.raises(ProgramError, match="e1 is an extent"):
        manager.release([0, -1])
    with pytest.raises(ProgramError, match="t5 is not live"):
        manager.release([0, 5])
    assert list(manager.live) == [0, -1]


def test_bindings_are_checked() -> None:
    manager = ArgumentManager({0: "x"})
    with pytest.raises(ProgramError, match="bound twice: t0"):
        manager.bind({0: "again"})
    with pytest.raises(ProgramError, match="3 is bound as an extent; extents are negative"):
        manager.bind({}, {3: 1})


def test_results_are_stored_all_or_not_at_all() -> None:
    segment = build_segment(WORKED, (0, 1), extents_of=WORKED_EXTENTS.__getitem__)
    manager = ArgumentManager({0: "x"})
    with pytest.raises(ProgramError, match="a segment with outputs t3 returned 2 values"):
        manager.store(segment, ["a", "b"])
    manager.store(segment, ["a"])
    with pytest.raises(ProgramError, match="already live: t3"):
        manager.store(segment, ["a"])
    assert manager.live == {0: "x", 3: "a"}
