"""The expressions of the kernel IR: constants, variables, loads, casts, and calls of primitives.

`PRIMITIVES` lists the primitives; both emitters and the interpreter implement each of them. Expressions have no side
effects, and each has a dtype. `kernel_ir` has the statements and kernels, and exports the expressions with them.
"""

from __future__ import annotations

from typing import TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.errors import InternalError

# ---------------------------------------------------------------------------------------------------------------------
# primitives

# The number of arguments of each primitive. kernel/primitives.py holds the reference implementations.
# Arithmetic keeps the dtype of its arguments, which are all equal; comparisons and predicates return bool;
# `select(c, a, b)` takes a bool and two values of one dtype. Primitives are defined for all arguments: x // 0 and x % 0
# are 0, the smallest integer // -1 wraps, shifts by the width or more give 0 (or the sign), and a cast from float to
# int saturates and maps NaN to 0.
PRIMITIVES: dict[str, int] = {
    # arithmetic; `div` takes floats only; integer add, sub, mul, neg and abs wrap
    **dict.fromkeys(("add", "sub", "mul", "div"), 2),
    **dict.fromkeys(("neg", "abs"), 1),
    # integers: `floordiv` and `mod` round toward minus infinity, `truncdiv` and `truncmod` toward zero.
    # floats: `floordiv` and `mod` are NumPy's floor_divide and remainder, `truncmod` is fmod
    **dict.fromkeys(("floordiv", "mod", "truncdiv", "truncmod"), 2),
    # `minimum` and `maximum` propagate NaN from either side; the order of -0.0 and +0.0 is unspecified
    **dict.fromkeys(("minimum", "maximum"), 2),
    # comparisons; bool results
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne"), 2),
    # bools and integers
    **dict.fromkeys(("and", "or", "xor", "shl", "shr", "shr_logical"), 2),
    "not": 1,
    "select": 3,
    # floats
    **dict.fromkeys(
        (
            *("sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
            *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
            *("erf", "erfc", "erfinv", "erfcinv", "lgamma", "floor", "ceil", "round", "trunc"),
        ),
        1,
    ),
    # exp of a non-positive argument, as a term of a sum of at least 1: its relative error is up to (1 + |x|) / 2**22,
    # and a subnormal result is 0
    "exp_term": 1,
    # 2 to the power of a non-positive argument, as a term of such a sum: relative error 1 / 2**22, subnormal results 0
    "exp2_term": 1,
    **dict.fromkeys(("atan2", "nextafter", "copysign"), 2),
    # floats and integers; integer powers wrap, and a negative exponent gives the truncated reciprocal (0 for base 0)
    "pow": 2,
    # integers; the greatest common divisor, which is negative only if it overflows to the smallest integer
    "gcd": 2,
    # int64; a // d for 0 <= a < 2**31 by the inverse 2**62 // d + 1: the low 32 bits of a times the inverse, both
    # unsigned, shifted right by 62 bits
    "fast_divide": 2,
    **dict.fromkeys(("isnan", "isinf", "isfinite", "signbit"), 1),
    # `rounded_product(a, b)` is a * b rounded, with which no addition is contracted, regardless of `contract`
    "rounded_product": 2,
    # `fma(a, b, c)` is a * b + c rounded once, regardless of `contract`
    "fma": 3,
    # reinterprets the bits of a float as an integer of the same width, or back; the call gives the result dtype
    "bitcast": 1,
}
# Primitives of complex numbers, in kernels under construction only: real part, imaginary part, complex from parts, and
# a / abs(a). Arithmetic and float functions also take complex numbers there, and `abs` of one is real.
# passes/split_complex.py replaces them by arithmetic on the parts before an emitter or the interpreter sees the kernel.
COMPLEX_PRIMITIVES: dict[str, int] = {"real": 1, "imag": 1, "complex": 2, "sign": 1}
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf", "isfinite", "signbit"})


# ---------------------------------------------------------------------------------------------------------------------
# expressions


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal. `value` is a Python bool, int, float (also inf, nan) or complex, exact in `dtype`."""

    value: bool | int | float | complex
    dtype: DType


@dataclass(frozen=True, slots=True)
class Variable:
    """A named scalar: a parameter, a loop index, a let or a mutable."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Buffer:
    """A flat buffer.

    space: "global" (a parameter), "shared" (one per block) or "local" (one per thread; in registers if the size is
        constant).
    size: in elements: an int, an expression of parameters (CPU local buffers only), or None for a parameter.
    alignment: the guaranteed alignment of element 0, in bytes.
    packed: elements may be unaligned, as in a slice of raw bytes; read-only.
    written: the kernel stores to the buffer.
    exclusive: no other buffer of the kernel aliases this memory (`restrict` in C).
    positions: the elements are positions in loops and arrays, whose arithmetic does not overflow.
    """

    name: str
    dtype: DType
    space: str = "global"
    size: int | Expression | None = None
    alignment: int = 1
    written: bool = False
    exclusive: bool = True
    packed: bool = False
    positions: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """Element `index` of `buffer`. cache: "default" or "streaming" (read once)."""

    buffer: Buffer
    index: Expression
    cache: str = "default"

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype


@dataclass(frozen=True, slots=True)
class Call:
    """A primitive applied to arguments."""

    name: str
    arguments: tuple[Expression, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion by value: rounds to nearest even, saturates from float to int, compares with zero for bool."""

    argument: Expression
    dtype: DType


Expression: TypeAlias = Constant | Variable | Load | Call | Cast


def call(name: str, *arguments: Expression, dtype: DType | None = None) -> Call:
    """Return a checked Call. The primitive determines the result dtype unless `dtype` is given, as `bitcast` requires.

    Raises InternalError for a wrong number of arguments or arguments of different dtypes.
    """
    wanted = PRIMITIVES.get(name, COMPLEX_PRIMITIVES.get(name))
    if wanted != len(arguments):
        raise InternalError(f"kernel IR: {name} takes {wanted} arguments, got {len(arguments)}")
    values = arguments[1:] if name == "select" else arguments
    if len({a.dtype for a in values}) > 1:
        raise InternalError(f"kernel IR: {name} of {', '.join(a.dtype.name for a in arguments)}: types differ")
    if dtype is None:
        dtype = dtypes.bool_ if name in COMPARISONS else _result_type(name, values[0].dtype)
    return Call(name, arguments, dtype)


def _result_type(name: str, argument: DType) -> DType:
    """Return the argument's dtype, or its real or complex counterpart for primitives that change between the two."""
    if name == "complex":
        return argument.complex
    return argument.real if name in ("real", "imag", "abs") else argument
