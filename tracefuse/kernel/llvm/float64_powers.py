"""Vectorizable float64 powers and logarithms to other bases, and the error function.

Stated errors are the largest measured against 64-bit extended precision, in ulp. Coefficients are fitted as in
`kernel/llvm/float32_math.py`.
"""

from __future__ import annotations

from tracefuse.kernel.llvm.double_words import Words, fast_two_sum, fma, quotient, two_product, two_sum
from tracefuse.kernel.llvm.text_builder import LlvmFunctions, LlvmValue, float_literal

FUNCTIONS = LlvmFunctions()
_INFINITY, _NAN = float("inf"), float("nan")
# ln 2 in two parts; the first has 32 bits, so that its product with an exponent is exact.
_LN2 = (0.6931471803691238, 1.9082149292705877e-10)
# The same for log10(2).
_LOG10_2 = (0.3010299955494702, 1.1451100898021838e-10)
_LOG10_E = (0.4342944819032518, 1.098319650216765e-17)
_LOG2_E = (1.4426950408889634, 2.0355273740931033e-17)
# (2 atanh(s) - 2 s - 2/3 s**3) / s**5 as a polynomial in s**2, |s| <= (sqrt(2) - 1) / (sqrt(2) + 1).
_LOGARITHM = (
    *(0.4, 0.2857142857142937, 0.22222222221652765, 0.18181818336099848),
    *(0.1538459488700718, 0.1333480879881234, 0.11706126464563398, 0.11724327060846747),
)
# (2 atanh(s) / s - 2) / s**2 as a polynomial in s**2, to 2**-60 of the logarithm.
_TAIL = (
    *(0.6666666666666666, 0.40000000000000885, 0.28571428570799784, 0.22222222392581045),
    *(0.18181795547521137, 0.15386244737621665, 0.13268638369266825, 0.13088034850927555),
)
_TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
# 2 log2(e) and a third of it in two parts; log2 of (1 + s) / (1 - s) less these terms, as _LOGARITHM.
_TWO_LOG2_E = (2.8853900817779268, 4.0710547481862066e-17)
_TWO_THIRDS_LOG2_E = (0.9617966939259756, 5.0577616648125907e-17)
_LOG2_TAIL = (
    *(0.5770780163555853, 0.41219858311114393, 0.32059889796710966, 0.2623081914783527),
    *(0.2219527874957096, 0.19238062525249075, 0.16888370598444666, 0.16914628508443877),
)
# (2**r - 1) / r on [-1/2, 1/2].
_EXP2 = (
    *(0.6931471805599453, 0.24022650695910072, 0.055504108664821625, 0.00961812910762848, 0.001333355814640647),
    *(0.00015403530393370734, 1.5252733841556773e-05, 1.3215486808705563e-06, 1.0178057087733941e-07),
    *(7.0548973041554995e-09, 4.4558179083360645e-10, 2.5729324177362305e-11),
)
# erf(x) / x - 1 as a polynomial in x**2 on [0, 1].
_ERF = (
    *(0.1283791670955126, -0.37612638903183754, 0.1128379167095512, -0.02686617064512984, 0.0052239776254232985),
    *(-0.000854832702193483, 0.00012055332902888736, -1.4925647567519332e-05, 1.6462045441468418e-06),
    *(-1.6364642158167616e-07, 1.4792401209404813e-08, -1.216456005728345e-09, 8.709045129053106e-11),
    -4.230945824295338e-12,
)
# -log(erfc(x)) as a polynomial in x - 1 on [1, 6], fitted so that the error of erf(x) is least.
_LOG_ERFC = (
    *(1.8496055099332482, 2.638967514234791, 0.8431072563585141, 0.04156109804577765, -0.010033825424326214),
    *(0.001977902941790425, -0.00023732429898692516, -2.6271811595974e-05, 2.7144695124475806e-05),
    *(-9.583826253392272e-06, 2.0273148158421486e-06, -1.1127444743455568e-07, -1.2079081644210978e-07),
    *(6.493099350024274e-08, -2.0257859043946134e-08, 4.49177436253029e-09, -7.206234335421968e-10),
    *(8.00580198046625e-11, -5.51868365267996e-12, 1.7762034331560086e-13),
)


