"""Pointwise ops, one line each. The scalar code is in terms of a, b, c; see ir/op_kinds.py.

`exact` ops give NumPy's bits; the others are within the units in the last place that docs/numerics.md names.
"""

from __future__ import annotations

import math
import operator

import numpy as np

from tracefuse.dtypes import (
    ALL,
    COMPLEXES,
    FLOATS,
    INTEGERS,
    NUMBERS,
    REALS,
    bool_,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
)  # fmt: skip
from tracefuse.errors import IntegerRangeError
from tracefuse.ir import extents
from tracefuse.ir.derivatives import FLAT, Linear, PartialDerivatives, Tangent
from tracefuse.ir.error_models import (
    CHOICE,
    COMPARISON,
    CONSTANT,
    COPY,
    MAGNITUDE,
    MONOTONIC,
    PARTS,
    PRODUCT,
    QUOTIENT,
    RECIPROCAL,
    SELECTION,
    SEQUENCE,
    SQUARE_ROOT,
    SUM,
    lipschitz,
)
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.ops import array_functions, extent_rules, printed_calls, reference_functions, tangents, transposes
from tracefuse.ops.equivalent_expressions import digamma
from tracefuse.ops.families import binary, register, ternary, unary

LOGICAL = (bool_, *INTEGERS)
ORDERED = (bool_, *REALS)
INEXACT = (*FLOATS, *COMPLEXES)


# arithmetic
add = binary("add", NUMBERS, scalar="a + b", numpy=np.add, exact=True, error=SUM, on_extents=operator.add, into=array_functions.ufunc_into("add"), derivative=PartialDerivatives(("1", "1")), additive=((0, 1),), doc="Sum, elementwise.")  # fmt: skip
sub = binary("sub", NUMBERS, scalar="a - b", numpy=np.subtract, exact=True, error=SUM, on_extents=operator.sub, into=array_functions.ufunc_into("subtract"), derivative=PartialDerivatives(("1", "-1")), additive=((0, 1),), doc="Difference, elementwise.")  # fmt: skip
mul = binary("mul", NUMBERS, scalar="a * b", numpy=np.multiply, exact=True, error=PRODUCT, on_extents=operator.mul, into=array_functions.ufunc_into("multiply"), derivative=PartialDerivatives(("b", "a")), additive=((0,), (1,)), doc="Product, elementwise.")  # fmt: skip
rounded_product = binary("rounded_product", FLOATS, scalar="rounded_product(a, b)", numpy=lambda a, b: a * b, exact=True, error=PRODUCT, derivative=PartialDerivatives(("b", "a")), additive=((0,), (1,)), doc="Product, rounded before anything is added to it.")  # fmt: skip
div = binary(
    "div",
    INEXACT,
    scalar="a / b",
    numpy=np.divide,
    promotion="divide",
    exact=True,
    error=QUOTIENT,
    into=array_functions.ufunc_into("divide"),
    printed=printed_calls.print_div,
    derivative=PartialDerivatives(("1 / b", "-(y / b)")),
    additive=((0,),),
    doc="Quotient, elementwise.",
)
floor_divide = binary("floor_divide", REALS, scalar="a // b", numpy=reference_functions.floor_divide, ufunc=np.floor_divide, exact=True, on_extents=extent_rules.whole_quotient, derivative=FLAT, doc="Quotient rounded to minus infinity; integers by zero give 0.")  # fmt: skip
remainder = binary("remainder", REALS, scalar="a % b", numpy=reference_functions.remainder, ufunc=np.remainder, exact=True, on_extents=extent_rules.whole_remainder, derivative=PartialDerivatives(("1", "-floor_divide(a, b)")), doc="Remainder with the sign of the divisor; integers by zero give 0.")  # fmt: skip
integer_power = binary("integer_power", INTEGERS, scalar="pow(a, b)", numpy=reference_functions.integer_power, expensive=True, exact=True, refused="b < 0", refusal=("Integers to negative integer powers are not allowed", "cast the base with astype(float)"), doc="a to the power b; integers wrap, and a negative exponent is an error on the CPU.")  # fmt: skip
checked_position = binary("checked_position", INTEGERS, scalar="a", numpy=reference_functions.checked_position, exact=True, refused="minimum(a, b - 1 - a) < 0", refusal=("invalid entry: a position is negative, or as large as the extent", "positions are from 0 to the extent - 1; np.choose and np.ravel_multi_index take mode='clip' or 'wrap'"), derivative=FLAT, doc="a, where it is from 0 to b - 1; another position is an error on the CPU.")  # fmt: skip
pow = binary("pow", NUMBERS, scalar="pow(a, b)", numpy=reference_functions.power, ufunc=np.power, expensive=True, derivative=PartialDerivatives(("where(b == 0, 0, b * pow(a, where(b == 0, 1, b - 1)))", "log(where(a == 0, 1, a)) * y")), doc="a to the power b; integers wrap, and negative exponents give the reciprocal cut off.")  # fmt: skip
maximum = binary("maximum", ALL, scalar="maximum(a, b)", numpy=np.maximum, exact=True, error=SELECTION, on_extents=extents.maximum, derivative=PartialDerivatives(("where(a > b, 1, where(a == b, 0.5, 0))", "where(b > a, 1, where(a == b, 0.5, 0))")), doc="The larger; NaN where either is.")  # fmt: skip
minimum = binary("minimum", ALL, scalar="minimum(a, b)", numpy=np.minimum, exact=True, error=SELECTION, on_extents=extents.minimum, derivative=PartialDerivatives(("where(a < b, 1, where(a == b, 0.5, 0))", "where(b < a, 1, where(a == b, 0.5, 0))")), doc="The smaller; NaN where either is.")  # fmt: skip
neg = unary("neg", NUMBERS, scalar="-a", numpy=np.negative, exact=True, error=COPY, on_extents=operator.neg, derivative=PartialDerivatives(("-1",)), additive=((0,),), doc="Negation, elementwise.")  # fmt: skip
abs = unary("abs", NUMBERS, scalar="abs(a)", numpy=np.abs, result="real", exact=True, error=MAGNITUDE, derivative=Tangent(tangents.abs), doc="Magnitude, elementwise.")  # fmt: skip

