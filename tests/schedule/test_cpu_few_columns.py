"""Tests reductions over many rows of few columns on the CPU: values, bits on any number of threads, bounds."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import fuse
from tracefuse.kernel.interpreter.interpret import interpret
from tracefuse.runtime.targets.cpu.cpu_kernel_compiler import CpuKernelCompiler
from tracefuse.schedule.cpu import cpu_few_columns

Array = np.ndarray[Any, Any]


def moments(x: Array, weights: Array) -> tuple[Array, ...]:
    """Reductions of one phase and of two, outputs of every element and of every column, and an input without rows."""
    centered = x * weights - x.mean(-2, keepdims=True)
    return centered, (centered * centered).sum(-2), (x - weights).max(-2)


def places(x: Array, weights: Array) -> tuple[Array, ...]:
    """Reductions without rounding errors, with ties."""
    return x.argmax(-2), x.argmin(-2), (x + weights).min(-2)


FUSED = {moments: fuse(moments), places: fuse(places)}


@settings(max_examples=times(6), deadline=None)
@given(
    columns=st.integers(2, 64), rows=st.integers(1, 2000), stacked=st.sampled_from([(), (3,)]), flipped=st.booleans(),
    function=st.sampled_from([moments, places]),
)  # fmt: skip
def test_reductions_over_rows_of_few_columns_have_numpys_values(
    columns: int, rows: int, stacked: tuple[int, ...], flipped: bool, function: Any
) -> None:
    random = np.random.default_rng(rows)
    rows += cpu_few_columns.LEAST_WORK // columns
    x = random.integers(-6, 7, (*stacked, rows, columns)).astype(np.float32)
    x[..., rows // 2, columns // 2] = np.nan if function is places else 0.5
    x, weights = x[..., ::-1, :] if flipped else x, random.random(columns, np.float32)
    exact = function(x.astype(np.float64), weights)
    for result, expected in zip(FUSED[function](x, weights), exact, strict=True):
        assert result.dtype in (np.float32, np.int64)
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)
    assert FUSED[function].explain(x, weights).templates == ("few_columns",)


def test_kernels_for_few_columns_run_in_the_interpreter_as_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LEAST_WORK", 1), ("CHUNK", 32), ("LANES", 12)):
        monkeypatch.setattr(cpu_few_columns, name, value)
    x, weights = np.random.default_rng(0).standard_normal((47, 5)), np.arange(5.0)
    compiled = fuse(moments)(x, weights)
    monkeypatch.setattr(CpuKernelCompiler, "compile", lambda self, kernel, *_: kernel)
    monkeypatch.setattr(CpuKernelCompiler, "entry", lambda self, made: lambda *arguments: interpret(made, arguments))
    for interpreted, result in zip(fuse(moments)(x, weights), compiled, strict=True):
        np.testing.assert_allclose(interpreted, result, rtol=1e-12, atol=1e-12)


def test_sums_of_few_columns_have_the_same_bits_on_any_number_of_threads() -> None:
    x = np.random.default_rng(1).standard_normal((40001, 7), dtype=np.float32).astype(ml_dtypes.bfloat16)
    sums = [fuse(lambda x: np.sum(x, axis=0), threads=count)(x) for count in (1, 2)]
    assert sums[0].tobytes() == sums[1].tobytes()


def test_little_work_and_many_columns_are_left_to_the_other_templates() -> None:
    summed = fuse(lambda x: x.max(0))
    for rows, columns in ((100, 8), (1000, 65)):
        assert summed.explain(np.ones((rows, columns))).templates == ("column",)


@pytest.mark.parametrize(("columns", "is_joined"), [(4, (True, True)), (8, (False, True)), (9, (False, False))])
def test_columns_that_meet_a_value_of_their_row_stay_rows(columns: int, is_joined: tuple[bool, bool]) -> None:
    x, factors = np.ones((8000, columns)), np.ones((8000, 1))
    for function, joined in zip(
        (lambda x, f: (x * f).sum(0), lambda x, f: np.exp(x * f).sum(0)), is_joined, strict=True
    ):
        assert fuse(function).explain(x, factors).templates == ("few_columns" if joined else "column",)


@pytest.mark.parametrize(
    ("shape", "function", "template"),
    [
        ((20, 800, 3), moments, "few_columns"), ((20, 70, 3), places, "few_columns"), ((20, 70, 3), moments, "column"),
        ((20, 800, 9), moments, "column"),
    ],
)  # fmt: skip
def test_rows_of_many_matrices_fill_vectors_together(shape: Any, function: Any, template: str) -> None:
    x, weights = np.random.default_rng(1).integers(-6, 7, shape).astype(np.float64), np.arange(float(shape[-1]))
    for result, expected in zip(FUSED[function](x, weights), function(x, weights), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)
    assert FUSED[function].explain(x, weights).templates == (template,)
