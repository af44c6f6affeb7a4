"""Float32 math functions in LLVM IR, and the table of all functions that emitted code may call.

Each function is a range reduction and a polynomial without branches or calls, which LLVM inlines and vectorizes.
Coefficients are near-minimax fits (interpolation at Chebyshev nodes in 60 digits) on the interval in each docstring.
Stated errors are the largest measured over dense and random arguments. Functions that need more than float32 precision
are in `kernel/llvm/widened_math.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tracefuse.caches import memoized
from tracefuse.kernel.llvm import (
    float32_arcs,
    float32_powers,
    float64_math,
    float64_powers,
    float64_trigonometry,
    float_remainders,
    half_conversions,
    integer_functions,
    widened_math,
)
from tracefuse.kernel.llvm.text_builder import FLOAT_BITS, Builder, LlvmFunctions, LlvmValue

_NARROW = LlvmFunctions()
_LOG2_E = 1.4426950408889634
# ln 2 in two parts; the first has 15 bits, so its product with an exponent is exact.
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.428606820309417e-06
_INFINITY = float("inf")


def _clamp(x: LlvmValue, low: float, high: float) -> LlvmValue:
    """Clamp x to [low, high]; NaN stays NaN."""
    x = x.compare("ogt", high).select(high, x)
    return x.compare("olt", low).select(low, x)


def _round(x: LlvmValue, factor: float) -> tuple[LlvmValue, LlvmValue]:
    """Round x * factor to an integer, as a float and as an i32; |x * factor| < 2**21.

    Adding 1.5 * 2**23 leaves the integer in the low bits, which is defined for every x, including NaN.
    """
    shifted = x.fused(factor, 12582912.0)
    return shifted - 12582912.0, shifted.bits() - 0x4B400000


def _power_of_two(i: LlvmValue) -> LlvmValue:
    return ((i + 127) << 23).convert("bitcast", "float")


def _scale(p: LlvmValue, i: LlvmValue) -> LlvmValue:
    """Compute p * 2**i for i in [-252, 254].

    Without a vector instruction for it, the product takes two steps; only the second rounds, for denormal results.
    """
    if p.builder.scales:
        return p.builder.intrinsic("ldexp", p, i, suffix="f32.i32")
    half = i >> 1
    return p * _power_of_two(half) * _power_of_two(i - half)


@_NARROW.define("tf.exp.float", "float", "float")
def exp(x: LlvmValue) -> LlvmValue:
    """2**n * exp(r), r = x - n ln 2 in [-0.347, 0.347]. 1 ulp."""
    x = _clamp(x, -104.0, 89.0)
    n, i = _round(x, _LOG2_E)
    r = n.fused(-_LN2_LOW, n.fused(-_LN2_HIGH, x))
    p = x.builder.polynomial(
        r, (1.0, 1.0, 0.5, 0.16666576989698775, 0.041666554617204574, 0.008363179052722578, 0.0013926183587713494)
    )
    return _scale(p, i)


@_NARROW.define("tf.exp2.float", "float", "float")
def exp2(x: LlvmValue) -> LlvmValue:
    """2**n * 2**r, r in [-0.5, 0.5]. 0.9 ulp."""
    x = _clamp(x, -151.0, 129.0)
    n, i = _round(x, 1.0)
    r = x - n
    p = x.builder.polynomial(
        r,
        (
            *(0.6931471880352003, 0.24022650760645808, 0.05550357071152507),
            *(0.009618082519990467, 0.0013390886332106697, 0.0001545318282995974),
        ),
    )
    return _scale(r.fused(p, 1.0), i)


def _parts(x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """Return f in [-1/3, 1/3) and k with x = (1 + f) 2**k, for positive finite x."""
    tiny = x.compare("olt", 1.1754943508222875e-38)
    bits = tiny.select(x * 8388608.0, x).bits()
    exponent = (bits - 0x3F2AAAAB) >> 23
    f = (bits - (exponent << 23)).convert("bitcast", "float") - 1.0
    return f, (exponent + tiny.select(x.builder.literal(-23, "i32"), 0)).convert("sitofp", "float")


def _log_tail(f: LlvmValue) -> LlvmValue:
    """(log(1 + f) - f) / f**2 on [-1/3, 1/3)."""
    tail = f.builder.polynomial(
        f,
        (
            *(0.3333333333333333, -0.24999944186243983, 0.19999948351310606, -0.1667331625320225),
            *(0.14291867181988005, -0.12288721609296725, 0.10915654793276691, -0.12422200575409693),
            0.11330617385023778,
        ),
    )
    return tail.fused(f, -0.5)


@_NARROW.define("tf.log.float", "float", "float")
def log(x: LlvmValue) -> LlvmValue:
    """k ln 2 + log(1 + f), with 1 + f in [2/3, 4/3). 0.9 ulp."""
    f, k = _parts(x)
    small = (f * f).fused(_log_tail(f), k * _LN2_LOW) + f
    return _log_special(x, k.fused(_LN2_HIGH, small))


def _to_base(x: LlvmValue, factor: tuple[float, float], of_two: tuple[float, float]) -> LlvmValue:
    """log(x) * factor, where of_two is log(2) * factor; its first part times an exponent is exact."""
    f, k = _parts(x)
    logarithm = (f * f).fused(_log_tail(f), f)
    low = logarithm.fused(factor[1], k * of_two[1])
    return _log_special(x, k.fused(of_two[0], logarithm.fused(factor[0], low)))


@_NARROW.define("tf.log2.float", "float", "float")
def log2(x: LlvmValue) -> LlvmValue:
    """2 ulp."""
    return _to_base(x, (1.4426950216293335, 1.9259629911266175e-08), (1.0, 0.0))


@_NARROW.define("tf.log10.float", "float", "float")
def log10(x: LlvmValue) -> LlvmValue:
    """2 ulp."""
    return _to_base(x, (0.4342944920063019, -1.0103050052231683e-08), (0.301025390625, 4.605038981195214e-06))


@_NARROW.define("tf.log1p.float", "float", "float")
def log1p(x: LlvmValue) -> LlvmValue:
    """log(u) + (1 + x - u) / u with u = 1 + x rounded. 1.5 ulp."""
    u = x + 1.0
    lost = x.compare("olt", 1.0).select(x - (u - 1.0), 1.0 - (u - x))
    ordinary = u.compare("ogt", 0.0) & u.compare("olt", _INFINITY)
    result = log(u) + ordinary.select(lost / u, 0.0)
    return x.compare("oeq", 0.0).select(x, result)


def _log_special(x: LlvmValue, result: LlvmValue) -> LlvmValue:
    result = x.compare("olt", _INFINITY).select(result, x)
    result = x.compare("oeq", 0.0).select(-_INFINITY, result)
    return x.compare("olt", 0.0).select(float("nan"), result)


@_NARROW.define("tf.expm1.float", "float", "float")
def expm1(x: LlvmValue) -> LlvmValue:
    """2 (2**(n - 1) (exp(r) - 1) + 2**(n - 1) - 1/2), r = x - n ln 2. 1.4 ulp."""
    inner = _clamp(x, -18.0, 89.0)
    n, i = _round(inner, _LOG2_E)
    r = n.fused(-_LN2_LOW, n.fused(-_LN2_HIGH, inner))
    tail = x.builder.polynomial(
        r,
        (
            *(0.5000000013675161, 0.1666666668185573, 0.041666462839077045),
            *(0.008333310693802049, 0.0013933880963236528, 0.00019891247314183293),
        ),
    )
    p = (r * r).fused(tail, r)
    half = _power_of_two(i - 1)
    result = p.fused(half, half - 0.5)
    return x.builder.intrinsic("copysign", result + result, x)


@_NARROW.define("tf.sinh.float", "float", "float")
def sinh(x: LlvmValue) -> LlvmValue:
    """(e + e / (e + 1)) / 2 with e = exp(|x|) - 1; exp(|x| / 2)**2 / 2 where that overflows. 2.1 ulp."""
    a = x.absolute()
    e = expm1(a)
    half = exp(a * 0.5)
    result = a.compare("ogt", 88.0).select(half * 0.5 * half, (e + e / (e + 1.0)) * 0.5)
    return x.builder.intrinsic("copysign", result, x)


@_NARROW.define("tf.cosh.float", "float", "float")
def cosh(x: LlvmValue) -> LlvmValue:
    """(e + 1 / e) / 2 with e = exp(|x|); exp(|x| / 2)**2 / 2 where that overflows. 2 ulp."""
    a = x.absolute()
    e = exp(a)
    half = exp(a * 0.5)
    return a.compare("ogt", 88.0).select(half * 0.5 * half, (e + 1.0 / e) * 0.5)


@_NARROW.define("tf.asinh.float", "float", "float")
def asinh(x: LlvmValue) -> LlvmValue:
    """log1p(a + a**2 / (1 + sqrt(a**2 + 1))), a = |x|; log(a) + ln 2 for large a. 2.1 ulp."""
    a = x.absolute()
    large = a.compare("ogt", 1e9)
    square = a * a
    t = a + square / (x.builder.intrinsic("sqrt", square + 1.0) + 1.0)
    result = log1p(large.select(a, t)) + large.select(x.like(math.log(2)), 0.0)
    return x.builder.intrinsic("copysign", result, x)


@_NARROW.define("tf.acosh.float", "float", "float")
def acosh(x: LlvmValue) -> LlvmValue:
    """log1p(t + sqrt(2 t + t**2)), t = x - 1; log(x) + ln 2 for large x. 2.5 ulp."""
    large = x.compare("ogt", 1e9)
    t = x - 1.0
    root = x.builder.intrinsic("sqrt", t.fused(t, t + t))
    result = log1p(large.select(x, t + root)) + large.select(x.like(math.log(2)), 0.0)
    return x.compare("olt", 1.0).select(float("nan"), result)


@_NARROW.define("tf.atanh.float", "float", "float")
def atanh(x: LlvmValue) -> LlvmValue:
    """log1p(2 a / (1 - a)) / 2, a = |x|. 2.3 ulp."""
    a = x.absolute()
    return x.builder.intrinsic("copysign", log1p((a + a) / (1.0 - a)) * 0.5, x)


@_NARROW.define("tf.tanh.float", "float", "float")
def tanh(x: LlvmValue) -> LlvmValue:
    """e / (e + 1 - t) with e = t (2**n + 1) / 2 + (2**n - 1) / 2, where t = tanh(r), an odd polynomial, and
    r = |x| - n ln 2 / 2 in [0, 0.347]: t itself for n = 0, and an error of e counts less the larger e is. One constant
    does for ln 2 / 2, since n is small. 1.7 ulp."""
    a = x.absolute()
    a = a.compare("ogt", 9.1).select(9.1, a)
    n, i = _round(a - 0.1732, 2 * _LOG2_E)
    r = n.fused(-math.log(2) / 2, a)
    z = r * r
    tail = x.builder.polynomial(
        z, (-0.3333333199249283, 0.13332977703297552, -0.05381988230806591, 0.019863822459152993)
    )
    t = (z * r).fused(tail, r)
    half = _power_of_two(i - 1)
    e = t.fused(half + 0.5, half - 0.5)
    return x.builder.intrinsic("copysign", e / (e + (1.0 - t)), x)


@_NARROW.define("tf.erf.float", "float", "float")
def erf(x: LlvmValue) -> LlvmValue:
    """An odd polynomial up to 1; above, 1 - exp(-q(|x|)), q(x) / x fitted to -log(erfc(x)) / x on [1, 4]. 1.1 ulp."""
    a = x.absolute()
    p = x.builder.polynomial(
        x * x,
        (
            *(0.12837916584835093, -0.37612626666720334, 0.11283594715160218, -0.026854212010626412),
            *(0.005189087423433974, -0.000801686428716587, 7.875875062685488e-05),
        ),
    )
    small = x.fused(p, x)
    clamped = a.compare("ogt", 4.0).select(4.0, a)
    q = x.builder.polynomial(
        clamped,
        (
            *(-1.1287853327351614, -0.6346451012295415, -0.10697864658927073, 0.024294045671430474),
            *(-0.0038152691223164673, 0.00032501983917822145, 2.9211459919860822e-06),
            *(-3.3863164594242625e-06, 2.2377883697616272e-07),
        ),
    )
    large = 1.0 - x.builder.function("tf.exp.float", "float", q * clamped)
    return a.compare("olt", 1.0).select(small, x.builder.intrinsic("copysign", large, x))


# ---------------------------------------------------------------------------------------------------------------------
# both float types


def _nextafter(x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """Return the float next to x towards y. Apart from the sign, the bits of a float increase with its magnitude."""
    bits = x.bits()
    up = x.compare("olt", y) ^ bits.compare("slt", 0)
    smallest_bits = x.builder.literal(1, bits.type)
    stepped = (bits + up.select(smallest_bits, -1)).convert("bitcast", x.type)
    smallest = smallest_bits.convert("bitcast", x.type)
    result = x.compare("oeq", 0.0).select(x.builder.intrinsic("copysign", smallest, y), stepped)
    result = x.compare("oeq", y).select(y, result)
    return x.compare("uno", y).select(x + y, result)


for _type in FLOAT_BITS:
    _NARROW.define(f"tf.nextafter.{_type}", _type, _type, _type)(_nextafter)

FUNCTIONS = {
    **half_conversions.FUNCTIONS,
    **integer_functions.FUNCTIONS,
    **float64_math.FUNCTIONS,
    **float64_powers.FUNCTIONS,
    **float64_trigonometry.FUNCTIONS,
    **float32_arcs.FUNCTIONS,
    **float32_powers.FUNCTIONS,
    **float_remainders.FUNCTIONS,
    **widened_math.FUNCTIONS,
    **_NARROW,
}


@memoized("LLVM text of a math function", key="symbol, whether it scales", most=None, bound="math functions")
def _function(symbol: str, scales: bool) -> tuple[str, dict[str, str], tuple[str, ...]]:
    """Return the text of a function, its declarations and the functions it calls. scales: see `Processor`."""
    definition = FUNCTIONS[symbol]
    builder = Builder(scales)
    arguments = [LlvmValue(builder, f"%a{n}", type_) for n, type_ in enumerate(definition.arguments)]
    result = definition.build(*arguments)
    head = f"define internal {definition.result} @{symbol}({', '.join(map(str, arguments))}) alwaysinline nounwind {{"
    text = "\n".join([head, *builder.lines, f"  ret {result}", "}"])
    return text, builder.declarations, tuple(builder.functions)


def functions(symbols: Iterable[str], declarations: dict[str, str], scales: bool = False) -> list[str]:
    """Return the texts of `symbols` and of all functions they call, and add their declarations to `declarations`.

    scales: see `Processor`.
    """
    texts: dict[str, str] = {}
    pending = list(symbols)
    while pending:
        symbol = pending.pop()
        if symbol not in texts:
            texts[symbol], declared, called = _function(symbol, scales)
            declarations.update(declared)
            pending += called
    return [texts[symbol] for symbol in sorted(texts)]