# floats
sqrt = unary("sqrt", INEXACT, scalar="sqrt(a)", numpy=np.sqrt, promotion="float", exact=True, error=SQUARE_ROOT, derivative=PartialDerivatives(("0.5 / y",)), doc="Square root.")  # fmt: skip
rsqrt = unary("rsqrt", INEXACT, scalar="rsqrt(a)", numpy=lambda x: 1 / np.sqrt(x), promotion="float", error=MONOTONIC, derivative=PartialDerivatives(("-0.5 * y / a",)), doc="1 / square root.")  # fmt: skip
exp = unary("exp", INEXACT, scalar="exp(a)", numpy=np.exp, promotion="float", expensive=True, error=MONOTONIC, derivative=PartialDerivatives(("y",)), doc="Exponential.")  # fmt: skip
log = unary("log", INEXACT, scalar="log(a)", numpy=np.log, promotion="float", expensive=True, error=MONOTONIC, derivative=PartialDerivatives(("1 / a",)), doc="Natural logarithm.")  # fmt: skip
sin = unary("sin", INEXACT, scalar="sin(a)", numpy=np.sin, promotion="float", expensive=True, error=lipschitz(1.0), derivative=PartialDerivatives(("cos(a)",)), doc="Sine of radians.")  # fmt: skip
cos = unary("cos", INEXACT, scalar="cos(a)", numpy=np.cos, promotion="float", expensive=True, error=lipschitz(1.0), derivative=PartialDerivatives(("-sin(a)",)), doc="Cosine of radians.")  # fmt: skip
tanh = unary("tanh", INEXACT, scalar="tanh(a)", numpy=np.tanh, promotion="float", expensive=True, error=lipschitz(1.0), derivative=PartialDerivatives(("1 - y * y",)), doc="Hyperbolic tangent.")  # fmt: skip
erf = unary(
    "erf",
    FLOATS,
    scalar="erf(a)",
    numpy=reference_functions.each(math.erf),
    promotion="float",
    expensive=True,
    error=lipschitz(2 / math.sqrt(math.pi)),
    derivative=PartialDerivatives(("1.1283791670955126 * exp(-(a * a))",)),
    doc="Error function.",
)
sigmoid = unary("sigmoid", FLOATS, scalar="1 / (1 + exp(-a))", numpy=reference_functions.sigmoid, promotion="float", expensive=True, error=lipschitz(0.25), derivative=PartialDerivatives(("y * (1 - y)",)), doc="1 / (1 + exp(-a)).")  # fmt: skip

