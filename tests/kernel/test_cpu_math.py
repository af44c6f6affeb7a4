"""Tests the CPU's math functions against float64, in units in the last place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.kernel.cpu_kernels import index, pointwise, primitives_kernel, run_pointwise
from tracefuse import dtypes
from tracefuse.kernel.kernel_ir import Buffer, Constant, Load, call
from tracefuse.kernel.llvm import float32_math
from tracefuse.kernel.llvm.cpu_functions import compile_cpu
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
    **{name: getattr(np, name) for name in ("sqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p")},
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
LIMIT32 = {
    "sqrt": 0.5,
    "exp": 1.5,
    "log": 1.5,
    "exp2": 1.5,
    "rsqrt": 1.5,
    "tanh": 2.0,
    "erf": 2.0,
    "expm1": 1.5,
    "log2": 2.0,
    "log10": 2.0,
    "log1p": 1.0,
    "sinh": 2.5,
    "cosh": 2.0,
    "atan": 1.5,
    "asin": 2.0,
    "acos": 1.5,
    "asinh": 1.5,
    "acosh": 2.0,
    "atanh": 1.75,
    "tan": 2.0,
}
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
    assert ulps(got, REFERENCE[name](x.astype(np.float64))).max() <= LIMIT32.get(name, 1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_do_not_depend_on_the_neighbours_of_an_element(dtype: type) -> None:
    """Rare arguments share vectors with others, at every place of a vector and in its scalar remainder."""
    random = np.random.default_rng(4)
    usual = np.concatenate([random.normal(size=300), random.uniform(1, 9, 300)]).astype(dtype)
    rare = arguments(dtype, 0)
    x = np.where(random.random(600) < 0.1, random.choice(rare, 600), usual)
    names = [n for n in (*REFERENCE, "pow") if float32_math.has_rare_path(n, dtypes.dtype_of(np.dtype(dtype)))]
    assert {"sin", "log2", "pow", "asinh", "cosh"} <= set(names)
    for name in names:
        values = (x,) if name in REFERENCE else (x, random.permutation(x))
        function = compile_cpu(primitives_kernel((name,), *(dtypes.dtype_of(v.dtype) for v in values)))
        together, alone = np.empty((2, 600), dtype)
        function(*values, together, 600)
        for k in range(600):
            function(*(v[k:] for v in values), alone[k:], 1)
        assert np.array_equal(together, alone, equal_nan=True), name


def test_nan_passes_through_every_function() -> None:
    x = np.full(37, np.nan, np.float32)
    for name in REFERENCE:
        assert np.isnan(_run(name, x)).all(), name


# ---------------------------------------------------------------------------------------------------------------------
# float64 against 64-bit extended precision

EXTENDED = np.finfo(np.longdouble).nmant > 60
FUNCTIONS64: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "log2", "log10", "exp2")},
    **{name: getattr(np, "arc" + name[1:]) for name in ("asin", "acos", "atan")},
}


def extended_ulps(got: Array, exact: Any) -> Array:
    """The error of `got` in units of float64; `exact` has extended precision."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float64)
        unit = np.spacing(np.minimum(np.abs(rounded), np.finfo(np.float64).max))
        error = np.abs((got.astype(np.longdouble) - exact) / unit).astype(np.float64)
    same = (np.isnan(got) & np.isnan(rounded)) | ((got == rounded) & ~np.isfinite(got))
    error = np.where(np.isnan(got) != np.isnan(rounded), np.inf, error)
    assert np.array_equal(np.signbit(got[rounded == 0]), np.signbit(rounded[rounded == 0]))
    return np.where(same, 0.0, error)


def near_quarter_turns(count: int) -> Array:
    """Multiples of pi / 2 and their neighbours, up to the largest that extended precision reduces well."""
    random = np.random.default_rng(5)
    turns = np.concatenate([np.arange(-count, count), random.integers(0, 2**40, count)])
    nearest = turns * (np.pi / 2)
    return np.concatenate([nearest, np.nextafter(nearest, np.inf), np.nextafter(nearest, -np.inf)])


@pytest.mark.skipif(not EXTENDED, reason="longdouble has no extended precision here")
@pytest.mark.parametrize("name", list(FUNCTIONS64))
def test_a_float64_function_is_within_one_and_a_half_ulps_of_extended_precision(name: str) -> None:
    x = np.concatenate([arguments(np.float64, 50_000), near_quarter_turns(5_000)])
    got = _run(name, x)
    with np.errstate(all="ignore"):
        errors = extended_ulps(got, FUNCTIONS64[name](x.astype(np.longdouble)))
    worst = int(np.argmax(errors))
    assert errors[worst] <= 1.5, (name, x[worst], got[worst], errors[worst])


@pytest.mark.skipif(not EXTENDED, reason="longdouble has no extended precision here")
def test_float64_powers_and_angles_are_within_one_and_a_half_ulps_of_extended_precision() -> None:
    random = np.random.default_rng(6)
    x = np.concatenate([arguments(np.float64, 50_000), np.exp(random.normal(size=100_000) * 8)])
    y = np.concatenate([random.permutation(x[:-100_000]), random.normal(size=100_000) * 6])
    with np.errstate(all="ignore"):
        wide = x.astype(np.longdouble), y.astype(np.longdouble)
        for name, function in (("pow", np.power), ("atan2", np.arctan2)):
            errors = extended_ulps(_run(name, x, y), function(*wide))
            worst = int(np.argmax(errors))
            assert errors[worst] <= 1.5, (name, x[worst], y[worst], errors[worst])


