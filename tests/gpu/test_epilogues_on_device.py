"""Products with a bias, a residual and an activation in one call of cuBLASLt, on a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tracefuse import fuse, options
from tracefuse.runtime.devices import cuda_arrays

cupy = (
    pytest.importorskip("cupy", reason="no GPU: CuPy cannot be imported") if cuda_arrays.unavailable() is None else None
)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(cupy is None, reason=f"no GPU: {cuda_arrays.unavailable()}")]

UNITS = {np.float16: 2.0**-10, ml_dtypes.bfloat16: 2.0**-7, np.float32: 2.0**-21}


def gelu(y: Any) -> Any:
    return y * (0.5 + 0.5 * np.tanh(0.7978845608 * (y + 0.044715 * y * y * y)))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "bias": lambda x, w, b, r, c: x @ w + b,
    "residual": lambda x, w, b, r, c: r + x @ w,
    "bias, residual": lambda x, w, b, r, c: r + (x @ w + b),
    "scale, bias, relu": lambda x, w, b, r, c: np.maximum(x @ w * 0.5 + b, 0),
    "bias, gelu": lambda x, w, b, r, c: gelu(x @ w + b),
    "one value for each row": lambda x, w, b, r, c: np.maximum(x @ w + c, 0),
    "a transposed weight": lambda x, w, b, r, c: x @ np.swapaxes(np.swapaxes(w, -1, -2).copy(), -1, -2) + b,
}
SHAPES = [
    ((160, 96), (96, 64)), ((129, 67), (67, 131)), ((1, 300), (300, 72)), ((4, 40, 48), (48, 56)),
    ((3, 130, 96), (3, 96, 70)), ((0, 96), (96, 64)), ((160, 96), (96, 0)), ((160, 0), (0, 64)),
    ((160, 600), (600, 64)), ((129, 577), (577, 131)), ((4, 40, 520), (520, 56)), ((3, 130, 520), (3, 520, 70)),
]  # fmt: skip
"""The last ones have more terms than a kernel takes."""


def arrays(left: tuple[int, ...], right: tuple[int, ...], dtype: Any) -> list[Any]:
    """Operands of these shapes, a bias, a residual and a value for each row, in host memory."""
    random = np.random.default_rng(3)
    shape = (*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])
    shapes = (left, right, shape[-1:], shape, (*shape[:-1], 1))
    return [random.normal(size=s).astype(np.float32).astype(dtype) for s in shapes]


@pytest.mark.parametrize("dtype", UNITS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_with_epilogues_are_those_of_float64(name: str, dtype: Any) -> None:
    fused = fuse(FUNCTIONS[name])
    for left, right in SHAPES:
        host = arrays(left, right, dtype)
        wide = [x.astype(np.float64) for x in host]
        wanted, bound = FUNCTIONS[name](*wide), np.abs(wide[0]) @ np.abs(wide[1]) + 6
        for graph in (False, True):
            with options(graph=graph):
                own = fused(*map(cupy.asarray, host))
            assert own.dtype == np.dtype(dtype)
            assert own.shape == wanted.shape
            assert np.all(np.abs(own.get().astype(np.float64) - wanted) <= UNITS[dtype] * bound)


@pytest.mark.parametrize("dtype", UNITS, ids=lambda d: np.dtype(d).name)
def test_nan_and_infinities_pass_through_an_epilogue_as_in_numpy(dtype: Any) -> None:
    functions = (lambda x, w, b, r, c: np.maximum(r + x @ w, 0), lambda x, w, b, r, c: gelu(r + x @ w))
    for function, terms in itertools.product(functions, (32, 544)):
        host = arrays((64, terms), (terms, 64), dtype)
        host[3].ravel()[:4] = [np.nan, np.inf, -np.inf, 0]
        own = fuse(function)(*map(cupy.asarray, host)).get().astype(np.float64).ravel()
        with np.errstate(invalid="ignore"):
            wanted = function(*(x.astype(np.float64) for x in host)).ravel()
        np.testing.assert_array_equal(np.isnan(own), np.isnan(wanted))
        np.testing.assert_allclose(own[1:2], wanted[1:2])


def test_arrays_at_any_address() -> None:
    fused = fuse(FUNCTIONS["bias, residual"])
    host = arrays((160, 600), (600, 64), np.float16)
    wide = [x.astype(np.float64) for x in host]
    wanted = FUNCTIONS["bias, residual"](*wide)
    for shift in (1, 2, 4, 8):
        moved = []
        for x in host:
            memory = cupy.empty(x.size + shift, x.dtype)
            moved.append(memory[shift:].reshape(x.shape))
            moved[-1][...] = cupy.asarray(x)
        np.testing.assert_allclose(fused(*moved).get().astype(np.float64), wanted, rtol=2e-3, atol=0.05)


@pytest.mark.parametrize("dtype", UNITS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", ["bias", "residual", "bias, gelu"])
def test_each_operand_at_an_address_of_its_own_alignment(name: str, dtype: Any) -> None:
    fused = fuse(FUNCTIONS[name])
    for (left, right), graph in itertools.product(SHAPES[-4:], (False, True)):
        host = arrays(left, right, dtype)
        wide = [x.astype(np.float64) for x in host]
        wanted, bound = FUNCTIONS[name](*wide), np.abs(wide[0]) @ np.abs(wide[1]) + 6
        for operand in range(4):
            device = [cupy.asarray(x) for x in host]
            memory = cupy.empty(host[operand].size + 1, host[operand].dtype)
            device[operand] = memory[1:].reshape(host[operand].shape)
            device[operand][...] = cupy.asarray(host[operand])
            with options(graph=graph):
                own = fused(*device).get().astype(np.float64)
            assert np.all(np.abs(own - wanted) <= UNITS[dtype] * bound)


def test_strided_operands_are_computed_with_a_kernel_after_the_product() -> None:
    fused = fuse(FUNCTIONS["bias"])
    host = arrays((160, 600), (600, 64), np.float16)
    device = [cupy.asarray(x) for x in host]
    device[0] = cupy.repeat(device[0], 2, 1)[:, ::2]
    wanted = host[0].astype(np.float64) @ host[1].astype(np.float64) + host[2]
    np.testing.assert_allclose(fused(*device).get().astype(np.float64), wanted, rtol=2e-3, atol=0.05)
    assert "an operand is not contiguous" in str(fused.explain(*device))


def test_a_result_in_a_strided_output_buffer_that_an_epilogue_reads() -> None:
    def function(x: Any, w: Any, b: Any) -> Any:
        y = np.tanh(x)
        return y, y @ w + b

    host = arrays((160, 600), (600, 64), np.float16)
    x, w, b = map(cupy.asarray, host[:3])
    place = cupy.zeros((160, 1200), np.float16)
    results = place[:, ::2], cupy.empty((160, 64), np.float16)
    fuse(function).into(results, x, w, b)
    np.testing.assert_allclose(results[0].get(), np.tanh(host[0]), atol=2e-3)
    wanted = np.tanh(host[0].astype(np.float64)) @ host[1].astype(np.float64) + host[2]
    np.testing.assert_allclose(results[1].get().astype(np.float64), wanted, atol=0.05)


def test_a_caller_records_an_epilogue() -> None:
    fused = fuse(FUNCTIONS["scale, bias, relu"], graph=False)
    stream = cupy.cuda.Stream(non_blocking=True)
    device = [cupy.asarray(x) for x in arrays((160, 600), (600, 64), np.float16)]
    with stream:
        fused(*device)
        stream.begin_capture()
        recorded = fused(*device)
        graph = stream.end_capture()
        device[0] *= 2
        graph.launch(stream)
        np.testing.assert_array_equal(recorded.get(), fused(*device).get())


def test_calls_on_two_streams_have_the_same_bits() -> None:
    fused = fuse(FUNCTIONS["bias, residual"], graph=False)
    device = [cupy.asarray(x) for x in arrays((512, 4096), (4096, 64), np.float16)]
    wanted = fused(*device).get()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    results = []
    for _ in range(8):
        for stream in streams:
            with stream:
                results.append(fused(*device))
    cupy.cuda.Device().synchronize()
    for result in results:
        np.testing.assert_array_equal(result.get(), wanted)
