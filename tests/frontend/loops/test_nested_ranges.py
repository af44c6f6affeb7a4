"""Loops over nests of ranges, positions with quotients and remainders, and draws of random numbers in loops."""

from __future__ import annotations

import itertools
from itertools import product
from typing import Any

import numpy as np
import pytest

from tracefuse import errors, fuse


def indices(a: Any) -> Any:
    out, count = np.zeros_like(a), 0
    for i, j in np.ndindex(a.shape):
        out[i, j] = a[i, j] * 2 + i - j
        count += 1
    return out, count, i


def index_tuples(a: Any) -> Any:
    out = np.zeros_like(a)
    for index in np.ndindex(*a.shape):
        out[index] = a[index] + 1
    return out


def pairs_of_ranges(a: Any) -> Any:
    total = 0
    for i, j in itertools.product(range(a.shape[0]), range(a.shape[1] - 1, 0, -1)):
        if a[i, j] > a[i, j - 1]:
            total = total + a[i, j] * i
    return total


def pairs_of_entries(a: Any) -> Any:
    largest = a[0, 0] * 0
    for one, other, k in product(a[0], a[:, 0], range(2)):
        largest = np.maximum(largest, one * other - k)
    return largest


def remainders(a: Any) -> Any:
    x, n = a[0].copy(), a.shape[1]
    for i in range(3 * n):
        x[(2 * i) % n] += x[i % n] - x[i // 3]
    return x


def windows(a: Any) -> Any:
    x, n = a[0], a.shape[1]
    out = np.zeros_like(x)
    for i in range(n):
        out[i] = x[max(i - 2, 0) : min(i + 3, n)].sum()
    return out


def delayed_products(a: Any) -> Any:
    total = np.zeros((a.shape[0], 3, 2))
    for end in range(a.shape[0]):
        for delay in range(5):
            for k in range(3):
                if end - delay >= 0:
                    total[end, k] += a[end - delay, k : k + 2] * a[end, k]
    return total


def means_of_bins(a: Any) -> Any:
    means = np.zeros(20)
    for k in range(20):
        of_bin = a[np.logical_and(a >= k / 2, a < k + 1)]
        means[k] = of_bin.mean()
    return means


PROGRAMS = (
    indices,
    index_tuples,
    pairs_of_ranges,
    pairs_of_entries,
    remainders,
    windows,
    delayed_products,
    means_of_bins,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_a_loop_is_recorded_once_for_all_sizes(program: Any) -> None:
    fused = fuse(program, target="reference")
    for rows, columns in ((7, 19), (5, 23)):
        a = np.arange(rows * columns).reshape(rows, columns) * 7 % 11
        np.testing.assert_equal(fused(a), program(a))
    assert "range_loop" in str(fused.definition(a))
    assert fused.cache_info().traces == 1


def test_such_a_loop_runs_as_compiled_kernels() -> None:
    a = np.arange(133).reshape(7, 19) * 7 % 11
    np.testing.assert_equal(fuse(index_tuples)(a), index_tuples(a))


def test_a_remainder_whose_range_is_larger_than_its_values_unrolls_the_loop() -> None:
    def total(x: Any, count: int) -> Any:
        result = 0
        for i in range(count):
            result = result + x[i % 50]
        return result

    x, fused = np.arange(40), fuse(total, target="reference")
    assert fused(x, 30) == total(x, 30)
    with pytest.raises(errors.OutOfRangeError):
        fused(x, 45)


def draws(draw: Any, count: int) -> Any:
    total, table = 0.0, np.zeros(count)
    for i in range(count):
        table[i] = draw.normal(size=3).sum()
        if draw.random() < 0.5:
            total = total + draw.integers(0, 10)
    return table + total


def draws_alone(draw: Any, count: int) -> Any:
    for _ in range(count):
        draw.normal()
    return draw.random()


def anneals(draw: Any, count: int) -> Any:
    x, energy, temperature = np.ones(3), 3.0, 1.0
    for _ in range(count):
        trial = x + draw.normal(size=3)
        following = (trial * trial).sum()
        if following < energy or draw.random() < np.exp((energy - following) / temperature):
            x, energy = trial, following
        temperature *= 0.9
    return x


@pytest.mark.parametrize("program", [draws, draws_alone, anneals], ids=lambda one: one.__name__)
def test_each_iteration_draws_the_numbers_of_numpy(program: Any) -> None:
    ours, theirs = np.random.default_rng(5), np.random.default_rng(5)
    fused = fuse(program, target="reference")
    for count in (20, 30):
        result, expected = fused(ours, count), program(theirs, count)
        np.testing.assert_allclose(result, expected, rtol=1e-12)
        assert ours.random() == theirs.random()
    assert ("range_loop" in str(fuse(program).definition(ours, 30))) == (program is not draws_alone)
