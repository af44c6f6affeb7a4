"""Updates of many small arrays: one launch for equal kernels, with the results of separate ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.runtime.devices import cuda_arrays

cupy = (
    pytest.importorskip("cupy", reason="no GPU: CuPy cannot be imported") if cuda_arrays.unavailable() is None else None
)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(cupy is None, reason=f"no GPU: {cuda_arrays.unavailable()}")]

SHAPES = [(3, 5), (64, 64), (1, 1), (7, 128), (300, 41), (0, 4), (16, 16), (1000, 3)]


def steps(*arrays: Any) -> Any:
    half = len(arrays) // 2
    return tuple(p - 0.01 * g for p, g in zip(arrays[:half], arrays[half:], strict=True))


def sums(*arrays: Any) -> Any:
    totals = [np.sum(x * x, axis=-1) for x in arrays]
    return (*totals, *(x / np.sqrt(t[:, None] + 1) for x, t in zip(arrays, totals, strict=True)))


def arrays(count: int, dtype: str) -> list[Any]:
    random = np.random.default_rng(count)
    return [random.normal(size=SHAPES[k % len(SHAPES)]).astype(dtype) for k in range(count)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("count", [4, 30, 300])
@pytest.mark.parametrize("function", [steps, sums], ids=lambda f: f.__name__)
def test_many_small_arrays_have_the_results_of_numpy(function: Any, count: int, dtype: str) -> None:
    if function is sums and count == 300:
        count = 60
    operands = arrays(count, dtype) + (arrays(count, dtype) if function is steps else [])
    fused = fuse(function)
    tolerance = 4e-3 if dtype == "float16" else 1e-5
    for _ in range(2):
        results = fused(*map(cupy.asarray, operands))
        for own, expected in zip(results, function(*operands), strict=True):
            assert own.dtype == expected.dtype
            np.testing.assert_allclose(own.get(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("count", [4, 30, 100])
def test_many_arrays_are_updated_in_place_and_each_reads_what_came_before_it(count: int) -> None:
    def step(parameters: list[Any], gradients: list[Any]) -> None:
        for p, g in zip(parameters, gradients, strict=True):
            p -= 0.5 * g
        for k in range(0, len(parameters) - 8, 8):  # of arrays of one shape; the second reads the first one's result
            parameters[k] += parameters[k + 8]

    fused = fuse(step)
    own, expected = arrays(count, "float32"), arrays(count, "float32")
    gradients = arrays(count, "float32")
    there = [cupy.asarray(x) for x in own]
    for _ in range(3):
        fused(there, [cupy.asarray(g) for g in gradients])
        step(expected, gradients)
        for result, wanted in zip(there, expected, strict=True):
            np.testing.assert_allclose(result.get(), wanted, rtol=1e-5, atol=1e-5)


def test_arrays_that_overlap_are_updated_one_after_another() -> None:
    def step(parameters: list[Any], gradients: list[Any]) -> None:
        for p, g in zip(parameters, gradients, strict=True):
            p -= 0.5 * g

    fused, memory = fuse(step), np.arange(4000, dtype=np.float32)
    there, expected = cupy.asarray(memory), memory.copy()
    for starts in (range(0, 2000, 200), range(0, 2000, 200)):
        fused([there[k : k + 100] for k in starts], [there[k + 100 : k + 200] for k in starts])
        step([expected[k : k + 100] for k in starts], [expected[k + 100 : k + 200] for k in starts])
        np.testing.assert_array_equal(there.get(), expected)
    with pytest.warns(UserWarning, match="lies in the same memory"):
        fused([there[k : k + 100] for k in range(0, 500, 50)], [there[k + 2000 : k + 2100] for k in range(0, 500, 50)])
    step([expected[k : k + 100] for k in range(0, 500, 50)], [expected[k + 2000 : k + 2100] for k in range(0, 500, 50)])
    np.testing.assert_array_equal(there.get(), expected)
