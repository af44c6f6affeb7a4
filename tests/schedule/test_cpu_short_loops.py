"""Tests the templates that unroll short inner loops on the CPU: values as NumPy's, and when they are selected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import fuse, options

Array = np.ndarray[Any, Any]


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_sum(x: Array) -> Array:
    return np.log(np.exp(x).sum(-1))


ROWS: dict[str, Callable[[Array], Any]] = {
    "sum": lambda x: x.sum(-1),
    "norm": lambda x: np.sqrt((x * x).sum(-1)),
    "softmax": softmax,
    "logarithm of a sum": log_sum,
    "variance": lambda x: x.var(-1),
    "first position": lambda x: np.argmax(x, -1),
    "last axes": lambda x: x.reshape(-1, 2, x.shape[-1]).sum((1, 2)),
    "several results": lambda x: (x - x.mean(-1, keepdims=True), x.max(-1), x.min(-1)),
    "half of the rows": lambda x: x[::2].prod(-1),
}


def listed(results: Any) -> list[Array]:
    return list(results) if isinstance(results, tuple) else [results]


@pytest.mark.parametrize("name", list(ROWS))
@settings(max_examples=times(4), deadline=None)
@given(data=st.data())
def test_rows_of_few_elements_are_reduced_as_numpy_reduces_them(name: str, data: st.DataObject) -> None:
    rows, columns = 2 * data.draw(st.integers(500, 1500)), data.draw(st.integers(2, 9))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    x = np.random.default_rng(rows).normal(size=(rows, columns)).astype(dtype)
    x = x[:: data.draw(st.sampled_from([1, -1])), ::-1] if data.draw(st.booleans()) else x
    got = listed(fuse(ROWS[name])(x))
    for result, expected in zip(got, listed(ROWS[name](x)), strict=True):
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6)


@settings(max_examples=times(10), deadline=None)
@given(
    sizes=st.lists(st.integers(2, 20), min_size=2, max_size=4),
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["int8", "float16", "float32", "float64"]),
)
def test_permutations_with_short_axes_are_exact(sizes: list[int], seed: int, kind: str) -> None:
    random = np.random.default_rng(seed)
    order = tuple(int(k) for k in random.permutation(len(sizes)))
    x = random.integers(-9, 9, (*sizes[:-1], sizes[-1] * random.integers(5, 300))).astype(kind)
    y = random.integers(-9, 9, [x.shape[k] for k in order]).astype(kind)
    assert np.array_equal(fuse(lambda x, y: np.transpose(x, order) + y)(x, y), np.transpose(x, order) + y)


@pytest.mark.parametrize("terms", [2, 3, 5, 8, 9])
def test_products_of_small_matrices_are_sums_of_products(terms: int) -> None:
    random = np.random.default_rng(terms)
    a, b = (random.normal(size=(600, terms, terms)).astype(np.float32) for _ in range(2))
    product = fuse(lambda a, b: np.einsum("nij,njk->nik", a, b) + 1)
    np.testing.assert_allclose(product(a, b), a @ b + 1, rtol=1e-4, atol=1e-5)
    assert product.explain(a, b).templates == (("short_rows",) if terms <= 8 else ("library", "pointwise"))


def test_a_short_loop_is_unrolled_for_each_of_its_lengths_and_any_number_of_rows() -> None:
    scaled = fuse(lambda x, row: x * row)
    for rows, columns in ((1400, 3), (1999, 3), (5000, 3), (1100, 4), (3000, 4)):
        x, row = np.ones((rows, columns), np.float32), np.arange(columns, dtype=np.float32)
        assert np.array_equal(scaled(x, row), x * row)
        assert scaled.explain(x, row).templates == ("short_loops",)
    assert scaled.cache_info().compiles == 2


@pytest.mark.parametrize("channels", [1, 3, 8, 9])
@pytest.mark.parametrize("kind", ["uint8", "float64"])
def test_planes_of_interleaved_channels_are_read_in_the_order_of_the_input(channels: int, kind: str) -> None:
    x = np.random.default_rng(channels).integers(0, 99, (2, 41, 67, channels)).astype(kind)[:, ::-1]
    planes = fuse(lambda x: np.transpose(x, (0, 3, 1, 2)) * 2.5)
    assert np.array_equal(planes(x), np.transpose(x, (0, 3, 1, 2)) * 2.5)
    assert planes.explain(x).templates == (("short_loops",) if 1 < channels <= 8 else ("pointwise",))


def test_longer_loops_and_few_rows_are_left_to_the_other_templates() -> None:
    scaled = fuse(lambda x, row: x * row)
    for rows, columns in ((1000, 100), (1000, 3)):
        assert scaled.explain(np.ones((rows, columns)), np.ones(columns)).templates == ("pointwise",)


def test_short_rows_of_an_argument_are_updated_in_place() -> None:
    def update(x: Array, row: Array) -> None:
        x *= row

    x, row = np.random.default_rng(0).normal(size=(2000, 3)), np.array([1.0, 2.0, 3.0])
    expected = x * row
    with options(target="cpu"):
        fuse(update)(x, row)
    assert np.array_equal(x, expected)


@pytest.mark.parametrize("columns", [11, 32])
def test_short_rows_of_much_work_have_constant_bounds_and_any_number_of_rows(columns: int) -> None:
    f = fuse(lambda x: x.sum(-1))
    bounds = []
    for rows in (40_000, 50_000, 7):
        x = np.random.default_rng(rows).random((rows, columns))
        np.testing.assert_allclose(f(x), x.sum(-1), rtol=1e-12)
        bounds.append(f"range(0, {columns})" in str(f.segments(x)[0].kernel))
    assert bounds == [True, True, False]
    assert f.cache_info().compiles == 2


@pytest.mark.parametrize(("columns", "times", "kind"), [(2, 3, "f4"), (3, 5, "f4"), (7, 8, "f4"), (5, 8, "f4"), (3, 2, "c16")])  # fmt: skip # noqa: E501
def test_rows_of_a_few_elements_that_are_repeated_a_few_times_are_unrolled(columns: int, times: int, kind: str) -> None:
    x = np.arange(3000.0 * columns, dtype=kind).reshape(3000, columns)
    tiled = fuse(lambda x: np.tile(x * 2, (1, times)))
    assert np.array_equal(tiled(x), np.tile(x * 2, (1, times)))
    assert tiled.explain(x).templates == ("short_loops",)


def repeated_rows(x: Any) -> Any:
    return np.repeat(x, 5, axis=0) * 2


def small_products(x: Any, y: Any) -> Any:
    return np.einsum("nij,njk->nik", x, y)


def distances(x: Any) -> Any:
    return ((x[:, None] - x[None]) ** 2).sum(-1)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [(repeated_rows, [(9000, 8)]), (small_products, [(4000, 4, 4)] * 2), (distances, [(300, 7)])],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_short_extents_are_constants_of_a_kernel_for_any_size(function: Any, shapes: list[tuple[int, ...]]) -> None:
    """The number of rows is the only size that the kernel takes; loops over short axes have constant bounds."""
    fused = fuse(function)
    arrays = [np.random.default_rng(k).random(shape) for k, shape in enumerate(shapes)]
    np.testing.assert_allclose(fused(*arrays), function(*arrays), rtol=1e-12)
    (segment,) = fused.segments(*arrays)
    header = next(line for line in segment.source.splitlines() if "@body(" in line)
    assert [word.strip("%,") for word in header.split() if word.startswith("%i")] == ["i0"]
    others = [np.concatenate([a, a[:3]]) for a in arrays]
    np.testing.assert_allclose(fused(*others), function(*others), rtol=1e-12)
    assert fused.cache_info().compiles == 1


@pytest.mark.parametrize("moved", [lambda x: np.concatenate([x, x[:, :2] * 2], 1), lambda x: np.roll(x, 3, 1)])
def test_short_axes_inside_of_a_joined_or_shifted_one_are_one_loop_with_it(moved: Any) -> None:
    fused = fuse(moved)
    for rows in (300, 7):
        x = np.arange(5.0 * rows * 4).reshape(5, rows, 4)
        np.testing.assert_array_equal(fused(x), moved(x))
        assert fused.explain(x).templates == ("pointwise",)


def test_tasks_loop_over_outer_axes_of_few_elements() -> None:
    """Dividing the number of a task into six indices takes longer than 8 elements."""
    fused = fuse(lambda x: np.tile(x, (2, 2, 2, 2)))
    for rows in (163, 5):
        x = np.arange(rows * 160, dtype=np.uint16).reshape(rows, 5, 8, 4)
        np.testing.assert_array_equal(fused(x), np.tile(x, (2, 2, 2, 2)))
    (segment,) = fused.segments(x)
    assert str(segment.kernel).count("for k") > 3
