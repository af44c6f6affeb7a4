"""Tests reductions over the rows and over the columns of the same arrays: one segment, and correct values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import in_suite, times
from tests.ways import backend_of, check, run_whole
from tracefuse import fuse
from tracefuse.compiler.executable import Executable
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.partition.segmentation import segment_fusion


def layernorm_backward(dy: Any, x: Any, mean: Any, rstd: Any, weight: Any) -> Any:
    normal = (x - mean) * rstd
    scaled = dy * weight
    first = np.mean(scaled * normal, axis=-1, keepdims=True)
    second = np.mean(scaled, axis=-1, keepdims=True)
    axes = tuple(range(x.ndim - 1))
    return (scaled - normal * first - second) * rstd, np.sum(dy * normal, axis=axes), np.sum(dy, axis=axes)


def rms_norm_backward(dy: Any, x: Any, weight: Any) -> Any:
    scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    normal, scaled = x * scale, dy * weight
    dx = (scaled - normal * (scaled * normal).mean(-1, keepdims=True)) * scale
    return dx, (dy * normal).sum(tuple(range(x.ndim - 1)))


def softmax_backward_with_bias(dy: Any, y: Any) -> Any:
    dx = y * (dy - (dy * y).sum(-1, keepdims=True))
    return dx, dx.sum(tuple(range(dx.ndim - 1)))


def softmax_and_its_mean(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    y = e / e.sum(-1, keepdims=True)
    return y.mean(0), y.max(0) - y.min(0)


def updated(dy: Any, x: Any, weight: Any) -> Any:
    """The weight after a step of gradient descent: work on the columns' results."""
    dx, gradient = rms_norm_backward(dy, x, weight)
    return dx, weight - 0.1 * gradient, gradient


def totals(x: Any) -> Any:
    return x.sum(1), x.sum(0), x.max(0), x.min(1)


def largest(x: Any, y: Any) -> Any:
    z = x - y.mean(-1, keepdims=True)
    return z, np.argmax(z, axis=0), np.argmax(z, axis=1), (z > 0).all(0)


def normalized_twice(x: Any) -> Any:
    y = x / (np.abs(x).sum(1, keepdims=True) + 1)
    return y / (np.abs(y).sum(0, keepdims=True) + 1)


def columns_first(x: Any) -> Any:
    y = x / (np.abs(x).sum(0, keepdims=True) + 1)
    return y / (np.abs(y).sum(1, keepdims=True) + 1)


def softmax_of_softmaxes(x: Any) -> Any:
    e = np.exp(x - x.max(1, keepdims=True))
    y = e / e.sum(1, keepdims=True)
    return y, y / y.sum(0), y.sum(0)


def shares(x: Any) -> Any:
    return x / np.abs(x).sum(0) + x / np.abs(x).sum(1, keepdims=True)


Shape = tuple[int, ...]


def data(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def of_layernorm(*shape: int, dtype: Any = np.float32) -> list[Any]:
    x = data(*shape, dtype=dtype, seed=1)
    own = (*shape[:-1], 1)
    return [data(*shape, dtype=dtype), x, data(*own, dtype=dtype, seed=2), data(*own, dtype=dtype, seed=3),
            data(shape[-1], dtype=dtype, seed=4)]  # fmt: skip


def of_rms(*shape: int, dtype: Any = np.float32) -> list[Any]:
    return [data(*shape, dtype=dtype), data(*shape, dtype=dtype, seed=1), data(shape[-1], dtype=dtype, seed=2)]


def pair(*shape: int, dtype: Any = np.float32) -> list[Any]:
    return [data(*shape, dtype=dtype), data(*shape, dtype=dtype, seed=1)]


BF16 = ml_dtypes.bfloat16
CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "layer norm": (layernorm_backward, of_layernorm(37, 64)),
    "layer norm, odd rows": (layernorm_backward, of_layernorm(33, 77)),
    "layer norm, batch of two axes": (layernorm_backward, of_layernorm(3, 11, 40)),
    "layer norm of bfloat16": (layernorm_backward, of_layernorm(19, 128, dtype=BF16)),
    "layer norm of float64": (layernorm_backward, of_layernorm(19, 30, dtype=np.float64)),
    "layer norm, one row": (layernorm_backward, of_layernorm(1, 64)),
    "layer norm, rows of one element": (layernorm_backward, of_layernorm(9, 1)),
    "layer norm, no rows": (layernorm_backward, of_layernorm(0, 64)),
    "layer norm, wide rows": (layernorm_backward, of_layernorm(3, 1100)),
    "RMS norm": (rms_norm_backward, of_rms(40, 48)),
    "RMS norm of float16": (rms_norm_backward, of_rms(21, 56, dtype=np.float16)),
    "RMS norm, batch of two axes": (rms_norm_backward, of_rms(4, 9, 16)),
    "softmax with a bias": (softmax_backward_with_bias, pair(29, 50)),
    "softmax with a bias, bfloat16": (softmax_backward_with_bias, pair(29, 64, dtype=BF16)),
    "mean of softmaxes": (softmax_and_its_mean, [data(30, 50)]),
    "an updated weight": (updated, of_rms(31, 32)),
    "totals": (totals, [data(30, 20)]),
    "totals of few columns": (totals, [data(700, 3)]),
    "by rows, then by columns": (normalized_twice, [data(40, 64)]),
    "by rows, then by columns, odd": (normalized_twice, [data(33, 7)]),
    "by rows, then by columns, bfloat16": (normalized_twice, [data(29, 40, dtype=BF16)]),
    "by rows, then by columns, transposed": (normalized_twice, [data(24, 20).T]),
    "by columns, then by rows": (columns_first, [data(40, 64)]),
    "softmaxes over columns": (softmax_of_softmaxes, [data(30, 50)]),
    "shares of rows and columns": (shares, [data(30, 24)]),
    "where the largest are": (largest, pair(30, 24)),
    "rows apart": (rms_norm_backward, [data(40, 96)[:, :48], data(80, 48, seed=1)[::2], data(48)]),
    "backwards": (rms_norm_backward, [data(40, 48)[::-1], data(40, 48, seed=1)[:, ::-1], data(48)]),
    "transposed": (rms_norm_backward, [data(24, 20).T, data(24, 20, seed=1).T, data(24)]),
    "one transposed": (rms_norm_backward, [data(24, 20).T, data(20, 24, seed=1), data(24)]),
    "broadcast": (rms_norm_backward, [np.broadcast_to(data(48), (40, 48)), data(40, 48), data(48)]),
    "off by one element": (softmax_backward_with_bias, [data(20 * 32 + 1)[1:].reshape(20, 32), data(20, 32)]),
}  # fmt: skip


