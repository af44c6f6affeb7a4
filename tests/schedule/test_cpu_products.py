"""Products of matrices in tiles on the CPU: types, edges, layouts, stacks, and what one kernel computes as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.schedule.cpu.cpu_product import COLUMNS, ROWS, TERMS

TOLERANCES = {np.float64: 1e-14, np.float32: 1e-6, np.float16: 1e-3, ml_dtypes.bfloat16: 8e-3}


def matrices(*shapes: tuple[int, ...], dtype: Any = np.float32) -> list[Any]:
    random = np.random.default_rng(sum(map(sum, shapes)))
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def exact(array: Any) -> Any:
    return array.astype(np.float64) if array.dtype.kind in "fV" else array


def close(result: Any, expected: Any, tolerance: float) -> None:
    """Compares with a tolerance relative to the largest element."""
    assert result.shape == expected.shape
    error = np.abs(exact(result) - expected)
    assert error.max() <= tolerance * np.abs(expected).max()


def check(function: Callable[..., Any], arrays: list[Any], tolerance: float = 2e-6) -> None:
    """Compares the results of one product kernel with NumPy in float64."""
    fused = fuse(function)
    results, expected = fused(*arrays), function(*map(exact, arrays))
    for result, reference in zip(*(x if isinstance(x, tuple) else (x,) for x in (results, expected)), strict=True):
        close(result, reference, tolerance)
    assert fused.explain(*arrays).templates == ("product",)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_tiles_that_the_sizes_do_not_fill_share_a_kernel(dtype: Any) -> None:
    fused = fuse(lambda a, b: a @ b)
    sizes = (
        (ROWS + 1, TERMS + 2, COLUMNS + 33),
        (8, 3 * TERMS - 1, 17),
        (ROWS, TERMS, COLUMNS),
        (13, 150, 2 * COLUMNS),
    )
    for rows, terms, columns in sizes:
        a, b = matrices((rows, terms), (terms, columns), dtype=dtype)
        result = fused(a, b)
        assert result.dtype == dtype
        close(result, exact(a) @ exact(b), TOLERANCES[dtype])
    assert fused.cache_info().compiles == 1
    assert fused.explain(a, b).templates == ("product",)


def test_operands_are_read_in_any_layout() -> None:
    a, b = matrices((50, 60), (60, 70))
    for left in (a, np.asfortranarray(a), np.repeat(a, 2, axis=1)[:, ::2], a[::-1]):
        check(lambda a, b: a @ b, [left, np.asfortranarray(b)])
    check(lambda a, b: a.T @ b.T, [a.T.copy(), b.T.copy()])
    check(lambda a, b: a[3:, 10:] @ b[10:].astype(np.float32), [a, b.astype(np.float16)], 1e-3)


def test_stacks_are_broadcast_and_matrices_of_one_operand_are_rows() -> None:
    a, b = matrices((3, 1, 40, 30), (2, 30, 20))
    check(lambda a, b: a @ b, [a, b])
    check(lambda a, b: a @ b[0], [a, b])
    heads = lambda x, y: x.reshape(2, 20, 3, 16).swapaxes(1, 2) @ y.reshape(2, 20, 3, 16).transpose(0, 2, 3, 1)  # noqa: E731
    check(heads, matrices((2, 20, 48), (2, 20, 48)))


def test_elementwise_work_after_a_product_is_in_its_kernel() -> None:
    a, b, bias, residual = matrices((2, 50, 60), (60, 40), (40,), (2, 50, 40))

    def layer(a: Any, b: Any, bias: Any, residual: Any) -> Any:
        x = a @ b + bias
        return x * (1 + np.tanh(0.8 * x)) / 2 + residual, x

    check(layer, [a, b, bias, residual])
    halves = [x.astype(np.float16) for x in (a, b, bias, residual)]
    check(lambda *x: layer(*x)[0], halves, 2e-3)


def test_a_product_that_a_reduction_reads_is_stored_once() -> None:
    def normalized(a: Any, b: Any) -> Any:
        x = (a @ b) * 0.5
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True)) + x

    a, b = matrices((50, 60), (60, 40))
    fused = fuse(normalized)
    close(fused(a, b), normalized(exact(a), exact(b)), 2e-6)
    assert fused.explain(a, b).templates[0] == "product"
    assert len(fused.explain(a, b).templates) == 2


def test_products_that_read_each_other_are_in_order() -> None:
    def crossed(a: Any, b: Any, c: Any) -> Any:
        x, y = a @ b, a @ c
        u = x * 2
        return u + y, y * 3 + u, (x + y) @ c

    arrays = matrices((40, 40), (40, 40), (40, 40))
    for result, expected in zip(fuse(crossed)(*arrays), crossed(*map(exact, arrays)), strict=True):
        close(result, expected, 2e-6)


def test_special_values_are_numpys() -> None:
    a, b = matrices((40, 50), (50, 40))
    a[1, 2], a[2, 3], a[3], b[4] = np.nan, np.inf, 0, 0
    b[5, 6] = -np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(fuse(lambda a, b: a @ b)(a, b), a @ b, rtol=1e-4, atol=1e-5)
    zeros = fuse(lambda a, b: a @ b)(-np.zeros((40, 50), np.float32), np.ones((50, 40), np.float32))
    assert not np.signbit(zeros).any()


def test_the_bits_of_a_product_depend_on_no_thread() -> None:
    a, b = matrices((300, 200), (200, 300))
    one, all_threads = (fuse(lambda a, b: a @ b, threads=count)(a, b) for count in (1, 0))
    np.testing.assert_array_equal(one, all_threads)


@pytest.mark.parametrize("shape", [(0, 50, 60), (50, 0, 60), (50, 60, 0)])
def test_empty_products(shape: tuple[int, int, int]) -> None:
    rows, terms, columns = shape
    fused = fuse(lambda a, b: a @ b + 1)
    fused(*matrices((40, 40), (40, 40)))
    np.testing.assert_array_equal(
        fused(*matrices((rows, terms), (terms, columns))), np.ones((rows, columns), np.float32)
    )


def test_an_updated_argument_keeps_its_memory() -> None:
    def step(w: Any, x: Any, g: Any) -> None:
        w -= 0.1 * (x.T @ g)

    w, x, g = matrices((40, 50), (60, 40), (60, 50))
    expected = exact(w) - 0.1 * (exact(x).T @ exact(g))
    fuse(step)(w, x, g)
    close(w, expected, 2e-6)


@pytest.mark.parametrize("columns", [5, 8, 12, 19, 24])
def test_products_of_few_columns_are_tiles_where_they_are_long(columns: int) -> None:
    fused = fuse(lambda a, b: a @ b)
    for rows, templates in ((5000, ("product",)), (100, ("library",) if columns < 16 else ("product",))):
        a, b = matrices((rows, 60), (60, columns), dtype=np.float32)
        close(fused(a, b), exact(a) @ exact(b), TOLERANCES[np.float32])
        assert fused.explain(a, b).templates == templates
