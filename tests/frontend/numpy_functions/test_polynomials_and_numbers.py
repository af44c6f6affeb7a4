"""Polynomials of NumPy, functions of numba and functions of Python on computed numbers compute as without a trace."""

from __future__ import annotations

import math
import numbers
import re
import statistics
from collections import abc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.polynomial import Chebyshev, Polynomial

from tests.frontend.same_results import assert_same
from tracefuse import fuse

CURVE = Polynomial([1.0, -2.0, 0.5])

PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "functions of lists of numbers": lambda x, y: (
        statistics.median(x.tolist()), statistics.stdev([*y.tolist(), 2.0]), statistics.fmean(tuple(x)),
        statistics.quantiles(x.tolist()),
    ),
    "functions of numbers that no op expresses": lambda x, y: (
        round(float(x.mean()), 2), math.gamma(x[0]), math.fsum(y), sorted(x.tolist()), sorted([x[0], y[0]])[::-1],
    ),
    "a captured polynomial": lambda x, y: CURVE(x) + CURVE.deriv()(y),
    "a polynomial and its product": lambda x, y: ((CURVE * Polynomial([0.0, 1.0]))(x), (CURVE - 2).integ()(y)),
    "a polynomial of computed coefficients": lambda x, y: Polynomial(x)(y) + np.polynomial.Polynomial([x[0], 2.0])(y),
    "a fitted polynomial": lambda x, y: Chebyshev.fit(x, y, 1).convert(kind=Polynomial).coef,
    "types that the elements decide": lambda x, y: (np.emath.sqrt(x - 5.0) + 1, np.emath.logn(2, y)),
    "joined with a directive": lambda x, y: (np.r_["0,2", x, y], np.r_["1,2,0", x, y], np.r_["0,3,-2", x, y]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_gives_what_the_plain_program_does(name: str) -> None:
    function, rng = PROGRAMS[name], np.random.default_rng(0)
    fused = fuse(function, target="reference")
    for _ in range(2):
        x, y = rng.random((2, 8)) + 0.1
        assert_same(fused(x, y), function(x, y))
    assert fused.cache_info().traces == 1


def test_functions_of_numba_compute_and_write_as_without_a_trace() -> None:
    numba = pytest.importorskip("numba")

    @numba.njit
    def relax(u: Any, new: Any) -> Any:
        for i in range(1, len(u) - 1):
            new[i] = 0.5 * (u[i - 1] + u[i + 1])
        return new

    def f(x: Any, buffer: Any) -> Any:
        u = x * 1.0
        for _ in range(3):
            u = relax(u, u * 1.0)
        relax(u, buffer)
        return u, x + 1

    fused = fuse(f, target="reference")
    for size in (5, 9):
        x, given, expected = np.sin(np.arange(size)), np.zeros(size), np.zeros(size)
        assert_same(fused(x, given), f(x, expected))
        np.testing.assert_allclose(given, expected)
    assert fused.cache_info().traces == 1
    x = np.sin(np.arange(6.0))
    with pytest.warns(UserWarning, match="shares memory with another of its arguments: from there on, calls run the"):
        assert_same(fuse(lambda x: relax(x[1:], x[:-1]))(x.copy()), relax(x[1:], x[:-1]))


@pytest.mark.parametrize(
    ("function", "holds", "raises"),
    [
        (lambda x: np.nanargmax(x, 1), np.eye(3), np.array([[1.0, np.nan], [np.nan, np.nan]])),
        (lambda x: np.nanargmin(x), np.array([2.0, np.nan]), np.array([np.nan])),
        (lambda x: np.geomspace(x[0], x[1], 4), np.array([1.0, 10.0]), np.array([0.0, 10.0])),
        (lambda w: np.cov(np.eye(3), aweights=w), np.ones(3), np.array([1.0, -1.0, 1.0])),
    ],
)
def test_functions_that_refuse_some_elements_raise_as_numpy_at_every_call(
    function: Any, holds: Any, raises: Any
) -> None:
    fused = fuse(function, target="reference")
    assert_same(fused(holds), function(holds))
    with pytest.raises(ValueError) as expected:
        function(raises)
    with pytest.raises(ValueError, match=re.escape(str(expected.value))):
        fused(raises)
    assert_same(fused(holds), function(holds))


def test_truth_of_whole_arrays_is_a_bool_and_weights_without_a_sum_raise() -> None:
    def f(x: Any, weights: Any) -> Any:
        return np.allclose(x, x), np.array_equal(x, x + 1), np.array_equiv(x, x), np.average(x, weights=weights)

    fused, x = fuse(f, target="reference"), np.arange(3.0)
    for weights in (np.ones(3), np.arange(3.0)):
        assert_same(fused(x, weights), f(x, weights))
    with pytest.raises(ZeroDivisionError, match="Weights sum to zero, can't be normalized"):
        fused(x, np.zeros(3))


def test_scalars_have_the_methods_and_classes_of_numpys_and_pythons_scalars() -> None:
    names = ("__len__", "__iter__", "__getitem__", "__array__", "is_integer", "shape", "ndim")
    classes = (abc.Iterable, abc.Sized, abc.Container, abc.Hashable, numbers.Real, int | float, (str, np.number))

    def f(x: Any) -> Any:
        values = (x.sum(), x[0], float(x.sum()), int(x.sum()), x.shape[0], x.sum() > 1)
        return [[*(hasattr(v, n) for n in names), *(isinstance(v, c) for c in classes)] for v in values]

    assert fuse(f, target="reference")(np.ones(3)) == f(np.ones(3))
