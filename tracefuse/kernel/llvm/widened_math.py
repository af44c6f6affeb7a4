"""Float32 functions computed in float64, and functions that call the C library.

A float32 function computed in float64 by a formula accurate to 1e-10 is correctly rounded except for rare ties (0.50
ulp), needs little care about cancellation, and still vectorizes. Calls of the C library run one element at a time.
Coefficients are fitted as in `kernel/llvm/float32_math.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tracefuse.kernel.llvm.text_builder import LlvmFunctions, LlvmValue

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