exp2 = unary("exp2", INEXACT, scalar="exp2(a)", numpy=np.exp2, promotion="float", expensive=True, error=MONOTONIC, derivative=PartialDerivatives(("0.6931471805599453 * y",)), doc="2 to the power a.")  # fmt: skip
expm1 = unary("expm1", INEXACT, scalar="expm1(a)", numpy=np.expm1, promotion="float", expensive=True, error=MONOTONIC, derivative=PartialDerivatives(("y + 1",)), doc="Exponential minus 1, exact near 0.")  # fmt: skip
log2 = unary("log2", INEXACT, scalar="log2(a)", numpy=np.log2, promotion="float", expensive=True, error=MONOTONIC, derivative=PartialDerivatives(("1.4426950408889634 / a",)), doc="Logarithm to base 2.")  # fmt: skip
log10 = unary("log10", INEXACT, scalar="log10(a)", numpy=np.log10, promotion="float", expensive=True, error=MONOTONIC, derivative=PartialDerivatives(("0.4342944819032518 / a",)), doc="Logarithm to base 10.")  # fmt: skip
log1p = unary("log1p", INEXACT, scalar="log1p(a)", numpy=np.log1p, promotion="float", expensive=True, error=MONOTONIC, derivative=PartialDerivatives(("1 / (a + 1)",)), doc="Natural logarithm of 1 + a, exact near 0.")  # fmt: skip
cbrt = unary("cbrt", FLOATS, scalar="cbrt(a)", numpy=np.cbrt, promotion="float", expensive=True, error=MONOTONIC, derivative=PartialDerivatives(("1 / (3 * y * y)",)), doc="Cube root.")  # fmt: skip
tan = unary("tan", INEXACT, scalar="tan(a)", numpy=np.tan, promotion="float", expensive=True, error=MONOTONIC, derivative=PartialDerivatives(("1 + y * y",)), doc="Tangent of radians.")  # fmt: skip
asin = unary("asin", INEXACT, scalar="asin(a)", numpy=np.arcsin, promotion="float", expensive=True, error=MONOTONIC, derivative=PartialDerivatives(("rsqrt(1 - a * a)",)), doc="Inverse sine, in radians.")  # fmt: skip
acos = unary("acos", INEXACT, scalar="acos(a)", numpy=np.arccos, promotion="float", expensive=True, error=MONOTONIC, derivative=PartialDerivatives(("-rsqrt(1 - a * a)",)), doc="Inverse cosine, in radians.")  # fmt: skip
atan = unary("atan", INEXACT, scalar="atan(a)", numpy=np.arctan, promotion="float", expensive=True, error=lipschitz(1.0), derivative=PartialDerivatives(("1 / (1 + a * a)",)), doc="Inverse tangent, in radians.")  # fmt: skip
sinh = unary(
    "sinh",
    INEXACT,
    scalar="sinh(a)",
    numpy=np.sinh,
    promotion="float",
    expensive=True,
    error=MONOTONIC,
    derivative=PartialDerivatives(("cosh(a)",)),
    doc="Hyperbolic sine.",
)
cosh = unary("cosh", INEXACT, scalar="cosh(a)", numpy=np.cosh, promotion="float", expensive=True, derivative=PartialDerivatives(("sinh(a)",)), doc="Hyperbolic cosine.")  # fmt: skip
asinh = unary("asinh", INEXACT, scalar="asinh(a)", numpy=np.arcsinh, promotion="float", expensive=True, error=lipschitz(1.0), derivative=PartialDerivatives(("rsqrt(a * a + 1)",)), doc="Inverse hyperbolic sine.")  # fmt: skip
acosh = unary("acosh", INEXACT, scalar="acosh(a)", numpy=np.arccosh, promotion="float", expensive=True, error=MONOTONIC, derivative=PartialDerivatives(("rsqrt((a - 1) * (a + 1))",)), doc="Inverse hyperbolic cosine.")  # fmt: skip
atanh = unary("atanh", INEXACT, scalar="atanh(a)", numpy=np.arctanh, promotion="float", expensive=True, error=MONOTONIC, derivative=PartialDerivatives(("1 / (1 - a * a)",)), doc="Inverse hyperbolic tangent.")  # fmt: skip
erfc = unary("erfc", FLOATS, scalar="erfc(a)", numpy=reference_functions.each(math.erfc), promotion="float", expensive=True, derivative=PartialDerivatives(("-1.1283791670955126 * exp(-(a * a))",)), doc="1 minus the error function.")  # fmt: skip
erfinv = unary("erfinv", FLOATS, scalar="erfinv(a)", numpy=reference_functions.each(reference_functions.erfinv), promotion="float", expensive=True, derivative=PartialDerivatives(("0.886226925452758 * exp(y * y)",)), doc="Inverse of the error function.")  # fmt: skip
erfcinv = unary("erfcinv", FLOATS, scalar="erfcinv(a)", numpy=reference_functions.each(reference_functions.erfcinv), promotion="float", expensive=True, derivative=PartialDerivatives(("-0.886226925452758 * exp(y * y)",)), doc="Inverse of 1 minus the error function.")  # fmt: skip
lgamma = unary("lgamma", FLOATS, scalar="lgamma(a)", numpy=reference_functions.each(reference_functions.lgamma), promotion="float", expensive=True, derivative=Tangent(lambda node, given: (given[0] * digamma(node.operands[0]),)), doc="Logarithm of the magnitude of the gamma function.")  # fmt: skip
silu = unary("silu", FLOATS, scalar="a / (1 + exp(-a))", numpy=lambda x: x * reference_functions.sigmoid(x), promotion="float", expensive=True, error=lipschitz(1.1), derivative=PartialDerivatives(("sigmoid(a) * (1 + a * (1 - sigmoid(a)))",)), doc="a * sigmoid(a).")  # fmt: skip
softplus = unary("softplus", FLOATS, scalar="a + log1p(exp(-a)) if a > 0 else log1p(exp(a))", numpy=lambda x: np.logaddexp(x.dtype.type(0), x), promotion="float", expensive=True, error=lipschitz(1.0), derivative=PartialDerivatives(("sigmoid(a)",)), doc="log(1 + exp(a)), without overflow.")  # fmt: skip
reciprocal = unary("reciprocal", INEXACT, scalar="1 / a", numpy=lambda x: 1 / x, promotion="float", exact=True, error=RECIPROCAL, derivative=PartialDerivatives(("-(y * y)",)), doc="1 / a.")  # fmt: skip
frac = unary("frac", FLOATS, scalar="a - trunc(a)", numpy=lambda x: x - np.trunc(x), promotion="float", exact=True, derivative=PartialDerivatives(("1",)), doc="What follows the decimal point, with the sign of a.")  # fmt: skip
rint = unary("rint", INEXACT, scalar="round(a)", numpy=np.rint, promotion="float", exact=True, derivative=FLAT, doc="Nearest integer as a float; halves to the even one.")  # fmt: skip
atan2 = binary("atan2", FLOATS, scalar="atan2(a, b)", numpy=np.arctan2, promotion="float", expensive=True, derivative=PartialDerivatives(("b / (a * a + b * b)", "-a / (a * a + b * b)")), doc="Angle of the point (b, a), in radians.")  # fmt: skip
copysign = binary("copysign", FLOATS, scalar="copysign(a, b)", numpy=np.copysign, promotion="float", exact=True, derivative=PartialDerivatives(("where(signbit(a) == signbit(b), 1, -1)", "")), doc="The magnitude of a with the sign of b.")  # fmt: skip
nextafter = binary("nextafter", FLOATS, scalar="nextafter(a, b)", numpy=np.nextafter, promotion="float", native=True, exact=True, derivative=PartialDerivatives(("1", "")), doc="The number of the type next to a towards b.")  # fmt: skip
lerp = ternary("lerp", FLOATS, scalar="a + c * (b - a) if c < 0.5 else b - (b - a) * (1 - c)", numpy=reference_functions.lerp, promotion="float", derivative=PartialDerivatives(("1 - c", "c", "b - a")), doc="From a to b by the weight c.")  # fmt: skip

