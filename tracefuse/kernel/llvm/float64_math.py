"""Vectorizable float64 math functions: exp, log, and functions derived from them without cancellation.

Stated errors are the largest measured against NumPy, in ulp. The other float64 functions call the C library
(`kernel/llvm/widened_math.py`). Coefficients are fitted as in `kernel/llvm/float32_math.py`.
"""

from __future__ import annotations

from tracefuse.kernel.llvm.text_builder import LlvmFunctions, LlvmValue

FUNCTIONS = LlvmFunctions()
_INFINITY, _NAN = float("inf"), float("nan")
_LOG2_E = 1.4426950408889634
_LN2, _LN2_HIGH, _LN2_LOW = 0.6931471805599453, 0.6931471803691238, 1.9082149292705877e-10
# Adding _SHIFT to a small number leaves the nearest integer in the low bits of the sum.
_SHIFT, _SHIFT_BITS = 6755399441055744.0, 0x4338000000000000
# (exp(r) - 1 - r) / r**2 on [-0.347, 0.347].
_EXP_TAIL = (
    *(0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326136, 0.0013888888888883748),
    *(0.00019841269874820627, 2.4801587325547743e-05, 2.7557255400206422e-06, 2.75572736431103e-07),
    *(2.5105217004720745e-08, 2.0914686968086876e-09),
)


def _power_of_two(i: LlvmValue) -> LlvmValue:
    return ((i + 1023) << 52).convert("bitcast", "double")


def _clamp(x: LlvmValue, low: float, high: float) -> LlvmValue:
    """Clamp x to [low, high]; NaN stays NaN."""
    x = x.compare("ogt", high).select(high, x)
    return x.compare("olt", low).select(low, x)


