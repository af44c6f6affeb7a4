"""Scans on a GPU: every layout of the loops interpreted against the reference implementation, and compiled by NVRTC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.cuda_lowering import case, numbers
from tests.session.samples import times
from tracefuse.frontend.fuse_decorator import fuse
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.cuda_compiler import compile_many
from tracefuse.kernel.cuda.emit_cuda import emit_cuda
from tracefuse.kernel.cuda.nvrtc import compile_with_log
from tracefuse.kernel.interpreter.interpret import interpret
from tracefuse.kernel.kernel_ir import call

ACCUMULATES = (np.add, np.multiply, np.maximum, np.minimum)


def with_work(axis: int) -> Callable[[Any], Any]:
    return lambda x: np.cumsum(x * 0.5, axis=axis) + x


def several(x: Any) -> Any:
    return np.maximum.accumulate(x, axis=1), np.cumsum(np.abs(x), axis=1) * 2


def of_a_scan(x: Any) -> Any:
    return np.cumsum(np.maximum.accumulate(x, axis=1) + 1, axis=1)


def with_rows(x: Any, b: Any) -> Any:
    c = np.exp(b)
    return np.cumsum(x * c[:, None], axis=1), c


LAYOUTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str, int]] = {
    "several short rows in a block": (with_work(1), (numbers(700, 8),), "scan", 1),
    "a row that a part of a warp scans": (with_work(1), (numbers(40, 37),), "scan", 1),
    "a row in a block": (with_work(1), (numbers(3, 1000),), "scan", 1),
    "many long rows": (with_work(1), (numbers(300, 3001),), "scan", 1),
    "few long rows": (with_work(1), (numbers(2, 70001),), "scan", 2),
    "one row, wide": (with_work(0), (numbers(60000),), "scan", 2),
    "several scans of few rows": (several, (numbers(3, 40000),), "scan", 2),
    "a scan of a scan is not split": (of_a_scan, (numbers(3, 9000),), "scan", 1),
    "a scan of a scan of short rows": (of_a_scan, (numbers(300, 48),), "scan", 1),
    "a result for each row": (with_rows, (numbers(9, 77), numbers(9)), "scan", 1),
    "a result for each of few rows": (with_rows, (numbers(2, 70001), numbers(2)), "scan", 2),
    "short columns": (with_work(0), (numbers(7, 300),), "column scan", 1),
    "columns that threads share": (with_work(0), (numbers(77, 300),), "column scan", 1),
    "few long columns": (with_work(0), (numbers(9000, 8),), "column scan", 2),
    "few odd columns": (with_work(0), (numbers(5001, 7),), "column scan", 2),
    "a middle axis": (with_work(1), (numbers(5, 100, 36),), "column scan", 1),
    "a middle axis of a scan": (of_a_scan, (numbers(5, 40, 36),), "column scan", 1),
    "halves": (with_work(1), (numbers(30, 640, dtype=np.float16),), "scan", 1),
    "small integers": (with_work(0), (numbers(100, 40).astype(np.int8),), "column scan", 1),
    "complex numbers": (lambda x: np.cumprod(x, 1), (numbers(5, 70) + 1j * numbers(5, 70, seed=1),), "scan", 1),
    "truth values": (lambda x: np.maximum.accumulate(x > 1, 1), (numbers(5, 300),), "scan", 1),
    "read backwards": (lambda x: np.cumsum(np.flip(x, 1), axis=1), (numbers(5, 300),), "scan", 1),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_gives_the_reference(name: str) -> None:
    function, arguments, template, launches = LAYOUTS[name]
    lowered = case(function, *arguments).check().lowered
    assert (lowered.template, len(lowered.launches)) == (template, launches)


def test_every_layout_compiles() -> None:
    kernels = [kernel for f, arguments, _, _ in LAYOUTS.values() for kernel in case(f, *arguments).kernels]
    assert all(compile_many(kernels, architecture="sm_90"))


@settings(max_examples=times(20))
@given(
    st.lists(st.sampled_from([1, 2, 3, 5, 8, 16, 31, 33, 64, 130, 515]), min_size=1, max_size=3), st.data(),
    st.sampled_from(ACCUMULATES), st.sampled_from([np.float32, np.float64, np.int16, np.bool_]),
)  # fmt: skip
def test_scans_along_any_axis_of_any_order_in_memory(shape: list[int], data: Any, ufunc: Any, dtype: Any) -> None:
    while np.prod(shape) > 40000:
        shape[shape.index(max(shape))] //= 2
    axis = data.draw(st.integers(0, len(shape) - 1))
    order = data.draw(st.permutations(range(len(shape))))
    memory = (numbers(*(shape[k] for k in order)) * 3).astype(dtype).transpose(np.argsort(order))
    case(lambda x: ufunc.accumulate(x, axis=axis), memory).check()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.cumsum(x, 1)[:, ::2] + 1,
        lambda x: np.cumsum(x, 1) - np.roll(np.cumsum(x, 1), 1, 1),
        lambda x: np.cumsum(x, 1) / x.sum(1, keepdims=True),
        lambda x: np.cumsum(np.cumsum(x, 0), 1),
        lambda x: (np.cumsum(x, 1), np.cumsum(x, 0)),
        lambda x: np.cumsum(x, 1)[:, -1] * 2,
        lambda x: np.cumsum(x).reshape(x.shape) * x,
        lambda x: np.cumsum(x[None], 0),
    ],
)
def test_what_one_kernel_cannot_scan_is_several_with_equal_results(function: Callable[[Any], Any]) -> None:
    x = numbers(12, 12, dtype=np.float64)
    own, expected = fuse(function)(x), function(x)
    for a, b in zip(own if isinstance(own, tuple) else (own,), expected if isinstance(own, tuple) else (expected,), strict=True):  # fmt: skip # noqa: E501
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ufunc", ACCUMULATES)
@pytest.mark.parametrize("axis", [0, 1])
def test_the_cpu_combines_in_the_order_of_numpy(ufunc: np.ufunc, axis: int) -> None:
    x = numbers(40, 70)
    x[3, 5], x[0], x[7, 9] = -0.0, -0.0, np.nan
    own, expected = fuse(lambda x: ufunc.accumulate(x, axis=axis))(x), ufunc.accumulate(x, axis=axis)
    assert np.array_equal(own, expected, equal_nan=True)
    assert ufunc in (np.maximum, np.minimum) or np.array_equal(np.signbit(own), np.signbit(expected))


def test_wide_rows_are_read_and_written_16_bytes_at_a_time_without_spills() -> None:
    (kernel,) = case(lambda x: np.cumsum(x * 0.5, 1), numbers(300, 8192)).kernels
    _, log = compile_with_log(
        emit_cuda(kernel), "k", architecture="sm_90", options=("--ptxas-options=-v", "--fmad=true")
    )
    assert "0 bytes stack frame, 0 bytes spill stores" in log
    loop = next(s for s in kernel.body if isinstance(s, ir.For))
    copies = [s for s in ir.walk_statements(loop.body) if isinstance(s, ir.Copy)]
    assert {s.width for s in copies} == {4}
    assert {b.name for s in copies for b in (s.source, s.destination) if b.space == "global"} == {"T0", "T2"}


# ---------------------------------------------------------------------------------------------------------------------
# the primitive


@pytest.mark.parametrize("group", [1, 2, 8, 32, 64, 96, 256])
def test_a_group_reduction_gives_each_thread_what_came_before_it(group: int) -> None:
    """Compositions of affine functions do not commute, so that the order shows."""
    threads = max(group, 32)
    thread, block = ir.Variable("t", ir.dtypes.int32), ir.Variable("b", ir.dtypes.int32)
    names = [ir.Variable(n, ir.dtypes.int64) for n in ("a", "k", "ea", "ek", "la", "lk", "ra", "rk")]
    a, k, ea, ek, la, lk, ra, rk = names
    buffers = [ir.Buffer(n, ir.dtypes.int64, written=n[0] == "o", alignment=8) for n in ("x", "oa", "ok", "ob", "oc")]
    x, *results = buffers
    at = call("add", call("mul", block, ir.Constant(threads, ir.dtypes.int32)), thread)
    one, zero = ir.Constant(1, ir.dtypes.int64), ir.Constant(0, ir.dtypes.int64)
    # x -> left, then right: (la * ra, lk * ra + rk)
    combiner = ir.Combiner((la, lk), (ra, rk), (call("mul", la, ra), call("add", call("mul", lk, ra), rk)))
    body = (
        ir.Declare(a, ir.Load(x, at)),
        ir.Declare(k, ir.Cast(thread, ir.dtypes.int64)),
        ir.Declare(ea, one),
        ir.Declare(ek, zero),
        ir.GroupReduce((a, k), combiner, group, (ea, ek)),
        *(ir.Store(b, at, v) for b, v in zip(results, (a, k, ea, ek), strict=True)),
    )
    grid = (ir.Axis(block, ir.Constant(2, ir.dtypes.int32)),)
    kernel = ir.Kernel("scan", tuple(buffers), grid, body, "cuda", threads, thread)
    elements = np.random.default_rng(0).integers(-1, 2, 2 * threads)
    out = [np.zeros(2 * threads, np.int64) for _ in results]
    interpret(kernel, [elements, *out])
    for start in range(0, 2 * threads, group):
        factor, constant = 1, 0
        for place in range(start, start + group):
            assert (out[2][place], out[3][place]) == (factor, constant)
            factor, constant = factor * elements[place], constant * elements[place] + place % threads
        assert set(out[0][start : start + group]) == {factor}
        assert set(out[1][start : start + group]) == {constant}
    assert compile_many([kernel], architecture="sm_90")