# complex numbers and their parts
complex = binary("complex", FLOATS, scalar="complex(a, b)", numpy=reference_functions.from_parts, promotion="float", result="complex", exact=True, error=PARTS, derivative=Linear(transposes.complex), doc="a + i b.")  # fmt: skip
real = unary("real", NUMBERS, scalar="real(a)", numpy=np.real, result="real", exact=True, error=COPY, derivative=Linear(transposes.real), doc="The real part.")  # fmt: skip
imag = unary("imag", NUMBERS, scalar="imag(a)", numpy=np.imag, result="real", exact=True, error=COPY, derivative=Linear(transposes.imag), doc="The imaginary part: 0 for real numbers.")  # fmt: skip
conj = unary("conj", NUMBERS, scalar="a", complex="complex(real(a), -imag(a))", numpy=np.conjugate, exact=True, error=COPY, derivative=Linear(transposes.conj), additive=((0,),), doc="The complex conjugate.")  # fmt: skip
angle = unary("angle", INEXACT, scalar="atan2(imag(a), real(a))", numpy=np.angle, promotion="float", result="real", expensive=True, derivative=Tangent(tangents.angle), doc="The angle to the positive real axis, in radians.")  # fmt: skip

# integers and floats
floor = unary("floor", ORDERED, scalar="floor(a)", integer="a", numpy=np.floor, exact=True, derivative=FLAT, doc="Rounded to minus infinity.")  # fmt: skip
ceil = unary(
    "ceil",
    ORDERED,
    scalar="ceil(a)",
    integer="a",
    numpy=np.ceil,
    exact=True,
    derivative=FLAT,
    doc="Rounded to infinity.",
)
trunc = unary(
    "trunc",
    ORDERED,
    scalar="trunc(a)",
    integer="a",
    numpy=np.trunc,
    exact=True,
    derivative=FLAT,
    doc="Rounded towards zero.",
)
round = unary("round", NUMBERS, scalar="round(a)", integer="a", numpy=np.round, exact=True, derivative=FLAT, doc="Rounded to the nearest integer; halves to the even one.")  # fmt: skip
sign = unary("sign", NUMBERS, scalar="1 if a > 0 else (-1 if a < 0 else (0 if a == 0 else a))", complex="sign(a)", numpy=np.sign, exact=True, derivative=Tangent(tangents.sign), doc="-1, 0 or 1 by the sign, a / abs(a) of complex numbers; NaN stays.")  # fmt: skip
relu = unary("relu", REALS, scalar="0 if a <= 0 else a", numpy=lambda x: np.where(x <= 0, np.zeros_like(x), x), exact=True, error=MAGNITUDE, derivative=PartialDerivatives(("where(a > 0, 1, 0)",)), doc="a where it is positive, else 0; NaN stays.")  # fmt: skip
fmod = binary("fmod", REALS, scalar="truncmod(a, b)", numpy=np.fmod, exact=True, derivative=PartialDerivatives(("1", "-trunc(a / b)")), doc="Remainder with the sign of the dividend; integers by zero give 0.")  # fmt: skip
trunc_divide = binary("trunc_divide", REALS, scalar="trunc(a / b)", integer="truncdiv(a, b)", numpy=reference_functions.trunc_divide, exact=True, on_extents=extent_rules.truncated_quotient, derivative=FLAT, doc="Quotient rounded towards zero; integers by zero give 0.")  # fmt: skip
gcd = binary("gcd", INTEGERS, scalar="gcd(a, b)", numpy=np.gcd, exact=True, doc="Greatest common divisor.")
clamp = ternary("clamp", REALS, scalar="minimum(maximum(a, b), c)", numpy=lambda x, low, high: np.minimum(np.maximum(x, low), high), exact=True, error=SELECTION, derivative=PartialDerivatives(("where((a > b) & (a < c), 1, 0)", "where(a < b, 1, 0)", "where(a > c, 1, 0)")), doc="a, no smaller than b and no larger than c; NaN stays.")  # fmt: skip
checked_range = ternary("checked_range", REALS, scalar="a", numpy=reference_functions.checked_range, exact=True, refused="((0 if a <= c else 1) if a >= b else 1) > 0", refusal=("Python integer out of bounds for an integer type: a computed number is NaN, or not from {b} to {c}", "assign to an array of a wider type, or compute with one"), refusal_type=IntegerRangeError, derivative=FLAT, doc="a, where it is from b to c; another number, or NaN, is an error on the CPU.")  # fmt: skip
threshold = ternary("threshold", REALS, scalar="c if a <= b else a", numpy=lambda x, limit, value: np.where(x <= limit, value, x), exact=True, derivative=PartialDerivatives(("where(a <= b, 0, 1)", "", "where(a <= b, 1, 0)")), doc="a where it is above b, else c.")  # fmt: skip
addcmul = register(
    Pointwise(
        name="addcmul", arity=4, domain=NUMBERS, scalar="a + d * b * c", numpy=lambda a, b, c, value: a + value * b * c,
        exact=True, derivative=PartialDerivatives(("1", "d * c", "d * b", "b * c")), doc="a + d * b * c.",
    )
)  # fmt: skip
left_shift = binary("left_shift", INTEGERS, scalar="a << b", numpy=np.left_shift, exact=True, doc="Bits moved up; by the width or more gives 0.")  # fmt: skip
right_shift = binary("right_shift", INTEGERS, scalar="a >> b", numpy=np.right_shift, exact=True, doc="Bits moved down; the sign fills up.")  # fmt: skip
logical_right_shift = binary("logical_right_shift", INTEGERS, scalar="shr_logical(a, b)", numpy=reference_functions.logical_right_shift, exact=True, doc="Bits moved down; zeros fill up.")  # fmt: skip

