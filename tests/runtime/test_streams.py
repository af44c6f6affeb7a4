"""Stream-parallel values: the texts of programs, and that every number of streams gives the results of one."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracefuse
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


@pytest.fixture(autouse=True)
def on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops on threads, whatever their size."""
    monkeypatch.setattr("tracefuse.runtime.targets.array_device.SMALL_LOOP", 0)


X = np.arange(35, dtype=np.float32).reshape(7, 5)
STREAMS = (1, 3, 4, 20)


def on_streams(tensor: Any, axis: int = 0, chunks: int | None = None) -> Any:
    if chunks is not None:
        tensor.outer_split(axis, chunks)
    tensor.axis(axis).parallelize(ParallelType.stream)
    return tensor


def sets(*marked: bool) -> FusionDefinition:
    """A chain of copies, some of them on streams."""
    with FusionDefinition() as fd:
        tensor = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        for mark in marked:
            tensor = fd.ops.set(tensor)
            if mark:
                on_streams(tensor)
        fd.add_output(tensor)
    return fd


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
# what is computed


Y = np.linspace(-2, 2, 7 * 5 * 6, dtype=np.float32).reshape(7, 5, 6)
W = np.linspace(-1, 1, 36, dtype=np.float32).reshape(6, 6)


def pointwise(x: Any) -> Any:
    return stream_parallel(stream_parallel(np.exp(x), 0) * x + 1, 0)


def softmax(x: Any) -> Any:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return stream_parallel(shifted / shifted.sum(-1, keepdims=True))


def rows_of_sums(x: Any) -> Any:
    total = stream_parallel(x.sum(2), 1)
    return stream_parallel(total[:, :, None] + x, 1)


def middle(x: Any) -> Any:
    return stream_parallel(np.swapaxes(x, 0, 1) * 2, 0), stream_parallel(x.mean(0), 0)


def chunks(x: Any) -> Any:
    return stream_parallel(stream_parallel(np.sin(x), 0, 3) + x, 0, 3)


def many_chunks(x: Any) -> Any:
    return stream_parallel(x * 3, 0, 11)


def product(x: Any) -> Any:
    return stream_parallel(x @ W, 0), stream_parallel(x @ W, 2)


def whole_between(x: Any) -> Any:
    first = stream_parallel(x * 2, 0)
    return stream_parallel(first - first.mean(0), 0)


def padded(x: Any) -> Any:
    return stream_parallel(np.pad(x, ((0, 0), (1, 2), (0, 0))) * 2, 0), stream_parallel(np.cumsum(x, axis=1), 0)


def sizes(x: Any) -> Any:
    filled = np.broadcast_to(x[:, :1] * x.shape[0], x.shape)
    return stream_parallel(filled + x.sum(1, keepdims=True) / x.shape[1], 0)


def other_axis_of_equal_extent(x: Any) -> Any:
    square = x[:5] @ W[:, :5]
    return stream_parallel(square + square.sum(0), 0), stream_parallel(np.broadcast_to(square[:1], (5, 5, 5)) + 0, 1)


FUNCTIONS: list[Callable[[Any], Any]] = [
    pointwise, softmax, rows_of_sums, middle, chunks, many_chunks, product, whole_between, padded, sizes,
    other_axis_of_equal_extent,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("how", ["fused", "one op a segment"])
def test_slices_on_streams_give_the_function(function: Callable[[Any], Any], how: str) -> None:
    fused = fuse(function)
    expected = function(Y.astype(np.float64))
    for count in STREAMS:
        with options(number_of_streams=count, disable="" if how == "fused" else "fusion"):
            results = fused(Y)
            assert "FOR StreamIdx" in str(fused.host_program(Y))
        pairs = zip(results, expected, strict=True) if isinstance(expected, tuple) else [(results, expected)]
        for result, wanted in pairs:
            assert result.flags.c_contiguous
            np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=1e-5)


def test_other_sizes_compile_nothing() -> None:
    fused = fuse(softmax)
    for rows in (7, 3, 12, 2):
        y = np.resize(Y, (rows, 5, 6))
        np.testing.assert_allclose(fused(y), softmax(y.astype(np.float64)), rtol=1e-5)
    assert fused.cache_info().compiles == 1


def test_a_length_of_one_and_of_none() -> None:
    for rows in (0, 1):
        y = np.ones((rows, 5, 6), np.float32)
        np.testing.assert_allclose(fuse(chunks)(y), chunks(y), rtol=1e-6)
        np.testing.assert_allclose(fuse(pointwise)(y), pointwise(y), rtol=1e-6)


def test_results_are_copied_into_output_buffers() -> None:
    fused = fuse(pointwise)
    out = np.empty((7, 5, 12), np.float32)[:, :, ::2]
    assert fused(Y, out=out) is out
    np.testing.assert_allclose(out, pointwise(Y), rtol=1e-5)
    y = Y.copy()
    fused(y, out=y)
    np.testing.assert_allclose(y, pointwise(Y), rtol=1e-5)


def test_an_argument_is_updated_after_its_last_reader() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(on_streams(fd.ops.mul(x, 2.0)), alias_input=x)
        fd.add_output(on_streams(fd.ops.add(fd.ops.sum(x, [0]), 1.0)))
    x_array = X.copy()
    (sums,) = fd.execute([x_array])
    np.testing.assert_array_equal(x_array, 2 * X)
    np.testing.assert_array_equal(sums, X.sum(0) + 1)


