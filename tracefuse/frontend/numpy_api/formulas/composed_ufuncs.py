"""NumPy's ufuncs that have no op definition, decomposed into other ops.

Functions of floats compute in the type that NumPy chooses for the operands, with formulas that do not overflow or lose
precision where NumPy's do not.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import ShapeError
from tracefuse.frontend.numpy_api.formulas import exponents
from tracefuse.frontend.tracer.array_ops import arithmetic, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_traced, missing, recorder_of
from tracefuse.frontend.tracer.values.operands import check_range
from tracefuse.frontend.tracer.values.symbolic_size import rank_of
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.frontend.tracer.values.ufunc_loops import loop_types
from tracefuse.ops import REGISTRY


def cast_to_loop(ufunc: np.ufunc, *operands: Any) -> list[Any]:
    """Casts the operands to the types of NumPy's loop for the ufunc."""
    recorder = recorder_of(operands)
    resolved = [recorder.resolve(x) for x in operands]
    types = loop_types(ufunc, [(r.dtype, r.weak) for r in resolved])
    for operand, dtype in zip(resolved, types, strict=False):
        check_range(operand, dtype, recorder)
    return [traced_ops.astype(as_traced(x), t, copy=False) for x, t in zip(operands, types, strict=False)]


def _square(x: Any) -> Any:
    return apply("mul", x, x)


def _reciprocal(x: Any) -> Any:
    traced = as_traced(x)
    if traced.value.dtype.kind == "bool":
        (traced,) = cast_to_loop(np.reciprocal, traced)
    if traced.value.dtype.is_complex:
        return _complex_reciprocal(traced)
    return apply("trunc_divide" if traced.value.dtype.is_integer else "div", 1, traced)


def _complex_reciprocal(z: Any) -> Any:
    """1 / z by Smith's method, as NumPy's loop: signs of zeros differ from those of a quotient."""
    real, imag = apply("real", z), apply("imag", z)
    is_flat = apply("le", apply("abs", imag), apply("abs", real))
    large, small = apply("where", is_flat, real, imag), apply("where", is_flat, imag, real)
    ratio = apply("div", small, large)
    total = apply("add", large, apply("mul", small, ratio))
    inverse, scaled = apply("div", 1, total), apply("div", ratio, total)
    parts = apply("where", is_flat, inverse, scaled), apply("neg", apply("where", is_flat, scaled, inverse))
    return apply("complex", *parts)


def _sign(x: Any) -> Any:
    if "sign" in REGISTRY:
        return apply("sign", x)
    traced = as_traced(x)
    if traced.value.dtype.kind in ("complex", "bool"):
        raise missing(f"np.sign of {traced.value.dtype}", "compute it outside the fused function")
    ones = apply("where", apply("gt", traced, 0), 1, apply("where", apply("lt", traced, 0), -1, traced))
    if traced.value.dtype.kind == "uint":
        ones = apply("minimum", traced, 1)
    return ones


def _float_power(a: Any, b: Any) -> Any:
    base = as_traced(a)
    wide = dtypes.complex128 if base.value.dtype.is_complex else dtypes.float64
    cast = traced_ops.astype(base, wide)
    if isinstance(b, Traced) and not wide.is_complex:
        return apply("pow", cast, b)  # its loop takes no square root, as that of np.power does
    return _root(cast) if _is_half(b) and not wide.is_complex else arithmetic.power(cast, b)


def _power(a: Any, b: Any) -> Any:
    """np.power. Its loop for float16 has no square root for the exponent 0.5, as those of wider floats have."""
    x = as_traced(a)
    if x.value.dtype is not dtypes.float16:
        return arithmetic.power(a, b)
    is_of_halves = type(b) in (float, np.float16)  # np.float64 is a float, too
    if is_of_halves and _is_half(b):
        return _root(x)
    is_python = isinstance(b, Traced) and b.weak == "float"
    return apply("pow", a, b) if is_python else arithmetic.power(a, b)


def _is_half(exponent: Any) -> bool:
    return isinstance(exponent, (float, np.floating)) and bool(exponent == 0.5)


def _root(x: Any) -> Any:
    """Returns pow(x, 0.5): infinity of -infinity, and 0 of -0."""
    return apply("where", apply("eq", x, -math.inf), math.inf, apply("add", apply("sqrt", x), 0.0))


def _logical_xor(a: Any, b: Any) -> Any:
    return apply("ne", apply("logical_or", a, b), apply("logical_and", a, b))


def _isinf(x: Any) -> Any:
    x = as_traced(x)
    return apply("logical_not", apply("logical_or", apply("isfinite", x), apply("isnan", x)))


