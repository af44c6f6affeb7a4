"""Stream-parallel values: the texts of programs, what is refused, and segments that run on streams of their own."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import tracefuse
from tests.runtime.stream_parallel import STREAMS, W, X, Y, on_streams, pointwise, sets
from tracefuse import (
    DataType,
    FusionDefinition,
    FusionError,
    OptionError,
    ParallelType,
    ShapeDtype,
    ShapeError,
    UnsupportedError,
    fuse,
    options,
    rules,
    stream_parallel,
)

pytestmark = pytest.mark.usefixtures("slices_on_threads")


SINGLE = """\
%HostIrContainer { (T0_g_float[iS0{i0}, iS1{i1}]) -> (T1_g_float[iStreamIdx2{i0}, iS3{i1}]) :
  T1_g_float[iStreamIdx2{i0}, iS3{i1}] = ALLOCATE(buffer=T1_g_float[iStreamIdx2{i0}, iS3{i1}], mem_type=global, size=( i0 * i1 ), zero_init=false, resets_to_zero=false)
  FOR StreamIdx in iStreamIdx2{i0}:
    GetCurrentStream into Stream 0
    SetCurrentStream to Stream ( StreamIdx % numberOfStreams )
    Synchronize Stream 0
    T2_l_float[iS4{i1}] = HirAliasSelect( T0_g_float[iS0{i0}, iS1{i1}], axis = iS0{i0}, index = StreamIdx )
    T3_l_float[iS5{i1}] = HirAliasSelect( T1_g_float[iStreamIdx2{i0}, iS3{i1}], axis = iStreamIdx2{i0}, index = StreamIdx )
    T3_l_float[iS5{i1}] = Set( T2_l_float[iS4{i1}], cache_op=Streaming )
    SetCurrentStream to Stream 0
    Synchronize Stream ( StreamIdx % numberOfStreams )
} // %HostIrContainer"""  # noqa: E501

TWO = """\
%HostIrContainer { (T0_g_float[iS0{i0}, iS1{i1}]) -> (T2_g_float[iStreamIdx4{i0}, iS5{i1}]) :
  T1_g_float[iStreamIdx2{i0}, iS3{i1}] = ALLOCATE(buffer=T1_g_float[iStreamIdx2{i0}, iS3{i1}], mem_type=global, size=( i0 * i1 ), zero_init=false, resets_to_zero=false)
  T2_g_float[iStreamIdx4{i0}, iS5{i1}] = ALLOCATE(buffer=T2_g_float[iStreamIdx4{i0}, iS5{i1}], mem_type=global, size=( i0 * i1 ), zero_init=false, resets_to_zero=false)
  FOR StreamIdx in iStreamIdx2{i0}:
    GetCurrentStream into Stream 0
    SetCurrentStream to Stream ( StreamIdx % numberOfStreams )
    Synchronize Stream 0
    T3_l_float[iS6{i1}] = HirAliasSelect( T0_g_float[iS0{i0}, iS1{i1}], axis = iS0{i0}, index = StreamIdx )
    T4_l_float[iS7{i1}] = HirAliasSelect( T1_g_float[iStreamIdx2{i0}, iS3{i1}], axis = iStreamIdx2{i0}, index = StreamIdx )
    T4_l_float[iS7{i1}] = Set( T3_l_float[iS6{i1}], cache_op=Streaming )
    T5_l_float[iS8{i1}] = HirAliasSelect( T2_g_float[iStreamIdx4{i0}, iS5{i1}], axis = iStreamIdx4{i0}, index = StreamIdx )
    T5_l_float[iS8{i1}] = Set( T4_l_float[iS7{i1}], cache_op=Streaming )
    SetCurrentStream to Stream 0
    Synchronize Stream ( StreamIdx % numberOfStreams )
} // %HostIrContainer"""  # noqa: E501

