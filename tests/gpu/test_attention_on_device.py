"""Attention on a GPU: forward by one kernel, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.runtime.devices import cuda_arrays

cupy = (
    pytest.importorskip("cupy", reason="no GPU: CuPy cannot be imported") if cuda_arrays.unavailable() is None else None
)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(cupy is None, reason=f"no GPU: {cuda_arrays.unavailable()}")]

SIZES = [
    (1, 1, 16), (5, 70, 32), (64, 64, 64), (129, 200, 64), (300, 300, 128), (77, 513, 48), (200, 130, 256),
    (100, 100, 160), (1000, 1000, 96),
]  # fmt: skip


def plain(q: Any, k: Any, v: Any) -> Any:
    x = (q @ k.swapaxes(-1, -2)) * 0.125
    w = np.exp(x - x.max(-1, keepdims=True))
    return (w / w.sum(-1, keepdims=True)) @ v


def causal(q: Any, k: Any, v: Any) -> Any:
    x = (q @ k.swapaxes(-1, -2)) * 0.125
    x = np.where(np.arange(k.shape[-2]) <= np.arange(q.shape[-2])[:, None], x, -np.inf)
    w = np.exp(x - x.max(-1, keepdims=True))
    return (w / w.sum(-1, keepdims=True)) @ v


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
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
        assert error < (2e-2 if dtype is ml_dtypes.bfloat16 else 2e-3), (queries, keys, features)
    assert fused.explain(*on_device).templates == ("attention",)
