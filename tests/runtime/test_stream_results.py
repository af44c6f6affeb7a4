"""Slices on any number of streams give the results of the whole function, in any layout and beside host operations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.runtime.stream_parallel import STREAMS, W, X, Y, chunks, on_streams, pointwise, product, sets
from tracefuse import (
    DataType,
    FusionDefinition,
    ShapeDtype,
    fuse,
    options,
    rules,
    stream_parallel,
    wait_for_compilation,
)

pytestmark = pytest.mark.usefixtures("slices_on_threads")


def softmax(x: Any) -> Any:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return stream_parallel(shifted / shifted.sum(-1, keepdims=True))


def rows_of_sums(x: Any) -> Any:
    total = stream_parallel(x.sum(2), 1)
    return stream_parallel(total[:, :, None] + x, 1)


def middle(x: Any) -> Any:
    return stream_parallel(np.swapaxes(x, 0, 1) * 2, 0), stream_parallel(x.mean(0), 0)


def many_chunks(x: Any) -> Any:
    return stream_parallel(x * 3, 0, 11)


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
    wait_for_compilation()
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
        fused = fuse(function, background_compilation=False)
        np.testing.assert_allclose(fused(Y), function(Y), rtol=1e-5)
    assert not started


def test_threads_end_with_the_call_and_calls_from_threads_do_not_meet() -> None:
    fused = fuse(pointwise)
    fused(Y)
    wait_for_compilation()
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
