"""Tests the template that transposes rows of few elements on the CPU: values as NumPy's, and when it is selected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segments.lazy_dataclasses import replace
from tests.session.samples import times
from tracefuse import fuse
from tracefuse.kernel.interpreter.interpret import interpret
from tracefuse.kernel.llvm.text_builder import host_processor
from tracefuse.runtime.targets.cpu.cpu_kernel_compiler import CpuKernelCompiler
from tracefuse.schedule.cpu import cpu_templates, cpu_turned_rows

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True, scope="module")
def _no_masks() -> Iterator[None]:
    """Where vectors take masks, rows of a known length are not transposed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_templates, "host_processor", lambda: replace(host_processor(), masks=False))
        yield


def log_sum(x: Array) -> Array:
    top = x.max(-1, keepdims=True)
    return np.log(np.exp(x - top).sum(-1, keepdims=True)) + top


def softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


ROWS: dict[str, Callable[[Array, Array], Any]] = {
    "logarithm of a sum": lambda x, w: log_sum(x),
    "softmax with weights": lambda x, w: softmax(x * w),
    "variance and first position": lambda x, w: (x.var(-1), np.argmax(x, -1)),
    "several results": lambda x, w: (np.exp(x) - x.mean(-1, keepdims=True), x.max(-1), x.astype(np.float64)),
    "halves": lambda x, w: softmax((x * w).astype(np.float16)),
}
MIDDLE: dict[str, Callable[[Array, Array], Any]] = {
    "middle sum": lambda x, w: (x * x).sum(1),
    "middle softmax": lambda x, w: softmax(x * w, 1),
}


def check(function: Callable[[Array, Array], Any], x: Array, w: Array, template: str | None) -> None:
    fused = fuse(function)
    results, expected = fused(x, w), function(x.astype(np.float64), w)
    is_tuple = isinstance(results, tuple)
    tolerance = 2e-3 if (results[0] if is_tuple else results).dtype == np.float16 else 2e-5
    for result, reference in zip(results if is_tuple else [results], expected if is_tuple else [expected], strict=True):
        np.testing.assert_allclose(result, reference, rtol=tolerance, atol=tolerance)
    if template is not None:
        assert [str(name) for name in fused.explain(x, w).templates] == [template]


@pytest.mark.parametrize("name", list(ROWS))
@settings(max_examples=times(4), deadline=None)
@given(rows=st.integers(256, 700), columns=st.integers(9, 48), outer=st.integers(1, 2))
def test_rows_of_few_elements_are_reduced_across_rows(name: str, rows: int, columns: int, outer: int) -> None:
    x = np.random.default_rng(rows).normal(size=(outer, rows, columns)).astype(np.float32)
    w = np.linspace(0.5, 1, columns, dtype=np.float32)
    check(ROWS[name], x, w, None if name in ("several results", "softmax with weights", "halves") else "turned_rows")


@pytest.mark.parametrize("name", list(MIDDLE))
@settings(max_examples=times(4), deadline=None)
@given(rows=st.integers(256, 700), middle=st.integers(13, 60), columns=st.integers(2, 4))
def test_reductions_in_the_middle_of_short_axes_run_across_rows(
    name: str, rows: int, middle: int, columns: int
) -> None:
    x = np.random.default_rng(rows).normal(size=(rows, middle, columns)).astype(np.float32)
    check(MIDDLE[name], x, np.linspace(0.5, 1, columns, dtype=np.float32), "turned_rows")


def test_rows_that_do_not_follow_one_another_in_memory_take_another_template() -> None:
    x = np.random.default_rng(0).normal(size=(300, 50)).astype(np.float32)
    for part in (x[:, :31], x[:, ::2], np.asfortranarray(x[:, :31]), x[::2, :31], x[::-1, :31]):
        check(ROWS["logarithm of a sum"], part, x[0], None)


@pytest.mark.parametrize("name", ["softmax with weights", "middle softmax"])
def test_kernels_access_only_elements_of_their_arrays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter checks the bounds of each access: rows are copied in blocks that extend into the next row."""
    monkeypatch.setattr(cpu_turned_rows, "LEAST_ROWS", 1)
    monkeypatch.setattr(CpuKernelCompiler, "compile", lambda self, kernel, *_: kernel)
    monkeypatch.setattr(CpuKernelCompiler, "entry", lambda self, made: lambda *arguments: interpret(made, arguments))
    shape = (65, 11) if name in ROWS else (33, 7, 3)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    check({**ROWS, **MIDDLE}[name], x, np.linspace(0.5, 1, shape[-1], dtype=np.float32), "turned_rows")
