"""Float32 functions computed in float64, and functions that call the C library.

A float32 function computed in float64 by a formula accurate to 1e-10 is correctly rounded except for rare ties (0.50
ulp), needs little care about cancellation, and still vectorizes. Calls of the C library run one element at a time.
Coefficients are fitted as in `kernel/llvm/float32_math.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tracefuse.caches import memoized
from tracefuse.kernel.llvm.text_builder import LlvmFunctions, LlvmValue, float_literal

FUNCTIONS = LlvmFunctions()
_INFINITY, _NAN = float("inf"), float("nan")


def _exp(x: LlvmValue) -> LlvmValue:
    return x.builder.function("tf.exp.double", "double", x)


def _log(x: LlvmValue) -> LlvmValue:
    return x.builder.function("tf.log.double", "double", x)


def _sqrt(x: LlvmValue) -> LlvmValue:
    return x.builder.intrinsic("sqrt", x)


def _wide(name: str, arguments: int = 1) -> Callable[[Callable[..., LlvmValue]], Callable[..., LlvmValue]]:
    """Return a decorator that defines float32 function `name` by a builder on the arguments widened to float64."""

    def register(build: Callable[..., LlvmValue]) -> Callable[..., LlvmValue]:
        def narrow(*arguments: LlvmValue) -> LlvmValue:
            return build(*(a.convert("fpext", "double") for a in arguments)).convert("fptrunc", "float")

        FUNCTIONS.define(f"tf.{name}.float", "float", *["float"] * arguments)(narrow)
        return build

    return register


# ---------------------------------------------------------------------------------------------------------------------
# trigonometry of float32


@memoized("the table that reduces large angles", key="none", most=1)
def _two_over_pi() -> tuple[list[float], list[float]]:
    """2 / pi * 2**(e - 150) modulo 4 for each exponent field e of a float32, as a part of 29 bits and the rest.

    pi from Machin's formula pi / 4 = 4 atan(1/5) - atan(1/239) in integers of 512 bits.
    """
    unit = 1 << 512

    def arctangent(inverse: int) -> int:
        term, total, n = unit // inverse, 0, 0
        while term:
            total += (-1) ** n * (term // (2 * n + 1))
            term //= inverse * inverse
            n += 1
        return total

    ratio = 2 * unit * unit // (4 * (4 * arctangent(5) - arctangent(239)))
    high, low = [], []
    for exponent in range(255):
        shift = 512 - (exponent - 150)
        value = ratio % (1 << (shift + 2))
        rest = max(value.bit_length() - 29, 0)
        first = value >> rest << rest
        high.append(math.ldexp(float(value >> rest), rest - shift))
        low.append(_ratio(value - first, shift))
    return [*high, _NAN], [*low, 0.0]


def _ratio(value: int, shift: int) -> float:
    """Return value / 2**shift, rounded."""
    spare = max(value.bit_length() - 64, 0)
    return math.ldexp(float(value >> spare), spare - shift)


def _table(x: LlvmValue, name: str, values: list[float], index: LlvmValue) -> LlvmValue:
    listed = ", ".join(f"double {float_literal(v, 'double')}" for v in values)
    x.builder.declarations[name] = f"@{name} = internal constant [{len(values)} x double] [{listed}], align 64"
    place = x.builder.emit(f"getelementptr inbounds double, ptr @{name}, {index}", "ptr")
    return x.builder.emit(f"load double, {place}, align 8", "double")


def _quadrant(x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """|x| of a float32 modulo pi / 2: the remainder in [-0.89, 0.89] and the quadrant, right for every float32.

    With |x| = m 2**e, m a 24-bit integer, m times the tabled 2 / pi 2**e modulo 4 is exact but for the small part.
    """
    bits = x.bits()
    exponent = bits.logical_shift(23) & 0xFF
    normal = exponent.compare("ne", 0)
    mantissa = (bits & 0x7FFFFF) | normal.select(bits.like(0x800000), 0)
    row = normal.select(exponent, 1).convert("zext", "i64")
    m = mantissa.convert("uitofp", "double")
    high, low = _two_over_pi()
    product = m * _table(x, "tf.two.over.pi.high", high, row)
    shifted = product + 6755399441055744.0
    turns = product - (shifted - 6755399441055744.0)
    remainder = m.fused(_table(x, "tf.two.over.pi.low", low, row), turns)
    return remainder * (math.pi / 2), shifted.bits().convert("trunc", "i32")


def _sine_cosine(r: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    z = r * r
    sine = (z * r).fused(
        r.builder.polynomial(
            z, (-0.16666666659039828, 0.008333330251681417, -0.00019839322928473838, 2.716320225667029e-06)
        ),
        r,
    )
    tail = r.builder.polynomial(
        z, (0.041666666660301735, -0.0013888886317174678, 2.47999627548671e-05, -2.722856111761589e-07)
    )
    return sine, (z * z).fused(tail, z.fused(-0.5, 1.0))


@FUNCTIONS.define("tf.sin.float", "float", "float")
def sin(x: LlvmValue) -> LlvmValue:
    r, quadrant = _quadrant(x)
    sine, cosine = _sine_cosine(r)
    result = (quadrant & 1).compare("ne", 0).select(cosine, sine).convert("fptrunc", "float")
    sign = ((quadrant & 2) << 30) ^ (x.bits() & -0x80000000)
    return (result.bits() ^ sign).convert("bitcast", "float")


@FUNCTIONS.define("tf.cos.float", "float", "float")
def cos(x: LlvmValue) -> LlvmValue:
    r, quadrant = _quadrant(x)
    sine, cosine = _sine_cosine(r)
    result = (quadrant & 1).compare("ne", 0).select(sine, cosine).convert("fptrunc", "float")
    return (result.bits() ^ (((quadrant + 1) & 2) << 30)).convert("bitcast", "float")


@FUNCTIONS.define("tf.tan.float", "float", "float")
def tan(x: LlvmValue) -> LlvmValue:
    r, quadrant = _quadrant(x)
    sine, cosine = _sine_cosine(r)
    odd = (quadrant & 1).compare("ne", 0)
    result = (odd.select(-cosine, sine) / odd.select(sine, cosine)).convert("fptrunc", "float")
    return (result.bits() ^ (x.bits() & -0x80000000)).convert("bitcast", "float")


# ---------------------------------------------------------------------------------------------------------------------
# error functions


@_wide("erfc")
def erfc(x: LlvmValue) -> LlvmValue:
    """exp(-x**2) p(t) / (1 + 2 x) for x > 0 with t = (x - 4) / (x + 4), p fitted to (1 + 2 x) exp(x**2) erfc(x) on
    x in [0, 10.2], where erfc leaves float32; 2 - erfc(-x) for x < 0."""
    a = x.absolute()
    a = a.compare("ogt", 10.5).select(10.5, a)
    t = (a - 4.0) / (a + 4.0)
    p = x.builder.polynomial(
        t,
        (
            *(1.2329951186257697, -0.13962111686105985, 0.01537965206074247, 0.06809705601106492),
            *(-0.10103906376100556, 0.09373279270179215, -0.06633042744441132, 0.03716793252226349),
            *(-0.016196952279313385, 0.005030268645772089, -0.0007622915580980001, -0.0001979365635987808),
            *(0.00016113238636992483, -1.814558890440533e-05, -1.631716449570692e-05),
        ),
    )
    result = _exp(-(a * a)) * p / a.fused(2.0, 1.0)
    return x.compare("olt", 0.0).select(2.0 - result, result)


def _erfinv(x: LlvmValue) -> LlvmValue:
    """Winitzki's approximation ("A handy approximation for the error function and its inverse", 2008; 0.2 %), then
    three of Halley's steps on erf, or on erfc where |x| is near 1."""
    builder = x.builder
    a = x.absolute()
    logarithm = _log((1.0 - a) * (a + 1.0))
    c = 0.147
    half = logarithm.fused(0.5, 2 / (math.pi * c))
    y = _sqrt(_sqrt(half * half - logarithm * (1 / c)) - half)
    y = a.compare("olt", 0.1).select(a * (math.sqrt(math.pi) / 2), y)
    near = a.compare("olt", 0.5)
    for _ in range(3):
        below = builder.external("erf", "double", y) - a
        above = (1.0 - a) - builder.external("erfc", "double", y)
        step = near.select(below, above) * (math.sqrt(math.pi) / 2) / _exp(-(y * y))
        y = y - step / y.fused(step, 1.0)
    y = a.compare("oeq", 1.0).select(_INFINITY, y)
    return builder.intrinsic("copysign", y, x)


