"""Attention on a GPU: forward and backward by one kernel each, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tracefuse import DataType, FusionDefinition, fuse
from tracefuse.runtime.devices import cuda_arrays

cupy = (
    pytest.importorskip("cupy", reason="no GPU: CuPy cannot be imported") if cuda_arrays.unavailable() is None else None
)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(cupy is None, reason=f"no GPU: {cuda_arrays.unavailable()}")]

SIZES = [
    (1, 1, 16), (5, 70, 32), (64, 64, 64), (129, 200, 64), (300, 300, 128), (77, 513, 48), (200, 130, 256),
    (100, 100, 160), (1000, 1000, 96),
]  # fmt: skip

LIMITS = {np.float16: 2e-3, ml_dtypes.bfloat16: 2e-2, np.float32: 5e-6}


def plain(q: Any, k: Any, v: Any) -> Any:
    x = (q @ k.swapaxes(-1, -2)) * 0.125
    w = np.exp(x - x.max(-1, keepdims=True))
    return (w / w.sum(-1, keepdims=True)) @ v


def causal(q: Any, k: Any, v: Any) -> Any:
    x = (q @ k.swapaxes(-1, -2)) * 0.125
    x = np.where(np.arange(k.shape[-2]) <= np.arange(q.shape[-2])[:, None], x, -np.inf)
    w = np.exp(x - x.max(-1, keepdims=True))
    return (w / w.sum(-1, keepdims=True)) @ v


@pytest.mark.parametrize("dtype", LIMITS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("function", [plain, causal], ids=lambda f: f.__name__)
def test_attention_of_any_size(function: Any, dtype: Any) -> None:
    random = np.random.default_rng(0)
    fused = fuse(function)
    for queries, keys, features in SIZES:
        arrays = [random.standard_normal((2, 3, n, features)).astype(dtype) for n in (queries, keys, keys)]
        on_device = [cupy.asarray(a) for a in arrays]
        result = cupy.asnumpy(fused(*on_device).astype(np.float32))
        expected = function(*(a.astype(np.float64) for a in arrays))
        error = np.linalg.norm(result - expected) / np.linalg.norm(expected)
        assert error < LIMITS[dtype], (queries, keys, features)
    assert fused.explain(*on_device).templates == ("attention",)


def gradients(causal: bool, dtype: Any) -> Any:
    """The definition of forward and backward."""
    kinds = {np.float16: DataType.Half, ml_dtypes.bfloat16: DataType.BFloat16, np.float32: DataType.Float}
    kind = kinds[dtype]
    with FusionDefinition() as fd:
        q, k, v, g = (fd.define_tensor(shape=[-1] * 4, contiguity=[True] * 4, dtype=kind) for _ in range(4))
        output, log_sumexp, _, _ = fd.ops.sdpfa_fwd(q, k, v, is_causal=causal)
        for result in (output, *fd.ops.sdpfa_bwd(g, q, k, v, output, log_sumexp, is_causal=causal)):
            fd.add_output(result)
    return fd


@pytest.mark.parametrize("dtype", LIMITS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_those_of_float64_and_equal_in_every_run(causal: bool, dtype: Any) -> None:
    random = np.random.default_rng(0)
    fd = gradients(causal, dtype)
    sizes = (64, 64, 64), (129, 200, 64), (300, 300, 128), (77, 513, 48), (1000, 1000, 96), (130, 97, 256)
    for queries, keys, features in sizes:
        rows = (queries, keys, keys, queries)
        arrays = [random.standard_normal((2, 3, n, features)).astype(dtype) for n in rows]
        on_device = [cupy.asarray(a) for a in arrays]
        results = [cupy.asnumpy(r.astype(np.float32)) for r in fd.execute(on_device)]
        again = [cupy.asnumpy(r.astype(np.float32)) for r in fd.execute(on_device)]
        for result, second, reference in zip(results, again, exact(*arrays, causal), strict=True):
            np.testing.assert_array_equal(result, second)
            error = np.linalg.norm(result - reference) / np.linalg.norm(reference)
            assert error < LIMITS[dtype], (queries, keys, features)


def exact(*arguments: Any) -> list[Any]:
    """Output and gradients in float64."""
    q, k, v, g = (a.astype(np.float64) for a in arguments[:4])
    x = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if arguments[4]:
        x = np.where(np.arange(k.shape[-2]) <= np.arange(q.shape[-2])[:, None], x, -np.inf)
    p = np.exp(x - x.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    output = p @ v
    d = p * (g @ v.swapaxes(-1, -2) - (g * output).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    return [output, d @ k, d.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g]
