"""Lists of traced values and ranges as arguments and keys, and calls of NumPy's scalar types."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

A, M, I = np.array([0.3, 0.7, 0.2]), np.array([[2.0, 1, 0], [1, 3, 1], [0, 1, 4]]), np.array([0, 2, 1])

EXPRESSIONS = """
np.sqrt([a[0], a[1]]); np.maximum([a[0], a[1]], 0.5); np.maximum(a[:2], [a[0], 0.5]); np.power([a[0], 2], 2)
np.maximum.reduce([a, a * 2]); np.logical_and.reduce([a > 0, a < 1]); np.add.accumulate([a[0], a[1]])
np.multiply.outer([a[0], 1.0], [a[1], 2]); np.hypot.reduce([a, a]); np.add.reduceat(a, [0, i[2]])
np.bitwise_or.reduce(i); np.unique([a[0], a[1], a[0]]); np.nanmedian([a[0], a[1]]); np.take([a[0], a[1]], [0, 1])
np.full(2, [a[0]]); np.vander([a[0], a[1]], 3); np.bincount([i[0], i[1]]); np.partition([a[0], a[1]], 1)
np.where([a[0] > 0.5, True], 1, 2); np.trapezoid([a[0], a[1]]); np.flatnonzero([a[0], 0.0]); np.pad([a[0], a[1]], 1)
np.polyfit([0, 1, 2], [a[0], a[1], a[2]], 1); np.fliplr([a, a]); np.nan_to_num([a[0]]); np.atleast_2d([a[0], a[1]])
np.zeros_like([a[0], a[1]]); np.shape([a, a]); np.lexsort([a, a * 2]); np.setdiff1d([a[0], a[1]], [a[0]])
np.ix_([i[0], i[1]], [0, 1]); np.average([1.0, 2.0], weights=[a[0], a[1]]); np.unravel_index([i[0], i[1]], (2, 3))
m[[i[0], i[1]]]; m[[i[0], i[1]], [0, 1]]; m[range(len(a)), i]; m[:, range(0, 3, 2)]; m[(range(2), range(2))]
np.take(a, range(2)); np.add(range(3), a); a + range(3); range(3) * a; np.isin(i, range(2)); np.repeat(a, range(3))
np.float32([a[0], a[1]]); np.int64(i[0]); np.bool_(a[0] > 0); np.float32(a); np.complex64(a.sum()); np.int8(i)
np.insert(a, [0, i[1]], [a[0], 2.0]); np.delete(a, [i[0]]); np.poly1d([a[0], a[1], 1.0])(2.0)
np.float64(float(a.sum())); np.int64(len(a)); np.int64(float(a.sum())); np.float16(a[a > 0.5])
np.vectorize(lambda v: -v if v > 0.5 else v)(a); np.frompyfunc(abs, 1, 1)([a[0], a[1]]).astype(float)
np.concatenate(([1], [a[0], 2], range(2))); np.stack([[a[0], 1], [i[1], 2]]); np.stack(arrays=[[a[0]], [i[0]]], axis=1)
np.hstack(([1.0], [a[0], a[1]])); np.vstack([[i[0], i[1]], [1, 2]]); np.dstack([[a[0]], [a[1]]]); np.hstack([a[0], 1])
np.column_stack([[i[0], 2], [a[0], 1]]); np.broadcast_arrays([a[0], 1], 2.0, [[i[0]], [1]]); np.vstack([a[0], 1])
np.concatenate([[[a[0], 1]], m[:, :2]], dtype=np.float32); np.concatenate([(i[0],), [1]]); np.stack([a[0], i[0]])
""".replace("\n", ";").split(";")


def same(fused: Any, plain: Any) -> bool:
    if isinstance(plain, tuple | list):
        return len(fused) == len(plain) and all(map(same, fused, plain))
    fused, plain = np.asarray(fused), np.asarray(plain)
    return fused.dtype == plain.dtype and fused.shape == plain.shape and np.allclose(fused, plain)


@pytest.mark.parametrize("expression", [one.strip() for one in EXPRESSIONS if one.strip()])
def test_lists_and_ranges_are_arrays_as_in_numpy(expression: str) -> None:
    function = eval(f"lambda a, m, i: {expression}", {"np": np})
    assert same(fuse(target="reference")(function)(A, M, I), function(A, M, I))


def test_updates_take_lists_and_ranges() -> None:
    def changed(m: Any, labels: Any) -> Any:
        m[range(len(labels)), labels] -= 1
        m[[labels[0], 1]] *= 2
        np.add.at(m, [labels[0], labels[0]], 1.0)
        return m.sum()

    fused, mine, right = fuse(target="reference")(changed), M.copy(), M.copy()
    assert fused(mine, I) == changed(right, I)
    assert np.array_equal(mine, right)


def test_a_range_of_a_size_in_a_key_keeps_the_size_symbolic() -> None:
    fused = fuse(target="reference")(lambda x, labels: x[range(x.shape[0]), labels])
    for size in (3, 5, 9):
        x, labels = np.arange(size * 4.0).reshape(size, 4), np.arange(size) % 4
        assert np.array_equal(fused(x, labels), x[np.arange(size), labels])
    assert fused.cache_info().traces == 1


def test_a_filled_array_can_be_written_whatever_fills_it() -> None:
    def filled(value: Any, values: Any) -> Any:
        first, second = np.full(3, value), np.full((2, 3), values)
        first *= 2
        second[0] += first
        return first, second

    assert same(fuse(target="reference")(filled)(np.float64(2), A), filled(np.float64(2), A))


def test_scalar_types_ask_for_no_value() -> None:
    fused = fuse(target="reference")(lambda x, rate, n: np.float32(rate) * np.float64(x.sum()) + np.int64(n))
    for k in range(3):
        assert fused(A + k, 0.5 + k, k + 2) == np.float32(0.5 + k) * (A + k).sum() + k + 2
    assert fused.cache_info().traces == 1


def test_a_number_that_a_scalar_type_does_not_hold_raises_as_in_numpy() -> None:
    fused = fuse(target="reference")(lambda x: np.int8(int(x.sum())))
    assert fused(np.array([100])) == np.int8(100)
    with pytest.raises(OverflowError, match="300"):
        fused(np.array([300]))


def test_vectorized_functions_of_the_program_run_at_every_call() -> None:
    clip = np.vectorize(lambda v, low=0.0: max(v, low), otypes=[float])
    fused = fuse(lambda x, low: clip(x, low=low) + 1)
    for size, low in ((3, 0.0), (5, 1.0), (6, 2.0)):
        x = np.arange(size) - 1.0
        assert np.array_equal(fused(x, low), clip(x, low=low) + 1)
    assert fused.cache_info().traces == 1


def test_assertions_of_numpy_testing_check_every_call() -> None:
    def checked(x: Any, y: Any) -> Any:
        np.testing.assert_allclose(x * 2, y, rtol=1e-6, err_msg="of two")
        np.testing.assert_equal(x.shape, y.shape)
        return x.sum()

    fused = fuse(checked)
    for size in (2, 3):
        assert fused(np.ones(size), np.full(size, 2.0)) == size
    with pytest.raises(AssertionError, match="of two"):
        fused(np.ones(3), np.full(3, 2.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fused(np.ones(3), np.full(3, 2.0)) == 3


def test_a_view_of_another_type_of_the_same_size_has_the_same_bits() -> None:
    def bits(x: Any, u: Any) -> Any:
        i = 0x5F3759DF - (x.view(np.int32) >> 1)
        signed = u.view(np.int32)
        signed[0] = -1
        return i.view(np.float32), u * 1, x.astype(np.float64).view(np.uint64) >> np.uint64(52)

    x = np.array([1, 4, 9, 2], np.float32)
    fused = fuse(target="reference")(bits)(x, np.arange(4, dtype=np.uint32))
    assert same(fused, bits(x, np.arange(4, dtype=np.uint32)))
