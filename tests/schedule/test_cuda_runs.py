"""Rows that begin anywhere in an access of 16 bytes: whole accesses, and the elements at both ends of each run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.cuda_lowering import Case, case, numbers
from tests.session.samples import times
from tracefuse.kernel.cuda.cuda_compiler import compile_many
from tracefuse.schedule.gpu import gpu_row

F16, F32, F64 = np.float16, np.float32, np.float64


def normed(*axes: int) -> Callable[[Any], Any]:
    return lambda x: x / np.sqrt((x * x).sum(axes, keepdims=True) + 1)


def softmax(x: Any) -> Any:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def scaled(x: Any, w: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w, x.max(-1)


def whole_accesses(lowered: Case) -> bool:
    """Whether a kernel accesses whole groups of the runs of its rows."""
    return any(symbol.name == "run_groups" for symbol in lowered.lowered.derived)


@settings(max_examples=times(10), deadline=None)
@given(
    st.sampled_from((F16, F32)), st.integers(1, 5), st.integers(1, 4), st.integers(120, 300),
    st.sampled_from(((2,), (0, 2), (1, 2), (0, 1, 2))),
)  # fmt: skip
def test_runs_of_any_length_are_right(dtype: Any, outer: int, rows: int, length: int, axes: tuple[int, ...]) -> None:
    case(normed(*axes), numbers(outer, rows, length, dtype=dtype)).check()


TEMPLATES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "in registers": (softmax, (numbers(5, 281, dtype=F16),), "row"),
    "in registers, of several threads": (scaled, (numbers(3, 1031, dtype=F16), numbers(1031, dtype=F16)), "row"),
    "several runs a row": (normed(0, 2), (numbers(7, 40, 150, dtype=F16),), "row"),
    "a cluster": (normed(0, 2), (numbers(24, 17, 701, dtype=F32),), "cluster"),
    "a cluster, pairs of doubles": (softmax, (numbers(17, 8_201, dtype=F64),), "cluster"),
    "split": (softmax, (numbers(2, 50_021, dtype=F16),), "split"),
    "split, several runs": (normed(0, 2), (numbers(2, 2, 30_021, dtype=F32),), "split"),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_access_whole_groups(name: str) -> None:
    function, arrays, template = TEMPLATES[name]
    lowered = case(function, *arrays).check()
    assert lowered.lowered.template == template
    assert whole_accesses(lowered)


def test_rows_that_are_read_again_have_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_row, "MOST_THREADS", 1)
    lowered = case(softmax, numbers(300, 403, dtype=F16)).check()
    assert lowered.lowered.template == "long row"
    assert whole_accesses(lowered)


def test_what_begins_elsewhere_or_depends_on_order_is_read_by_elements() -> None:
    x = numbers(4, 281, dtype=F16)
    for function, arrays in (
        (lambda x: x.argmax(-1), (x,)),
        (lambda x, y: (x + y).sum(-1), (x, numbers(4, 283, dtype=F16)[:, :281])),
        (lambda x: (x[:, 1:] * x[:, :-1]).sum(-1), (x,)),
    ):
        lowered = case(function, *arrays).check()
        assert not whole_accesses(lowered)


def test_kernels_of_runs_compile() -> None:
    named = (TEMPLATES[name] for name in ("several runs a row", "a cluster"))
    kernels = [kernel for function, arrays, _ in named for kernel in case(function, *arrays).kernels]
    assert all(compile_many(kernels, architecture="sm_90"))
