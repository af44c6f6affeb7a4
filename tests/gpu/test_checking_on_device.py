"""Check mode, options and printed values on a GPU: what the CPU's tests ask, of kernels that run there."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tracefuse
from tests.ways import backend_of, why_not
from tracefuse import debug_print, fuse
from tracefuse.compiler.executable import Executable
from tracefuse.config import resolve
from tracefuse.errors import InternalError, OutOfRangeError
from tracefuse.ir.reference import evaluate
from tracefuse.partition.segmentation import segment_fusion

pytestmark = pytest.mark.gpu
REASON = why_not("cuda")
if REASON is not None:
    pytest.skip(REASON, allow_module_level=True)

import cupy  # noqa: E402

X = np.random.default_rng(0).normal(size=(33, 70)).astype(np.float32)


def model(x: Any, w: Any) -> Any:
    y = np.exp(x - x.max(axis=1, keepdims=True)) @ w
    return (y - y.mean(axis=0)) / y.std(axis=0)


def test_right_kernels_pass_and_give_what_they_give_without() -> None:
    x, w = cupy.asarray(X), cupy.asarray(X.T.copy())
    with tracefuse.options(check=True):
        checked = fuse(model)(x, w)
    assert isinstance(checked, cupy.ndarray)
    cupy.testing.assert_array_equal(checked, fuse(model)(x, w))


def test_arguments_that_a_call_overwrites_are_compared_with_what_they_were() -> None:
    def update(x: Any, y: Any) -> None:
        x += y
        x *= 2

    x = cupy.asarray(X)
    fuse(update, check=True)(x, cupy.asarray(X))
    cupy.testing.assert_array_equal(x, X * 4)


def test_a_wrong_element_is_named_with_the_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    fusion = fuse(lambda x: np.exp(x) + 1).definition(X).fusion
    executable = Executable(segment_fusion(fusion), backend_of("cuda"), options=resolve({"check": True}))
    device = type(executable.target.device)
    on_host = device.on_host
    monkeypatch.setattr(device, "on_host", lambda self, array: on_host(self, array) + (array.shape == (33, 70)))
    with pytest.raises(InternalError, match=r"segment 0 \(pointwise\) "):
        executable([cupy.asarray(X)])


def test_indices_out_of_range_raise() -> None:
    take = fuse(lambda x, i: np.take_along_axis(x, i, 1), check=True)
    x, i = cupy.asarray(X), cupy.full((33, 1), 70)
    cupy.testing.assert_array_equal(take(x, i - 1), X[:, 69:])
    with pytest.raises(OutOfRangeError, match=r"take_along_axis: "):
        take(x, i)


FAULT = """
import cupy, numpy as np
from tracefuse import fuse
from tracefuse.kernel.cuda import cuda_compiler

plain = cuda_compiler.emit_cuda

def wild(kernel):
    before, mark, function = plain(kernel).partition('extern "C"')
    return before + mark + function.replace(") {\\n", ") {\\n  *(volatile int*)8 = 1;\\n", 1)

cuda_compiler.emit_cuda = wild
try:
    fuse(lambda x: x + 1, check=True, cache_limit=0)(cupy.ones(1 << 10, np.float32))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_values_are_printed_between_segments(capsys: pytest.CaptureFixture[str]) -> None:
    @fuse
    def printing(x: Any) -> Any:
        y = np.exp(x) @ x.T
        debug_print("{} {}", y[0, 0] > 0, x.shape)
        return y.sum()

    printing(cupy.asarray(X))
    assert capsys.readouterr().out == "True (33, 70)\n"


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_exact_half_and_fast_math_on_the_device(dtype: Any) -> None:
    def function(x: Any) -> Any:
        return (x * x + x) * x - x / 3

    x = X.astype(dtype)
    fusion = fuse(function).definition(x).fusion
    (every_op,) = evaluate(fusion, [x])
    exact = fuse(function, exact_half=True, contract=False)(cupy.asarray(x))
    if dtype is np.float16:
        cupy.testing.assert_array_equal(exact, every_op)
    fast = fuse(function, fast_math=True)(cupy.asarray(x))
    bound = 2e-2 if dtype is np.float16 else 1e-4
    np.testing.assert_allclose(fast.get().astype(np.float64), function(x.astype(np.float64)), rtol=bound, atol=bound)


def test_a_fault_is_named_with_its_segment_in_a_process_of_its_own() -> None:
    run = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, text=True, check=False)
    assert "segment 0 (pointwise) failed on the device" in run.stdout, run.stdout + run.stderr