def extreme(name: str) -> Callable[[Any, Any], Any]:
    """The larger or smaller of two operands: of zeros of both signs the second, of halves the first."""

    def call(a: Any, b: Any) -> Any:
        result = apply(name, a, b)
        return apply(name, b, a) if result.value.dtype.is_half else result

    return call


def clip_between(x: Any, low: Any, high: Any) -> Any:
    """np.clip with two bounds: of zeros of both signs the element, of single bounds or halves, else the bound."""
    larger = apply("maximum", x, low)
    if larger.value.dtype.is_half or not (rank_of(low) or rank_of(high)):
        return apply("minimum", high, apply("maximum", low, x))
    return apply("minimum", larger, high)


def _fmax(name: str) -> Callable[[Any, Any], Any]:
    def call(a: Any, b: Any) -> Any:
        chosen = extreme(name)(a, b)
        if chosen.value.dtype.kind not in ("float", "complex"):
            return chosen
        return apply("where", apply("isnan", b), a, apply("where", apply("isnan", a), b, chosen))

    return call


def _rounded_once(compose: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a decomposition that computes halves in float32 and rounds the result, as NumPy's loops do."""

    def call(*operands: Any) -> Any:
        halves = {r.dtype for r in map(recorder_of(operands).resolve, operands) if r.dtype and r.dtype.is_half}
        if not halves:
            return compose(*operands)
        wide = [x if r.weak is not None else traced_ops.astype(as_traced(x), dtypes.float32)
                for x, r in zip(operands, map(recorder_of(operands).resolve, operands), strict=True)]  # fmt: skip
        return traced_ops.astype(compose(*wide), *halves)

    return call


def _degrees(numerator: float, denominator: float) -> Callable[[Any], Any]:
    """A product with a quotient in the type of the operand: that of two float32 is not the nearest to the number."""

    def call(x: Any) -> Any:
        traced = as_traced(x)
        floating = traced if traced.value.dtype.is_floating else traced_ops.astype(traced, dtypes.float64)
        is_single = floating.value.dtype is dtypes.float32 and floating.weak is None
        kind = np.float32 if is_single else np.float64
        return apply("mul", floating, float(kind(numerator) / kind(denominator)))

    return _rounded_once(call)


def vecdot(x1: Any, x2: Any, axis: Any = -1) -> Any:
    """The sum of conj(x1) * x2 along an axis, whose extents are not broadcast."""
    for position, x in enumerate((x1, x2)):
        if not as_traced(x).extents:
            message = f"vecdot: input operand {position} does not have enough dimensions (has 0, requires 1)"
            raise ShapeError(message, hint="give vectors", where=source.user_line())
    left, right = (as_traced(shaping.moveaxis(x, operator.index(axis), -1)) for x in (x1, x2))
    message, hint = "vecdot: {left} elements along the axis and {right}", "give vectors of the same length"
    left.recorder.builder.require(left.extents[-1], "==", right.extents[-1], message, hint, source.user_line())
    products = apply("mul", arithmetic.conjugate(left), right)
    return traced_ops.sum_of_products(products, (-1,))


def _require_matrix(x: Any, name: str, position: int) -> None:
    rank = len(as_traced(x).extents)
    if rank < 2:
        message = f"{name}: input operand {position} does not have enough dimensions (has {rank}, requires 2)"
        raise ShapeError(message, hint="give a matrix", where=source.user_line())


def _matvec(matrix: Any, vector: Any) -> Any:
    _require_matrix(matrix, "matvec", 0)
    return shaping.squeeze(arithmetic.matmul(matrix, shaping.expand_dims(vector, -1)), -1)


def _vecmat(vector: Any, matrix: Any) -> Any:
    _require_matrix(matrix, "vecmat", 1)
    row = shaping.expand_dims(arithmetic.conjugate(vector), -2)
    return shaping.squeeze(arithmetic.matmul(row, matrix), -2)


# -- functions of floats ----------------------------------------------------------------------------------------------


def _wide(x: Any) -> bool:
    return bool(x.value.dtype is dtypes.float64)


def _hypot(a: Any, b: Any) -> Any:
    """sqrt(a * a + b * b). In float64 the larger operand is factored out, so that no square overflows."""
    a, b = cast_to_loop(np.hypot, a, b)
    if not _wide(a):
        dtype = a.value.dtype
        a, b = traced_ops.astype(a, dtypes.float64), traced_ops.astype(b, dtypes.float64)
        return traced_ops.astype(np.where(np.isinf(a) | np.isinf(b), np.inf, np.sqrt(a * a + b * b)), dtype)
    a, b = abs(a), abs(b)
    large, small = np.maximum(a, b), np.minimum(a, b)
    ratio = small / np.where(large == 0, 1, large)
    result = large * np.sqrt(1 + ratio * ratio)
    return np.where(np.isinf(a) | np.isinf(b), np.inf, result)


def _heaviside(x: Any, at_zero: Any) -> Any:
    x, at_zero = cast_to_loop(np.heaviside, x, at_zero)
    return np.where(np.isnan(x), x, np.where(x == 0, at_zero, traced_ops.astype(x > 0, x.value.dtype)))


@_rounded_once
def _logaddexp(a: Any, b: Any) -> Any:
    larger = np.maximum(a, b)
    return np.where(a == b, a + math.log(2), larger + np.log1p(np.exp(-abs(a - b))))


@_rounded_once
def _logaddexp2(a: Any, b: Any) -> Any:
    larger = np.maximum(a, b)
    return np.where(a == b, a + 1, larger + np.log1p(np.exp2(-abs(a - b))) * math.log2(math.e))


def _lcm(a: Any, b: Any) -> Any:
    a, b = map(abs, cast_to_loop(np.lcm, a, b))
    divisor = np.gcd(a, b)
    return a // np.where(divisor == 0, 1, divisor) * b


def _divmod(a: Any, b: Any) -> Any:
    return apply("floor_divide", a, b), apply("remainder", a, b)


def _modf(x: Any) -> Any:
    (x,) = cast_to_loop(np.modf, x)
    integral = np.trunc(x)
    part = np.where(np.isinf(x), 0, x - integral)
    return np.copysign(part, x), integral


def _spacing(x: Any) -> Any:
    (x,) = cast_to_loop(np.spacing, x)
    if x.value.dtype.is_half:
        return np.where(np.isinf(x), np.nan, np.nextafter(x, x.dtype.type(np.inf)) - x)
    size = abs(x)
    step = np.nextafter(size, size.dtype.type(np.inf)) - size
    return np.where(np.isinf(x), np.nan, np.copysign(step, x))


def _bitwise_count(x: Any) -> Any:
    """Counts the set bits by adding neighbouring groups of 1, 2, 4, ... bits."""
    traced: Any = as_traced(x)
    size = traced if traced.value.dtype.kind == "uint" else abs(traced)
    # abs of the smallest integer overflows to itself; mask the sign bits that widening adds.
    width = size.value.dtype.itemsize * 8
    v = traced_ops.astype(size, dtypes.uint64, copy=False) & np.uint64(2**width - 1)
    for shift, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F),
                        (8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0x00000000FFFFFFFF)):  # fmt: skip
        v = (v & np.uint64(mask)) + ((v >> np.uint64(shift)) & np.uint64(mask))
    return traced_ops.astype(v, dtype_of(np.uint8))


