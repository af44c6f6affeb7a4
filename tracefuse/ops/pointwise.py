"""Pointwise rows: one line an op. The scalar code is in terms of a, b, c; see ops/row.py.

`exact` rows give NumPy's bits; the others are within the units in the last place that docs name.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tracefuse.dtypes import ALL, FLOATS, INTEGERS, NUMBERS, REALS, bool_
from tracefuse.ops.row import Pointwise, binary, register, ternary, unary

LOGICAL = (bool_, *INTEGERS)
ORDERED = (bool_, *REALS)


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(np.asarray(x).dtype)


def _sigmoid(x: Any) -> Any:
    # exp of the negative magnitude only: no overflow at either end.
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(np.asarray(x).dtype)


def _floor_divide(x: Any, y: Any) -> Any:
    return np.where(y == 0, 0, np.floor_divide(x, np.where(y == 0, 1, y))) if _integer(x) else np.floor_divide(x, y)


def _remainder(x: Any, y: Any) -> Any:
    return np.where(y == 0, 0, np.remainder(x, np.where(y == 0, 1, y))) if _integer(x) else np.remainder(x, y)


def _integer(x: Any) -> bool:
    return bool(np.issubdtype(np.asarray(x).dtype, np.integer))


# arithmetic
add = binary("add", NUMBERS, scalar="a + b", numpy=np.add, exact=True, doc="Sum, elementwise.")
sub = binary("sub", NUMBERS, scalar="a - b", numpy=np.subtract, exact=True, doc="Difference, elementwise.")
mul = binary("mul", NUMBERS, scalar="a * b", numpy=np.multiply, exact=True, doc="Product, elementwise.")
div = binary(
    "div", FLOATS, scalar="a / b", numpy=np.divide, promotion="divide", exact=True, doc="Quotient, elementwise."
)
floor_divide = binary("floor_divide", REALS, scalar="a // b", numpy=_floor_divide, exact=True, doc="Quotient rounded to minus infinity; integers by zero give 0.")  # fmt: skip
remainder = binary("remainder", REALS, scalar="a % b", numpy=_remainder, exact=True, doc="Remainder with the sign of the divisor; integers by zero give 0.")  # fmt: skip
pow = binary("pow", FLOATS, scalar="pow(a, b)", numpy=np.power, expensive=True, doc="a to the power b, elementwise.")
maximum = binary("maximum", ORDERED, scalar="maximum(a, b)", numpy=np.maximum, exact=True, doc="The larger; NaN where either is.")  # fmt: skip
minimum = binary("minimum", ORDERED, scalar="minimum(a, b)", numpy=np.minimum, exact=True, doc="The smaller; NaN where either is.")  # fmt: skip
neg = unary("neg", NUMBERS, scalar="-a", numpy=np.negative, exact=True, doc="Negation, elementwise.")
abs = unary("abs", REALS, scalar="abs(a)", numpy=np.abs, exact=True, doc="Magnitude, elementwise.")

# floats
sqrt = unary("sqrt", FLOATS, scalar="sqrt(a)", numpy=np.sqrt, promotion="float", exact=True, doc="Square root.")
rsqrt = unary("rsqrt", FLOATS, scalar="rsqrt(a)", numpy=lambda x: 1 / np.sqrt(x), promotion="float", doc="1 / square root.")  # fmt: skip
exp = unary("exp", FLOATS, scalar="exp(a)", numpy=np.exp, promotion="float", expensive=True, doc="Exponential.")
log = unary("log", FLOATS, scalar="log(a)", numpy=np.log, promotion="float", expensive=True, doc="Natural logarithm.")
sin = unary("sin", FLOATS, scalar="sin(a)", numpy=np.sin, promotion="float", expensive=True, doc="Sine of radians.")
cos = unary("cos", FLOATS, scalar="cos(a)", numpy=np.cos, promotion="float", expensive=True, doc="Cosine of radians.")
tanh = unary("tanh", FLOATS, scalar="tanh(a)", numpy=np.tanh, promotion="float", expensive=True, doc="Hyperbolic tangent.")  # fmt: skip
erf = unary("erf", FLOATS, scalar="erf(a)", numpy=_erf, promotion="float", expensive=True, doc="Error function.")
sigmoid = unary("sigmoid", FLOATS, scalar="1 / (1 + exp(-a))", numpy=_sigmoid, promotion="float", expensive=True, doc="1 / (1 + exp(-a)).")  # fmt: skip

# comparisons and logic
eq = binary("eq", ALL, scalar="a == b", numpy=np.equal, result="bool", exact=True, doc="a == b.")
ne = binary("ne", ALL, scalar="a != b", numpy=np.not_equal, result="bool", exact=True, doc="a != b.")
lt = binary("lt", ORDERED, scalar="a < b", numpy=np.less, result="bool", exact=True, doc="a < b.")
le = binary("le", ORDERED, scalar="a <= b", numpy=np.less_equal, result="bool", exact=True, doc="a <= b.")
gt = binary("gt", ORDERED, scalar="a > b", numpy=np.greater, result="bool", exact=True, doc="a > b.")
ge = binary("ge", ORDERED, scalar="a >= b", numpy=np.greater_equal, result="bool", exact=True, doc="a >= b.")
bitwise_and = binary("bitwise_and", LOGICAL, scalar="a & b", numpy=np.bitwise_and, exact=True, doc="Bitwise and.")
bitwise_or = binary("bitwise_or", LOGICAL, scalar="a | b", numpy=np.bitwise_or, exact=True, doc="Bitwise or.")
bitwise_xor = binary(
    "bitwise_xor", LOGICAL, scalar="a ^ b", numpy=np.bitwise_xor, exact=True, doc="Bitwise exclusive or."
)
bitwise_not = unary("bitwise_not", LOGICAL, scalar="~a", numpy=np.invert, exact=True, doc="Bitwise complement.")
logical_and = binary("logical_and", (bool_,), scalar="a & b", numpy=np.logical_and, promotion="bool", exact=True, doc="Both true.")  # fmt: skip
logical_or = binary("logical_or", (bool_,), scalar="a | b", numpy=np.logical_or, promotion="bool", exact=True, doc="Either true.")  # fmt: skip
logical_not = unary("logical_not", (bool_,), scalar="~a", numpy=np.logical_not, promotion="bool", exact=True, doc="Not true.")  # fmt: skip
isnan = unary("isnan", FLOATS, scalar="isnan(a)", numpy=np.isnan, result="bool", promotion="float", exact=True, doc="Whether a is not a number.")  # fmt: skip
isfinite = unary("isfinite", FLOATS, scalar="isfinite(a)", numpy=np.isfinite, result="bool", promotion="float", exact=True, doc="Whether a is neither infinite nor NaN.")  # fmt: skip

# selection and conversion
where = ternary("where", ALL, scalar="b if a else c", numpy=np.where, promotion="where", exact=True, doc="b where a is true, else c.")  # fmt: skip
cast = unary("cast", ALL, scalar="a", numpy=lambda x: x, result="dtype", exact=True, attributes=(("dtype", None),), doc="Conversion to `dtype`; a cast rounds also inside a kernel.")  # fmt: skip
set = unary("set", ALL, scalar="a", numpy=lambda x: x, exact=True, distinct=True, doc="A copy.")
segment_set = unary("segment_set", ALL, scalar="a", numpy=lambda x: x, exact=True, distinct=True, ends_segment=True, doc="A copy that ends a segment.")  # fmt: skip
iota = register(
    Pointwise(
        name="iota", arity=2, domain=REALS, scalar="a + b * index", exact=True,
        numpy=lambda start, step, length: start + step * np.arange(length),
        attributes=(("length", 0),), extra_shape=lambda attributes: (attributes["length"],),
        doc="start, start + step, ... : `length` elements.",
    )
)  # fmt: skip
extent = register(
    Pointwise(
        name="extent", arity=0, domain=INTEGERS, scalar="value", numpy=lambda value: np.int64(value), exact=True,
        attributes=(("value", 0),), doc="The integer that an expression of extents is, as a host scalar.",
    )
)  # fmt: skip