# The sine, cosine and tangent of float64 arguments next to multiples of pi / 2, where a reduction loses the most.
CLOSE_TO_QUARTER_TURNS = {
    5.319372648326541e255: (1.0, -4.687165924254628e-19, -2.133485385753704e18),
    45.553093477052: (1.0, -6.189806365883577e-19, -1.6155594228467482e18),
    8.673617379884035e-19: (8.673617379884035e-19, 1.0, 8.673617379884035e-19),
    1.3930726336834465e259: (-1.0, -3.147980759904577e-18, 3.1766394913745043e17),
    7.152299459388533e39: (3.6417132754764345e-18, -1.0, -3.6417132754764345e-18),
    2.1684714451092387e20: (-1.0, -5.128202323993418e-18, 1.9500010663020858e17),
    1.7347580914897774e27: (-1.0, -5.128526883715639e-18, 1.9498776601430154e17),
    3.104181269033855e307: (-1.0, -6.46571876302612e-18, 1.546618460608662e17),
}


@pytest.mark.parametrize("x", list(CLOSE_TO_QUARTER_TURNS))
def test_trigonometry_of_float64_is_right_next_to_multiples_of_a_quarter_turn(x: float) -> None:
    arrays = np.array([x, -x])
    sine, cosine, tangent = CLOSE_TO_QUARTER_TURNS[x]
    assert np.abs(_run("sin", arrays) - [sine, -sine]).max() <= np.spacing(abs(sine))
    assert np.abs(_run("cos", arrays) - cosine).max() <= np.spacing(abs(cosine))
    assert np.abs(_run("tan", arrays) - [tangent, -tangent]).max() <= np.spacing(abs(tangent))


def test_erf_of_float64_is_within_two_ulps() -> None:
    x = np.random.default_rng(7).uniform(-6.5, 6.5, 20_000)
    assert ulps(_run("erf", x), _each(math.erf)(x)).max() <= 2.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["truncmod", "mod", "floordiv"])
def test_remainders_are_numpys_to_the_bit_for_all_quotients(name: str, dtype: type) -> None:
    random = np.random.default_rng(8)
    edge = arguments(dtype, 0)
    x, y = (a.ravel() for a in np.meshgrid(edge, edge))
    wide = [random.uniform(-1e5, 1e5, 5_000), random.integers(-99, 99, 5_000), random.integers(0, 2**62, 5_000)]
    narrow = [random.uniform(-9, 9, 5_000), random.integers(-9, 9, 5_000), random.integers(1, 2**20, 5_000)]
    with np.errstate(all="ignore"):
        x, y = (np.concatenate([a, *more]).astype(dtype) for a, more in ((x, wide), (y, narrow)))
        expected = {"truncmod": np.fmod, "mod": np.mod, "floordiv": np.floor_divide}[name](x, y)
    got = _run(name, x, y)
    same = (got == expected) & (np.signbit(got) == np.signbit(expected)) | (np.isnan(got) & np.isnan(expected))
    assert same.all(), (x[~same][0], y[~same][0], got[~same][0], expected[~same][0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_remainders_by_a_constant_are_numpys_to_the_bit(dtype: type) -> None:
    divisors = (1.0, -2.0, 0.5, 0.7, 2 * np.pi, -360.0, 1e-3, 1e-11, 3e29, 0.0, np.inf, np.nan, 1e-40)
    functions = {"truncmod": np.fmod, "mod": np.mod, "floordiv": np.floor_divide}
    random = np.random.default_rng(9)
    multiples = np.outer(random.integers(-(2**24), 2**24, 300), [d for d in divisors if 0 < abs(d) < np.inf]).ravel()
    x = np.concatenate([arguments(dtype, 3_000), multiples.astype(dtype)])
    buffer = Buffer("in0", dtypes.dtype_of(x.dtype))
    values = [call(f, Load(buffer, index("j")), Constant(d, buffer.dtype)) for f in functions for d in divisors]
    results = iter(run_pointwise(pointwise(tuple(values), (buffer,), name="remainders"), x))
    for name, function in functions.items():
        for divisor in divisors:
            with np.errstate(all="ignore"):
                got, expected = next(results), function(x, dtype(divisor))
            same = (got == expected) & (np.signbit(got) == np.signbit(expected)) | (np.isnan(got) & np.isnan(expected))
            assert same.all(), (name, divisor, x[~same][0], got[~same][0], expected[~same][0])


@pytest.mark.parametrize("exponent", [1.5, 2.5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_constant_power_agrees_with_the_general_one(exponent: float, dtype: type) -> None:
    x = arguments(dtype, 50_000)
    buffer = Buffer("in0", dtypes.dtype_of(x.dtype))
    power = call("pow", Load(buffer, index("j")), Constant(exponent, buffer.dtype))
    (got,) = run_pointwise(pointwise((power,), (buffer,), name="power"), x)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), exponent)
    assert ulps(got, exact).max() <= 2.0