CLIP = np._core.umath.clip  # type: ignore[attr-defined]
"""The ufunc behind np.clip with two bounds, which is no name of NumPy's."""

COMPOSED: dict[np.ufunc, Callable[..., Any]] = {
    np.square: _square, np.reciprocal: _reciprocal, np.sign: _sign, np.power: _power,
    np.float_power: _float_power,
    np.matmul: arithmetic.matmul, np.logical_xor: _logical_xor, np.conjugate: arithmetic.conjugate,
    np.degrees: _degrees(180, np.pi), np.rad2deg: _degrees(180, np.pi), np.radians: _degrees(np.pi, 180),
    np.deg2rad: _degrees(np.pi, 180), np.isinf: _isinf, np.fmax: _fmax("maximum"), np.fmin: _fmax("minimum"),
    np.maximum: extreme("maximum"), np.minimum: extreme("minimum"),
    np.fabs: lambda x: apply("abs", *cast_to_loop(np.fabs, x)),
    np.hypot: _hypot, np.heaviside: _heaviside, np.logaddexp: _logaddexp, np.logaddexp2: _logaddexp2,
    np.lcm: _lcm, np.divmod: _divmod, np.modf: _modf, np.spacing: _spacing,
    CLIP: clip_between,
    np.frexp: lambda x: exponents.frexp(*cast_to_loop(np.frexp, x)),
    np.ldexp: lambda x, n: exponents.ldexp(*cast_to_loop(np.ldexp, x, n)),
}  # fmt: skip
"""The decomposition of each ufunc that has no op definition."""

for _name, _decomposition in (
    ("bitwise_count", _bitwise_count), ("vecdot", vecdot), ("matvec", _matvec), ("vecmat", _vecmat),
):  # fmt: skip
    if hasattr(np, _name):  # NumPy 2.1 and 2.2 added some of these
        COMPOSED[getattr(np, _name)] = _decomposition


def select_composed(defined: Sequence[np.ufunc]) -> dict[np.ufunc, Callable[..., Any]]:
    """Returns the ufuncs without an op definition, and those whose special cases precede their ops."""
    special = (np.power, np.matmul, np.maximum, np.minimum)
    return {ufunc: compose for ufunc, compose in COMPOSED.items() if ufunc in special or ufunc not in defined}
