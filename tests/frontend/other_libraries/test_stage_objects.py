"""Objects that a traced function creates of computed arrays: splines, rotations, search trees, sparse matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import TraceError, UnsupportedError, fuse

scipy = pytest.importorskip("scipy")
for _module in ("interpolate", "optimize", "sparse", "spatial.transform", "special", "stats"):
    pytest.importorskip(f"scipy.{_module}")
interpolate, optimize, stats = scipy.interpolate, scipy.optimize, scipy.stats
from scipy.interpolate import CubicSpline  # noqa: E402


def spline(x: Any) -> Any:
    curve = CubicSpline(np.arange(x.shape[0]), x * 2)
    at = np.linspace(0, 3, 7)
    return curve(at) + 1, curve(at, 1), curve.integrate(0, 2), curve.derivative()(at), curve.c[0] * 2


def linear(x: Any) -> Any:
    f = interpolate.interp1d(np.arange(x.size), x * 1)
    return optimize.brentq(lambda t: f(t) - x[0] - 0.1 * (x[2] - x[0]), 0, 2) + f(0.5)


def density(x: Any) -> Any:
    estimate = stats.gaussian_kde(x)
    before = estimate(np.linspace(0, 1, 5))
    estimate.set_bandwidth(0.3)
    return before, estimate(np.linspace(0, 1, 5)), estimate.factor * 2


def distribution(x: Any) -> Any:
    frozen = stats.norm(loc=x.mean(), scale=x.std())
    return frozen.cdf(x).sum(), frozen.ppf(0.3)


def neighbours(x: Any) -> Any:
    points = np.stack([x, x[::-1]], axis=1)
    distances, nearest = scipy.spatial.cKDTree(points).query(points * 1.1, k=2)
    return distances.sum(), points[nearest[:, 1]].mean(axis=0)


def rotation(x: Any) -> Any:
    turn = scipy.spatial.transform.Rotation.from_euler("xyz", x[:3])
    return (turn * turn.inv() * turn).apply(np.stack([x, x, x], 1)) * 2, isinstance(
        turn, scipy.spatial.transform.Rotation
    )


def sparse(x: Any) -> Any:
    matrix = scipy.sparse.csr_matrix(np.where(np.outer(x, x) > 0.2, 1.0, 0.0))
    same, products = matrix, (matrix @ x + 1, 2 * (matrix + matrix).toarray())
    same *= 3.0
    return *products, matrix.nnz, matrix.sum()


def polynomial(x: Any) -> Any:
    return scipy.special.legendre(3)(x) + 1


PROGRAMS = [spline, linear, density, distribution, neighbours, rotation, sparse, polynomial]


@pytest.mark.parametrize("function", PROGRAMS)
def test_objects_of_computed_arrays_give_what_the_plain_program_does(function: Callable[[Any], Any]) -> None:
    fused, rng = fuse(function, target="reference"), np.random.default_rng(0)
    for size in (10, 10, 14):
        x = np.sort(rng.random(size))
        for result, expected in zip(_parts(fused(x)), _parts(function(x)), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-9)
    assert fused.cache_info().traces <= 2


def _parts(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


class _Holder:
    curve: Any = None


_holder = _Holder()


def _stored(x: Any) -> Any:
    _holder.curve = CubicSpline(np.arange(x.size), x)
    return x


def _written_before_use(x: Any) -> Any:
    y = x * 2
    curve = interpolate.interp1d(np.arange(x.size), y, copy=False)
    y[0] = 5
    return curve(0.5)


def _written_attribute(x: Any) -> Any:
    curve = CubicSpline(np.arange(x.size), x)
    coefficients = curve.c
    coefficients *= 2
    return curve(0.5)


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda x: CubicSpline(np.arange(x.size), x), "the result is a CubicSpline, which is created between two stages"),
    (_stored, "_holder.curve is a CubicSpline, which is created between two stages"),
    (_written_before_use, r"interp1d is used after an array that it may refer to was written"),
    (_written_attribute, r"CubicSpline is used after an array that it may refer to was written"),
    (lambda x: f"{stats.gaussian_kde(x)}", "the text of a gaussian_kde, which scipy.stats.gaussian_kde creates"),
    (lambda x: np.asarray(stats.gaussian_kde(x)), "gaussian_kde is no operand of an array operation"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_what_an_object_of_a_call_cannot_do_is_refused(function: Callable[[Any], Any], message: str) -> None:
    with pytest.raises((UnsupportedError, TraceError), match=rf"{message}.*\(test_stage_objects.py:\d+\)\n  hint: "):
        fuse(function, target="reference")(np.linspace(0.0, 1.0, 8))
    assert _holder.curve is None
