"""Logarithms and inverse hyperbolic functions of float32.

Coefficients are fitted and errors stated as in `kernel/llvm/float32_math.py`.
"""

from __future__ import annotations

import math

from tracefuse.kernel.llvm.double_words import fast_two_sum, fma
from tracefuse.kernel.llvm.text_builder import LlvmFunctions, LlvmValue

FUNCTIONS = LlvmFunctions()
_INFINITY, _NAN = float("inf"), float("nan")
# ln 2 in two parts; the first has 15 bits, so its product with an exponent is exact.
_LN2 = (0.693145751953125, 1.428606820309417e-06)
# (atanh(s) - s) / s**3 as a polynomial in s**2, |s| <= 1/4.
_ARCTANGENT = (0.33333332166107704, 0.20000601579059094, 0.14237619818622435, 0.12324908517272759)
# The bits of 2/3.
_MIDDLE = 0x3F2AAAAB


def _parts(bits: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """Return f in [-1/3, 1/3) and k with x = (1 + f) 2**k, by the bits of a normal x."""
    exponent = (bits - _MIDDLE) >> 23
    f = (bits - (exponent << 23)).convert("bitcast", "float") - 1.0
    return f, exponent.convert("sitofp", "float")


def _is_normal(x: LlvmValue) -> LlvmValue:
    """Whether x is positive, finite and not subnormal."""
    return (x.bits() - (1 << 23)).compare("ult", 0xFE << 23)


def _if_usual(usual: LlvmValue, symbol: str, fast: LlvmValue, x: LlvmValue) -> LlvmValue:
    return x.builder.replaced_if_rare(~usual, f"tf.{symbol}.float", fast, x)


def _signed(result: LlvmValue, x: LlvmValue) -> LlvmValue:
    return x.builder.intrinsic("copysign", result, x)


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


def _log_of_parts(f: LlvmValue, k: LlvmValue, lower: LlvmValue | None = None) -> LlvmValue:
    """k ln 2 + log(1 + f) + lower. 0.9 ulp."""
    low = k * _LN2[1] if lower is None else k.fused(_LN2[1], lower)
    return k.fused(_LN2[0], (f * f).fused(_log_tail(f), low) + f)


def _to_base(f: LlvmValue, k: LlvmValue, factor: tuple[float, float], of_two: tuple[float, float]) -> LlvmValue:
    """log((1 + f) 2**k) * factor, where of_two is log(2) * factor; its first part times an exponent is exact."""
    logarithm = (f * f).fused(_log_tail(f), f)
    low = logarithm.fused(factor[1], k * of_two[1]) if of_two[1] else logarithm * factor[1]
    return k.fused(of_two[0], logarithm.fused(factor[0], low))


_FACTORS = {
    "log": None,
    "log2": ((1.4426950216293335, 1.9259629911266175e-08), (1.0, 0.0)),
    "log10": ((0.4342944920063019, -1.0103050052231683e-08), (0.301025390625, 4.605038981195214e-06)),
}
"""The factors that `_to_base` takes. The largest errors are 0.9, 2 and 2 ulp."""


def _logarithm(name: str, f: LlvmValue, k: LlvmValue) -> LlvmValue:
    factors = _FACTORS[name]
    return _log_of_parts(f, k) if factors is None else _to_base(f, k, *factors)


def _special(name: str, x: LlvmValue) -> LlvmValue:
    """The logarithm of x, with the special cases of C (Annex F)."""
    tiny = x.compare("olt", 1.1754943508222875e-38)
    f, k = _parts(tiny.select(x * 8388608.0, x).bits())
    result = _logarithm(name, f, k + tiny.select(x.like(-23.0), 0.0))
    result = x.compare("olt", _INFINITY).select(result, x)
    result = x.compare("oeq", 0.0).select(-_INFINITY, result)
    return x.compare("olt", 0.0).select(_NAN, result)


@FUNCTIONS.define("tf.log.float", "float", "float")
def log(x: LlvmValue) -> LlvmValue:
    """0.9 ulp. A rare path would save no time, and costs a third of the compile time."""
    return _special("log", x)


def _define(name: str) -> None:
    def build(x: LlvmValue) -> LlvmValue:
        return _if_usual(_is_normal(x), f"{name}.special", _logarithm(name, *_parts(x.bits())), x)

    FUNCTIONS.define_rare(f"tf.{name}.special.float", "float", "float")(lambda x: _special(name, x))
    FUNCTIONS.define(f"tf.{name}.float", "float", "float")(build)


_define("log2")
_define("log10")


def _log1p(x: LlvmValue, lower: LlvmValue | None = None) -> LlvmValue:
    """log(1 + x + lower) for x in (-1, 2**100): 1 + x = (1 + f) 2**k, where k comes from the rounded sum, f from x.
    lower: less than an ulp of x, at least 0. 1.3 ulp."""
    exponent = ((x + 1.0).bits() - _MIDDLE) >> 23
    scale = ((exponent.like(127) - exponent) << 23).convert("bitcast", "float")
    f = fma(x, scale, scale - 1.0)
    lost = fma(x, scale, (scale - 1.0) - f)
    rest = lost if lower is None else lower.fused(scale, lost)
    inverse = f.builder.polynomial(f, (1.0, -1.0, 1.0))
    result = _log_of_parts(f, exponent.convert("sitofp", "float"), rest * inverse)
    return x.compare("oeq", 0.0).select(x, result)


@FUNCTIONS.define_rare("tf.log1p.special.float", "float", "float")
def _special_log1p(x: LlvmValue) -> LlvmValue:
    """log(1 + x) where that is infinite, NaN or large."""
    return _special("log", x + 1.0)


@FUNCTIONS.define("tf.log1p.float", "float", "float")
def log1p(x: LlvmValue) -> LlvmValue:
    """1.3 ulp."""
    return _if_usual(x.compare("ogt", -1.0) & x.compare("olt", 2.0**100), "log1p.special", _log1p(x), x)


_LARGE = 1e9
"""Beyond it, x**2 + 1 and x**2 - 1 are x**2."""


@FUNCTIONS.define_rare("tf.asinh.large.float", "float", "float")
def _large_asinh(x: LlvmValue) -> LlvmValue:
    """log(2 |x|)."""
    return _signed(_special("log", x.absolute()) + math.log(2), x)


@FUNCTIONS.define("tf.asinh.float", "float", "float")
def asinh(x: LlvmValue) -> LlvmValue:
    """log1p(a + a**2 / (1 + sqrt(a**2 + 1))), a = |x|. 1.5 ulp."""
    a = x.absolute()
    square = a * a
    t = fast_two_sum(a, square / (x.builder.intrinsic("sqrt", square + 1.0) + 1.0))
    return _if_usual(a.compare("olt", _LARGE), "asinh.large", _signed(_log1p(t.high, t.low), x), x)


@FUNCTIONS.define_rare("tf.acosh.large.float", "float", "float")
def _large_acosh(x: LlvmValue) -> LlvmValue:
    """log(2 x), or NaN below 1."""
    return x.compare("olt", 1.0).select(_NAN, _special("log", x) + math.log(2))


@FUNCTIONS.define("tf.acosh.float", "float", "float")
def acosh(x: LlvmValue) -> LlvmValue:
    """log1p(t + sqrt(2 t + t**2)), t = x - 1. 1.5 ulp."""
    t = x - 1.0
    total = fast_two_sum(x.builder.intrinsic("sqrt", t.fused(t, t + t)), t)
    usual = x.compare("oge", 1.0) & x.compare("olt", _LARGE)
    return _if_usual(usual, "acosh.large", _log1p(total.high, total.low), x)


@FUNCTIONS.define_rare("tf.atanh.special.float", "float", "float")
def _special_atanh(x: LlvmValue) -> LlvmValue:
    """log((1 + |x|) / (1 - |x|)) / 2, where the difference is exact, infinity at 1, or NaN."""
    a = x.absolute()
    return _signed(_special("log", (a + 1.0) / (1.0 - a)) * 0.5, x)


@FUNCTIONS.define("tf.atanh.float", "float", "float")
def atanh(x: LlvmValue) -> LlvmValue:
    """k ln 2 / 2 + atanh(s), as in `kernel/llvm/float64_math.py`. 1.5 ulp."""
    a = x.absolute()
    k = ((a + 1.0).bits() - (1.0 - a).bits() + (5 << 19)) >> 23
    scale = ((k.like(127) - k) << 23).convert("bitcast", "float")
    more, less = scale + 1.0, scale - 1.0
    s = a.fused(more, less) / a.fused(less, more)
    z = s * s
    turns = k.convert("sitofp", "float")
    rest = (z * s).fused(x.builder.polynomial(z, _ARCTANGENT), turns * (_LN2[1] / 2)) + s
    result = _signed(turns.fused(_LN2[0] / 2, rest), x)
    return _if_usual(a.compare("olt", 1.0 - 2.0**-21), "atanh.special", result, x)