def _parts(x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """Return m in [sqrt(1/2), sqrt(2)) and k as a double with x = m 2**k, for positive finite x."""
    tiny = x.compare("olt", 2.2250738585072014e-308)
    bits = tiny.select(x * 18014398509481984.0, x).bits()
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = (bits - (exponent << 52)).convert("bitcast", "double")
    small = exponent.convert("trunc", "i32") + tiny.select(x.builder.literal(-54, "i32"), 0)
    return m, small.convert("sitofp", "double")


def _parts_of_normal(bits: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """The same for a normal number by its bits."""
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = (bits - (exponent << 52)).convert("bitcast", "double")
    return m, exponent.convert("trunc", "i32").convert("sitofp", "double")


def _is_normal(x: LlvmValue) -> LlvmValue:
    """Whether x is positive, finite and not subnormal."""
    return (x.bits() - (1 << 52)).compare("ult", 0x7FE << 52)


def _logarithm(m: LlvmValue) -> Words:
    """log(m) = 2 atanh(s), s = (m - 1) / (m + 1), to about 2**-67 of itself."""
    high = m + 1.0
    s = quotient(m - 1.0, Words(high, m - (high - 1.0)))
    square = two_product(s.high, s.high)
    z = Words(square.high, square.low + (s.high + s.high) * s.low)
    third = two_product(z.high, _TWO_THIRDS[0])
    third_low = third.low + z.high.fused(_TWO_THIRDS[1], z.low * _TWO_THIRDS[0])
    cube = two_product(third.high, s.high)
    cube_low = cube.low + third.high.fused(s.low, third_low * s.high)
    tail = (z.high * z.high * s.high).fused(m.builder.polynomial(z.high, _LOGARITHM), cube_low)
    total = fast_two_sum(s.high + s.high, cube.high)
    return fast_two_sum(total.high, total.low + (s.low.fused(2.0, tail)))


def _of_special(x: LlvmValue, result: LlvmValue) -> LlvmValue:
    """The logarithm of x where x is infinite, NaN, zero or negative, else `result`."""
    result = x.compare("olt", _INFINITY).select(result, x)
    result = x.compare("oeq", 0.0).select(-_INFINITY, result)
    return x.compare("olt", 0.0).select(_NAN, result)


def _short_logarithm(m: LlvmValue) -> Words:
    """log(m) to about 2**-60 of itself: f - f**2 / 2 in two words, f = m - 1, and the rest of the series."""
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    high = f - half
    return Words(high, s.fused(z.fused(m.builder.polynomial(z, _TAIL), half), (f - high) - half))


def _to_base(m: LlvmValue, k: LlvmValue, factor: tuple[float, float], of_two: tuple[float, float]) -> LlvmValue:
    """log(m 2**k) * factor, where of_two is log(2) * factor; its first part times an exponent is exact."""
    logarithm = _short_logarithm(m)
    scaled = two_product(logarithm.high, m.like(factor[0]))
    low = scaled.low + logarithm.high.fused(factor[1], logarithm.low * factor[0])
    total = fast_two_sum(k * of_two[0], scaled.high)
    return total.high + (total.low + (k.fused(of_two[1], low) if of_two[1] else low))


def _define_logarithm(name: str, factor: tuple[float, float], of_two: tuple[float, float]) -> None:
    def special(x: LlvmValue) -> LlvmValue:
        return _of_special(x, _to_base(*_parts(x), factor, of_two))

    def build(x: LlvmValue) -> LlvmValue:
        fast = _to_base(*_parts_of_normal(x.bits()), factor, of_two)
        return x.builder.replaced_if_rare(~_is_normal(x), f"tf.{name}.special.double", fast, x)

    FUNCTIONS.define_rare(f"tf.{name}.special.double", "double", "double")(special)
    FUNCTIONS.define(f"tf.{name}.double", "double", "double")(build)


# The largest errors are 0.6 ulp.
_define_logarithm("log10", _LOG10_E, _LOG10_2)
_define_logarithm("log2", _LOG2_E, (1.0, 0.0))


def _scaled(p: LlvmValue, i: LlvmValue) -> LlvmValue:
    """p * 2**i for an i64 between -1100 and 1100, rounded once."""
    if p.builder.scales:
        return p.builder.intrinsic("ldexp", p, i.convert("trunc", "i32"), suffix="f64.i32")
    # The offset makes the shifted number positive: AVX2 has no arithmetic shift of 64-bit integers.
    half = (i + 2048).logical_shift(1) - 1024
    return (
        p * ((half + 1023) << 52).convert("bitcast", "double") * ((i - half + 1023) << 52).convert("bitcast", "double")
    )


def _clamp(x: LlvmValue, low: float, high: float) -> LlvmValue:
    """Clamp x to [low, high]; NaN stays NaN."""
    x = x.compare("ogt", high).select(high, x)
    return x.compare("olt", low).select(low, x)


_SHIFT, _SHIFT_BITS = 6755399441055744.0, 0x4338000000000000


@FUNCTIONS.define("tf.exp2.double", "double", "double")
def exp2(x: LlvmValue) -> LlvmValue:
    """2**n * 2**r, r in [-1/2, 1/2]. 0.9 ulp."""
    x = _clamp(x, -1076.0, 1025.0)
    shifted = x + _SHIFT
    r = x - (shifted - _SHIFT)
    return _scaled(r.fused(x.builder.polynomial(r, _EXP2), 1.0), shifted.bits() - _SHIFT_BITS)


def _exponential(x: Words) -> LlvmValue:
    """exp(x), by way of 2**(x log2(e)); x.high in [-746, 710]."""
    scaled = two_product(x.high, _LOG2_E[0])
    low = scaled.low + x.high.fused(_LOG2_E[1], x.low * _LOG2_E[0])
    shifted = scaled.high + _SHIFT
    r = (scaled.high - (shifted - _SHIFT)) + low
    return _scaled(r.fused(r.builder.polynomial(r, _EXP2), 1.0), shifted.bits() - _SHIFT_BITS)


def _log2_in_words(x: LlvmValue) -> Words:
    """log2 of a positive normal number, to about 2**-66 of itself."""
    m, k = _parts_of_normal(x.bits())
    above, below = m - 1.0, m + 1.0
    s = quotient(above, Words(below, m - (below - 1.0)))
    square = two_product(s.high, s.high)
    square = Words(square.high, (s.high + s.high).fused(s.low, square.low))
    cube = two_product(square.high, s.high)
    cube = Words(cube.high, square.high.fused(s.low, square.low.fused(s.high, cube.low)))
    first, second = _times(s, _TWO_LOG2_E), _times(cube, _TWO_THIRDS_LOG2_E)
    tail = (square.high * cube.high).fused(x.builder.polynomial(square.high, _LOG2_TAIL), first.low + second.low)
    part = fast_two_sum(first.high, second.high)
    part = fast_two_sum(part.high, part.low + tail)
    total = fast_two_sum(k, part.high)
    return Words(total.high, total.low + part.low)


def _times(x: Words, factor: tuple[float, float]) -> Words:
    product = two_product(x.high, x.high.like(factor[0]))
    return Words(product.high, x.high.fused(factor[1], x.low.fused(factor[0], product.low)))


@FUNCTIONS.define("tf.pow.double", "double", "double", "double")
def power(x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """2**(y log2 x) for normal x; the power of 0 is 0. 1 ulp."""
    logarithm = _log2_in_words(x)
    exponent = two_product(y, logarithm.high)
    shifted = exponent.high + _SHIFT
    r = (exponent.high - (shifted - _SHIFT)) + y.fused(logarithm.low, exponent.low)
    p = r.fused(r.builder.polynomial(r, _EXP2), 1.0)
    result = (p.bits() + (shifted.bits() << 52)).convert("bitcast", "double")
    vanishes = x.bits().compare("eq", 0) & y.compare("ogt", 0.0)
    ordinary = _is_normal(x) & exponent.high.absolute().compare("olt", 1021.5)
    result = vanishes.select(0.0, result)
    return x.builder.replaced_if_rare(~(ordinary | vanishes), "tf.pow.special.double", result, x, y)


@FUNCTIONS.define_rare("tf.pow.special.double", "double", "double", "double")
def _special_power(x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """exp(y log |x|), with the special cases of C (Annex F) that the formula does not cover. 1 ulp."""
    a = x.absolute()
    m, k = _parts(a)
    part = _logarithm(m)
    total = two_sum(k * _LN2[0], part.high)
    high = _of_special(a, total.high)
    product = y * high
    ordinary = high.absolute().compare("olt", _INFINITY) & product.absolute().compare("olt", 800.0)
    low = fma(y, high, -product) + y * (total.low + k.fused(_LN2[1], part.low))
    result = _exponential(Words(_clamp(product, -746.0, 710.0), ordinary.select(low, 0.0)))
    is_integer = x.builder.intrinsic("rint", y).compare("oeq", y)
    half = y * 0.5
    odd = is_integer & x.builder.intrinsic("rint", half).compare("one", half)
    negative = x.bits().compare("slt", 0)
    result = (negative & odd).select(-result, result)
    no_root = x.compare("olt", 0.0) & a.compare("olt", _INFINITY) & ~is_integer & y.compare("ord", y)
    result = no_root.select(_NAN, result)
    is_one = y.compare("oeq", 0.0) | x.compare("oeq", 1.0)
    is_one = is_one | (a.compare("oeq", 1.0) & y.absolute().compare("oeq", _INFINITY))
    return is_one.select(1.0, result)


def _half_integer_power(x: LlvmValue, integer: int) -> LlvmValue:
    """x**(whole + 1/2) from the square root in two words. 1 ulp."""
    root = x.builder.intrinsic("sqrt", x)
    usual = root.compare("ogt", 0.0) & root.compare("olt", _INFINITY)
    low = fma(-root, root, x) / usual.select(root + root, 1.0)
    low = usual.select(low, 0.0)
    product, rest = x, x * low
    for _ in range(integer - 1):
        product, rest = product * x, rest * x
    result = fma(product, root, rest.absolute().compare("olt", _INFINITY).select(rest, 0.0))
    return x.compare("oeq", -_INFINITY).select(_INFINITY, result)


def constant_power(x: LlvmValue, exponent: LlvmValue) -> LlvmValue | None:
    """x to a constant power, or None if the exponent is no constant or has no short form."""
    name = _SHORT_POWERS.get(exponent.text)
    return x.builder.function(f"{name}.{x.type}", x.type, x) if name is not None else None


_SHORT_POWERS = {float_literal(whole + 0.5, "double"): f"tf.pow.{2 * whole + 1}.halves" for whole in (1, 2)}
"""The functions for constant exponents whose powers need no logarithm, by the literal of the exponent."""


def _define_half_integer(name: str, integer: int) -> None:
    def narrow(x: LlvmValue) -> LlvmValue:
        return _half_integer_power(x.convert("fpext", "double"), integer).convert("fptrunc", "float")

    FUNCTIONS.define(f"{name}.float", "float", "float")(narrow)
    FUNCTIONS.define(f"{name}.double", "double", "double")(lambda x: _half_integer_power(x, integer))


for _whole, _name in enumerate(_SHORT_POWERS.values(), start=1):
    _define_half_integer(_name, _whole)


@FUNCTIONS.define("tf.erf.double", "double", "double")
def erf(x: LlvmValue) -> LlvmValue:
    """An odd polynomial up to 1; above, 1 - exp(-q(|x|)). 1 ulp."""
    a = x.absolute()
    small = x.fused(x.builder.polynomial(x * x, _ERF), x)
    u = a.compare("ogt", 6.0).select(6.0, a) - 1.0
    q = x.builder.polynomial(u, _LOG_ERFC)
    large = 1.0 - x.builder.function("tf.exp.double", "double", -q)
    return a.compare("olt", 1.0).select(small, x.builder.intrinsic("copysign", large, x))