def _reduce(x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """Round x / ln 2 to an integer, as a float and as an i64; defined for every x, including NaN."""
    shifted = x.fused(_LOG2_E, _SHIFT)
    return shifted - _SHIFT, shifted.bits() - _SHIFT_BITS


def _remainder(x: LlvmValue, n: LlvmValue) -> LlvmValue:
    return n.fused(-_LN2_LOW, n.fused(-_LN2_HIGH, x))


@FUNCTIONS.define("tf.exp.double", "double", "double")
def exp(x: LlvmValue) -> LlvmValue:
    """2**n * exp(r), r = x - n ln 2, scaled so that denormal results are rounded once. 1 ulp."""
    x = _clamp(x, -746.0, 710.0)
    n, i = _reduce(x)
    r = _remainder(x, n)
    p = (r * r).fused(x.builder.polynomial(r, _EXP_TAIL), r) + 1.0
    if x.builder.scales:
        return x.builder.intrinsic("ldexp", p, i.convert("trunc", "i32"), suffix="f64.i32")
    # The offset makes the shifted number positive: AVX2 has no arithmetic shift of 64-bit integers.
    half = (i + 2048).logical_shift(1) - 1024
    return p * _power_of_two(half) * _power_of_two(i - half)


@FUNCTIONS.define("tf.log.double", "double", "double")
def log(x: LlvmValue) -> LlvmValue:
    """k ln 2 + log(1 + f), with 1 + f in [sqrt(1/2), sqrt(2)); log(1 + f) = f - (h - s (h + R(s**2))), h = f**2 / 2,
    s = f / (2 + f), as in FreeBSD's msun (e_log.c)."""
    builder = x.builder
    tiny = x.compare("olt", 2.2250738585072014e-308)
    bits = tiny.select(x * 18014398509481984.0, x).bits()
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    f = (bits - (exponent << 52)).convert("bitcast", "double") - 1.0
    small = exponent.convert("trunc", "i32") + tiny.select(builder.literal(-54, "i32"), 0)
    k = small.convert("sitofp", "double")
    s = f / (f + 2.0)
    z = s * s
    r = builder.polynomial(
        z,
        (
            *(0.6666666666666666, 0.4000000000000088, 0.28571428570801954, 0.22222222392089008),
            *(0.18181795600060793, 0.15386241881938595, 0.13268714792348096, 0.1308723619665962),
        ),
    )
    h = f * f * 0.5
    result = k.fused(_LN2_HIGH, f - (h - s.fused(z.fused(r, h), k * _LN2_LOW)))
    result = x.compare("olt", _INFINITY).select(result, x)
    result = x.compare("oeq", 0.0).select(-_INFINITY, result)
    return x.compare("olt", 0.0).select(_NAN, result)


def _exp(x: LlvmValue) -> LlvmValue:
    return x.builder.function("tf.exp.double", "double", x)


def _expm1(x: LlvmValue) -> LlvmValue:
    return x.builder.function("tf.expm1.double", "double", x)


def _log(x: LlvmValue) -> LlvmValue:
    return x.builder.function("tf.log.double", "double", x)


def _log1p(x: LlvmValue) -> LlvmValue:
    return x.builder.function("tf.log1p.double", "double", x)


def _signed(result: LlvmValue, x: LlvmValue) -> LlvmValue:
    return x.builder.intrinsic("copysign", result, x)


@FUNCTIONS.define("tf.expm1.double", "double", "double")
def expm1(x: LlvmValue) -> LlvmValue:
    """2**n (exp(r) - 1) + (2**n - 1) on [-40, 41]; exp(x) above and -1 below. 2 ulp."""
    inner = _clamp(x, -40.0, 41.0)
    n, i = _reduce(inner)
    r = _remainder(inner, n)
    p = (r * r).fused(x.builder.polynomial(r, _EXP_TAIL), r)
    power = _power_of_two(i)
    result = x.compare("ogt", 40.0).select(_exp(x), p.fused(power, power - 1.0))
    return _signed(x.compare("olt", -40.0).select(-1.0, result), x)


@FUNCTIONS.define("tf.log1p.double", "double", "double")
def log1p(x: LlvmValue) -> LlvmValue:
    """log(u) + (1 + x - u) / u with u = 1 + x rounded. 1 ulp."""
    u = x + 1.0
    lost = x.compare("olt", 1.0).select(x - (u - 1.0), 1.0 - (u - x))
    ordinary = u.compare("ogt", 0.0) & u.compare("olt", _INFINITY)
    result = _log(u) + ordinary.select(lost / u, 0.0)
    return x.compare("oeq", 0.0).select(x, result)


@FUNCTIONS.define("tf.tanh.double", "double", "double")
def tanh(x: LlvmValue) -> LlvmValue:
    """e / (e + 2) with e = exp(2|x|) - 1."""
    a = x.absolute()
    a = a.compare("ogt", 20.0).select(20.0, a)
    e = _expm1(a + a)
    return _signed(e / (e + 2.0), x)


@FUNCTIONS.define("tf.sinh.double", "double", "double")
def sinh(x: LlvmValue) -> LlvmValue:
    """(e + e / (e + 1)) / 2 with e = exp(|x|) - 1; exp(|x| / 2)**2 / 2 where that overflows."""
    a = x.absolute()
    e = _expm1(a)
    half = _exp(a * 0.5)
    return _signed(a.compare("ogt", 700.0).select(half * 0.5 * half, (e + e / (e + 1.0)) * 0.5), x)


@FUNCTIONS.define("tf.cosh.double", "double", "double")
def cosh(x: LlvmValue) -> LlvmValue:
    a = x.absolute()
    e = _exp(a)
    half = _exp(a * 0.5)
    return a.compare("ogt", 700.0).select(half * 0.5 * half, (e + 1.0 / e) * 0.5)


@FUNCTIONS.define("tf.asinh.double", "double", "double")
def asinh(x: LlvmValue) -> LlvmValue:
    """log1p(a + a**2 / (1 + sqrt(a**2 + 1))), a = |x|; log(2 a) for large a."""
    a = x.absolute()
    square = a * a
    small = _log1p(a + square / (x.builder.intrinsic("sqrt", square + 1.0) + 1.0))
    return _signed(a.compare("ogt", 268435456.0).select(_log(a) + _LN2, small), x)


@FUNCTIONS.define("tf.acosh.double", "double", "double")
def acosh(x: LlvmValue) -> LlvmValue:
    """log1p(t + sqrt(2 t + t**2)), t = x - 1; log(2 x) for large x."""
    t = x - 1.0
    small = _log1p(t + x.builder.intrinsic("sqrt", t * t + t * 2.0))
    result = x.compare("ogt", 268435456.0).select(_log(x) + _LN2, small)
    return x.compare("olt", 1.0).select(_NAN, result)


@FUNCTIONS.define("tf.atanh.double", "double", "double")
def atanh(x: LlvmValue) -> LlvmValue:
    """log1p(2 a / (1 - a)) / 2, a = |x|."""
    a = x.absolute()
    return _signed(_log1p((a + a) / (1.0 - a)) * 0.5, x)
