"""Long rows that clusters of blocks hold, on a GPU: values, graphs, and that two runs give the same bits."""

from __future__ import annotations

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


def softmax(x: Any) -> Any:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def normalized(x: Any) -> Any:
    mean, variance = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5)


def totals(x: Any) -> Any:
    return x - x.mean(-1, keepdims=True), x.max(-1), x.argmin(-1)


def on_device(x: Any) -> Any:
    """A CuPy array; bfloat16 by its bits."""
    return cupy.asarray(x.view(np.uint16)).view(x.dtype) if x.dtype == ml_dtypes.bfloat16 else cupy.asarray(x)


def on_host(x: Any) -> Any:
    bits = x.view(np.uint16).get().view(x.dtype) if x.dtype == ml_dtypes.bfloat16 else x.get()
    return bits.astype(np.float64) if bits.dtype.kind not in "iu" else bits


def template_of(function: Any, *arguments: Any) -> Any:
    wanted = "cluster" if int(cuda_arrays.architecture(0)[3:]) >= 90 else "split"
    (own,) = function.explain(*arguments).templates
    return own, wanted


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name
)
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (softmax, (132, 50_000)), (softmax, (40, 100_003)), (softmax, (32, 200_000)),
        (normalized, (16, 60, 3136)), (normalized, (33, 60, 783)), (totals, (132, 60_000)),
    ],
)  # fmt: skip
def test_rows_held_by_clusters_are_right(function: Any, shape: tuple[int, ...], dtype: Any) -> None:
    x = (np.random.default_rng(0).standard_normal(shape, np.float32) * 2 + 1).astype(dtype)
    fused, given = fuse(function), on_device(x)
    own, wanted = template_of(fused, given)
    assert own == wanted
    results, expected = fused(given), function(x.astype(np.float64))
    again = fused(given)
    tolerance = {np.float32: 1e-5, np.float64: 1e-12, np.float16: 2e-3}.get(dtype, 1e-2)
    for got, repeated, known in zip(
        *(r if isinstance(r, tuple) else (r,) for r in (results, again, expected)), strict=True
    ):
        np.testing.assert_array_equal(on_host(got), on_host(repeated))
        if known.dtype.kind == "i":
            np.testing.assert_array_equal(on_host(got), known)
        else:
            assert np.abs(on_host(got) - known).max() <= tolerance * np.abs(known).max()


def test_clusters_run_in_a_graph() -> None:
    x = np.random.default_rng(1).standard_normal((132, 50_000), np.float32)
    with options(graph=True):
        fused = fuse(softmax)
        for rows in (132, 100, 132):
            result = fused(cupy.asarray(x[:rows])).get()
            np.testing.assert_allclose(result, softmax(x[:rows].astype(np.float64)), rtol=1e-4, atol=1e-9)
