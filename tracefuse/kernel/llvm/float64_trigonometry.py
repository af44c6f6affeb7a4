"""Vectorizable float64 trigonometry: sin, cos, tan and their inverses, for every argument.

Stated errors are the largest measured against 64-bit extended precision, in ulp. Coefficients are fitted as in
`kernel/llvm/float32_math.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tracefuse.caches import memoized
from tracefuse.kernel.llvm.circle_constants import two_over_pi_scaled
from tracefuse.kernel.llvm.double_words import Words, fast_two_sum, fma, quotient, two_product, two_sum
from tracefuse.kernel.llvm.text_builder import LlvmFunctions, LlvmValue, float_literal

FUNCTIONS = LlvmFunctions()
_INFINITY = float("inf")
# pi / 2 as a sum of three doubles; each is a multiple of the last bit of the one before it.
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
_MOST = 2.0**26
"""The largest angle that is reduced without a table."""
# pi / 4 in two parts; the first has 50 bits, so that its products with small integers are exact.
_QUARTER_PI = (0.7853981633974483, 3.061616997868383e-17)
# (sin(r) - r) / r**3 and (cos(r) - 1 + r**2 / 2) / r**4 as polynomials in r**2 on [0, pi / 4].
_SINE = (
    *(-0.16666666666666666, 0.008333333333333331, -0.00019841269841265003, 2.7557319219291695e-06),
    *(-2.5052106215978872e-08, 1.6058529011960858e-10, -7.586543634101903e-13),
)
_COSINE = (
    *(0.041666666666666664, -0.0013888888888887378, 2.4801587298736863e-05, -2.755731725679604e-07),
    *(2.087614315990944e-09, -1.1382408754153254e-11),
)
# tan(r) / r as a ratio of two polynomials in r**2 on [0, pi / 4]: (above - 1) / r**2 and (below - 1) / r**2.
_TANGENT_ABOVE = (-0.13338311148311333, 0.0034248406569709244, -1.7860916027761768e-05)
_TANGENT_BELOW = (-0.46671644481644667, 0.02566365559578655, -0.00031180744068517225, 4.981563213176195e-07)
# (atan(t) - t) / t**3 as a polynomial in t**2 on [0, 1/4].
_ARCTANGENT = (
    *(-0.3333333333333333, 0.19999999999999968, -0.1428571428570617, 0.11111111110275738, -0.09090909045918692),
    *(0.07692306236122758, -0.06666636006378057, 0.05881912329940367, -0.052587105453944225, 0.04729905909510771),
    *(-0.04183153509510544, 0.033981740133639804, -0.021675579976416733, 0.0076520459271551605),
)
# (asin(x) - x) / x**3 as a polynomial in x**2 on [0, 1/4].
_ARCSINE = (
    *(0.16666666666666666, 0.07500000000000119, 0.04464285714255019, 0.030381944475693704, 0.022372157435623815),
    *(0.017352816768546473, 0.013963775787848137, 0.011566511821890942, 0.00962140274734483, 0.009322101501082774),
    *(0.0030350071727267623, 0.019579201619744684, -0.019277545928584557, 0.02963502626354855),
)

# ---------------------------------------------------------------------------------------------------------------------
# reduction modulo pi / 2

EXPONENTS_OF_ROW = 8
_ROWS = 2048 // EXPONENTS_OF_ROW
_WORDS = 4


@memoized("the table that reduces large angles of float64", key="none", most=1, clears=False)
def two_over_pi() -> tuple[float, ...]:
    """2 / pi * 2**(8 row - 1075) modulo 4, between -2 and 2, for each row, as a sum of four doubles."""
    ratio = two_over_pi_scaled(1400)
    words = []
    for row in range(_ROWS):
        places = 1400 - (EXPONENTS_OF_ROW * row - 1075)
        rest = ratio % (1 << (places + 2))
        rest -= (rest >> (places + 1)) << (places + 2)
        for _ in range(_WORDS):
            spare = max(rest.bit_length() - 53, 0)
            rounded = (rest + (1 << spare >> 1)) >> spare
            words.append(math.ldexp(float(rounded), spare - places))
            rest -= rounded << spare
    return tuple(words)


def _row(x: LlvmValue, row: LlvmValue) -> list[LlvmValue]:
    name, size = "tf.two.over.pi.double", _ROWS * _WORDS
    listed = ", ".join(f"double {float_literal(v, 'double')}" for v in two_over_pi())
    x.builder.declarations[name] = f"@{name} = internal constant [{size} x double] [{listed}], align 64"
    words = []
    for word in range(_WORDS):
        place = x.builder.emit(f"getelementptr inbounds double, ptr @{name}, {row * _WORDS + word}", "ptr")
        words.append(x.builder.emit(f"load double, {place}, align 8", "double"))
    return words


def _modulo_four(x: LlvmValue) -> LlvmValue:
    return x - x.builder.intrinsic("rint", x * 0.25) * 4.0


def _total(first: LlvmValue, terms: Sequence[LlvmValue]) -> Words:
    """Return a sum, added in order with the errors of all additions."""
    total, low = first, first.like(0.0)
    for term in terms:
        total, error = two_sum(total, term)
        low = low + error
    return fast_two_sum(total, low)


def _large_quadrant(x: LlvmValue) -> tuple[Words, LlvmValue]:
    """|x| modulo pi / 2: the remainder in [-pi / 4, pi / 4] and the quadrant, an i64.

    With |x| = m 2**(8 row - 1075), m an integer below 2**60, m times each word of the row is a sum of two doubles, of
    which the first three reach beyond 4.
    """
    bits = x.bits()
    exponent = bits.logical_shift(52) & 0x7FF
    m = ((bits & 0xFFFFFFFFFFFFF) | (((exponent & 7) + 1075) << 52)).convert("bitcast", "double")
    first, second, third, fourth = _row(x, exponent.logical_shift(3))
    first_product, second_product, third_product = two_product(m, first), two_product(m, second), two_product(m, third)
    large = two_sum(_modulo_four(first_product.high), _modulo_four(first_product.low))
    turns = two_sum(large.high, _modulo_four(second_product.high))
    shifted = turns.high + 6755399441055744.0
    fraction = turns.high - (shifted - 6755399441055744.0)
    rest = _total(large.low, (turns.low, second_product.low, third_product.high))
    tail = rest.low + fma(m, fourth, third_product.low)
    near = two_sum(fraction, rest.high)
    near = Words(near.high, near.low + tail)
    scaled = two_product(near.high, _HALF_PI[0])
    low = scaled.low + near.high.fused(_HALF_PI[1], near.low * _HALF_PI[0])
    return fast_two_sum(scaled.high, low), shifted.bits()


def _sine(r: Words, z: LlvmValue) -> Words:
    """sin(r) on [-pi / 4, pi / 4]; z: r**2."""
    tail = (z * r.high) * z.builder.polynomial(z, _SINE)
    return fast_two_sum(r.high, tail + z.fused(-0.5, 1.0) * r.low)


def _cosine(r: Words, z: LlvmValue) -> Words:
    """cos(r) on [-pi / 4, pi / 4]; z: r**2."""
    half = z * 0.5
    near = 1.0 - half
    lost = (1.0 - near) - half + fma(r.high, r.high, -z) * -0.5
    return fast_two_sum(near, lost + (z * z).fused(z.builder.polynomial(z, _COSINE), -(r.high * r.low)))


def _quadrant(x: LlvmValue) -> tuple[Words, LlvmValue]:
    """The same for |x| up to _MOST, by the steps of `kernel/llvm/float32_trigonometry.py`."""
    a = x.absolute()
    shifted = a.fused(2 / math.pi, 6755399441055744.0)
    n = shifted - 6755399441055744.0
    near = fma(n, -_HALF_PI[0], a)
    second = two_product(n, n.like(_HALF_PI[1]))
    high = near - second.high
    low = ((near - high) - second.high) - second.low
    return Words(high, n.fused(-_HALF_PI[2], low)), shifted.bits()


def _sine_cosine(r: Words) -> tuple[Words, Words]:
    z = r.high * r.high
    return _sine(r, z), _cosine(r, z)


def _with_sign(result: LlvmValue, sign: LlvmValue) -> LlvmValue:
    return (result.bits() ^ sign).convert("bitcast", "double")


def _signed_sine(x: LlvmValue, r: Words, quadrant: LlvmValue) -> LlvmValue:
    sine, cosine = _sine_cosine(r)
    result = (quadrant & 1).compare("ne", 0).select(cosine.high, sine.high)
    return _with_sign(result, ((quadrant & 2) << 62) ^ (x.bits() & -(1 << 63)))


def _signed_cosine(x: LlvmValue, r: Words, quadrant: LlvmValue) -> LlvmValue:
    sine, cosine = _sine_cosine(r)
    result = (quadrant & 1).compare("ne", 0).select(sine.high, cosine.high)
    return _with_sign(result, ((quadrant + 1) & 2) << 62)


def _signed_tangent(x: LlvmValue, r: Words, quadrant: LlvmValue) -> LlvmValue:
    """The lower word counts times 1 + tan(r)**2 over 1 / below, about 1 + 0.7 r**2. One division."""
    z = r.high * r.high
    low = (r.low * z).fused(0.7, r.low)
    sine = fast_two_sum(r.high, (z * r.high).fused(z.builder.polynomial(z, _TANGENT_ABOVE), low))
    cosine = fast_two_sum(z.like(1.0), z * z.builder.polynomial(z, _TANGENT_BELOW))
    odd = (quadrant & 1).compare("ne", 0)
    above = Words(odd.select(-cosine.high, sine.high), odd.select(-cosine.low, sine.low))
    below = Words(odd.select(sine.high, cosine.high), odd.select(sine.low, cosine.low))
    ratio = quotient(above.high, below, above.low)
    return _with_sign(ratio.high + ratio.low, x.bits() & -(1 << 63))


def _define(name: str, of_remainder: Callable[[LlvmValue, Words, LlvmValue], LlvmValue], at_zero: float | None) -> None:
    """Define a function for angles up to _MOST, and for others. at_zero: its value for tiny angles, None for x."""

    def large(x: LlvmValue) -> LlvmValue:
        result = of_remainder(x, *_large_quadrant(x))
        result = x.absolute().compare("olt", _INFINITY).select(result, float("nan"))
        return x.absolute().compare("olt", 2.0**-28).select(x if at_zero is None else at_zero, result)

    def build(x: LlvmValue) -> LlvmValue:
        is_large = x.absolute().compare("ugt", _MOST)
        fast = of_remainder(x, *_quadrant(x))
        return x.builder.replaced_if_rare(is_large, f"tf.{name}.large.double", fast, x)

    FUNCTIONS.define_rare(f"tf.{name}.large.double", "double", "double")(large)
    FUNCTIONS.define(f"tf.{name}.double", "double", "double")(build)


# The largest errors are 0.6, 0.6 and 1.5 ulp.
_define("sin", _signed_sine, None)
_define("cos", _signed_cosine, 1.0)
_define("tan", _signed_tangent, None)


# ---------------------------------------------------------------------------------------------------------------------
# inverse functions


def _angle(y: LlvmValue, x: LlvmValue) -> LlvmValue:
    """The magnitude of atan2(y, x)."""
    ay, ax = y.absolute(), x.absolute()
    steep = ay.compare("ogt", ax)
    large, small = steep.select(ay, ax), steep.select(ax, ay)
    endless, huge = large.compare("oeq", _INFINITY), large.compare("ogt", 2.0**1000)
    scale = huge.select(x.like(2.0**-60), 1.0)
    # An infinite side counts as 1, next to which a finite one is 0; 0 / 0 is 0.
    small = endless.select(small.compare("oeq", _INFINITY).select(1.0, small * 0.0), small * scale)
    large = (endless | large.compare("oeq", 0.0)).select(1.0, large * scale)
    over, under, near = _reduced_slope(small, large)
    q = over / under.high
    rest = (fma(-q, under.high, over) - q * under.low) / under.high
    negative = x.bits().compare("slt", 0)
    # The reflections a -> pi / 2 - a and a -> pi - a.
    k = steep.select(2.0 - near, near)
    return _angle_of_slope(Words(q, rest), negative.select(4.0 - k, k), steep ^ negative)


def _reduced_slope(small: LlvmValue, large: LlvmValue) -> tuple[LlvmValue, Words, LlvmValue]:
    """small / large as a slope of at most 1/2, above and below the line, at an angle of 0 or 1 times pi / 4."""
    near = (small + small).compare("ogt", large)
    over = near.select(small - large, small)
    return over, fast_two_sum(large, near.select(small, 0.0)), near.select(small.like(1.0), 0.0)


def _angle_of_slope(slope: Words, k: LlvmValue, flips: LlvmValue) -> LlvmValue:
    """k pi / 4 plus or, where it flips, minus atan(slope), |slope| at most 1/2."""
    q = slope.high
    z = q * q
    rest = (z * q).fused(z.builder.polynomial(z, _ARCTANGENT), slope.low)
    q, rest = flips.select(-q, q), flips.select(-rest, rest)
    total = fast_two_sum(k * _QUARTER_PI[0], q)
    return total.high + (total.low + k.fused(_QUARTER_PI[1], rest))


@FUNCTIONS.define("tf.atan2.double", "double", "double", "double")
def atan2(y: LlvmValue, x: LlvmValue) -> LlvmValue:
    """0.7 ulp."""
    return x.builder.intrinsic("copysign", _angle(y, x), y)


@FUNCTIONS.define("tf.atan.double", "double", "double")
def atan(x: LlvmValue) -> LlvmValue:
    """One division. 0.7 ulp."""
    a = x.absolute()
    a = a.compare("ogt", 2.0**60).select(2.0**60, a)  # pi / 2 from there on; the inverse of infinity has no remainder
    steep = a.compare("ogt", 1.0)
    over, under, near = _reduced_slope(steep.select(1.0, a), steep.select(a, 1.0))
    slope = quotient(over, under)
    return x.builder.intrinsic("copysign", _angle_of_slope(slope, steep.select(2.0 - near, near), steep), x)


def _arcsine(x: LlvmValue) -> tuple[LlvmValue, LlvmValue, Words, LlvmValue]:
    """Return |x|, whether it exceeds 1/2, and asin(w) as a number and its tail, where w is |x| or, above 1/2,
    sqrt((1 - |x|) / 2), with asin(|x|) = pi / 2 - 2 asin(w)."""
    a = x.absolute()
    large = a.compare("ogt", 0.5)
    z = large.select((1.0 - a) * 0.5, a * a)
    root = x.builder.intrinsic("sqrt", z)
    positive = root.compare("ogt", 0.0)
    lost = positive.select(fma(-root, root, z) / positive.select(root + root, 1.0), root)
    w = Words(large.select(root, a), large.select(lost, 0.0))
    return a, large, w, (z * w.high).fused(x.builder.polynomial(z, _ARCSINE), w.low)


@FUNCTIONS.define("tf.asin.double", "double", "double")
def asin(x: LlvmValue) -> LlvmValue:
    """0.7 ulp."""
    _, large, w, tail = _arcsine(x)
    total = fast_two_sum(x.like(_HALF_PI[0]), w.high * -2.0)
    above = total.high + (total.low + tail.fused(-2.0, _HALF_PI[1]))
    return x.builder.intrinsic("copysign", large.select(above, w.high + tail), x)


@FUNCTIONS.define("tf.acos.double", "double", "double")
def acos(x: LlvmValue) -> LlvmValue:
    """0.8 ulp."""
    _, large, w, tail = _arcsine(x)
    negative = x.compare("olt", 0.0)
    signed, end = negative.select(-w.high, w.high), negative.select(-tail, tail)
    middle = fast_two_sum(x.like(_HALF_PI[0]), -signed)
    inside = middle.high + (middle.low + (_HALF_PI[1] - end))
    far = fast_two_sum(negative.select(x.like(2 * _HALF_PI[0]), 0.0), signed * 2.0)
    outside = far.high + (far.low + end.fused(2.0, negative.select(x.like(2 * _HALF_PI[1]), 0.0)))
    return large.select(outside, inside)
