"""Powers of float32: the logarithm in float64, from an inverse of float32, and 2 to the power of a fraction in float32.

Coefficients are fitted as in `kernel/llvm/float32_math.py`.
"""

from __future__ import annotations

from tracefuse.kernel.llvm.double_words import Words, fast_two_sum, quotient, two_product
from tracefuse.kernel.llvm.text_builder import LlvmFunctions, LlvmValue

FUNCTIONS = LlvmFunctions()
_INFINITY, _NAN = float("inf"), float("nan")
# log2((1 + s) / (1 - s)) / s as a polynomial in s**2, for numbers between sqrt(1/2) and sqrt(2), to 5e-12.
_LOG2 = (2.88539008179008, 0.9617966733500941, 0.5770835832636089, 0.41167282721451615, 0.34072800280911697)
# (2**r - 1) / r on [-1/2, 1/2], to 2e-9 of 2**r.
_EXP2 = (
    *(0.6931472028551283, 0.24022647913269998, 0.05550332470760537, 0.009618437393357415),
    *(0.001339887456359066, 0.00015353353309640886),
)
# (log2((1 + s) / (1 - s)) - 2 log2(e) s) / s**3 as a polynomial in s**2, for the same numbers, to 2e-11.
_LOG2_TAIL = (0.9617966923011453, 0.577079779499317, 0.41190066747624626, 0.3366040449446179)
# 2 log2(e) in two parts.
_TWO_LOG2_E = (2.885390043258667, 3.851925982253235e-08)
_SHIFT, _SHIFT_BITS = 6755399441055744.0, 0x4338000000000000


def _log2_of_normal(bits: LlvmValue) -> LlvmValue:
    """log2 of a positive normal float32 by its bits, as a double. The inverse of float32 takes one Newton step of
    float64."""
    exponent = (bits - 0x3F3504F3) >> 23
    f = (bits - (exponent << 23)).convert("bitcast", "float") - 1.0
    k = exponent.convert("sitofp", "double")
    inverse, wide = (1.0 / (f + 2.0)).convert("fpext", "double"), f.convert("fpext", "double")
    s = wide * inverse * (2.0 - (wide + 2.0) * inverse)
    return s.fused(wide.builder.polynomial(s * s, _LOG2), k)


def _log2(x: LlvmValue) -> LlvmValue:
    """log2 of a positive finite float32, as a double."""
    tiny = x.compare("olt", 1.1754943508222875e-38)
    logarithm = _log2_of_normal(tiny.select(x * 8388608.0, x).bits())
    return tiny.select(logarithm - 23.0, logarithm)


def _power_of_two(i: LlvmValue) -> LlvmValue:
    return ((i + 127) << 23).convert("bitcast", "float")


def _exp2(x: LlvmValue) -> LlvmValue:
    """2**x as a float32, for a double; NaN stays NaN."""
    x = x.compare("ogt", 200.0).select(200.0, x)
    x = x.compare("olt", -200.0).select(-200.0, x)
    shifted = x + _SHIFT
    r = (x - (shifted - _SHIFT)).convert("fptrunc", "float")
    i = (shifted.bits() - _SHIFT_BITS).convert("trunc", "i32")
    p = r.fused(r.builder.polynomial(r, _EXP2), 1.0)
    if r.builder.scales:
        return r.builder.intrinsic("ldexp", p, i, suffix="f32.i32")
    half = i >> 1
    return p * _power_of_two(half) * _power_of_two(i - half)


def _log2_in_words(x: LlvmValue) -> Words:
    """log2 of a positive normal float32, to about 2**-30 of itself: k + log2((1 + s) / (1 - s))."""
    bits = x.bits()
    exponent = (bits - 0x3F3504F3) >> 23
    f = (bits - (exponent << 23)).convert("bitcast", "float") - 1.0
    below = f + 2.0
    s = quotient(f, Words(below, f - (below - 2.0)))
    square = two_product(s.high, s.high)
    cube = two_product(square.high, s.high)
    tail = two_product(cube.high, f.builder.polynomial(square.high, _LOG2_TAIL))
    near = two_product(s.high, s.high.like(_TWO_LOG2_E[0]))
    # Of the lower word of s, the derivative 2 log2(e) (1 + s**2) counts.
    low = s.low * _TWO_LOG2_E[0]
    low = square.high.fused(low, low + s.high.fused(_TWO_LOG2_E[1], near.low))
    low = square.low.fused(s.high, cube.low).fused(_LOG2_TAIL[0], low + tail.low)
    part = fast_two_sum(near.high, tail.high)
    part = fast_two_sum(part.high, part.low + low)
    total = fast_two_sum(exponent.convert("sitofp", "float"), part.high)
    return Words(total.high, total.low + part.low)


@FUNCTIONS.define("tf.pow.float", "float", "float", "float")
def power(x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """Compute 2**(y log2 x) for normal x; the power of 0 is 0. 1.2 ulp."""
    logarithm = _log2_in_words(x)
    exponent = two_product(y, logarithm.high)
    shifted = exponent.high + 12582912.0
    r = (exponent.high - (shifted - 12582912.0)) + y.fused(logarithm.low, exponent.low)
    p = r.fused(r.builder.polynomial(r, _EXP2), 1.0)
    result = (p.bits() + (shifted.bits() << 23)).convert("bitcast", "float")
    vanishes = x.bits().compare("eq", 0) & y.compare("ogt", 0.0)
    ordinary = (x.bits() - 0x800000).compare("ult", 0x7F000000) & exponent.high.absolute().compare("olt", 125.5)
    result = vanishes.select(0.0, result)
    return x.builder.replaced_if_rare(~(ordinary | vanishes), "tf.pow.special.float", result, x, y)


@FUNCTIONS.define_rare("tf.pow.special.float", "float", "float", "float")
def _special_power(x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """Compute 2**(y log2 |x|), with the special cases of C (Annex F) that the formula does not cover."""
    a = x.absolute()
    result = _exp2(y.convert("fpext", "double") * _log2(a))
    endless, falling = a.compare("oeq", _INFINITY), y.compare("olt", 0.0)
    result = (endless | a.compare("oeq", 0.0)).select((endless ^ falling).select(x.like(_INFINITY), 0.0), result)
    result = x.compare("uno", y).select(_NAN, result)
    whole = x.builder.intrinsic("rint", y).compare("oeq", y)
    half = y * 0.5
    odd = whole & x.builder.intrinsic("rint", half).compare("one", half)
    negative = x.bits().compare("slt", 0)
    result = (negative & odd).select(-result, result)
    no_root = x.compare("olt", 0.0) & a.compare("olt", _INFINITY) & ~whole
    result = no_root.select(_NAN, result)
    one = y.compare("oeq", 0.0) | x.compare("oeq", 1.0)
    one = one | (a.compare("oeq", 1.0) & y.absolute().compare("oeq", _INFINITY))
    return one.select(1.0, result)
