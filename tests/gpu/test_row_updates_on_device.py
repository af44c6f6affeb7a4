"""Rows of a table combined with others at positions that are data: as NumPy, with equal bits in every run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.runtime.devices import cuda_arrays

cupy = (
    pytest.importorskip("cupy", reason="no GPU: CuPy cannot be imported") if cuda_arrays.unavailable() is None else None
)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(cupy is None, reason=f"no GPU: {cuda_arrays.unavailable()}")]

SIZES = (
    (1, 1, 1), (31, 4, 1), (33, 2, 3), (1024, 300, 5), (1025, 4, 3), (4096, 100, 2), (5000, 1, 1), (40000, 5, 7),
    (3000, 100000, 1), (100000, 3000, 17),
)  # fmt: skip
"""Positions, rows of the table, columns: few rows, and runs over a few chunks and over thousands."""

TYPES = ("int8", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "complex64")


def operands(size: tuple[int, int, int], dtype: str) -> tuple[Any, Any, Any]:
    count, rows, columns = size
    random = np.random.default_rng(count)
    table, values = (random.integers(-3, 4, (n, columns)).astype(dtype) for n in (rows, count))
    return table, random.integers(-rows, rows, count), values


def updated(name: str) -> Any:
    def function(x: Any, k: Any, v: Any) -> Any:
        y = x.copy()
        if name == "assign":
            y[k] = v
        else:
            getattr(np, name).at(y, k, v)
        return y

    return function


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["assign", "add", "subtract", "minimum", "maximum"])
def test_updates_of_rows_equal_those_of_numpy(name: str, dtype: str) -> None:
    if dtype == "complex64" and name in ("minimum", "maximum"):
        name = "add"
    for size in SIZES:
        table, index, values = operands(size, dtype)
        if dtype == "float16":  # sums of more terms round
            index, values = index[:1000], values[:1000]
        result = fuse(updated(name))(cupy.asarray(table), cupy.asarray(index), cupy.asarray(values)).get()
        np.testing.assert_array_equal(result, updated(name)(table, index, values))


@pytest.mark.parametrize("rows", [1, 10, 1000])
def test_sums_of_rows_have_equal_bits_in_every_run(rows: int) -> None:
    random = np.random.default_rng(0)
    table, values = (random.normal(size=(n, 3)).astype(np.float32) for n in (rows, 200_000))
    arguments = [cupy.asarray(a) for a in (table, random.integers(0, rows, 200_000), values)]
    add = fuse(updated("add"))
    first = add(*arguments).get()
    assert all(np.array_equal(first, add(*arguments).get()) for _ in range(5))
    exact = updated("add")(table.astype(np.float64), arguments[1].get(), values.astype(np.float64))
    magnitude = updated("add")(np.abs(table).astype(np.float64), arguments[1].get(), np.abs(values).astype(np.float64))
    assert np.all(np.abs(first - exact) <= 64 * 2.0**-24 * magnitude)


def test_strided_operands_and_a_nan_that_stays() -> None:
    table = np.array([[1.0, np.nan], [2.0, 3.0]], np.float32)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    index = np.array([0, 9, 0, 9, 1, 9])[::2]
    own = fuse(updated("maximum"))(
        *(cupy.asarray(a) for a in (table, index)), cupy.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    )
    np.testing.assert_array_equal(own.get(), updated("maximum")(table, index, values))
