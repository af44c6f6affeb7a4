"""Calls on a GPU that are replayed by machine code: results, memory, streams, and what leaves a record."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.kernel.llvm.device_records import DeviceChain
from tracefuse.runtime.devices import cuda_arrays, cuda_layout

cupy = (
    pytest.importorskip("cupy", reason="no GPU: CuPy cannot be imported") if cuda_arrays.unavailable() is None else None
)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(cupy is None, reason=f"no GPU: {cuda_arrays.unavailable()}")]


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[DeviceChain]:
    """The chains of a test, once for each record that they got."""
    found: list[DeviceChain] = []
    add = DeviceChain.add

    def noted(self: DeviceChain, *arguments: Any) -> bool:
        before = self.count
        is_added = add(self, *arguments)
        found.extend([self] * (self.count - before))
        return is_added

    monkeypatch.setattr(DeviceChain, "add", noted)
    return found


def scaled(x: Any, y: Any, s: Any) -> Any:
    return x * s + y, x - y


def stepped(x: Any, y: Any, s: Any) -> None:
    x -= s * y


def both(x: Any, y: Any, s: Any) -> Any:
    x += y
    return x * s


def normalized(x: Any, y: Any, s: Any) -> Any:
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1), y.sum(0)


def listed(x: Any, y: Any, s: Any) -> Any:
    return [x[k] * s - y[k] for k in range(6)]


def sliced(x: Any, y: Any, s: Any) -> None:
    x[1:] = y[:-1] * s


FUNCTIONS: list[Callable[..., Any]] = [scaled, stepped, both, normalized, listed, sliced]


def check(fused: Any, function: Any, *arguments: Any) -> None:
    expected_of = [a.get() if isinstance(a, cupy.ndarray) else a for a in arguments]
    results, expected = fused(*arguments), function(*expected_of)
    pairs = list(zip(arguments, expected_of, strict=True))
    if expected is not None:
        is_one = not isinstance(expected, tuple | list)
        pairs += zip([results] if is_one else results, [expected] if is_one else expected, strict=True)
    for own, other in pairs:
        if isinstance(own, cupy.ndarray):
            assert own.dtype == other.dtype
            tolerance = 2e-3 if own.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(own.get(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_replayed_calls_have_the_results_of_numpy(function: Any, dtype: str, added: list[DeviceChain]) -> None:
    random = np.random.default_rng(5)
    fused = fuse(function)
    for shape in ((8, 33), (6, 128), (8, 33), (7, 5), (6, 128)):
        for _ in range(3):
            x, y = (cupy.asarray((random.integers(-8, 9, shape) / 8).astype(dtype)) for _ in range(2))
            check(fused, function, x, y, 0.5 if dtype == "float16" else float(random.normal()))
    assert cuda_layout.array_layout() is not None
    assert function is sliced or added


def test_arrays_that_differ_from_those_of_a_record_leave_it(added: list[DeviceChain]) -> None:
    fused = fuse(scaled)
    memory = cupy.arange(4000, dtype="float32")
    whole = cupy.arange(12, dtype="float32").reshape(3, 4)
    for _ in range(3):
        check(fused, scaled, whole, whole + 1, 2.5)
        assert len(added) <= 1
    assert added
    check(fused, scaled, memory[1:13].reshape(3, 4), whole, 2.5)  # another alignment
    check(fused, scaled, whole.reshape(4, 3).T, whole, 2.5)
    check(fused, scaled, whole.astype("float64"), whole, 2.5)
    check(fused, scaled, whole, whole, 2)
    whole.shape = (4, 3)
    check(fused, scaled, whole, whole + 1, 2.5)
    whole.shape = (3, 4)
    check(fused, scaled, whole, whole + 1, -1.5)


@pytest.mark.filterwarnings("ignore:.*in the same memory")
def test_updated_arrays_that_share_memory_leave_the_record(added: list[DeviceChain]) -> None:
    fused = fuse(stepped)
    own, other = (cupy.arange(64, dtype="float32") for _ in range(2))
    expected = own.get()
    for first, second in ((own, other), (own, other), (own, other), (own[:32], own[32:]), (own[:32], own[32:])) * 2:
        fused(first, second, 0.25)
        expected[: first.size] -= 0.25 * (other.get() if second is other else expected[32:].copy())
    fused(own[8:40], own[:32], 0.25)
    expected[8:40] -= 0.25 * expected[:32].copy()
    fused(own, own, 0.25)
    expected -= 0.25 * expected
    assert len(added) == 2
    np.testing.assert_array_equal(own.get(), expected)


def test_replayed_calls_run_on_the_current_stream_and_keep_no_memory(added: list[DeviceChain]) -> None:
    fused, pool = fuse(listed), cupy.get_default_memory_pool()
    x, y = (cupy.ones((6, 1000), dtype="float32") for _ in range(2))
    for _ in range(3):
        fused(x, y, 0.5)
    assert added
    gc.collect()
    before = pool.used_bytes()
    for _ in range(300):
        results = fused(x, y, 0.5)
    assert pool.used_bytes() - before <= 6 * 4096
    stream, slow = cupy.cuda.Stream(non_blocking=True), cupy.ones((3000, 3000))
    with stream:
        for _ in range(10):
            slow = slow @ slow / 3000
        x += slow[0, 0]  # later than the product, on the stream
        results = fused(x, y, 0.5)
    stream.synchronize()
    assert all(result.get().tolist() == [0.0] * 1000 for result in results)


@pytest.mark.parametrize("function", [stepped, scaled])
def test_a_thread_that_has_not_used_the_gpu_replays_calls(function: Any, added: list[DeviceChain]) -> None:
    fused = fuse(function)
    pairs = [tuple(cupy.full(100, k, dtype="float32") for k in (m, 1)) for m in range(4)]
    for _ in range(3):
        fused(*(cupy.ones(100, dtype="float32") for _ in range(2)), 0.5)
    assert added
    cupy.cuda.Device().synchronize()
    with ThreadPoolExecutor(4) as threads:
        results = [*threads.map(lambda pair: [fused(*pair, 0.5) for _ in range(5)][-1], pairs)]
    cupy.cuda.Device().synchronize()
    for m, (pair, result) in enumerate(zip(pairs, results, strict=True)):
        if result is None:
            assert pair[0].get().tolist() == [m - 2.5] * 100
        else:
            assert [one.get()[7] for one in result] == [m * 0.5 + 1, m - 1]
