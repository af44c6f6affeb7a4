"""Tests loops that are written in vectors: their rest under a mask, their reductions, and what is left to LLVM."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.dtypes import float64, int64
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.loop_metadata import is_in_vectors
from tracefuse.kernel.llvm.strided_windows import StridedPlace, StridedWindows
from tracefuse.kernel.llvm.text_builder import host_processor

pytestmark = pytest.mark.skipif(not host_processor().masks, reason="the processor has no masks for vectors")

LENGTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 100, 127, 129, 257)
_BUFFER = ir.Buffer("x", float64, 100)
BEHIND = 8
"""Elements behind a result that no store may change."""


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32, np.int8, np.bool_])
def test_results_of_any_length_leave_the_elements_behind_them_as_they_are(dtype: type) -> None:
    fused = fuse(lambda x, y: np.where(x > y, x, y))
    random = np.random.default_rng(0)
    for length in LENGTHS:
        x, y = (random.integers(0, 5, length).astype(dtype) for _ in range(2))
        memory = np.full(length + BEHIND, 1, dtype)
        fused.into(memory[:length], x, y)
        np.testing.assert_array_equal(memory[:length], np.where(x > y, x, y))
        assert (memory[length:] == 1).all()


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        ("sum", (np.float64, np.float32, np.int32)),
        ("max", (np.float64, np.float32, np.int16, np.uint8)),
        ("min", (np.float32, np.int64)),
        ("prod", (np.int64,)),
        ("all", (np.bool_,)),
        ("any", (np.bool_,)),
        ("argmax", (np.float64, np.int32)),
    ],
)
def test_reductions_over_rows_of_any_length(name: str, dtypes: tuple[type, ...]) -> None:
    function: Callable[..., Any] = getattr(np, name)
    random = np.random.default_rng(1)
    for dtype in dtypes:
        fused = fuse(lambda x: function(x, axis=1))
        for length in LENGTHS:
            x = random.integers(0, 2 if dtype is np.bool_ else 7, (3, length)).astype(dtype)
            np.testing.assert_array_equal(fused(x), function(x, axis=1))


@pytest.mark.parametrize("dynamic", [True, False])
def test_extremes_of_rows_have_nan_wherever_it_is(dynamic: bool) -> None:
    fused = fuse(lambda x: (x.max(axis=1), x.min(axis=1)), dynamic=dynamic)
    for length, dtype in ((9, np.float64), (13, np.float32), (40, np.float32), (131, np.float64)):
        for place in {0, length // 2, length - 1}:
            x = np.linspace(-1, 1, 2 * length).reshape(2, length).astype(dtype)
            x[1, place] = np.nan
            np.testing.assert_array_equal(fused(x), (x.max(axis=1), x.min(axis=1)))


def test_functions_with_rare_paths_do_not_take_them_for_elements_behind_the_last_one() -> None:
    fused = fuse(lambda x: np.log(x) + np.tan(x))
    for length in LENGTHS:
        x = np.linspace(0.5, 1.5, length)
        np.testing.assert_allclose(fused(x), np.log(x) + np.tan(x), rtol=1e-13, atol=1e-15)
        x[-1] = 1e300
        np.testing.assert_allclose(fused(x), np.log(x) + np.tan(x), rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_elements_that_registers_leave_are_computed_by_linked_functions_with_the_same_bits(dtype: type) -> None:
    fused = fuse(lambda x: np.tan(x) * x**0.45)
    x = np.random.default_rng(3).random(1003).astype(dtype) * 100
    assert re.search(r"^declare .*\.v\d+\.linked\(", fused.segments(x)[0].source, re.MULTILINE)
    np.testing.assert_array_equal(fused(np.roll(x, 3))[:3], fused(x)[-3:])


def test_rows_call_no_linked_functions_which_would_take_as_long_as_their_elements() -> None:
    fused = fuse(lambda x: np.tan(x).sum(axis=1))
    assert ".linked(" not in fused.segments(np.ones((300, 15)))[0].source


def test_functions_with_rare_paths_of_the_narrowest_elements() -> None:
    x = np.arange(300).astype(np.uint8)
    np.testing.assert_array_equal(fuse(lambda x: np.tan(x * 1.0) > 0)(x), np.tan(x * 1.0) > 0)


@pytest.mark.parametrize("axis", [0, 1])
def test_kernels_of_loops_in_vectors_and_others_have_each_guard_once(axis: int) -> None:
    x = np.random.default_rng(2).random((9, 40))
    np.testing.assert_array_equal(fuse(lambda x: np.sin(x).argmax(axis))(x), np.sin(x).argmax(axis))


def test_rows_at_positions_and_elements_at_a_distance() -> None:
    x, positions = np.arange(600.0).reshape(20, 30), np.array([3, -1, 0, 19, 3])
    np.testing.assert_array_equal(fuse(lambda x, p: x[p] * 2)(x, positions), x[positions] * 2)
    np.testing.assert_array_equal(fuse(lambda x: x[:, ::3] + x[:, 1::3])(x), x[:, ::3] + x[:, 1::3])
    pairs = fuse(lambda x: ((x[:, None] - x[None]) ** 2).sum(-1))
    np.testing.assert_allclose(pairs(x[:, :9]), ((x[:, None, :9] - x[None, :, :9]) ** 2).sum(-1))


@pytest.mark.parametrize(
    ("dtype", "lengths"),
    [(np.float32, (3, 16, 33, 40, 127)), (np.int32, (19, 48)), (np.float64, (1, 8, 24, 63)), (np.uint64, (5,))],
)
def test_elements_at_positions_in_short_rows_are_picked_from_registers(dtype: type, lengths: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    fused = fuse(lambda x, k: np.take_along_axis(x, k, axis=1) * x[:, :1], dynamic=False)
    for length in lengths:
        x = random.integers(0, 100, (60, length)).astype(dtype)
        k = random.integers(-length, length, (60, length + 3))
        source = fused.segments(x, k)[0].source
        assert ("vpermi2var" if x[0].nbytes > 64 else "permvar") in source or length == 1
        np.testing.assert_array_equal(fused(x, k), np.take_along_axis(x, k, axis=1) * x[:, :1])
        for wrong in (length, -length - 1):
            k[random.integers(60), random.integers(length)] = wrong
            with pytest.raises(IndexError, match=f"axis 1 with {length} elements"):
                fused(x, k)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_short_rows_of_narrow_elements_are_two_vectors_that_overlap(dtype: type) -> None:
    for length in (17, 19, 24, 35, 47):
        x = np.arange(300 * (length + 1)).reshape(300, length + 1).astype(dtype)
        fused = fuse(lambda x: x[:, :-1] * 2)
        assert np.array_equal(fused(x), x[:, :-1] * 2)


@pytest.mark.parametrize("width", [5, 7])
def test_functions_of_short_rows_with_gaps_are_written_in_vectors(width: int) -> None:
    x = np.random.default_rng(0).random((1000, width + 2))[:, :width]
    fused = fuse(lambda x: np.arctan(x) + 1)
    np.testing.assert_allclose(fused(x), np.arctan(x) + 1, rtol=1e-15)
    assert is_in_vectors(fused.segments(x)[0].source)


def test_functions_that_call_a_library_are_left_to_llvm() -> None:
    x = np.ones(100)
    assert is_in_vectors(fuse(lambda x: np.exp(x) + x**0.45).segments(x)[0].source)
    assert not is_in_vectors(fuse(lambda x, y: np.fmod(x, y)).segments(x, x)[0].source)


def test_loops_that_read_what_they_have_written_under_a_mask_are_left_to_llvm() -> None:
    x = np.arange(78.0, dtype=np.float32).reshape(3, 26)
    sums = fuse(lambda x: np.cumsum(x, 0))
    assert not is_in_vectors(sums.segments(x)[0].source)
    np.testing.assert_array_equal(sums(x), np.cumsum(x, 0))


def test_rows_of_a_known_length_that_are_read_and_written_end_in_parts_without_a_mask() -> None:
    def updated(table: Any, positions: Any, rows: Any) -> Any:
        np.add.at(table, positions, rows)

    table, rows = np.zeros((9, 7), np.float32), np.ones((5, 7), np.float32)
    source = fuse(updated, dynamic=False).segments(table, np.arange(5), rows)[0].source
    assert "llvm.masked.store" not in source[source.index("rows") :]
    assert all(f"store <{lanes} x float>" in source for lanes in (4, 2, 1))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8])
def test_columns_that_are_added_up_in_local_arrays(dtype: type) -> None:
    values = np.random.default_rng(0).integers(-9, 9, (300, 67))
    totals = fuse(lambda x: (x * x).sum(0, dtype=x.dtype))
    for columns in (1, 7, 8, 30, 67):
        x = values[:, :columns].astype(dtype)
        assert is_in_vectors(totals.segments(x)[0].source)
        np.testing.assert_array_equal(totals(x), (x * x).sum(0, dtype=dtype))


@pytest.mark.parametrize("width", [2, 3, 4, 5, 6, 8, 12])
def test_elements_at_a_distance_are_read_with_those_near_them(width: int) -> None:
    values = np.random.default_rng(0).integers(-9, 9, (65, width))
    fused = fuse(lambda x: (x[::-1, 0] - x[:, width - 1] * 2, np.exp(x[:, 0] * 0) + x[:, width // 2]))
    for rows in (1, 7, 8, 30, 65):
        x = values[:rows].astype(np.float64)
        differences, sums = fused(x)
        np.testing.assert_array_equal(differences, x[::-1, 0] - x[:, width - 1] * 2)
        np.testing.assert_array_equal(sums, 1 + x[:, width // 2])


@pytest.mark.parametrize(("width", "dtype"), [(1, "complex64"), (2, "float64"), (3, "int8"), (6, "float32")])
def test_elements_at_a_distance_are_stored_together(width: int, dtype: str) -> None:
    fused = fuse(lambda x, y: x * y[:, None])
    for length in (2, 7, 8, 16, 33):
        x, memory = np.arange(length * width).astype(dtype).reshape(length, width), np.full((40, width), 1, dtype)
        assert is_in_vectors(fused.segments(x, x[:, 0])[0].source)
        fused.into(memory[:length], x, x[:, 0])
        np.testing.assert_array_equal(memory[:length], x * x[:, :1])
        np.testing.assert_array_equal(memory[length:], np.full((40 - length, width), 1, dtype))


def test_elements_at_a_distance_from_positions_that_are_data() -> None:
    random = np.random.default_rng(0)
    table, x = random.integers(-9, 9, (40, 3)).astype(float), random.integers(0, 9, (21, 30))
    positions = x.astype(np.int64)
    expected = (x * table[positions, 1] + table[positions + np.arange(30), 2]).max(1)
    fused = fuse(lambda t, p: (p * t[p, 1] + t[p + np.arange(30), 2]).max(1))
    np.testing.assert_array_equal(fused(table, positions), expected)


def test_windows_of_elements() -> None:
    places = [
        StridedPlace(_BUFFER, ("key",), offset, ir.Constant(0, int64), ir.Constant(4, int64), True)
        for offset in (9, 0, 2, 7)
    ]
    windows = StridedWindows(places)
    assert [windows.of(place).first.offset for place in places] == [7, 0, 0, 7]
    assert windows.of(places[0]).offsets == (0, 2)
