"""Tests the maps between the numbers of a segment and the original's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segments import Graph, GraphError, Step, build_segment, build_segments, partition
from tests.segments_package.segments_strategies import EXTENTS, extents_of, graphs, rules
from tests.session.samples import times

# sum, broadcast, add: T2 = sum(T0), T3 = broadcast(T2), T4 = add(T1, T3)
WORKED = Graph([Step((0,), (2,), "sum"), Step((2,), (3,), "broadcast"), Step((1, 3), (4,), "add")], [0, 1], [4])
WORKED_EXTENTS = {0: (-1, -2), 1: (-3, -4), 2: (-1,), 3: (-1, None), 4: (-3, -4)}


def test_the_worked_example_has_the_maps_of_the_documentation() -> None:
    first = build_segment(WORKED, (0, 1), extents_of=WORKED_EXTENTS.__getitem__)
    assert first.index_map == {0: 0, 2: 3}
    assert first.value_map == {0: 0, 1: 2, 2: 3}
    assert first.extent_map == {-1: -1, -2: -2}
    second = build_segment(WORKED, (2,), extents_of=WORKED_EXTENTS.__getitem__)
    assert second.index_map == {0: 1, 1: 3, 2: 4}
    assert second.value_map == second.index_map
    assert second.extent_map == {-1: -3, -2: -4, -3: -1}
    assert (second.inputs, second.outputs) == ((0, 1), (2,))
    assert (second.original_inputs, second.original_outputs) == ((1, 3), (4,))


def test_a_literal_axis_takes_its_place_in_the_count_and_has_no_entry() -> None:
    graph = Graph([Step((0, 1), (2,))], [0, 1], [2])
    segment = build_segment(graph, (0,), extents_of={0: (None, -2), 1: (-3,)}.__getitem__)
    assert segment.extent_map == {-2: -2, -3: -3}


def test_an_extent_of_a_tensor_that_is_not_read_comes_in_as_a_scalar() -> None:
    segment = build_segment(WORKED, (2,), extents_of=WORKED_EXTENTS.__getitem__, needs_extents=[-2, -3])
    assert segment.index_map == {0: 1, 1: 3, 2: -2, 3: 4}
    assert segment.value_map == {0: 1, 1: 3, 2: -2, 3: 4}
    assert segment.inputs == (0, 1, 2)
    assert segment.extent_inverse == {-3: -1, -4: -2, -1: -3, -2: 2}


def test_several_scalar_extents_come_after_the_tensors_from_minus_one_down() -> None:
    graph = Graph([Step((5, -4, -1, 2), (6,))], [2, 5], [6])
    segment = build_segment(graph, (0,), extents_of={2: (-3,), 5: ()}.__getitem__, needs_extents=(-2,))
    assert segment.original_inputs == (2, 5, -1, -2, -4)


def test_an_extent_that_two_axes_share_is_known_by_the_first() -> None:
    segment = build_segment(WORKED, (2,), extents_of={1: (-1, -4), 3: (-1, None)}.__getitem__)
    assert segment.extent_map == {-1: -1, -2: -4, -3: -1}
    assert segment.extent_inverse == {-1: -1, -4: -2}


def test_segments_are_refused_with_what_is_wrong() -> None:
    with pytest.raises(GraphError, match=r"a segment has each step once, not \(0, 0\)"):
        build_segment(WORKED, (0, 0), extents_of=WORKED_EXTENTS.__getitem__)
    with pytest.raises(GraphError, match=r"steps \(0,\) do not make the outputs \[4\]"):
        build_segment(WORKED, (0,), extents_of=WORKED_EXTENTS.__getitem__, outputs=[2, 4])
    with pytest.raises(GraphError, match=r"needs_extents takes extents, which are negative: \[3\]"):
        build_segment(WORKED, (0,), extents_of=WORKED_EXTENTS.__getitem__, needs_extents=[3])
    with pytest.raises(GraphError, match=r"extents_of\(0\) gives 4"):
        build_segment(WORKED, (0,), extents_of=lambda value: (4,))


@given(st.data())
@settings(max_examples=times(40), deadline=None)
def test_the_maps_of_every_segment_invert(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    split = partition(graph, data.draw(rules(graph)))
    needs = data.draw(st.sets(st.sampled_from(sorted(EXTENTS))))
    segments = build_segments(graph, split, extents_of=extents_of, needs_extents=lambda steps: needs)
    assert [segment.steps for segment in segments] == list(split.groups)
    for segment, stored in zip(segments, split.stored, strict=True):
        assert sorted(segment.original_outputs) == sorted(stored)
        assert sorted(segment.value_map) == list(range(len(segment.value_map)))
        assert {segment.inverse[original]: original for original in segment.inverse} == dict(segment.value_map)
        assert set(segment.index_map) == {*segment.inputs, *segment.outputs}
        assert segment.index_map.items() <= segment.value_map.items()
        tensors = [value for value in segment.original_inputs if value >= 0]
        scalars = [value for value in segment.original_inputs if value < 0]
        assert segment.original_inputs == (*sorted(tensors), *sorted(scalars, reverse=True))
        axes = [extent for value in tensors for extent in extents_of(value)]
        named = {-1 - place: extent for place, extent in enumerate(axes) if extent is not None}
        assert segment.extent_map == named
        assert not set(scalars) & set(named.values()), "a scalar comes in only where no own axis carries it"
        assert needs <= segment.extent_inverse.keys()
        for extent, local in segment.extent_inverse.items():
            assert (segment.extent_map if local < 0 else segment.value_map)[local] == extent
