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


def layers(x: Any, weights: Any) -> Any:
    """Products of all kinds between kernels: of matrices, of stacks, with transposed and permuted operands."""
    for w in weights:
        h = (x @ w).reshape(*x.shape[:-1], 4, -1).transpose(0, 2, 1, 3)
        scores = h @ h.swapaxes(-1, -2)
        mixed = (scores / (1 + np.abs(scores)) @ h).transpose(0, 2, 1, 3).reshape(x.shape)
        x = np.tanh(x + mixed @ w.T)
    return x, np.einsum("bsi,bsj->ij", x, x), x.reshape(-1) @ x.reshape(-1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
def test_products_are_part_of_a_graph_and_give_the_same_bits(dtype: Any) -> None:
    plain, graphed = fuse(layers), fuse(layers, graph=True)
    random = np.random.default_rng(3)
    weights = [cupy.asarray((random.normal(size=(96, 96)) / 10).astype(dtype)) for _ in range(3)]
    kept = []
    for sequences, length in ((3, 40), (3, 40), (5, 33), (3, 40), (40, 200), (1, 17), (4, 8), (3, 41), (3, 40)):
        x = cupy.asarray(random.normal(size=(sequences, length, 96)).astype(dtype))
        kept.append((x, plain(x, weights), graphed(x, weights)))
    for x, first, second in kept:
        for own, other in zip(first, second, strict=True):
            assert own.get().tobytes() == other.get().tobytes()
        if dtype == np.float64 or (dtype == np.float32 and len(x) < 40):  # sums of more terms cancel
            tolerance = 2e-4 if dtype == np.float32 else 1e-10
            for own, wanted in zip(first, layers(x.get(), [w.get() for w in weights]), strict=True):
                np.testing.assert_allclose(own.get(), wanted, rtol=tolerance, atol=tolerance * 10)
    templates = graphed.explain(kept[4][0], weights).templates
    assert templates.count("library") + templates.count("product") >= 12
    assert "library" in templates


def test_a_graph_of_products_follows_new_weights_and_streams() -> None:
    graphed = fuse(layers, graph=True)
    random = np.random.default_rng(4)
    x = random.normal(size=(2, 24, 64)).astype(np.float32)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    results = []
    for step in range(12):
        weights = [(random.normal(size=(64, 64)) / 8).astype(np.float32) for _ in range(2)]
        with streams[step % 3]:
            results.append((streams[step % 3], weights, graphed(cupy.asarray(x), [*map(cupy.asarray, weights)])))
    for stream, weights, result in results:
        with stream:
            np.testing.assert_allclose(result[0].get(), layers(x, weights)[0], rtol=1e-3, atol=1e-4)


def test_a_repeated_call_is_a_graph_on_any_stream_and_can_be_recorded_into_another() -> None:
    fused = fuse(layers)
    random = np.random.default_rng(5)
    x = cupy.asarray(random.normal(size=(2, 24, 64)).astype(np.float32))
    weights = [cupy.asarray((random.normal(size=(64, 64)) / 8).astype(np.float32)) for _ in range(2)]
    for stream in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        cupy.cuda.Device().synchronize()
        with stream:
            expected = [result.get().tobytes() for result in fused(x, weights)]
            for _ in range(40):
                results = fused(x, weights)
            assert [result.get().tobytes() for result in results] == expected
    with stream:
        stream.begin_capture()
        recorded = fused(x, weights)
        graph = stream.end_capture()
        x *= 2
        graph.launch(stream)
        again = [result.get() for result in recorded]
        for own, wanted in zip(again, fused(x, weights), strict=True):
            np.testing.assert_array_equal(own, wanted.get())


def test_numbers_that_differ_at_each_call_change_a_graph() -> None:
    def step(x: Any, w: Any, rate: float) -> Any:
        for _ in range(3):
            x = np.tanh(x @ w)
        return x * rate

    fused, plain = fuse(step), fuse(step, graph=False)
    random = np.random.default_rng(6)
    x, w = (cupy.asarray(random.normal(size=(48, 48)).astype(np.float32)) for _ in range(2))
    for k in range(150):
        assert fused(x, w, 1 / (k + 1)).get().tobytes() == plain(x, w, 1 / (k + 1)).get().tobytes()


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
