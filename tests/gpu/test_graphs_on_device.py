"""Calls launched as CUDA graphs, and the slots of one allocation that intermediates live in, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import FusionDefinition, fuse, options, rules
from tracefuse.runtime.devices import cuda_arrays

cupy = (
    pytest.importorskip("cupy", reason="no GPU: CuPy cannot be imported") if cuda_arrays.unavailable() is None else None
)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(cupy is None, reason=f"no GPU: {cuda_arrays.unavailable()}")]


def chain(count: int) -> FusionDefinition:
    """exp(-x) over and over: `count` segments where each op is one."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        for step in range(count):
            x = fd.ops.neg(x) if step % 2 == 0 else fd.ops.exp(x)
        fd.add_output(x)
    fd.segment(merge=rules.one_op_a_segment)
    return fd


def expected(x: Any, count: int) -> Any:
    for step in range(count):
        x = -x if step % 2 == 0 else np.exp(x)
    return x


def test_results_of_a_graph_are_fresh_and_follow_arguments_and_sizes() -> None:
    fd = chain(10)
    random = np.random.default_rng(0)
    given = [random.random(shape, np.float32) for shape in ((64, 64), (64, 64), (5, 700), (0, 3), (64, 64), (300, 200))]
    with options(graph=True):
        kept = [(x, fd.execute([cupy.asarray(x)])[0]) for x in given for _ in range(2)]
    for x, result in kept:
        np.testing.assert_allclose(result.get(), expected(x, 10), rtol=1e-5)


def test_a_graph_runs_on_the_stream_of_the_caller() -> None:
    fd = chain(6)
    x = np.random.default_rng(1).random((512, 512), np.float32)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    with options(graph=True):
        results = []
        for stream in streams * 4:
            with stream:
                results.append((stream, fd.execute([cupy.asarray(x)])[0]))
    for stream, result in results:
        with stream:
            np.testing.assert_allclose(result.get(), expected(x, 6), rtol=1e-5)


def test_library_calls_stand_between_graphs() -> None:
    def layers(x: Any, w: Any) -> Any:
        for _ in range(3):
            h = x @ w
            x = (h - h.mean(-1, keepdims=True)) / h.std(-1, keepdims=True)
            x = x + x.sum(0)
        return x

    fused = fuse(layers, graph=True)
    random = np.random.default_rng(2)
    for rows in (7, 40, 7):
        x, w = (random.normal(size=shape) for shape in ((rows, 32), (32, 32)))
        np.testing.assert_allclose(fused(cupy.asarray(x), cupy.asarray(w)).get(), layers(x, w), rtol=1e-9)


def test_intermediates_of_a_call_are_one_allocation() -> None:
    fd = chain(10)
    x = cupy.ones((1024, 1024), np.float32)
    fd.execute([x])
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        (result,) = fd.execute([x])
        assert result.nbytes == 4 << 20
        assert pool.total_bytes() == 3 * (4 << 20)  # the result, and two intermediates
        assert pool.used_bytes() == 4 << 20
