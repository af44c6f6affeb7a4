"""Inverse trigonometric functions of float32: polynomials, and multiples of pi / 2 in two parts.

Coefficients are fitted and errors stated as in `kernel/llvm/float32_math.py`.
"""

from __future__ import annotations

from tracefuse.kernel.llvm.text_builder import LlvmFunctions, LlvmValue

FUNCTIONS = LlvmFunctions()
_INFINITY = float("inf")
# pi / 2 in two parts.
_HALF_PI = (1.5707963705062866, -4.3711390001862426e-08)


def _arctangent_tail(t: LlvmValue) -> LlvmValue:
    """atan(t) - t on [0, 1]."""
    z = t * t
    p = t.builder.polynomial(
        z,
        (
            *(-0.3333333173306352, 0.1999973932983558, -0.14278568748210602, 0.11033764115313455),
            *(-0.08656880430154522, 0.06250169444749563, -0.03587153898204336, 0.013507771427020535),
            -0.002386997316724113,
        ),
    )
    return z * t * p


@FUNCTIONS.define("tf.atan.float", "float", "float")
def atan(x: LlvmValue) -> LlvmValue:
    """An odd polynomial up to 1; above, pi / 2 - atan(1 / |x|). 1.4 ulp."""
    a = x.absolute()
    steep = a.compare("ogt", 1.0)
    t = steep.select(1.0 / a, a)
    rest = _arctangent_tail(t)
    outer = _HALF_PI[0] - (t + (rest - _HALF_PI[1]))
    return x.builder.intrinsic("copysign", steep.select(outer, t + rest), x)


@FUNCTIONS.define("tf.atan2.float", "float", "float", "float")
def atan2(y: LlvmValue, x: LlvmValue) -> LlvmValue:
    """atan of the smaller over the larger magnitude, added to or taken from a multiple of pi / 2. 1.5 ulp."""
    ay, ax = y.absolute(), x.absolute()
    steep = ay.compare("ogt", ax)
    large, small = steep.select(ay, ax), steep.select(ax, ay)
    equal = small.compare("oeq", large)
    t = (equal & large.compare("oeq", 0.0)).select(0.0, small / large)
    t = (equal & large.compare("oeq", _INFINITY)).select(1.0, t)
    rest = _arctangent_tail(t)
    negative = x.bits().compare("slt", 0)
    turns = steep.select(x.like(1.0), negative.select(x.like(2.0), 0.0))
    flips = steep ^ negative
    t, rest = flips.select(-t, t), flips.select(-rest, rest)
    angle = turns.fused(_HALF_PI[0], t + turns.fused(_HALF_PI[1], rest))
    return x.builder.intrinsic("copysign", angle, y)


def _asin_tail(z: LlvmValue) -> LlvmValue:
    """(asin(t) / t - 1) / z with z = t**2 on [0, 1/4]."""
    return z.builder.polynomial(
        z,
        (
            *(0.16666666337430908, 0.07500094543497424, 0.04459940152851218),
            *(0.03110066273549457, 0.017149238357677253, 0.03369084720283012),
        ),
    )


@FUNCTIONS.define("tf.asin.float", "float", "float")
def asin(x: LlvmValue) -> LlvmValue:
    """An odd polynomial up to 1/2; above, pi / 2 - 2 asin(sqrt((1 - |x|) / 2)). 2 ulp."""
    a = x.absolute()
    outside = a.compare("ogt", 0.5)
    z = outside.select((1.0 - a) * 0.5, a * a)
    t = outside.select(x.builder.intrinsic("sqrt", z), a)
    rest = z * t * _asin_tail(z)
    outer = (_HALF_PI[0] - (t + t)) - ((rest + rest) - _HALF_PI[1])
    return x.builder.intrinsic("copysign", outside.select(outer, t + rest), x)


@FUNCTIONS.define("tf.acos.float", "float", "float")
def acos(x: LlvmValue) -> LlvmValue:
    """pi / 2 - asin(x) up to 1/2; 2 asin(sqrt((1 - |x|) / 2)) above, and pi minus it below -1/2. 1.1 ulp."""
    a = x.absolute()
    outside = a.compare("ogt", 0.5)
    z = outside.select((1.0 - a) * 0.5, a * a)
    t = outside.select(x.builder.intrinsic("sqrt", z), x)
    angle = t + z * t * _asin_tail(z)
    twice = angle + angle
    negative = 2 * _HALF_PI[0] - (twice - 2 * _HALF_PI[1])
    outer = x.compare("olt", 0.0).select(negative, twice)
    return outside.select(outer, _HALF_PI[0] - (angle - _HALF_PI[1]))
