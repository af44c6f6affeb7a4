"""Tests sums of exponentials relative to the maximum of a row, in one pass over long rows."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.schedule.cuda_lowering import case
from tests.session.samples import in_suite
from tracefuse.kernel import kernel_ir as ir
from tracefuse.passes.single_pass_reductions import reduce_in_one_pass
from tracefuse.schedule.gpu import gpu_row
from tracefuse.schedule.gpu.gpu_templates import gpu_templates


@pytest.fixture(autouse=True)
def short_rows_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_row, "MOST_WORDS", 0)
    monkeypatch.setattr(gpu_row, "MOST_THREADS", 16)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_without_kept_axes(x: Any) -> Any:
    e = np.exp(x - x.max(-1)[:, None])
    return e / e.sum(-1)[:, None]


def log_sum(x: Any) -> Any:
    largest = x.max(-1, keepdims=True)
    return np.log(np.exp(x - largest).sum(-1)) + largest[:, 0]


def scaled(x: Any) -> Any:
    return softmax(x * 3 + np.abs(x))


def of_all(x: Any) -> Any:
    return np.exp(x - x.max()).sum()


def rows(dtype: Any, count: int = 7, length: int = 90) -> Any:
    random = np.random.default_rng(0)
    x = (random.normal(size=(count, length)) * 4).astype(dtype)
    x[0] = np.sort(x[0])  # each element is the largest so far
    x[1, 5:40] = -np.inf
    x[2, :] = -np.inf
    x[3, 17] = np.nan
    x[4, 20] = np.inf
    x[5, :] = 3
    return x


def joins(kernel: ir.Kernel) -> list[Any]:
    """How a kernel joins the states of its threads."""
    return [step for step in kernel.body if isinstance(step, ir.GroupReduce)]


def adds_terms(kernel: ir.Kernel) -> bool:
    """Whether a kernel adds exponentials to a sum that moves with the largest element."""
    return any("exp_term" in str(step) for step in kernel.body)


DTYPES = (np.float32, np.float64, ml_dtypes.bfloat16, np.float16)


def with_dtypes(*functions: Any) -> list[Any]:
    """The cases (function, dtype): in the suite all types for the first function, one of each kind for the others."""
    of_kinds = (np.float32, ml_dtypes.bfloat16)
    few = [(f, d) for f in functions for d in (DTYPES if f is functions[0] else of_kinds)]
    cases = in_suite(few, [(f, d) for f in functions for d in DTYPES])
    return [pytest.param(f, d, id=f"{f.__name__}-{np.dtype(d).name}") for f, d in cases]


@pytest.mark.parametrize(
    ("function", "dtype"), with_dtypes(softmax, softmax_without_kept_axes, log_sum, scaled, of_all)
)
def test_one_pass_gives_what_several_give(function: Any, dtype: Any) -> None:
    x, templates = rows(dtype), set()
    for argument in (x, x[:, ::2], x[:1, :1], x[6:]):
        for chip in (("sm_90", 1), ("sm_80", 1), ("sm_80", 132)):
            lowered = case(function, argument, target=gpu_templates(*chip)).check()
            assert reduce_in_one_pass(lowered.fusion) is not lowered.fusion
            is_long = lowered.lowered.template in ("long row", "split")
            assert any(map(adds_terms, lowered.kernels)) == is_long
            templates.add(lowered.lowered.template)
    assert {"long row", "split"} <= templates or function is of_all
    assert ("cluster" in templates) == (function not in (log_sum, of_all)), "what reads its rows once needs no cluster"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.exp(x - x.max(0)).sum(1),
        lambda x: np.exp(x - x.min(1, keepdims=True)).sum(1),
        lambda x: np.exp(x.max(1, keepdims=True) - x).sum(1),
        lambda x: np.exp(x - (x * 2).max(1, keepdims=True)).sum(1),
        lambda x: np.exp2(x - x.max(1, keepdims=True)).sum(1),
        lambda x: np.exp(x).sum(1),
    ],
)
def test_what_is_spelled_otherwise_stays(function: Any) -> None:
    fusion = case(function, rows(np.float32)[6:]).fusion
    assert reduce_in_one_pass(fusion) is fusion


def test_halves_that_are_results_are_read_on_rounded() -> None:
    def both(x: Any) -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e, e.sum(-1)

    fusion = case(both, rows(np.float32)[6:]).fusion
    assert reduce_in_one_pass(fusion) is not fusion
    fusion = case(both, rows(ml_dtypes.bfloat16)[6:]).fusion
    assert reduce_in_one_pass(fusion) is fusion


def normalized(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize(("function", "dtype"), with_dtypes(normalized, lambda x: x.var(-1, ddof=1), lambda x: x.var()))
def test_deviations_are_squared_in_the_pass_that_finds_the_mean(function: Any, dtype: Any) -> None:
    x = rows(dtype)
    for argument in (x, x[:, ::2], x[:1, :2], x[6:], (x[5:] + 100).astype(dtype)):
        for chip in (("sm_90", 1), ("sm_80", 1), ("sm_80", 132)):
            lowered = case(function, argument, target=gpu_templates(*chip)).check()
            assert reduce_in_one_pass(lowered.fusion) is not lowered.fusion
            launches = len(lowered.kernels)
            assert launches == (2 if lowered.lowered.template == "split" else 1)
            divides = any("'div'" in str(step) for kernel in lowered.kernels for step in joins(kernel))
            assert divides == (lowered.lowered.template in ("long row", "split")), "a row that is held takes two passes"


def test_a_variance_beside_a_large_mean_keeps_its_digits() -> None:
    x = (np.random.default_rng(1).normal(size=(3, 1000)) + 1e4).astype(np.float32)
    expected = x.astype(np.float64).var(-1)
    for chip in (("sm_90", 1), ("sm_80", 132)):
        (own,) = case(lambda x: (x.var(-1), x - x.mean(-1, keepdims=True))[0], x, target=gpu_templates(*chip)).run()
        np.testing.assert_allclose(own, expected, rtol=1e-4)