FUNCTIONS.define("tf.erfinv.double", "double", "double")(_erfinv)
_wide("erfinv")(_erfinv)


def _erfcinv_of_tiny(a: LlvmValue) -> LlvmValue:
    """Use the asymptotic series of log(erfc), where erfc has few digits; each iteration adds three digits."""
    logarithm = -_log(a)
    y = _sqrt(logarithm)
    for _ in range(6):
        z = 0.5 / (y * y)
        series = a.builder.polynomial(z, (1.0, -1.0, 3.0, -15.0, 105.0, -945.0))
        y = _sqrt(logarithm - _log(y * math.sqrt(math.pi) / series))
    return y


def _erfcinv(x: LlvmValue) -> LlvmValue:
    """As erfinv, for the smaller of x and 2 - x: Halley's steps on erfc, which is steep in the logarithm only, so that
    the last of them still counts for the smallest arguments."""
    builder = x.builder
    a = x.compare("ogt", 1.0).select(2.0 - x, x)
    logarithm = _log(a * (2.0 - a))
    c = 0.147
    half = logarithm.fused(0.5, 2 / (math.pi * c))
    y = _sqrt(_sqrt(half * half - logarithm * (1 / c)) - half)
    y = a.compare("ogt", 0.9).select((1.0 - a) * (math.sqrt(math.pi) / 2), y)
    near = a.compare("ogt", 0.5)
    for _ in range(6):
        below = builder.external("erf", "double", y) - (1.0 - a)
        above = a - builder.external("erfc", "double", y)
        slope = _exp(-(y * y))
        moved = near.select(below, above) * (math.sqrt(math.pi) / 2) / slope
        step = slope.compare("oeq", 0.0).select(0.0, moved)
        y = y - step / y.fused(step, 1.0)
    y = a.compare("olt", 1e-290).select(_erfcinv_of_tiny(a), y)
    y = a.compare("oeq", 0.0).select(_INFINITY, y)
    return x.compare("ogt", 1.0).select(-y, y)


FUNCTIONS.define("tf.erfcinv.double", "double", "double")(_erfcinv)
_wide("erfcinv")(_erfcinv)


# ---------------------------------------------------------------------------------------------------------------------
# the C library


def _library(name: str) -> Callable[..., LlvmValue]:
    return lambda *arguments: arguments[0].builder.external(name, "double", *arguments)


_wide("lgamma")(_library("lgamma"))
for _name in ("erfc", "lgamma"):
    FUNCTIONS.define(f"tf.{_name}.double", "double", "double")(_library(_name))
