"""Tests rows of few elements with operands that all rows share on the CPU: values, and which regions join rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import fuse, options
from tracefuse.schedule.cpu.cpu_joined_rows import LEAST_WORK, MOST_ELEMENTS

Array = np.ndarray[Any, Any]


def scaled(x: Array, a: Array, b: Array) -> tuple[Array, Array]:
    return x * a - b, x + b


FUSED = fuse(scaled)


@settings(max_examples=times(6), deadline=None)
@given(
    inner=st.lists(st.integers(2, 12), min_size=1, max_size=2), rows=st.integers(0, 70),
    kind=st.sampled_from(["uint8", "float32"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_rows_with_shared_operands_are_exact_for_every_number_of_rows(
    inner: list[int], rows: int, kind: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows += LEAST_WORK // int(np.prod(inner)) + 1
    x = random.integers(0, 9, (rows, *inner)).astype(kind)
    a, b = (random.integers(0, 9, [n if random.integers(2) else 1 for n in inner]).astype(kind) for _ in range(2))
    for result, expected in zip(FUSED(x, a, b), scaled(x, a, b), strict=True):
        assert np.array_equal(result, expected)


@pytest.mark.parametrize(
    ("shapes", "template"),
    [
        (((900, 20), (20,)), "joined_rows"),
        (((3, 300, 7, 5), (3, 1, 7, 1)), "joined_rows"),
        (((900, MOST_ELEMENTS + 1), (MOST_ELEMENTS + 1,)), "pointwise"),
        (((9, 20), (20,)), "pointwise"),
        (((900, 20), (900, 1)), "pointwise"),
        (((900, 20), (900, 20)), "pointwise"),
    ],
    ids=str,
)
def test_rows_join_if_they_are_short_and_share_an_operand(shapes: Any, template: str) -> None:
    x, y = (np.random.default_rng(0).random(shape) for shape in shapes)
    product = fuse(lambda x, y: x * y)
    assert np.array_equal(product(x, y), x * y)
    assert product.explain(x, y).templates == (template,)
    if y.ndim < x.ndim:  # as an argument with strides of zero
        spread = np.broadcast_to(y, x.shape)
        assert np.array_equal(product(x, spread), x * y)
        assert template == "pointwise" or "mod(" not in str(product.segments(x, spread)[0].kernel)


def test_joined_rows_of_an_argument_are_updated_in_place() -> None:
    def update(x: Array, row: Array) -> None:
        x += row

    x, row = np.random.default_rng(0).normal(size=(2000, 21)), np.arange(21.0)
    expected = x + row
    with options(target="cpu"):
        fuse(update)(x, row)
    assert np.array_equal(x, expected)