# comparisons and logic
eq = binary("eq", ALL, scalar="a == b", numpy=np.equal, result="bool", exact=True, error=COMPARISON, on_extents=extent_rules.equal, derivative=FLAT, doc="a == b.")  # fmt: skip
ne = binary("ne", ALL, scalar="a != b", numpy=np.not_equal, result="bool", exact=True, error=COMPARISON, on_extents=extent_rules.not_equal, derivative=FLAT, doc="a != b.")  # fmt: skip
lt = binary("lt", ALL, scalar="a < b", numpy=np.less, result="bool", exact=True, error=COMPARISON, on_extents=extent_rules.less, derivative=FLAT, doc="a < b; complex numbers are ordered by real, then by imaginary part.")  # fmt: skip
le = binary("le", ALL, scalar="a <= b", numpy=np.less_equal, result="bool", exact=True, error=COMPARISON, on_extents=extent_rules.less_equal, derivative=FLAT, doc="a <= b.")  # fmt: skip
gt = binary("gt", ALL, scalar="a > b", numpy=np.greater, result="bool", exact=True, error=COMPARISON, on_extents=extent_rules.greater, derivative=FLAT, doc="a > b.")  # fmt: skip
ge = binary("ge", ALL, scalar="a >= b", numpy=np.greater_equal, result="bool", exact=True, error=COMPARISON, on_extents=extent_rules.greater_equal, derivative=FLAT, doc="a >= b.")  # fmt: skip
bitwise_and = binary("bitwise_and", LOGICAL, scalar="a & b", numpy=np.bitwise_and, exact=True, doc="Bitwise and.")
bitwise_or = binary("bitwise_or", LOGICAL, scalar="a | b", numpy=np.bitwise_or, exact=True, doc="Bitwise or.")
bitwise_xor = binary(
    "bitwise_xor", LOGICAL, scalar="a ^ b", numpy=np.bitwise_xor, exact=True, doc="Bitwise exclusive or."
)
bitwise_not = unary("bitwise_not", LOGICAL, scalar="~a", numpy=np.invert, exact=True, doc="Bitwise complement.")
logical_and = binary("logical_and", (bool_,), scalar="a & b", numpy=np.logical_and, promotion="bool", exact=True, derivative=FLAT, doc="Both true.")  # fmt: skip
logical_or = binary("logical_or", (bool_,), scalar="a | b", numpy=np.logical_or, promotion="bool", exact=True, derivative=FLAT, doc="Either true.")  # fmt: skip
logical_not = unary("logical_not", (bool_,), scalar="~a", numpy=np.logical_not, promotion="bool", exact=True, derivative=FLAT, doc="Not true.")  # fmt: skip
isnan = unary("isnan", INEXACT, scalar="isnan(a)", numpy=np.isnan, result="bool", promotion="float", exact=True, derivative=FLAT, doc="Whether a is not a number.")  # fmt: skip
isfinite = unary("isfinite", INEXACT, scalar="isfinite(a)", numpy=np.isfinite, result="bool", promotion="float", exact=True, derivative=FLAT, doc="Whether a is neither infinite nor NaN.")  # fmt: skip

