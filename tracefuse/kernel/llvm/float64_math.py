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


def _parts(bits: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """Return f in [sqrt(1/2) - 1, sqrt(2) - 1) and the i64 k with x = (1 + f) 2**k, by the bits of a normal x."""
    k = (bits - 0x3FE6A09E667F3BCD) >> 52
    return (bits - (k << 52)).convert("bitcast", "double") - 1.0, k


def _small(k: LlvmValue) -> LlvmValue:
    """Convert a small i64 to a double, by way of 32 bits: AVX2 has no conversion of 64-bit integers."""
    return k.convert("trunc", "i32").convert("sitofp", "double")


def _log_of_parts(f: LlvmValue, k: LlvmValue) -> LlvmValue:
    """k ln 2 + log(1 + f); log(1 + f) = f - (h - s (h + R(s**2))), h = f**2 / 2, s = f / (2 + f), as in
    FreeBSD's msun (e_log.c). 0.9 ulp."""
    s = f / (f + 2.0)
    z = s * s
    r = f.builder.polynomial(
        z,
        (
            *(0.6666666666666666, 0.4000000000000088, 0.28571428570801954, 0.22222222392089008),
            *(0.18181795600060793, 0.15386241881938595, 0.13268714792348096, 0.1308723619665962),
        ),
    )
    h = f * f * 0.5
    return k.fused(_LN2_HIGH, f - (h - s.fused(z.fused(r, h), k * _LN2_LOW)))


def _if_usual(usual: LlvmValue, symbol: str, fast: LlvmValue, x: LlvmValue) -> LlvmValue:
    return x.builder.replaced_if_rare(~usual, f"tf.{symbol}.double", fast, x)


@FUNCTIONS.define("tf.log.double", "double", "double")
def log(x: LlvmValue) -> LlvmValue:
    """k ln 2 + log(1 + f), with 1 + f in [sqrt(1/2), sqrt(2)). 0.9 ulp."""
    tiny = x.compare("olt", 2.2250738585072014e-308)
    f, k = _parts(tiny.select(x * 18014398509481984.0, x).bits())
    result = _log_of_parts(f, _small(k) + tiny.select(x.like(-54.0), 0.0))
    result = x.compare("olt", _INFINITY).select(result, x)
    result = x.compare("oeq", 0.0).select(-_INFINITY, result)
    return x.compare("olt", 0.0).select(_NAN, result)


def _exp(x: LlvmValue) -> LlvmValue:
    return x.builder.function("tf.exp.double", "double", x)


def _log(x: LlvmValue) -> LlvmValue:
    return x.builder.function("tf.log.double", "double", x)


def _signed(result: LlvmValue, x: LlvmValue) -> LlvmValue:
    return x.builder.intrinsic("copysign", result, x)


_MOST = 709.0
"""The largest argument whose exponential has a power of two as its factor."""


def _expm1(x: LlvmValue) -> LlvmValue:
    """exp(x) - 1 for x up to _MOST: 2**n (exp(r) - 1) + (2**n - 1), which is -1 below -40. 2 ulp."""
    x = x.compare("olt", -40.0).select(-40.0, x)
    n, i = _reduce(x)
    r = _remainder(x, n)
    p = (r * r).fused(x.builder.polynomial(r, _EXP_TAIL), r)
    power = _power_of_two(i)
    return p.fused(power, power - 1.0)


@FUNCTIONS.define("tf.expm1.double", "double", "double")
def expm1(x: LlvmValue) -> LlvmValue:
    """2 ulp."""
    return _if_usual(~x.compare("ogt", _MOST), "exp.large", _signed(_expm1(x), x), x)


@FUNCTIONS.define_rare("tf.exp.large.double", "double", "double")
def _large_exp(x: LlvmValue) -> LlvmValue:
    return _exp(x)


def _log1p(x: LlvmValue) -> LlvmValue:
    """log(1 + x) for x in (-1, 2**1000): 1 + x = (1 + f) 2**k, where k comes from the rounded sum, f from x. 1 ulp."""
    k = ((x + 1.0).bits() - 0x3FE6A09E667F3BCD) >> 52
    scale = _power_of_two(-k)
    result = _log_of_parts(x.fused(scale, scale - 1.0), _small(k))
    return x.compare("oeq", 0.0).select(x, result)


@FUNCTIONS.define_rare("tf.log1p.special.double", "double", "double")
def _special_log1p(x: LlvmValue) -> LlvmValue:
    """log(1 + x) where that is infinite, NaN or large."""
    return _log(x + 1.0)


@FUNCTIONS.define("tf.log1p.double", "double", "double")
def log1p(x: LlvmValue) -> LlvmValue:
    """1 ulp."""
    usual = x.compare("ogt", -1.0) & x.compare("olt", 2.0**1000)
    result = _log1p(x)
    return _if_usual(usual, "log1p.special", result, x)


@FUNCTIONS.define("tf.tanh.double", "double", "double")
def tanh(x: LlvmValue) -> LlvmValue:
    """e / (e + 2) with e = exp(2|x|) - 1."""
    a = x.absolute()
    a = a.compare("ogt", 20.0).select(20.0, a)
    e = _expm1(a + a)
    return _signed(e / (e + 2.0), x)


@FUNCTIONS.define_rare("tf.cosh.large.double", "double", "double")
def _large_cosh(x: LlvmValue) -> LlvmValue:
    """exp(|x| / 2)**2 / 2, also sinh(|x|)."""
    half = _exp(x.absolute() * 0.5)
    return half * 0.5 * half


@FUNCTIONS.define_rare("tf.sinh.large.double", "double", "double")
def _large_sinh(x: LlvmValue) -> LlvmValue:
    return _signed(_large_cosh(x), x)


@FUNCTIONS.define("tf.sinh.double", "double", "double")
def sinh(x: LlvmValue) -> LlvmValue:
    """(e + e / (e + 1)) / 2 with e = exp(|x|) - 1."""
    a = x.absolute()
    e = _expm1(a)
    return _if_usual(a.compare("olt", _MOST), "sinh.large", _signed((e + e / (e + 1.0)) * 0.5, x), x)


@FUNCTIONS.define("tf.cosh.double", "double", "double")
def cosh(x: LlvmValue) -> LlvmValue:
    """(e + 1 / e) / 2 with e = exp(|x|)."""
    a = x.absolute()
    e = _exp(a)
    return _if_usual(a.compare("olt", _MOST), "cosh.large", (e + 1.0 / e) * 0.5, x)


_LARGE = 268435456.0
"""Beyond it, x**2 + 1 and x**2 - 1 are x**2."""


@FUNCTIONS.define_rare("tf.asinh.large.double", "double", "double")
def _large_asinh(x: LlvmValue) -> LlvmValue:
    """log(2 |x|)."""
    return _signed(_log(x.absolute()) + _LN2, x)


@FUNCTIONS.define("tf.asinh.double", "double", "double")
def asinh(x: LlvmValue) -> LlvmValue:
    """log1p(a + a**2 / (1 + sqrt(a**2 + 1))), a = |x|."""
    a = x.absolute()
    square = a * a
    t = a + square / (x.builder.intrinsic("sqrt", square + 1.0) + 1.0)
    return _if_usual(a.compare("olt", _LARGE), "asinh.large", _signed(_log1p(t), x), x)


@FUNCTIONS.define_rare("tf.acosh.large.double", "double", "double")
def _large_acosh(x: LlvmValue) -> LlvmValue:
    """log(2 x), or NaN below 1."""
    return x.compare("olt", 1.0).select(_NAN, _log(x) + _LN2)


@FUNCTIONS.define("tf.acosh.double", "double", "double")
def acosh(x: LlvmValue) -> LlvmValue:
    """log1p(t + sqrt(2 t + t**2)), t = x - 1."""
    t = x - 1.0
    small = _log1p(t + x.builder.intrinsic("sqrt", t * t + t * 2.0))
    usual = x.compare("oge", 1.0) & x.compare("olt", _LARGE)
    return _if_usual(usual, "acosh.large", small, x)


@FUNCTIONS.define_rare("tf.atanh.special.double", "double", "double")
def _special_atanh(x: LlvmValue) -> LlvmValue:
    """log((1 + |x|) / (1 - |x|)) / 2, where the difference is exact, infinity at 1, or NaN."""
    a = x.absolute()
    return _signed(_log((a + 1.0) / (1.0 - a)) * 0.5, x)


# (atanh(s) - s) / s**3 as a polynomial in s**2, |s| <= 1/4.
_ARCTANGENT = (
    *(0.3333333333333333, 0.19999999999998336, 0.14285714286428916, 0.11111110993150461, 0.0909091882410825),
    *(0.0769185795049373, 0.06678811339825537, 0.05693125871455043, 0.06813798958332178),
)


@FUNCTIONS.define("tf.atanh.double", "double", "double")
def atanh(x: LlvmValue) -> LlvmValue:
    """log((1 + a) / (1 - a)) / 2 = k ln 2 / 2 + atanh(s), a = |x|, with a k near the logarithm to base 2 and
    s = ((1 + a) 2**-k - (1 - a)) / ((1 + a) 2**-k + (1 - a)). k is 0 up to 0.24,
    where the terms would cancel. 1.3 ulp."""
    a = x.absolute()
    k = ((a + 1.0).bits() - (1.0 - a).bits() + (5 << 48)) >> 52
    scale = _power_of_two(-k)
    more, less = scale + 1.0, scale - 1.0
    s = a.fused(more, less) / a.fused(less, more)
    z = s * s
    turns = _small(k)
    rest = (z * s).fused(x.builder.polynomial(z, _ARCTANGENT), turns * (_LN2_LOW / 2)) + s
    result = _signed(turns.fused(_LN2_HIGH / 2, rest), x)
    return _if_usual(a.compare("olt", 1.0 - 2.0**-50), "atanh.special", result, x)
