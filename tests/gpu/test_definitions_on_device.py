"""Tests definitions in nvFuser's style on a GPU: layouts of outputs, code, profiles, timed views, PyTorch results."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from tracefuse import DataType, FusionDefinition, fuse
from tracefuse.runtime.devices import cuda_arrays

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_arrays.unavailable() is not None, reason="no GPU"),
]


def arrays_of(kind: str, *shapes: tuple[int, ...]) -> list[Any]:
    """Random float32 arrays on the GPU, of CuPy or PyTorch."""
    random = np.random.default_rng(0)
    host = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    if kind == "cupy":
        return [importlib.import_module("cupy").asarray(array) for array in host]
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return [torch.asarray(array, device="cuda") for array in host]


def on_host(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(array.get() if hasattr(array, "get") else array.cpu())


def normalized() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        total = fd.ops.sum(x, [1], keepdim=True)
        fd.add_output(fd.ops.div(x, total), stride_order=[0, 1])
        fd.add_output(fd.ops.sum(x, [0]))
    return fd


@pytest.mark.parametrize("kind", ["cupy", "torch"])
def test_the_kernel_writes_the_order_of_an_output(kind: str) -> None:
    (x,) = arrays_of(kind, (64, 48))
    quotient, sums = normalized().execute([x])
    assert type(quotient) is type(x)
    strides = quotient.stride() if kind == "torch" else tuple(s // 4 for s in quotient.strides)
    assert strides == (1, 64)
    wide = on_host(x).astype(np.float64)
    np.testing.assert_allclose(on_host(quotient), wide / wide.sum(1, keepdims=True), rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(on_host(sums), wide.sum(0), rtol=1e-4, atol=1e-5)


def test_the_code_of_the_last_call_is_the_code_for_its_inputs() -> None:
    fd, (x,) = normalized(), arrays_of("cupy", (256, 512))
    fd.execute([x])
    assert fd.last_cuda_code() == fd.cuda_code_for([x])
    assert fd.last_cuda_code().count("__global__") >= 2


def test_a_profiled_call_measures_each_segment_against_a_copy() -> None:
    fd, (x,) = normalized(), arrays_of("cupy", (4096, 4096))
    fd.execute([x], profile=True)
    profile = fd.profile()
    assert [one.bytes > x.nbytes for one in profile.kernel_profiles] == [True] * profile.segments
    assert all(0 < one.fraction_of_copy < 2 for one in profile.kernel_profiles), str(profile)


def test_a_timed_view_measures_the_limits_of_the_gpu() -> None:
    x, w = arrays_of("cupy", (2048, 1024), (1024, 512))
    view = fuse(lambda x, w: np.tanh(x @ w) + 1).view(x, w, timed=True)
    roofline = view.roofline
    assert roofline is not None
    assert roofline.copy_rate > 1e11
    assert roofline.product_rate > 1e12
    assert [len(code.candidates) > 1 for code in view.codes] == [False, True]
    assert all(one.time_ms > 0 for one in roofline.profile.kernel_profiles)


def test_a_definition_without_inputs_runs_on_the_named_gpu() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.full([3], fd.define_scalar(2.0), DataType.Float))
    (result,) = fd.execute([], device="cuda:0")
    np.testing.assert_array_equal(on_host(result), np.full(3, 2, np.float32))