def test_integers_are_exact_and_host_operations_take_part() -> None:
    with FusionDefinition() as fd:
        a = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Int)
        b = fd.define_tensor([-1], contiguity=True, dtype=DataType.Int)
        wide = on_streams(fd.ops.add(fd.ops.broadcast(b, [True, False]), a))
        fd.add_output(on_streams(fd.ops.sum(wide, [1])))
        fd.add_output(on_streams(fd.ops.max(wide, [1], keepdim=True)))
    a_array, b_array = np.arange(42).reshape(7, 6), np.arange(6) ** 3
    fd.segment(merge=rules.one_op_a_segment)
    text = str(fd.host_program([a_array, b_array]))
    assert "Add( " in text
    assert "Sum( " in text
    total, largest = fd.execute([a_array, b_array])
    np.testing.assert_array_equal(total, (a_array + b_array).sum(1))
    np.testing.assert_array_equal(largest, (a_array + b_array).max(1, keepdims=True))


def test_a_marked_copy_stays_and_a_loop_is_shared() -> None:
    (loop,) = str(fuse(pointwise).host_program(Y)).split("FOR ")[1:]
    assert loop.count("Synchronize") == 2
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.add(on_streams(fd.ops.set(x)), on_streams(fd.ops.set(x))))
    program = str(fd.host_program([X]))
    assert program.count("FOR ") == 1
    assert program.count(" = ALLOCATE(") == 2  # both copies; the sum is made by the array library


def test_segments_and_explain_show_the_kernels_of_a_slice() -> None:
    def several(x: Any) -> Any:
        first = stream_parallel(np.exp(x) * 2, 0)
        return stream_parallel(np.sort(first, 1), 0)

    fused = fuse(several)
    kernels, order = fused.segments(Y)
    assert kernels.template == "stream"
    assert "exp(" in kernels.kernel
    assert "define" in kernels.source
    assert len(kernels.launches) == 1
    assert order.kernel.endswith("by the target's library")
    assert "0        stream of pointwise" in str(fused.explain(Y))
    with options(target="cuda"):
        assert "__global__" in fuse(several).segments(ShapeDtype((7, 5, 6), np.float32))[0].source
    (copy,) = sets(True).segment([X])
    assert copy.kernel == "set(f32[i0, i1]) by the array library, slice by slice"
    assert not sets(True).segment()[0].slices
    np.testing.assert_allclose(fused(Y), several(Y), rtol=1e-5)


def test_loops_that_follow_each_other_wait_for_each_other() -> None:
    """The second loop reads along another axis what all iterations of the first have made."""

    def twice(x: Any) -> Any:
        rows = stream_parallel(np.exp(x), 0)
        return rows, stream_parallel(rows * 2 + 1, 1)

    x = np.random.default_rng(0).random((64, 96), np.float32)
    for count in STREAMS:
        fused = fuse(twice, number_of_streams=count)
        assert str(fused.host_program(x)).count("FOR StreamIdx") == 2
        for _ in range(3):
            rows, result = fused(x)
            np.testing.assert_allclose(rows, np.exp(x), rtol=1e-6)
            np.testing.assert_array_equal(result, rows * 2 + 1)
        *_, last = fuse(twice, number_of_streams=count).definition(x).execute_steps([x])
        assert len(last) == 4  # two results and two extents


def test_numbers_and_layouts_may_change_from_call_to_call() -> None:
    def scaled(x: Any, factor: float, offset: int) -> Any:
        return stream_parallel(np.exp(x) * factor + offset, 0)

    fused = fuse(scaled)
    wide = np.random.default_rng(0).random((14, 12), np.float32)
    for x in (wide, wide[::2], wide[:, ::3], wide.T, wide[::-1], np.broadcast_to(wide[0], (5, 12)), wide[:1], wide[:0]):
        for factor, offset in ((2.0, 1), (0.5, -3), (0.0, 2**40)):
            np.testing.assert_allclose(fused(x, factor, offset), np.exp(x) * np.float32(factor) + offset, rtol=1e-5)


def test_what_a_slice_raises_reaches_the_caller_and_ends_the_threads() -> None:
    def taken(x: Any, places: Any) -> Any:
        return stream_parallel(np.take_along_axis(x, places, 1) * 2, 0)

    fused = fuse(taken)
    x, places = np.ones((50, 4), np.float32), np.zeros((50, 4), np.int64)
    np.testing.assert_array_equal(fused(x, places), np.full((50, 4), 2))
    before = threading.active_count()
    places[31, 2] = 4
    for _ in range(5):
        with pytest.raises(IndexError, match="index 4 is out of bounds for axis 1 with 4 elements"):
            fused(x, places)
        assert threading.active_count() == before


def test_steps_show_what_is_live_around_a_loop() -> None:
    fd = sets(True, False, True)
    fd.segment(merge=rules.one_op_a_segment)
    states = [sorted(state) for state in fd.execute_steps([X])]
    assert states == [[-2, -1, 0], [-2, -1, 1], [-2, -1, 2], [-2, -1, 3]]


def test_a_small_loop_runs_on_the_callers_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    started: list[object] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread))
    for function in (pointwise, softmax, chunks):
        np.testing.assert_allclose(fuse(function)(Y), function(Y), rtol=1e-5)
    assert not started


def test_threads_end_with_the_call_and_calls_from_threads_do_not_meet() -> None:
    fused = fuse(pointwise)
    fused(Y)
    before = threading.active_count()
    results: list[Any] = [None] * 6

    def call(k: int) -> None:
        results[k] = fused(Y + k)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, result in enumerate(results):
        np.testing.assert_allclose(result, pointwise(Y + k), rtol=1e-5)
    assert threading.active_count() == before


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