THREE = """\
%HostIrContainer { (T0_g_float[iS0{i0}, iS1{i1}]) -> (T3_g_float[iStreamIdx6{i0}, iS7{i1}]) :
  T1_g_float[iStreamIdx2{i0}, iS3{i1}] = ALLOCATE(buffer=T1_g_float[iStreamIdx2{i0}, iS3{i1}], mem_type=global, size=( i0 * i1 ), zero_init=false, resets_to_zero=false)
  FOR StreamIdx in iStreamIdx2{i0}:
    GetCurrentStream into Stream 0
    SetCurrentStream to Stream ( StreamIdx % numberOfStreams )
    Synchronize Stream 0
    T4_l_float[iS8{i1}] = HirAliasSelect( T0_g_float[iS0{i0}, iS1{i1}], axis = iS0{i0}, index = StreamIdx )
    T5_l_float[iS9{i1}] = HirAliasSelect( T1_g_float[iStreamIdx2{i0}, iS3{i1}], axis = iStreamIdx2{i0}, index = StreamIdx )
    T5_l_float[iS9{i1}] = Set( T4_l_float[iS8{i1}], cache_op=Streaming )
    SetCurrentStream to Stream 0
    Synchronize Stream ( StreamIdx % numberOfStreams )
  T2_g_float[iS4{i0}, iS5{i1}] = Set( T1_g_float[iStreamIdx2{i0}, iS3{i1}], cache_op=Streaming )
  T3_g_float[iStreamIdx6{i0}, iS7{i1}] = ALLOCATE(buffer=T3_g_float[iStreamIdx6{i0}, iS7{i1}], mem_type=global, size=( i0 * i1 ), zero_init=false, resets_to_zero=false)
  FOR StreamIdx in iStreamIdx6{i0}:
    GetCurrentStream into Stream 2
    SetCurrentStream to Stream ( StreamIdx % numberOfStreams )
    Synchronize Stream 2
    T6_l_float[iS10{i1}] = HirAliasSelect( T2_g_float[iS4{i0}, iS5{i1}], axis = iS4{i0}, index = StreamIdx )
    T7_l_float[iS11{i1}] = HirAliasSelect( T3_g_float[iStreamIdx6{i0}, iS7{i1}], axis = iStreamIdx6{i0}, index = StreamIdx )
    T7_l_float[iS11{i1}] = Set( T6_l_float[iS10{i1}], cache_op=Streaming )
    SetCurrentStream to Stream 2
    Synchronize Stream ( StreamIdx % numberOfStreams )
} // %HostIrContainer"""  # noqa: E501

SLOTS = TWO.replace(
    "T1_g_float[iStreamIdx2{i0}, iS3{i1}], mem_type=global, size=( i0 * i1 )",
    "T1_g_float[iStreamIdx2{i0}, iS3{i1}], mem_type=global, size=( min(numberOfStreams, i0) * i1 )",
).replace(
    "( T1_g_float[iStreamIdx2{i0}, iS3{i1}], axis = iStreamIdx2{i0}, index = StreamIdx )",
    "( T1_g_float[iStreamIdx2{i0}, iS3{i1}], axis = iStreamIdx2{i0}, index = ( StreamIdx % numberOfStreams ) )",
)


@pytest.mark.parametrize(
    ("marked", "whole", "by_default"),
    [((True,), SINGLE, SINGLE), ((True, True), TWO, SLOTS), ((True, False, True), THREE, THREE)],
)
def test_the_three_programs_print_as_recorded(marked: tuple[bool, ...], whole: str, by_default: str) -> None:
    with options(disable="loop_buffer_reuse"):
        fd = sets(*marked)
        assert str(fd.host_program([X], merge=rules.one_op_a_segment)) == whole
        np.testing.assert_array_equal(fd.execute([X])[0], X)
    fd = sets(*marked)
    assert str(fd.host_program([ShapeDtype((7, 5), np.float32)], merge=rules.one_op_a_segment)) == by_default
    for count in STREAMS:
        np.testing.assert_array_equal(fd.execute([X], number_of_streams=count)[0], X)


def test_there_are_as_many_slots_as_streams() -> None:
    fd = sets(True, True)
    program = fd.host_program([X], merge=rules.one_op_a_segment).program
    shapes = [i.spec.shape({-1: 7, -2: 5}) for i in program.instructions if hasattr(i, "spec")]
    assert shapes == [(4, 5), (7, 5)]


