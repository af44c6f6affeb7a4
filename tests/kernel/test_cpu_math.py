"""Tests the CPU's math functions against float64, in units in the last place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cpu_kernels import primitives_kernel, run_pointwise

from tracefuse import dtypes
from tracefuse.kernel.primitives import apply as apply_reference

Array = np.ndarray[Any, Any]


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    def apply(x: Array) -> Array:
        return np.array([function(float(v)) for v in x.ravel()], np.float64).reshape(x.shape)

    return apply


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf


def _erfinv(x: float) -> float:
    """By bisection on erf and erfc; their accuracy is that of the result."""
    if math.isnan(x) or abs(x) > 1:
        return math.nan
    if abs(x) in (0.0, 1.0):
        return math.copysign(math.inf, x) if x else x
    a, low, high = abs(x), 0.0, 7.0
    if a < 1e-6:
        return x * math.sqrt(math.pi) / 2
    for _ in range(80):
        middle = (low + high) / 2
        above = math.erf(middle) > a if a < 0.5 else math.erfc(middle) < 1 - a
        low, high = (low, middle) if above else (middle, high)
    return math.copysign((low + high) / 2, x)


REFERENCE: dict[str, Callable[[Array], Array]] = {
    **{name: getattr(np, name) for name in ("sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p")},
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{name: getattr(np, "arc" + name[1:]) for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": _each(math.erf),
    "erfc": _each(math.erfc),
    "erfinv": _each(_erfinv),
    "erfcinv": lambda x: apply_reference("erfcinv", [x], dtypes.float64),
    "lgamma": _each(_lgamma),
}
# The largest error allowed on float32, in ulp.
LIMIT32 = {"sqrt": 0.5, "exp": 1.5, "log": 1.5, "exp2": 1.5, "rsqrt": 1.5, "tanh": 2.0, "erf": 2.0}
# Slow to compute one by one.
FEW = ("erf", "erfc", "erfinv", "erfcinv", "lgamma")


def arguments(dtype: type, count: int, seed: int = 0) -> Array:
    """Edges, numbers of usual sizes, and every exponent."""
    random = np.random.default_rng(seed)
    info = np.finfo(dtype)
    edges = [0.0, 1.0, 0.5, 0.625, 2.0, 4.0, np.pi, np.pi / 2, np.pi / 4, 10.0, 88.72283, 88.7229, 87.3, 103.2, 104.0]
    edges += [
        709.78,
        745.13,
        127.99,
        149.0,
        1023.9,
        1e-3,
        1e-2,
        1e9,
        1e22,
        info.max,
        info.tiny,
        info.smallest_subnormal,
    ]
    edges += [np.inf, np.nan, 1 - info.epsneg, 1 + info.eps, 9.19, 10.05, 16367173.0 * 2.0**72]
    with np.errstate(over="ignore"):
        edge = np.array(edges, dtype)
    integer = np.uint32 if dtype is np.float32 else np.uint64
    bits = random.integers(0, np.iinfo(integer).max, count, dtype=integer, endpoint=True).view(dtype)
    usual = [random.normal(size=count) * scale for scale in (1e-3, 0.3, 1.0, 10.0, 60.0)]
    near = 1 + random.normal(size=count) * 1e-4
    unit = random.uniform(-1, 1, count)
    with np.errstate(invalid="ignore"):  # signalling NaNs among the random bits
        return np.concatenate([a.astype(dtype) for a in (edge, -edge, bits, *usual, near, unit)])


def _run(name: str, *values: Array) -> Array:
    types = [dtypes.dtype_of(value.dtype) for value in values]
    return run_pointwise(primitives_kernel((name,), *types), *values)[0]


def ulps(got: Array, exact: Array) -> Array:
    """The error of `got` in units in the last place of its type; 0 where both are NaN or the same infinity."""
    dtype = got.dtype
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype)
        unit = np.spacing(np.minimum(np.abs(rounded), np.finfo(dtype).max)).astype(np.float64)
        error = np.abs(got.astype(np.float64) - exact) / unit
        same = (np.isnan(got) & np.isnan(rounded)) | (got == rounded)
        # An overflow that the exact value misses by less than half a unit is a rounding.
        error = np.where(np.isnan(got) != np.isnan(rounded), np.inf, error)
    small = same & ~(np.isfinite(got) & np.isfinite(exact))
    return np.where(small, 0.0, error)


@pytest.mark.parametrize("name", list(REFERENCE))
def test_a_float32_function_is_within_its_bound_of_ulps_on_all_kinds_of_arguments(name: str) -> None:
    x = arguments(np.float32, 3_000 if name in FEW else 100_000)
    got = _run(name, x)
    with np.errstate(all="ignore"):
        exact = REFERENCE[name](x.astype(np.float64))
    errors = ulps(got, exact)
    worst = int(np.argmax(errors))
    assert errors[worst] <= LIMIT32.get(name, 1.0), (name, x[worst], got[worst], exact[worst], errors[worst])
    zero = np.isfinite(exact) & (exact == 0)
    assert np.array_equal(np.signbit(got[zero]), np.signbit(exact[zero]))


@pytest.mark.parametrize("name", list(REFERENCE))
def test_a_float64_function_agrees_with_numpy_to_a_few_ulps(name: str) -> None:
    x = arguments(np.float64, 1_000 if name in FEW else 20_000)
    got = _run(name, x)
    with np.errstate(all="ignore"):
        exact = REFERENCE[name](x)
    errors = ulps(got, exact)
    if name in ("erfinv", "erfcinv"):
        # erf is flat where |x| nears 1: the reference itself is good to 1e-13 there.
        finite = np.isfinite(exact)
        assert np.array_equal(np.isnan(got), np.isnan(exact))
        finite &= np.abs(exact) < 26.5  # erfc is subnormal beyond
        assert np.allclose(got[finite], exact[finite], rtol=1e-12, atol=0)
        return
    if name == "lgamma":
        errors[np.isclose(got, exact, rtol=0, atol=1e-14)] = 0.0  # near its zeros the reference is not accurate
    worst = int(np.argmax(errors))
    assert errors[worst] <= 4.0, (name, x[worst], got[worst], exact[worst], errors[worst])


@pytest.mark.parametrize("name", ["pow", "atan2"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_function_of_two_floats_is_right_on_all_pairs_of_edges_and_on_random_pairs(name: str, dtype: type) -> None:
    edge = arguments(dtype, 0)
    more = np.array([2, 3, -3, 0.5, -0.5, 7, 1e6 + 1, 33, -1], dtype)
    edge = np.concatenate([edge, more])
    x, y = (a.ravel() for a in np.meshgrid(edge, edge))
    random = np.random.default_rng(3)
    base = np.exp(random.normal(size=50_000) * 8)
    x = np.concatenate([x, base, random.normal(size=50_000)]).astype(dtype)
    y = np.concatenate([y, random.normal(size=50_000) * 6, random.normal(size=50_000)]).astype(dtype)
    got = _run(name, x, y)
    with np.errstate(all="ignore"):
        exact = (np.power if name == "pow" else np.arctan2)(x.astype(np.float64), y.astype(np.float64))
    errors = ulps(got, exact)
    worst = int(np.argmax(errors))
    assert errors[worst] <= 2.0, (x[worst], y[worst], got[worst], exact[worst], errors[worst])


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_trigonometry_of_float32_is_right_for_the_largest_arguments(name: str) -> None:
    random = np.random.default_rng(1)
    x = np.ldexp(random.uniform(0.5, 1, 100_000), random.integers(0, 129, 100_000)).astype(np.float32)
    x = x[np.isfinite(x)]
    got = _run(name, x)
    assert ulps(got, REFERENCE[name](x.astype(np.float64))).max() <= 1.0


def test_nan_passes_through_every_function() -> None:
    x = np.full(37, np.nan, np.float32)
    for name in REFERENCE:
        assert np.isnan(_run(name, x)).all(), name
