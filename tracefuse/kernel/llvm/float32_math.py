"""Float32 math functions in LLVM IR, and the table of all functions that emitted code may call.

Each function is a range reduction and a polynomial without branches, which LLVM inlines and vectorizes. Some call
another function for few arguments (`kernel/llvm/rare_paths.py`).
Coefficients are near-minimax fits (interpolation at Chebyshev nodes in 60 digits) on the interval in each docstring.
Stated errors are the largest measured over dense and random arguments. Functions that need more than float32 precision
are in `kernel/llvm/widened_math.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tracefuse.caches import memoized
from tracefuse.dtypes import DType
from tracefuse.kernel.llvm import (
    cube_roots,
    float32_arcs,
    float32_logarithms,
    float32_powers,
    float32_trigonometry,
    float64_math,
    float64_powers,
    float64_trigonometry,
    float_remainders,
    half_conversions,
    integer_functions,
    widened_math,
)
from tracefuse.kernel.llvm.rare_paths import (
    guard_texts,
    kept_text,
    lanes_declaration,
    lanes_symbol,
    lanes_text,
    variant_widths,
    vector_guard,
)
from tracefuse.kernel.llvm.text_builder import (
    FLOAT_BITS,
    Builder,
    LlvmFunctions,
    LlvmValue,
    NotInVectorsError,
    Processor,
    function_and_lanes,
    vector_type,
)

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


def _expm1(x: LlvmValue) -> LlvmValue:
    """2 (2**(n - 1) (exp(r) - 1) + 2**(n - 1) - 1/2), r = x - n ln 2, for x in [-18, 89]. 1.4 ulp."""
    n, i = _round(x, _LOG2_E)
    r = n.fused(-_LN2_LOW, n.fused(-_LN2_HIGH, x))
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
    return result + result


@_NARROW.define("tf.expm1.float", "float", "float")
def expm1(x: LlvmValue) -> LlvmValue:
    """1.4 ulp."""
    return x.builder.intrinsic("copysign", _expm1(_clamp(x, -18.0, 89.0)), x)


@_NARROW.define_rare("tf.cosh.large.float", "float", "float")
def _large_cosh(x: LlvmValue) -> LlvmValue:
    """exp(|x| / 2)**2 / 2, also sinh(|x|)."""
    half = exp(x.absolute() * 0.5)
    return half * 0.5 * half


@_NARROW.define_rare("tf.sinh.large.float", "float", "float")
def _large_sinh(x: LlvmValue) -> LlvmValue:
    return x.builder.intrinsic("copysign", _large_cosh(x), x)


@_NARROW.define("tf.sinh.float", "float", "float")
def sinh(x: LlvmValue) -> LlvmValue:
    """(e + e / (e + 1)) / 2 with e = exp(|x|) - 1. 2.1 ulp."""
    a = x.absolute()
    e = _expm1(a)
    result = x.builder.intrinsic("copysign", (e + e / (e + 1.0)) * 0.5, x)
    return x.builder.replaced_if_rare(a.compare("ugt", 88.0), "tf.sinh.large.float", result, x)


@_NARROW.define("tf.cosh.float", "float", "float")
def cosh(x: LlvmValue) -> LlvmValue:
    """(e + 1 / e) / 2 with e = exp(|x|). 2.1 ulp."""
    a = x.absolute()
    e = exp(a)
    result = (e + 1.0 / e) * 0.5
    return x.builder.replaced_if_rare(a.compare("ugt", 88.0), "tf.cosh.large.float", result, x)


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
    **cube_roots.FUNCTIONS,
    **float32_arcs.FUNCTIONS,
    **float32_logarithms.FUNCTIONS,
    **float32_powers.FUNCTIONS,
    **float32_trigonometry.FUNCTIONS,
    **float_remainders.FUNCTIONS,
    **widened_math.FUNCTIONS,
    **_NARROW,
}


class _FunctionText(NamedTuple):
    """The LLVM text of a function, its declarations, the functions that it calls, and what its guard keeps."""

    text: str
    declarations: dict[str, str]
    called: tuple[str, ...]
    kept: tuple[str, ...]


@memoized(
    "LLVM text of a math function", key="symbol, processor", most=None, bound="math functions and widths", clears=False
)
def _function(symbol: str, scales: bool, vector_bits: int) -> _FunctionText:
    """Return the text of a function, or of its variant on vectors. scales, vector_bits: see `Processor`."""
    name, lanes = function_and_lanes(symbol)
    definition = FUNCTIONS[name]
    builder = Builder(scales, vector_bits, branches=not lanes)
    arguments = [LlvmValue(builder, f"%a{n}", type_, lanes) for n, type_ in enumerate(definition.arguments)]
    result = definition.build(*arguments)
    type_, listed = vector_type(definition.result, lanes), ", ".join(map(str, arguments))
    head = f"define internal {type_} @{symbol}({listed}) alwaysinline nounwind {{"
    text = "\n".join([head, *builder.lines, f"  ret {result}", "}"])
    return _FunctionText(text, builder.declarations, tuple(builder.functions), ())


@memoized(
    "LLVM text of a rare path's guard",
    key="symbol, processor",
    most=None,
    bound="math functions and widths",
    clears=False,
)
def _guard(symbol: str, vector_bits: int) -> _FunctionText:
    """Return the text of the guard of a rare function, with its variants, or of one variant."""
    name, lanes = function_and_lanes(symbol)
    definition = FUNCTIONS[name]
    declarations = {lanes_symbol(name): lanes_declaration(name, definition.arguments)}
    if lanes:
        text = vector_guard(name, definition.result, definition.arguments, lanes)
        return _FunctionText(text, declarations, (), ())
    texts, kept = guard_texts(symbol, definition.result, definition.arguments, vector_bits)
    return _FunctionText("\n".join(texts), declarations, (), tuple(kept))


@memoized(
    "whether a math function has variants on vectors",
    key="symbol",
    most=None,
    bound="math functions and widths",
    clears=False,
)
def has_variant(symbol: str) -> bool:
    """Return whether the variant `symbol` of a math function on vectors can be written."""
    name, lanes = function_and_lanes(symbol)
    if FUNCTIONS[name].is_rare or not lanes:
        return True
    try:
        called = _function(symbol, False, 256).called
    except NotInVectorsError:
        return False
    return all(map(has_variant, called))


def has_rare_path(name: str, dtype: DType) -> bool:
    """Return whether primitive `name` of a float type calls a rare function. Halves are computed in float32."""
    symbol = f"tf.{name}.{'double' if dtype.itemsize == 8 else 'float'}"
    if symbol not in FUNCTIONS:
        return False
    return any(FUNCTIONS[called].is_rare for called in _function(symbol, False, 256).called)


def functions(symbols: Iterable[str], declarations: dict[str, str], processor: Processor) -> list[str]:
    """Return the texts of `symbols` and of all functions they call, and add their declarations to `declarations`.

    Of rare functions these are the guards alone.
    """
    texts: dict[str, _FunctionText] = {}
    pending = list(symbols)
    while pending:
        symbol = pending.pop()
        if symbol not in texts:
            is_rare = FUNCTIONS[function_and_lanes(symbol)[0]].is_rare
            texts[symbol] = (
                _guard(symbol, processor.vector_bits)
                if is_rare
                else _function(symbol, processor.scales, processor.vector_bits)
            )
            declarations.update(texts[symbol].declarations)
            pending += texts[symbol].called
    # The guard of a rare function has the variants that LLVM's vectorizer may call.
    repeated = [symbol for symbol in texts if _is_repeated(symbol, texts, processor.vector_bits)]
    sorted_texts = [texts[symbol] for symbol in sorted(texts) if symbol not in repeated]
    kept = [symbol for function in sorted_texts for symbol in function.kept]
    return [*(function.text for function in sorted_texts), *([kept_text(kept)] if kept else [])]


def _is_repeated(symbol: str, texts: Mapping[str, _FunctionText], vector_bits: int) -> bool:
    """Return whether a variant of a guard is part of the text of its guard."""
    name, lanes = function_and_lanes(symbol)
    return lanes in variant_widths(vector_bits) and FUNCTIONS[name].is_rare and name in texts


def lanes_functions(symbol: str, declarations: dict[str, str], processor: Processor) -> list[str]:
    """Return the texts of `lanes_symbol(symbol)`, of the rare function `symbol` and of all functions that it calls.

    Their declarations are added to `declarations`.
    """
    definition = FUNCTIONS[symbol]
    rare = _function(symbol, processor.scales, processor.vector_bits)
    declarations.update(rare.declarations)
    lanes = lanes_text(symbol, definition.result, definition.arguments)
    return [lanes, rare.text, *functions(rare.called, declarations, processor)]
