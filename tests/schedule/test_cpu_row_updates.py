"""Rows combined with others at positions that are data: CPU kernels give the bits of NumPy's `ufunc.at`, in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tests.ways import backend_of, run_segments
from tracefuse import DataType, FusionDefinition, OutOfRangeError, fuse
from tracefuse.dtypes import dtype_of

UFUNCS = ("add", "subtract", "multiply", "maximum", "minimum", "bitwise_xor", "assign")
TYPES = ("int8", "uint16", "int64", "float16", "float32", "float64", "complex64")


def defined(dtype: Any, rank: int, how: str) -> FusionDefinition:
    """A definition that combines rows, with code of its own for positions and rows."""
    kind = dtype_of(np.dtype(dtype))
    with FusionDefinition() as fd:
        table, rows = (fd.define_tensor([-1] * rank, True, kind) for _ in range(2))
        index = fd.define_tensor([-1], True, DataType.Int)
        back = fd.ops.neg(fd.ops.add(index, 1))  # from the end
        fd.add_output(fd.ops.index_put(fd.ops.set(table), back, fd.ops.neg(fd.ops.neg(rows)), how=how))
    return fd


@st.composite
def updates(draw: st.DrawFn) -> tuple[str, list[np.ndarray[Any, Any]]]:
    """(ufunc, [table, rows, positions])."""
    how, dtype = draw(st.sampled_from(UFUNCS)), np.dtype(draw(st.sampled_from(TYPES)))
    if (how == "bitwise_xor" and dtype.kind not in "iu") or (how in ("maximum", "minimum") and dtype.kind == "c"):
        how = "add"
    shape = tuple(draw(st.lists(st.sampled_from((1, 3, 33, 70)), min_size=1, max_size=3)))
    count = draw(st.sampled_from((0, 1, 5, 40)))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    table, rows = (random.integers(0, 9, (n, *shape[1:])).astype(dtype) for n in (shape[0], count))
    return how, [table, rows, random.integers(-shape[0], shape[0], count)]


def expected(how: str, table: Any, rows: Any, positions: Any) -> Any:
    result = table.copy()
    if how == "assign":
        for position, row in zip(positions, rows, strict=True):
            result[position] = row
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            getattr(np, how).at(result, positions, rows)
    return result


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_rows_are_combined_in_the_order_of_their_positions(backend: str) -> None:
    @settings(max_examples=times(10 if backend == "cpu" else 4), deadline=None)
    @given(updates())
    def holds(update: tuple[str, list[Any]]) -> None:
        how, (table, rows, positions) = update
        fusion = defined(table.dtype, table.ndim, how).fusion
        (result,) = run_segments(fusion, [table, rows, positions], backend_of(backend), True, None)
        np.testing.assert_array_equal(result, expected(how, table, rows, -(positions + 1)))

    holds()


def test_an_update_is_one_segment_that_reads_positions_and_rows_where_it_uses_them() -> None:
    def count(labels: Any, weights: Any, size: Any) -> Any:
        counts = np.zeros(size)
        np.add.at(counts, labels % size, weights * 2)
        return counts

    fused, random = fuse(count), np.random.default_rng(0)
    for size in (50, 70):
        labels, weights = random.integers(0, 1000, 300), random.random(300)
        np.testing.assert_array_equal(fused(labels, weights, size), count(labels, weights, size))
    assert fused.explain(labels, weights, 70).templates == ("row_update",)


def test_a_copy_is_updated_through_its_joined_axes_in_one_pass() -> None:
    def put(x: Any, places: Any) -> Any:
        y = x.copy()
        np.put(y, places, 3)
        return y

    fused, x, places = fuse(put, target="cpu"), np.random.default_rng(0).random((30, 40)), np.array([3, 700, -1])
    np.testing.assert_array_equal(fused(x, places), put(x, places))
    assert fused.explain(x, places).templates == ("row_update",)


@pytest.mark.parametrize("columns", [(), (3,), (40,)])
def test_an_argument_is_updated_in_place_and_not_at_all_if_a_position_is_outside(columns: tuple[int, ...]) -> None:
    @fuse
    def update(table: Any, positions: Any, rows: Any) -> None:
        np.add.at(table, positions, rows)

    table, rows = np.zeros((6, *columns)), np.ones((3, *columns))
    given_table = table
    update(table, np.array([0, -1, -1]), rows)
    np.testing.assert_array_equal(table, expected("add", np.zeros((6, *columns)), rows, np.array([0, -1, -1])))
    before = table.copy()
    with pytest.raises(OutOfRangeError, match="out of bounds for axis 0 with 6 elements"):
        update(table, np.array([1, 2, 6]), rows)
    np.testing.assert_array_equal(table, before)
    assert table is given_table
    for count in (1, 2):
        text = str(update.segments(table, np.arange(count), rows[:count])[0].kernel)
        names = [line.partition("(")[0] for line in text.splitlines() if line.startswith("kernel ")]
        one = count == 1 and not columns
        assert names == (["kernel s0_element"] if one else ["kernel s0_check", "kernel s0_rows"])


def test_one_element_is_not_updated_if_its_position_is_outside() -> None:
    update, table = fuse(lambda table, position: np.add.at(table, position, 1.0)), np.zeros(6)
    for position in (-7, 6):
        with pytest.raises(OutOfRangeError, match="out of bounds for axis 0 with 6 elements"):
            update(table, np.array([position]))
    update(table, np.array([-6]))
    np.testing.assert_array_equal(table, [1, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(("columns", "dtype"), [((), "int32"), ((), "uint64"), ((5,), "int8"), ((7,), "int64")])
def test_each_block_of_positions_may_have_negative_ones(columns: tuple[int, ...], dtype: str) -> None:
    def updated(table: Any, positions: Any, rows: Any) -> Any:
        result = table.copy()
        np.add.at(result, positions, rows)
        return result

    fused, random, count = fuse(updated), np.random.default_rng(0), 8000  # which fixes the number of columns
    table, rows = (random.random((n, *columns), np.float32) for n in (100, count))
    positions = random.integers(0, 100, count).astype(dtype)
    if dtype[0] == "i":
        positions[random.integers(600, 7900, 3)] = -100, -1, -7
    np.testing.assert_array_equal(fused(table, positions, rows), updated(table, positions, rows))
    for place in (0, count - 1):
        outside = positions.copy()
        outside[place] = 100
        with pytest.raises(OutOfRangeError, match="out of bounds for axis 0 with 100 elements"):
            fused(table, outside, rows)


def test_rows_and_positions_may_be_those_of_the_table() -> None:
    @fuse
    def update(table: Any, positions: Any) -> None:
        np.add.at(table, positions, table[:3])

    table, other = np.arange(18.0).reshape(6, 3), np.arange(18.0).reshape(6, 3)
    update(table, np.array([1, 1, 0]))
    np.add.at(other, np.array([1, 1, 0]), other[:3].copy())
    np.testing.assert_array_equal(table, other)


def test_computed_halves_are_rounded_before_they_are_combined() -> None:
    def updated(x: Any) -> Any:
        y = x * 0.3
        np.multiply.at(y, [1, 0, 1], x[:3] * 1.7)
        return y

    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float16)
    np.testing.assert_array_equal(fuse(updated, exact_half=True)(x), updated(x))


def test_every_position_is_outside_an_empty_table() -> None:
    @fuse
    def update(table: Any, positions: Any) -> Any:
        result = table.copy()
        np.add.at(result, positions, 1.0)
        return result

    assert update(np.zeros(0), np.zeros(0, int)).shape == (0,)
    with pytest.raises(OutOfRangeError):
        update(np.zeros(0), np.zeros(1, int))
    assert update(np.zeros(2), np.zeros(3, int)).tolist() == [3, 0]


def test_an_update_in_a_loop_needs_no_host() -> None:
    @fuse
    def recur(x: Any) -> Any:
        for k in range(1, len(x)):
            x[k] = x[k - 1] * 0.5 + 1
        return x.sum()

    x = np.zeros(200)
    assert recur(x) == x.sum()
    assert x[3] == 1.75


def test_rows_of_a_large_table_are_asked_for_before_they_are_updated() -> None:
    random = np.random.default_rng(4)
    table, positions = np.zeros((30_000, 20), np.int32), random.integers(-30_000, 30_000, 1_100)
    rows = random.integers(-9, 9, (1_100, 20)).astype(np.int32)

    def added(table: Any, positions: Any, rows: Any) -> Any:
        result = table.copy()
        np.add.at(result, positions, rows)
        return result

    fused = fuse(added)
    np.testing.assert_array_equal(fused(table, positions, rows), added(table, positions, rows), strict=True)
    (segment,) = fused.segments(table, positions, rows)
    assert "prefetch" in str(segment.kernel)
    (segment,) = fused.segments(table[:2_000], positions % 2_000, rows)
    assert "prefetch" not in str(segment.kernel)