def test_marks_print_and_record_again() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(on_streams(fd.ops.exp(on_streams(fd.ops.neg(x), 1)), 0, 3))
    text = repr(fd)
    assert "    T1.axis(1).parallelize(ParallelType.stream)\n" in text
    assert "    T2.outer_split(0, 3)\n    T2.axis(0).parallelize(ParallelType.stream)\n" in text
    names: dict[str, Any] = {}
    exec(f"from tracefuse import *\n{text}", names)
    with FusionDefinition() as again:
        names[f"nvfuser_fusion_id{fd.id()}"](again)
    assert repr(again).partition("\n")[2] == text.partition("\n")[2]
    np.testing.assert_allclose(again.execute([X])[0], np.exp(-X), rtol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# refusals


def test_an_axis_along_which_slices_depend_on_each_other_is_refused_with_the_line() -> None:
    for function, reason in (
        (lambda x: stream_parallel(np.flip(x, 0), 0), "another index of its operand"),
        (lambda x: stream_parallel(np.cumsum(x, 0), 0), "an element depends on all elements before it"),
        (lambda x: stream_parallel(np.concatenate([x, x]), 0), "which operand an element comes from"),
    ):
        with pytest.raises(UnsupportedError, match=reason) as caught:
            fuse(function)(X)
        assert "test_streams.py" in str(caught.value)


def test_what_cannot_be_marked_is_refused() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        with pytest.raises(FusionError, match="T0 is an input, which no stream computes"):
            x.axis(0).parallelize(ParallelType.stream)
        y = fd.ops.set(x)
        with pytest.raises(ShapeError, match="axis 2 is out of range for 2 axes"):
            y.axis(2)
        with pytest.raises(ShapeError, match="chunks cannot be 0"):
            y.outer_split(0, 0)
        with pytest.raises(FusionError, match="parallelize: T1 has no mesh"):
            y.axis(0).parallelize(ParallelType.mesh_x)
        with pytest.raises(UnsupportedError, match="parallelize: kind cannot be 3"):
            y.axis(0).parallelize(3)  # type: ignore[arg-type]
        y.outer_split(0, 2)
        with pytest.raises(UnsupportedError, match="the inner axis of a split stays on one stream"):
            y.axis(1).parallelize(ParallelType.stream)
        with pytest.raises(UnsupportedError, match="axis 0 is the result of a split"):
            y.outer_split(0, 2)
        fd.add_output(y)
    with pytest.raises(ShapeError, match="out of range"):
        fuse(lambda x: stream_parallel(x + 1, 3))(X)
    with pytest.raises(ShapeError, match="0 chunks"):
        fuse(lambda x: stream_parallel(x + 1, 0, 0))(X)


def test_the_number_of_streams_is_an_option() -> None:
    assert fuse(pointwise, number_of_streams=2).host_program(Y).program != fuse(pointwise).host_program(Y).program
    with pytest.raises(OptionError, match="from 1 to 1024"):
        fuse(pointwise, number_of_streams=0)
    with pytest.raises(OptionError, match="number_of_streams"):
        sets(True).execute([X], number_of_streams=-1)


def test_outside_of_a_fused_function_stream_parallel_does_nothing() -> None:
    assert stream_parallel(X, 0) is X
    assert tracefuse.stream_parallel is stream_parallel


# ---------------------------------------------------------------------------------------------------------------------
# independent segments


def branches(x: Any) -> Any:
    wide = np.linspace(-1, 1, 6 * 40, dtype=np.float32).reshape(6, 40)  # small products are no library calls
    left, right = np.exp(x) @ wide, np.sin(x) @ wide
    return left.sum(0) + right.sum(1)[:, None].sum(0), left * 2, right


def test_independent_segments_go_to_streams_of_their_own() -> None:
    expected = branches(Y.astype(np.float64))
    serial = fuse(branches)(Y)
    for count in (1, 2, 3, 8):
        fused = fuse(branches, streams=count)
        for result, same, wanted in zip(fused(Y), serial, expected, strict=True):
            np.testing.assert_array_equal(result, same)
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4)
        text = str(fused.host_program(Y))
        assert ("SetCurrentStream to Stream 1" in text) == (count > 1)
        assert ("Wait for T" in text) == (count > 1)


def test_updates_in_place_wait_for_readers_on_other_streams() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        w = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.matmul(x, w))
        fd.add_output(fd.ops.mul(x, 2.0), alias_input=x)
        fd.add_output(fd.ops.sum(fd.ops.matmul(fd.ops.exp(x), w), [0]))
    for count in (1, 4):
        y = Y[0].copy()
        with options(streams=count):
            product, total = fd.execute([y, W])
        np.testing.assert_allclose(product, Y[0] @ W, rtol=1e-5)
        np.testing.assert_allclose(total, (np.exp(Y[0]) @ W).sum(0), rtol=1e-4)
        np.testing.assert_array_equal(y, 2 * Y[0])


def test_a_scalar_that_shapes_depend_on_lives_as_long_as_they_are_made() -> None:
    with FusionDefinition() as fd:
        count = fd.define_scalar(None, dtype=DataType.Int)
        filled = on_streams(fd.ops.set(fd.ops.full([count, 3], count, DataType.Float)))
        fd.add_output(fd.ops.add(filled, 1.0))
    for merge in (None, rules.one_op_a_segment):
        fd.segment(merge=merge)
        np.testing.assert_array_equal(fd.execute([4])[0], np.full((4, 3), 5.0))
        *_, last = fd.execute_steps([4])
        assert list(last) == [max(last)]


@pytest.mark.parametrize("check", [False, True])
def test_a_loop_keeps_no_array_of_a_call(check: bool) -> None:
    def several(x: Any) -> Any:
        first = stream_parallel(np.exp(x) * 2, 0)
        scan = stream_parallel(np.cumsum(first, 1), 0)
        return stream_parallel(scan @ x[0].T, 0, 3), stream_parallel(scan - x, 0)

    with options(disable="fusion"):
        fused = fuse(several, check=check)
        for _ in range(2):
            x = np.random.default_rng(0).random((7, 5, 6))
            alive = weakref.ref(x)
            results = [weakref.ref(result) for result in fused(x)]
            del x
            assert alive() is None
            assert all(result() is None for result in results)
