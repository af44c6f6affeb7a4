"""Numbers and scalars that are written into elements, and 0-d arrays with an axis: NumPy's values, types and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.compared_calls import OPTIONS, check, function_of
from tests.programs.comparison import difference
from tracefuse import fuse

WRITES = (
    "r = np.insert(x, 1, s)", "np.put(x, [0], s); r = 0", "np.place(x, x != 0, s); r = 0",
    "np.putmask(x, x != 0, s); r = 0", "np.fill_diagonal(x, s); r = 0", "x.fill(s); r = 0", "x[0] = s; r = 0",
    "x[0, 0] = s; r = 0", "x[x != 0] = s; r = 0", "x[[0]] = s; r = 0", "x.flat = s; r = 0",
    "np.put_along_axis(x, np.array([[0]]), s, 0); r = 0", "r = np.max(x, initial=s)", "r = np.sum(x, initial=s)",
    "r = np.piecewise(x, [x != 0], [s])", "r = np.pad(x, 1, constant_values=(s, s))", "r = np.array(s, x.dtype)",
    "r = np.select([x != 0], [s], 0)", "r = np.ediff1d(x, to_end=s)", "r = np.dot(x, s)",
)  # fmt: skip
NUMBERS = (2, -1, 300, 1.5, 1j, True, np.int8(-3), np.uint16(300), np.float32(1.5))


@pytest.mark.parametrize("text", WRITES)
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "float32"])
def test_numbers_go_into_elements_of_a_type_or_raise_as_in_numpy(text: str, dtype: str) -> None:
    x = np.array([[1, 0, 3], [0, 2, 1]]).astype(dtype)
    for number in NUMBERS:
        check(text, x, number)


def test_what_a_signed_type_does_not_hold_raises_also_where_an_earlier_call_passed_what_it_holds() -> None:
    for text in ("x[0] = s; r = 0", "r = np.max(x, initial=s)"):
        check(text, np.arange(3, dtype=np.int8), np.float32(1), np.float32(300), np.float32(2), np.float32("nan"))


@pytest.mark.parametrize("text", [
    "np.squeeze(x, axis=-1)", "np.squeeze(x, 1)", "np.take(x, [0, -1], axis=0)", "np.take(x, 0, axis=-1)",
    "np.take(x, [0, 1], axis=0, mode='clip')", "np.repeat(x, 2, axis=0)", "np.compress([True], x, axis=0)",
    "np.argsort(x, axis=0)", "np.sort(x, axis=0)", "np.apply_over_axes(np.sum, x, [0])", "np.cov(x)",
    "np.column_stack([x, x])", "np.pad(x, 1)", "np.indices(x.shape)", "np.cumulative_sum(x)", "x.transpose(0)",
    "x.dot(2)", "np.tril(x)", "x.any(initial=1)", "np.linalg.norm(x, axis=(0, 1))",
])  # fmt: skip
def test_functions_take_an_axis_of_an_array_without_axes_where_numpy_does(text: str) -> None:
    for x in (np.array(3.5), np.array(3), np.float64(2.5)):
        check(text, x)


INDICES: tuple[Any, ...] = (
    [1.5, 0], [True, False], [0.0], np.array([1, 0], np.uint64), np.array([2**64 - 1], np.uint64),
    np.array([1.0]), np.array([True, False]), np.int8(1), 1.7, True,
)  # fmt: skip


@pytest.mark.parametrize("text", [
    "np.take(x, {i})", "np.take(x, {i}, mode='clip', axis=0)", "np.take(x, {i}, mode='wrap')", "x[{i}]",
    "np.put(x, {i}, 7); r = 0", "np.take_along_axis(x.ravel(), {i}, 0)",
])  # fmt: skip
def test_positions_are_cast_as_in_numpy(text: str) -> None:
    x = np.arange(6.0).reshape(2, 3)
    for index in INDICES:
        literal = f"np.array({index.tolist()}, '{index.dtype}')" if isinstance(index, np.ndarray) else repr(index)
        is_key = isinstance(index, np.ndarray | np.generic | bool)
        if ("along" in text and not isinstance(index, np.ndarray)) or ("x[" in text and not is_key):
            continue
        check(text.replace("{i}", literal), x)


@pytest.mark.parametrize("truth", [True, False])
def test_a_truth_value_that_a_call_passes_selects_all_or_nothing(truth: bool) -> None:
    check("x[s]", np.arange(6.0).reshape(2, 3), truth, not truth)
    check("x[s] = 7; r = 0", np.arange(6.0).reshape(2, 3), truth, not truth)


@pytest.mark.parametrize("text", [
    "np.floor_divide(x, 1, where=x < 3, out=np.ones(x.shape, np.int64))", "np.sum(x, where=[True, False, True])",
    "np.sum(x[0, 0], where=[True, False])", "np.stack([x, x], dtype=s)",
    "np.concatenate([x, x], casting='no', dtype=s)",
    "np.bincount(x[:0, 0].astype(int), minlength=3, weights=x[:0, 0])", "np.percentile(x, 30)",
    "x * np.array_equal(x / 0, x / 0, equal_nan=True)", "x * np.array_equal(x / 0j, x / 0j, equal_nan=True)",
    "np.nanvar(x + 1j * x, dtype=np.float64)", "np.nanmean(x / 2, dtype=bool)", "x[x > 0] = x; r = 0",
    "np.add(x, 1, casting='equiv')", "np.tril(x[0])",
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["uint64", "float16", "int8"])
def test_masks_types_and_casts_of_functions_are_those_of_numpy(text: str, dtype: str) -> None:
    check(text, np.array([[1, 0, 3], [0, 2, 1]]).astype(dtype), np.int64)


def test_a_percentage_that_a_call_passes_gives_the_percentile() -> None:
    for number in (30, 50.0, np.float32(25)):
        check("np.percentile(x, s)", np.arange(7.0), number)


@pytest.mark.parametrize("text", [
    "x[0] = [[1, 2, 3]]; r = 0", "x[0, ...] = [1, 2, 3]; r = 0", "x[0, 0, ...] = [1]; r = 0", "x[0, 0] = [1]; r = 0",
    "x.flat[0] = 300; r = 0", "x.flat[0] = 1j; r = 0", "x.flat[0] = np.float32('nan'); r = 0",
    "x **= np.int64(-3); r = 0", "x @= 2; r = 0", "np.put(x[:0], [0], 1); r = 0", "np.put(x[:0], [], 1); r = 0",
        "np.place(x, np.ones(2, bool), []); r = 0",
    "z = x * 1j; z.imag = 2j; r = z", "z = x * 1j; z.real = [2, 2, 2]; r = z", "max((x * 1j).ravel().tolist())",
    "np.logaddexp.reduce(x, out=np.zeros(3, complex))",
])  # fmt: skip
def test_lists_and_numbers_that_numpy_refuses_raise_its_kind_of_error(text: str) -> None:
    for dtype in ("bool", "uint8", "float16"):
        check(text, np.array([[1, 0, 3], [0, 2, 1]]).astype(dtype))


def test_the_largest_integers_of_unsigned_types_are_compared_as_numbers_of_python() -> None:
    x = np.array([3, 2**64 - 1, 1, 2**63], np.uint64)
    check("max(x.tolist()) * x", x)
    check("min(x.tolist()[1:2] + x.tolist()[3:]) * x", x)


def test_numbers_of_python_alone_are_arrays_of_their_own_types_to_a_ufunc() -> None:
    for s in (2, 2.5, True):
        for text in ("np.equal(s, 2) * x", "np.add(s, 2) * x", "np.maximum(s, 3) * x", "np.divide(s, 2) * x"):
            check(text, np.arange(3.0), s)


@pytest.mark.parametrize("text", [
    "(W + 0).reshape(-1)[:1] += x.sum(); r = 0", "u = W + 0; v = u.reshape(-1); v[0] = x.sum(); r = u",
    "u = W * x.sum(); v = u.ravel(); v[:2] = 7; r = u", "r = (W.flags.c_contiguous, (W * x[0]).T.ravel('K'))",
])  # fmt: skip
def test_views_of_captured_arrays_follow_their_layout_at_every_call(text: str) -> None:
    text = text if "r = " in text else f"{text}; r = 0"
    plain, fused = function_of(text), fuse(function_of(text), **OPTIONS)
    rows = np.arange(12.0).reshape(4, 3)
    for W in (np.asfortranarray(rows), rows, np.asfortranarray(rows), rows[::-1], rows[:, ::-1], rows[:1] + rows * 0):
        plain.__globals__["W"] = fused.__wrapped__.__globals__["W"] = W
        x = np.array([2.0, 1.0])
        why = difference(fused(x, None), plain(x, None), "result")
        assert why is None, (text, W.strides, why)


@pytest.mark.parametrize("keywords", ["", "mode='edge'", "mode='mean'", "mode='linear_ramp'", "constant_values=(1, 2)"])
def test_padded_arrays_are_in_the_order_of_memory_that_numpy_gives_them(keywords: str) -> None:
    for x in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(12.0)[::2]):
        check(f"np.pad(x, 1, {keywords}).strides, np.pad(x, 0, {keywords}).strides", x)


def test_a_computed_scalar_is_rounded_to_an_integer_of_python() -> None:
    check("round(x.sum())", np.array([1.25, 2.0, 4.5]))
    check("round(x.max()) * x", np.array([1.25, 2.0, 4.5], np.float32))
    check("round(x.sum() * 1j)", np.array([1.25, 2.0, 4.5]))


def test_results_of_float_reductions_go_into_arrays_in_numpys_types() -> None:
    for dtype in ("uint8", "float16", "float32"):
        x = np.array([[1, 5, 3], [200, 2, 1]]).astype(dtype)
        check("np.nanquantile(x, 0.5, axis=0, out=np.zeros(3, np.uint32))", x)
        check("np.logaddexp.reduce(x, axis=0, out=np.zeros(3))", x)
