"""Attention on the CPU as one kernel: spellings, sizes that fill no tile, layouts, masks and special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.schedule.attention_spellings import (
    INFINITY,
    capped,
    causal_added_infinity,
    causal_offset,
    causal_where,
    divided_after,
    einsum,
    no_maximum,
    scale_after,
    scores,
    softmax,
)
from tracefuse import fuse
from tracefuse.schedule.cpu.cpu_attention import KEYS, QUERIES

SCALED_OR_MASKED = (no_maximum, divided_after, causal_where, causal_added_infinity, einsum, capped)


def operands(*stack: int, queries: int, keys: int, features: int, values: int, dtype: Any = np.float32) -> list[Any]:
    random = np.random.default_rng(features)
    shapes = ((queries, features), (keys, features), (keys, values))
    return [random.standard_normal((*stack, *shape)).astype(dtype) for shape in shapes]


def check(function: Callable[..., Any], arrays: list[Any], tolerance: float = 2e-6) -> Any:
    """Compares a fused function, whose products are in one kernel, with NumPy in float64; returns it."""
    fused = fuse(function)
    result = fused(*arrays)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = function(*(a if a.dtype == np.bool_ else a.astype(np.float64) for a in arrays))
    assert result.dtype == arrays[0].dtype
    assert result.shape == expected.shape
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
    error = np.nan_to_num(result.astype(np.float64) - expected)
    assert np.abs(error).max() <= tolerance * np.nanmax(np.abs(expected))
    assert set(fused.explain(*arrays).templates) - {"pointwise"} == {"attention"}
    return fused


@pytest.mark.parametrize("function", SCALED_OR_MASKED, ids=lambda f: f.__name__)
def test_attention_is_one_kernel(function: Callable[..., Any]) -> None:
    is_half = function is causal_where
    dtype = np.float16 if is_half else np.float32
    check(function, operands(2, queries=129, keys=150, features=9, values=9, dtype=dtype), 2e-3 if is_half else 4e-6)


def test_sizes_that_fill_no_tile_share_a_kernel() -> None:
    fused = fuse(causal_offset)
    for queries, keys in ((QUERIES + 1, 3 * KEYS), (5, 3500), (3 * QUERIES - 1, 3 * KEYS + 1), (3000, KEYS + 7)):
        arrays = operands(queries=queries, keys=keys, features=33, values=20)
        with np.errstate(invalid="ignore"):
            expected = causal_offset(*(a.astype(np.float64) for a in arrays))
        np.testing.assert_allclose(fused(*arrays), expected, rtol=1e-4, atol=1e-6)
    assert fused.cache_info().compiles == 1


def test_operands_of_any_layout() -> None:
    q, k, v = operands(2, 3, queries=140, keys=130, features=7, values=5)
    k = np.ascontiguousarray(k.swapaxes(-1, -2)).swapaxes(-1, -2)
    check(scale_after, [np.asfortranarray(q), k, np.repeat(v, 2, axis=-1)[..., ::2]])
    check(
        scale_after,
        [q.astype(ml_dtypes.bfloat16), k.astype(ml_dtypes.bfloat16)[:1], v.astype(ml_dtypes.bfloat16)],
        2e-2,
    )


def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return softmax(scores(q, k) * 0.25 + mask) @ v


def hidden(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return softmax(np.where(mask, scores(q, k), -INFINITY)) @ v


def test_masks_that_hide_all_keys_of_a_query_or_of_a_tile() -> None:
    q, k, v = operands(2, queries=150, keys=2 * KEYS, features=4, values=4)
    mask = np.random.default_rng(0).random((150, 2 * KEYS)) < 0.8
    mask[3], mask[4:9, :KEYS], mask[9:12, KEYS:] = False, False, False
    check(hidden, [q, k, v, mask])
    check(masked, [q, k, v, np.where(mask, 0, -INFINITY).astype(np.float32)])


def test_special_values_of_queries_and_keys_stay_in_their_rows() -> None:
    q, k, v = operands(queries=140, keys=130, features=4, values=4)
    q[3, 1], q[4, 0] = np.nan, INFINITY
    check(scale_after, [q, k, v])


def row_values(q: Any, k: Any, v: Any) -> Any:
    x = scores(q, k)
    top = x.max(-1, keepdims=True)
    w = np.exp(x - top)
    total = w.sum(-1, keepdims=True)
    return (w / total) @ v, (top + np.log(total))[..., 0]


def test_the_logarithm_of_the_sum_is_a_result_too() -> None:
    arrays = operands(2, queries=140, keys=130, features=8, values=4)
    fused = fuse(row_values)
    for result, expected in zip(fused(*arrays), row_values(*(a.astype(np.float64) for a in arrays)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    assert fused.explain(*arrays).templates[0] == "attention"


@pytest.mark.parametrize(("dtype", "length", "reason"), [
    (np.float64, 150, "not all float32 or of one half type"), (np.float32, 40, "the caches hold"),
])  # fmt: skip
def test_explain_says_why_an_attention_is_computed_in_parts(dtype: Any, length: int, reason: str) -> None:
    arrays = operands(queries=length, keys=length, features=8, values=8, dtype=dtype)
    fused = fuse(scale_after)
    np.testing.assert_allclose(fused(*arrays), scale_after(*arrays), rtol=1e-5, atol=1e-6)
    explanation = fused.explain(*arrays)
    assert "attention" not in explanation.templates
    assert reason in str(explanation)