isinf = unary("isinf", INEXACT, scalar="isinf(a)", numpy=np.isinf, result="bool", promotion="float", exact=True, derivative=FLAT, doc="Whether a is infinite.")  # fmt: skip
isposinf = unary("isposinf", FLOATS, scalar="isinf(a) & (a > 0)", numpy=np.isposinf, result="bool", promotion="float", exact=True, derivative=FLAT, doc="Whether a is infinity.")  # fmt: skip
isneginf = unary("isneginf", FLOATS, scalar="isinf(a) & (a < 0)", numpy=np.isneginf, result="bool", promotion="float", exact=True, derivative=FLAT, doc="Whether a is minus infinity.")  # fmt: skip
isreal = unary("isreal", ALL, scalar="imag(a) == 0", numpy=np.isreal, result="bool", exact=True, derivative=FLAT, doc="Whether a has no imaginary part.")  # fmt: skip
signbit = unary("signbit", FLOATS, scalar="signbit(a)", numpy=np.signbit, result="bool", promotion="float", exact=True, derivative=FLAT, doc="Whether the sign is negative, of zero and NaN too.")  # fmt: skip

# selection and conversion
where = ternary("where", ALL, scalar="b if a else c", numpy=np.where, promotion="where", exact=True, error=CHOICE, derivative=Linear(transposes.where, operands=(1, 2)), additive=((1, 2),), doc="b where a is true, else c.")  # fmt: skip
cast = unary("cast", ALL, scalar="a", numpy=lambda x: x, result="dtype", exact=True, attributes=(("dtype", None),), error=COPY, on_extents=extent_rules.same, derivative=Linear(transposes.copy), doc="Conversion to `dtype`; a cast rounds also inside a kernel.")  # fmt: skip
set = unary("set", ALL, scalar="a", numpy=lambda x: x, exact=True, distinct=True, error=COPY, on_extents=extent_rules.same, into=array_functions.copy_into, printed=printed_calls.print_set, derivative=Linear(transposes.copy), additive=((0,),), doc="A copy.")  # fmt: skip
ordered_set = unary("ordered_set", ALL, scalar="a", numpy=lambda x: x, exact=True, distinct=True, error=COPY, on_extents=extent_rules.same, derivative=Linear(transposes.copy), additive=((0,),), doc="A copy whose elements have the order in memory of the operand's.")  # fmt: skip
segment_set = unary("segment_set", ALL, scalar="a", numpy=lambda x: x, exact=True, distinct=True, ends_segment=True, error=COPY, derivative=Linear(transposes.copy), doc="A copy that ends a segment.")  # fmt: skip
float32_of_bits = unary("float32_of_bits", (int32, uint32), scalar="bitcast_f32(a)", numpy=lambda x: x.view(np.float32), result=float32, exact=True, doc="The float32 with the bits of an integer.")  # fmt: skip
float64_of_bits = unary("float64_of_bits", (int64, uint64), scalar="bitcast_f64(a)", numpy=lambda x: x.view(np.float64), result=float64, exact=True, doc="The float64 with the bits of an integer.")  # fmt: skip
bits_of_float32 = unary("bits_of_float32", (float32,), scalar="bitcast_i32(a)", numpy=lambda x: x.astype(np.float32).view(np.int32), result=int32, exact=True, doc="The bits of a float32 as an int32.")  # fmt: skip
bits_of_float64 = unary("bits_of_float64", (float64,), scalar="bitcast_i64(a)", numpy=lambda x: x.astype(np.float64).view(np.int64), result=int64, exact=True, doc="The bits of a float64 as an int64.")  # fmt: skip
iota = register(
    Pointwise(
        name="iota", arity=2, domain=NUMBERS, scalar="a + rounded_product(b, index)", exact=True,
        numpy=lambda start, step, length: start + step * np.arange(length),
        attributes=(("length", 0),), extra_shape=lambda attributes: (attributes["length"],),
        error=SEQUENCE, printed=printed_calls.print_iota, doc="start, start + step, ... : `length` elements.",
    )
)  # fmt: skip
extent = register(
    Pointwise(
        name="extent", arity=0, domain=INTEGERS, scalar="value", numpy=lambda value: np.int64(value), exact=True,
        attributes=(("value", 0),), error=CONSTANT, printed=printed_calls.print_extent,
        doc="The integer that an expression of extents is, as a host scalar.",
    )
)  # fmt: skip
