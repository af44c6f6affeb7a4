"""Values and segments on CUDA streams: waits in both directions, memory handed out again, the caller's stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.random_programs.test_random_streams import counts, marked, run_on_streams
from tests.ways import why_not
from tracefuse import DataType, FusionDefinition, ParallelType, fuse, options, rules, stream_parallel

pytestmark = pytest.mark.gpu
REASON = why_not("cuda")
if REASON is not None:
    pytest.skip(REASON, allow_module_level=True)

import cupy  # noqa: E402

STREAMS = (1, 3, 4, 40)
ROWS, COLUMNS = 24, 1 << 18


def rows(x: Any) -> Any:
    first = stream_parallel(np.exp(x) * 2, 0)
    return stream_parallel(first - first.sum(-1, keepdims=True) / x.shape[1], 0)


def branches(x: Any, w: Any) -> Any:
    left, right = np.exp(x) @ w, np.sin(x) @ w
    return left.sum(0) + right.sum(0), left * 2, right


def slowly(x: Any) -> Any:
    """x after much work on the current stream: who does not wait for it reads something else."""
    out = cupy.full_like(x, np.nan)
    waste = cupy.ones((4096, 4096), cupy.float32)
    for _ in range(8):
        waste = waste @ waste * np.float32(1e-4)
    out[...] = x + 0 * waste[0, 0]
    return out


@pytest.mark.parametrize("count", STREAMS)
def test_streams_wait_for_the_caller_and_the_caller_for_them(count: int) -> None:
    x = cupy.linspace(-1, 1, ROWS * COLUMNS, dtype=cupy.float32).reshape(ROWS, COLUMNS)
    expected = rows(cupy.asnumpy(x).astype(np.float64))
    fused = fuse(rows, number_of_streams=count)
    fused(x)
    for _ in range(5):
        result = fused(slowly(x))
        doubled = result * 2  # on the caller's stream, at once
        result[...] = 0
        np.testing.assert_allclose(cupy.asnumpy(doubled), 2 * expected, rtol=1e-4, atol=1e-4)


def test_a_stream_of_the_callers_own_is_waited_for() -> None:
    x = cupy.linspace(-1, 1, ROWS * COLUMNS, dtype=cupy.float32).reshape(ROWS, COLUMNS)
    expected = rows(cupy.asnumpy(x).astype(np.float64))
    fused = fuse(rows)
    fused(x)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        result = fused(slowly(x))
    stream.synchronize()
    np.testing.assert_allclose(cupy.asnumpy(result), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", STREAMS)
def test_memory_is_handed_out_again_after_its_readers(count: int) -> None:
    """Copies in slots and in whole buffers, call after call, with what was released taken by others in between."""
    with FusionDefinition() as fd:
        tensor = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        for mark in (True, True, False, True, True):
            tensor = fd.ops.add(tensor, 1.0)
            if mark:
                tensor.axis(0).parallelize(ParallelType.stream)
        fd.add_output(tensor)
    fd.segment(merge=rules.one_op_a_segment)
    x = cupy.zeros((ROWS, COLUMNS), cupy.float32)
    for k in range(20):
        (result,) = fd.execute([x + k], number_of_streams=count)
        taken = [cupy.full((ROWS, COLUMNS), np.nan, cupy.float32) for _ in range(3)]
        assert bool((result == k + 5).all()), k
        del taken, result


@pytest.mark.parametrize("count", STREAMS)
def test_independent_segments_run_on_streams_of_their_own(count: int) -> None:
    x = cupy.linspace(-1, 1, 512 * 256, dtype=cupy.float32).reshape(512, 256)
    w = cupy.linspace(-1, 1, 256 * 256, dtype=cupy.float32).reshape(256, 256)
    expected = branches(cupy.asnumpy(x).astype(np.float64), cupy.asnumpy(w).astype(np.float64))
    fused = fuse(branches, streams=count)
    fused(x, w)
    for _ in range(10):
        results = [result * 1 for result in fused(slowly(x), w)]
        taken = [cupy.full((512, 256), np.nan, cupy.float32) for _ in range(8)]
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(cupy.asnumpy(result), wanted, rtol=1e-3, atol=1e-2)
        del taken


@pytest.mark.parametrize("count", STREAMS)
def test_a_loop_reads_along_another_axis_what_the_one_before_has_made(count: int) -> None:
    def twice(x: Any) -> Any:
        first = stream_parallel(np.exp(x) * 2, 0)
        return first, stream_parallel(first * 3 + 1, 1)

    x = cupy.linspace(-1, 1, 24 * 4096, dtype=cupy.float32).reshape(24, 4096)[:, ::64]
    fused = fuse(twice, number_of_streams=count)
    fused(x)
    for _ in range(10):
        first, second = fused(slowly(x))
        cupy.testing.assert_allclose(second, first * 3 + 1, rtol=1e-6)
        cupy.testing.assert_allclose(first, cupy.exp(x) * 2, rtol=1e-5)


def test_slices_are_compared_in_check_mode_and_their_kernels_are_shown() -> None:
    x = cupy.linspace(-1, 1, 12 * 300, dtype=cupy.float32).reshape(12, 300)
    for disable in ("", "fusion"):
        with options(check=True, disable=disable):
            cupy.testing.assert_allclose(fuse(rows)(x), fuse(rows)(x), rtol=1e-6)
    assert "__global__" in fuse(rows).segments(x)[0].source


def test_host_operations_go_into_slices_without_allocating() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        copy = fd.ops.set(x)
        copy.axis(0).parallelize(ParallelType.stream)
        fd.add_output(copy)
    fd.segment(merge=rules.one_op_a_segment)
    x_array = cupy.random.random((7, 1000), dtype=cupy.float32)
    (result,) = fd.execute([x_array])
    assert "Set( " in str(fd.host_program([x_array]))
    cupy.testing.assert_array_equal(result, x_array)


def test_two_runs_at_once_share_the_pool() -> None:
    x = cupy.linspace(-1, 1, ROWS * COLUMNS, dtype=cupy.float32).reshape(ROWS, COLUMNS)
    expected = rows(cupy.asnumpy(x).astype(np.float64))
    fused = fuse(rows)
    fused(x)
    callers = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    cupy.cuda.get_current_stream().synchronize()
    results = []
    for stream in callers:
        with stream:
            results.append(fused(slowly(x)))
    for stream, result in zip(callers, results, strict=True):
        stream.synchronize()
        np.testing.assert_allclose(cupy.asnumpy(result), expected, rtol=1e-4, atol=1e-4)


def test_random_fusions_on_streams() -> None:
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(drawn=marked("exact"), count=counts())
    def holds(drawn: Any, count: int) -> None:
        run_on_streams(drawn, None, "cuda", "exact", count, True)

    holds()


def test_a_graph_of_streams_is_refused() -> None:
    x = cupy.ones((4, 8), cupy.float32)
    with options(graph=True), pytest.raises(Exception, match="loops cannot be launched as a CUDA graph"):
        fuse(rows)(x)
