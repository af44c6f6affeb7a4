"""Tests FusionDefinition: recording, printing, execution, segments and repro scripts."""

from __future__ import annotations

import gc
import itertools
import weakref
from pathlib import Path

import numpy as np
import pytest

from tests.definition.worked_example import DEFINITION, worked_example
from tracefuse import rules
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.definition.op_calls import UnknownOperation
from tracefuse.errors import FusionError, ShapeError

ROOT = Path(__file__).parents[2]

FIRST = """\
def nvfuser_fusion_id2(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    T1 = fd.ops.sum(T0, dims=[1], keepdim=False, dtype=DataType.Float)
    T2 = fd.ops.broadcast(T1, is_broadcast_dim=[False, True])
    fd.add_output(T2)"""

SECOND = """\
def nvfuser_fusion_id3(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    T1 = fd.define_tensor(shape=[-1, 1], contiguity=[True, None], dtype=DataType.Float, is_cpu=False)
    T2 = fd.ops.add(T0, T1)
    fd.add_output(T2)"""


# ---------------------------------------------------------------------------------------------------------------------
# the worked example


def test_the_worked_example_prints_as_it_was_written() -> None:
    assert repr(worked_example()) == DEFINITION


def test_the_worked_example_segments_to_the_letter() -> None:
    first, second = worked_example().segment(merge=rules.reduction_ends_segment)
    assert repr(first.definition) == FIRST
    assert dict(first.index_map) == {0: 0, 2: 3}
    assert dict(first.value_map) == {0: 0, 1: 2, 2: 3}
    assert dict(first.extent_map) == {-1: -1, -2: -2}
    assert repr(second.definition) == SECOND
    assert dict(second.index_map) == {0: 1, 1: 3, 2: 4}
    assert dict(second.value_map) == dict(second.index_map)
    assert dict(second.extent_map) == {-1: -3, -2: -4, -3: -1}
    assert (first.releases, second.releases) == ((0,), (1, 3))


def test_the_worked_example_shows_its_live_values_step_by_step() -> None:
    fd = worked_example()
    fd.segment(merge=rules.reduction_ends_segment)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = np.ones((2, 3), np.float32)
    states = list(fd.execute_steps([x, y]))
    assert [list(state) for state in states] == [
        [0, 1, -1, -2, -3, -4],
        [1, 3, -1, -2, -3, -4],
        [4, -1, -2, -3, -4],
    ]
    assert [states[0][k] for k in (-1, -2, -3, -4)] == [2, 3, 2, 3]
    np.testing.assert_array_equal(states[1][3], x.sum(1, keepdims=True))
    np.testing.assert_array_equal(states[2][4], y + x.sum(1, keepdims=True))
    np.testing.assert_array_equal(fd.execute([x, y])[0], states[2][4])


def test_with_no_predicate_the_worked_example_is_one_segment() -> None:
    (segment,) = worked_example().segment()
    assert dict(segment.index_map) == {0: 0, 1: 1, 4: 4}


def test_segment_gives_the_one_segment_too() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.sub(x, fd.ops.sum(x, [1], keepdim=True)))
    (segment,) = fd.segment()
    assert fd.segments == [segment]
    assert dict(segment.index_map) == {0: 0, 2: 2}


def test_the_example_script_prints_the_worked_example() -> None:
    printed = (ROOT / "examples" / "expected" / "live_values.txt").read_text()  # tests/repository/test_examples.py
    assert printed.startswith(DEFINITION)
    assert FIRST in printed
    assert SECOND in printed
    assert "after segment 1: 1 3 -1 -2 -3 -4 (6 entries)" in printed


def test_a_segment_may_need_an_extent_of_a_tensor_that_is_released() -> None:
    with FusionDefinition(ids=itertools.count(1)) as fd:
        x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1])
        total = fd.ops.sum(x, [0, 1])
        wide = fd.ops.expand(fd.ops.broadcast(fd.ops.mul(y, total), [False, True]), [-1, x.size(1)])
        fd.add_output(fd.ops.neg(wide))
    first, second = fd.segment(merge=rules.reduction_ends_segment)
    assert first.releases == (0,)
    assert dict(second.index_map) == {0: 1, 1: 2, 2: -2, 6: 7}
    assert repr(second.definition) == (
        "def nvfuser_fusion_id3(fd : FusionDefinition) -> None :\n"
        "    T0 = fd.define_tensor(shape=[-1], contiguity=[False], dtype=DataType.Float, is_cpu=False)\n"
        "    T1 = fd.define_tensor(shape=[], contiguity=[], dtype=DataType.Float, is_cpu=False)\n"
        "    S2 = fd.define_scalar(None, dtype=DataType.Int)\n"
        "    T3 = fd.ops.mul(T0, T1)\n"
        "    T4 = fd.ops.broadcast(T3, is_broadcast_dim=[False, True])\n"
        "    T5 = fd.ops.expand(T4, shape=[fd.extent(-1), S2])\n"
        "    T6 = fd.ops.neg(T5)\n"
        "    fd.add_output(T6)"
    )
    array, factors = np.ones((2, 5), np.float32), np.array([1, 2, 3], np.float32)
    states = [sorted(state) for state in fd.execute_steps([array, factors])]
    assert 0 not in states[1]
    assert -2 in states[1]
    np.testing.assert_array_equal(fd.execute([array, factors])[0], np.repeat(-10 * factors[:, None], 5, 1))