ONE_WAY = {
    "segments": "there is one segment, the same as of the whole",
    "printed": "with one op a segment there is no row_column region",
}


def definition(function: Callable[..., Any], arguments: list[Any]) -> Any:
    made = fuse(function).definition(*arguments)
    return made.fusion if isinstance(made, FusionDefinition) else made


@pytest.mark.parametrize("name", CASES)
def test_values_are_right(name: str, backend: str) -> None:
    if backend == "interpreter" and name not in in_suite([one for one in list(CASES)[::4] if "wide" not in one], CASES):
        pytest.skip("interpreted kernels take long: the CPU runs the same ones compiled")
    function, arguments = CASES[name]
    check(definition(function, arguments), arguments, backend, without=ONE_WAY)


@pytest.mark.parametrize("name", [name for name in CASES if "one element" not in name])
def test_it_is_one_segment(name: str) -> None:
    function, arguments = CASES[name]
    assert len(fuse(function).segments(*arguments)) == 1


@settings(max_examples=times(4))
@given(
    rows=st.integers(0, 40),
    length=st.integers(2, 150),
    dtype=st.sampled_from([np.float32, np.float16, BF16]),
    steps=st.tuples(st.sampled_from([1, 2, -1]), st.sampled_from([1, 1, 2, -1])),
)
def test_any_size_and_layout(rows: int, length: int, dtype: Any, steps: tuple[int, int]) -> None:
    large = data(2 * rows, 2 * length, dtype=dtype)
    dy = large[:: steps[0], :: steps[1]][:rows, :length]
    x, weight = data(rows, length, dtype=dtype, seed=1), data(length, dtype=dtype, seed=2)
    arguments = [dy, x, weight]
    check(definition(rms_norm_backward, arguments), arguments, "interpreter-cuda", without=ONE_WAY)


@pytest.mark.parametrize("name", ["layer norm", "an updated weight"])
def test_the_same_bits_again(name: str) -> None:
    """Partial states are combined in a fixed order."""
    function, arguments = CASES[name]
    fusion = definition(function, arguments)
    runs = [
        [result.tobytes() for result in run_whole(fusion, arguments, backend_of("interpreter-cuda"))] for _ in range(2)
    ]
    assert runs[0] == runs[1]


def columns_of_some_axes(x: Any) -> Any:
    y = x - x.mean(-1, keepdims=True)
    return y, y.sum(0)


def of_columns_variance(x: Any) -> Any:
    y = x - x.mean(-1, keepdims=True)
    return y, y.var(0)


REFUSED: dict[str, tuple[Callable[..., Any], list[Any], str]] = {
    "not all axes of the rows": (columns_of_some_axes, [data(3, 20, 30)], "leaves loops that the rows do not reduce"),
    "several passes": (of_columns_variance, [data(20, 30)], "takes several passes over the columns"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name: str) -> None:
    function, arguments, reason = REFUSED[name]
    found = segment_fusion(definition(function, arguments))
    assert len(found.segments) > 1
    said = [str(refusal.verdict) for refusal in found.partition.refusals]
    assert any(reason in one for one in said), said
    check(found.fusion, arguments, "interpreter", without=ONE_WAY)


TEMPLATES = {
    (64, 128): "row_column",
    (40, 4096): "row_column",
    (3, 20000): "row_column of split and column",
}


@pytest.mark.parametrize("shape", TEMPLATES)
def test_rows_beyond_the_registers_take_a_template_a_side(shape: Shape) -> None:
    arguments = of_rms(*shape)
    executable = Executable(segment_fusion(definition(rms_norm_backward, arguments)), backend_of("interpreter-cuda"))
    plan, _ = executable.plan_for(arguments)
    (segment,) = plan.segments
    assert segment.template == TEMPLATES[shape]
