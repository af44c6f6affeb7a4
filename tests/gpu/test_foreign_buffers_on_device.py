"""Buffers of CuPy, JAX and PyTorch on a GPU live until the kernels that read them have run."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ways import why_not
from tracefuse import fuse

pytestmark = pytest.mark.gpu
REASON = why_not("cuda")
if REASON is not None:
    pytest.skip(REASON, allow_module_level=True)

import cupy  # noqa: E402

SHAPE = (1024, 1024)


def cupy_filled(value: float) -> Any:
    return cupy.full(SHAPE, value, cupy.float32)


def jax_filled(value: float) -> Any:
    jax = pytest.importorskip("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        pytest.skip("jax has no GPU here")
    return jax.numpy.full(SHAPE, value, np.float32)


def torch_filled(value: float) -> Any:
    torch = pytest.importorskip("torch")
    return torch.full(SHAPE, value, dtype=torch.float32, device="cuda")


def as_numpy(array: Any) -> Any:
    if isinstance(array, cupy.ndarray):
        return array.get()
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


@pytest.mark.parametrize("filled", [cupy_filled, jax_filled, torch_filled], ids=["cupy", "jax", "torch"])
def test_an_input_that_is_dropped_at_once_is_read_before_its_memory_is_taken(filled: Callable[[float], Any]) -> None:
    """The call returns before its kernels have run; then the only reference goes, and its library takes new memory.

    A long kernel in front keeps the stream busy, so that a buffer that went back too early would hold NaN when it is
    read.
    """
    f = fuse(lambda x: (x * 2, x.sum(0)))
    busy = cupy.ones((4096, 4096), cupy.float32)
    f(filled(1.0))
    results = []
    for k in range(20):
        busy @ busy
        results.append((k, f(filled(float(k)))))
        gc.collect(0)
        filled(float("nan"))
    cupy.cuda.Device().synchronize()
    for k, (doubled, total) in results:
        assert as_numpy(doubled).min() == as_numpy(doubled).max() == 2 * k
        assert as_numpy(total).min() == as_numpy(total).max() == SHAPE[0] * k


def test_an_input_on_another_stream_is_waited_for() -> None:
    f = fuse(lambda x: x * 2)
    f(cupy_filled(1.0))
    stream = cupy.cuda.Stream(non_blocking=True)
    busy = cupy.ones((4096, 4096), cupy.float32)
    with stream:
        results = []
        for k in range(10):
            busy @ busy
            results.append(f(cupy_filled(float(k))))
            cupy_filled(float("nan"))
    stream.synchronize()
    for k, result in enumerate(results):
        assert as_numpy(result).min() == as_numpy(result).max() == 2 * k
