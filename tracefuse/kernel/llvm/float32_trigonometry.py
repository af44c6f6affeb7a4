"""Float32 trigonometry for every argument: float32 polynomials, and float64 with a table for large angles.

Coefficients are fitted and errors stated as in `kernel/llvm/float32_math.py`.
"""

from __future__ import annotations

import math

from tracefuse.caches import memoized
from tracefuse.kernel.llvm.circle_constants import two_over_pi_scaled
from tracefuse.kernel.llvm.double_words import Words, fma, two_product
from tracefuse.kernel.llvm.text_builder import LlvmFunctions, LlvmValue, float_literal

FUNCTIONS = LlvmFunctions()
_NAN = float("nan")
_MOST = 131072.0
"""The largest angle that float32 reduces. Quarter turns up to it have 17 bits."""
# pi / 2 as a sum of three float32 numbers; each is a multiple of the last bit of the one before it.
_HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
# (sin(r) - r) / r**3 and (cos(r) - 1 + r**2 / 2) / r**4 as polynomials in r**2 on [0, pi / 4].
_SINE = (-0.16666666663373741, 0.008333331691203202, -0.000198399895773847, 2.7237577241177232e-06)
_COSINE = (0.04166666440691311, -0.0013888254915538887, 2.4537750767028216e-05)
# (tan(r) - r) / r**3 as a ratio of two such polynomials: the first, and (the second - 1) / r**2.
_TANGENT_ABOVE = (0.33333333213269156, -0.014896323398882836)
_TANGENT_BELOW = (-0.4446890226664594, 0.015971078975532697)


def _quadrant(x: LlvmValue) -> tuple[Words, LlvmValue]:
    """x modulo pi / 2 for |x| up to _MOST: the remainder in [-0.8, 0.8] and the quadrant, an i32.

    The first difference is exact, and so is `near - high`: either the two differences cancel, or `near` exceeds the
    product, or it is a multiple of a coarser unit. The third product counts only for the lower word.
    """
    shifted = x.fused(2 / math.pi, 12582912.0)
    n = shifted - 12582912.0
    near = fma(n, n.like(-_HALF_PI[0]), x)
    second = two_product(n, n.like(_HALF_PI[1]))
    high = near - second.high
    low = ((near - high) - second.high) - second.low
    return Words(high, n.fused(-_HALF_PI[2], low)), shifted.bits()


def _sine_cosine(r: Words) -> tuple[LlvmValue, LlvmValue]:
    z = r.high * r.high
    sine = r.high + (z * r.high).fused(z.builder.polynomial(z, _SINE), r.low)
    half = z * 0.5
    near = 1.0 - half
    lost = (1.0 - near) - half
    return sine, near + (z * z).fused(z.builder.polynomial(z, _COSINE), (r.high * r.low).fused(-1.0, lost))


def _with_sign(result: LlvmValue, sign: LlvmValue) -> LlvmValue:
    return (result.bits() ^ sign).convert("bitcast", "float")


def _is_large(x: LlvmValue) -> LlvmValue:
    """Whether |x| exceeds _MOST; true for NaN."""
    return x.absolute().compare("ugt", _MOST)


@FUNCTIONS.define("tf.sin.float", "float", "float")
def sin(x: LlvmValue) -> LlvmValue:
    """0.6 ulp."""
    r, quadrant = _quadrant(x)
    sine, cosine = _sine_cosine(r)
    result = _with_sign((quadrant & 1).compare("ne", 0).select(cosine, sine), (quadrant & 2) << 30)
    result = x.compare("oeq", 0.0).select(x, result)
    return x.builder.replaced_if_rare(_is_large(x), "tf.sin.large.float", result, x)


@FUNCTIONS.define("tf.cos.float", "float", "float")
def cos(x: LlvmValue) -> LlvmValue:
    """0.6 ulp."""
    r, quadrant = _quadrant(x)
    sine, cosine = _sine_cosine(r)
    result = _with_sign((quadrant & 1).compare("ne", 0).select(sine, cosine), ((quadrant + 1) & 2) << 30)
    return x.builder.replaced_if_rare(_is_large(x), "tf.cos.large.float", result, x)


@FUNCTIONS.define("tf.tan.float", "float", "float")
def tan(x: LlvmValue) -> LlvmValue:
    """A ratio of two polynomials, or minus its inverse. 1.8 ulp."""
    r, quadrant = _quadrant(x)
    z = r.high * r.high
    above = (z * r.high) * x.builder.polynomial(z, _TANGENT_ABOVE)
    below = z.fused(x.builder.polynomial(z, _TANGENT_BELOW), 1.0)
    near = r.high + (above / below + r.low)
    result = (quadrant & 1).compare("ne", 0).select(-1.0 / near, near)
    result = x.compare("oeq", 0.0).select(x, result)
    return x.builder.replaced_if_rare(_is_large(x), "tf.tan.large.float", result, x)


# ---------------------------------------------------------------------------------------------------------------------
# large angles


@memoized("the table that reduces large angles", key="none", most=1, clears=False)
def _two_over_pi() -> tuple[list[float], list[float]]:
    """2 / pi * 2**(e - 150) modulo 4 for each exponent field e of a float32, as a part of 29 bits and the rest."""
    ratio = two_over_pi_scaled(512)
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


def _large_quadrant(x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
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


def _large_sine_cosine(r: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
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


@FUNCTIONS.define_rare("tf.sin.large.float", "float", "float")
def _large_sin(x: LlvmValue) -> LlvmValue:
    r, quadrant = _large_quadrant(x)
    sine, cosine = _large_sine_cosine(r)
    result = (quadrant & 1).compare("ne", 0).select(cosine, sine).convert("fptrunc", "float")
    sign = ((quadrant & 2) << 30) ^ (x.bits() & -0x80000000)
    return (result.bits() ^ sign).convert("bitcast", "float")


@FUNCTIONS.define_rare("tf.cos.large.float", "float", "float")
def _large_cos(x: LlvmValue) -> LlvmValue:
    r, quadrant = _large_quadrant(x)
    sine, cosine = _large_sine_cosine(r)
    result = (quadrant & 1).compare("ne", 0).select(sine, cosine).convert("fptrunc", "float")
    return (result.bits() ^ (((quadrant + 1) & 2) << 30)).convert("bitcast", "float")


@FUNCTIONS.define_rare("tf.tan.large.float", "float", "float")
def _large_tan(x: LlvmValue) -> LlvmValue:
    r, quadrant = _large_quadrant(x)
    sine, cosine = _large_sine_cosine(r)
    odd = (quadrant & 1).compare("ne", 0)
    result = (odd.select(-cosine, sine) / odd.select(sine, cosine)).convert("fptrunc", "float")
    return (result.bits() ^ (x.bits() & -0x80000000)).convert("bitcast", "float")