# ---------------------------------------------------------------------------------------------------------------------
# segmentation in three phases


def test_the_three_phases_give_what_segment_gives() -> None:
    fd = worked_example()
    assert fd.setup_segmentation(merge=rules.reduction_ends_segment) == 2
    built = [fd.build_segment(0), fd.build_segment(1)]
    fd.finalize_segmentation()
    assert fd.segments == built


def test_finalize_drops_the_temporary_state() -> None:
    fd = worked_example()
    fd.setup_segmentation()
    state = weakref.ref(fd._phases)  # type: ignore[arg-type]
    assert state() is not None
    fd.finalize_segmentation()
    gc.collect()
    assert state() is None


def test_the_phases_out_of_order_say_what_to_call() -> None:
    fd = worked_example()
    with pytest.raises(FusionError, match=r"call fd\.setup_segmentation"):
        fd.build_segment(0)
    with pytest.raises(FusionError, match=r"call fd.segment\(\) first"):
        _ = fd.segments


def test_a_segment_runs_alone() -> None:
    first, second = worked_example().segment(merge=rules.reduction_ends_segment)
    (total,) = first.definition.execute([np.ones((2, 3), np.float32)])
    assert total.shape == (2, 1)
    (result,) = second.definition.execute([np.zeros((2, 3), np.float32), total])
    np.testing.assert_array_equal(result, np.full((2, 3), 3, np.float32))


def test_explain_shows_the_segments_and_why_they_are_not_one() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        total = fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True])
        fd.add_output(fd.ops.add(x, total))
    fd.segment(merge=rules.reduction_ends_segment)
    text = str(fd.explain())
    assert text.splitlines()[0].split() == ["segment", "template", "inputs", "outputs", "nodes", "bytes"]
    assert "1 reduction, 1 movement" in text
    assert "0 | 1: a reduction ends its segment (reduction='sum', reader='add')" in text


# ---------------------------------------------------------------------------------------------------------------------
# round trips


# ---------------------------------------------------------------------------------------------------------------------
# nvFuser's spelling


# ---------------------------------------------------------------------------------------------------------------------
# refusals


def test_an_unknown_operation_names_the_close_ones() -> None:
    with FusionDefinition() as fd, pytest.raises(UnknownOperation, match=r"close names: .*sum"):
        _ = fd.ops.summ
    assert not hasattr(fd.ops, "nothing_like_this")
    assert "add" in dir(fd.ops)


def test_an_output_that_updates_an_input_is_not_returned_and_others_read_the_old_values() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.add(x, fd.ops.roll(x, 1, 0)), alias_input=x)
        fd.add_output(fd.ops.mul(x, 2.0))
    array = np.arange(5, dtype=np.float32)
    (doubled,) = fd.execute([array])
    np.testing.assert_array_equal(doubled, [0, 2, 4, 6, 8])
    np.testing.assert_array_equal(array, [4, 1, 3, 5, 7])


def test_an_order_that_does_not_rank_every_axis_is_refused() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        for order in ([1], [1, 1], [0, 2], [2, 1, 0]):
            for call in (lambda: fd.add_output(x, stride_order=order), lambda: fd.ops.stride_order(x, order)):  # noqa: B023
                with pytest.raises(ShapeError, match=r"stride_order \[.*\] does not order the 2 axes"):
                    call()


def test_a_complete_definition_takes_nothing_more_and_a_tensor_stays_in_its_own() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.neg(x))
    with pytest.raises(FusionError, match="the definition is complete"):
        fd.ops.neg(x)
    with FusionDefinition() as other, pytest.raises(FusionError, match="belongs to another definition"):
        other.ops.neg(x)


def test_a_tensor_has_no_truth_value() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        with pytest.raises(FusionError, match="no truth value"):
            bool(x == x)


def test_an_error_names_the_users_line() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([2]), fd.define_tensor([3])
        with pytest.raises(ShapeError, match=r"add: extents differ on axis 0: 2 and 3 \(test_definition.py:\d+\)"):
            fd.ops.add(x, y)
        with pytest.raises(ShapeError, match=r"\(test_definition.py:\d+\)"):
            fd.ops.permute(x, [0, 1])


def test_ids_count_up_and_segments_continue_the_count() -> None:
    ids = itertools.count(5)
    definitions_made = [FusionDefinition(ids=ids), FusionDefinition(ids=ids)]
    assert [fd.id() for fd in definitions_made] == [5, 6]
    assert FusionDefinition().id() < FusionDefinition().id()
