"""Remainders of floats: fmod, and NumPy's remainder and floor_divide.

The processor's instruction for fmod takes one step for a few bits of the quotient. A quotient below 2**53 needs one
division and one fused multiply-add, which are exact; only larger ones call the C library.
"""

from __future__ import annotations

from tracefuse.kernel.llvm.double_words import fma
from tracefuse.kernel.llvm.text_builder import FLOAT_BITS, LlvmFunctions, LlvmValue

FUNCTIONS = LlvmFunctions()


def _magnitude(a: LlvmValue, b: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """Return a / b and fmod(a, b) of positive doubles, the latter if the quotient is below 2**53.

    The rounded quotient is at most one integer too large: the difference and its sum with b are representable.
    """
    quotient = a / b
    rest = fma(-a.builder.intrinsic("trunc", quotient), b, a)
    rest = rest.compare("olt", 0.0).select(rest + b, rest)
    return quotient, quotient.compare("olt", 1.0).select(a, rest)


def _fmod(x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """The remainder of x / y with the sign of x."""
    builder = x.builder
    wide = [v.absolute() if v.type == "double" else v.absolute().convert("fpext", "double") for v in (x, y)]
    quotient, rest = _magnitude(*wide)
    if x.type == "float":
        rest = rest.convert("fptrunc", "float")
    start, rare, end = (builder.name(hint) for hint in ("common", "rare", "remainder"))
    builder.line(f"br label {start}")
    builder.label(start)
    common = builder.intrinsic("copysign", rest, x)
    builder.line(f"br {quotient.compare('olt', 2.0**53)}, label {end}, label {rare}")
    builder.label(rare)
    called = builder.external("fmod" if x.type == "double" else "fmodf", x.type, x, y)
    builder.line(f"br label {end}")
    builder.label(end)
    return builder.emit(f"phi {x.type} [ {common.text}, {start} ], [ {called.text}, {rare} ]", x.type)


def fmod(x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """Call the remainder of x / y with the sign of x."""
    return x.builder.function(f"tf.fmod.{x.type}", x.type, x, y)


def _mod(x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """Compute NumPy's remainder: the result, including zero, has the divisor's sign."""
    r = fmod(x, y)
    adjusts = r.compare("olt", 0.0) ^ y.compare("olt", 0.0)
    adjusted = adjusts.select(r + y, r)
    return r.compare("oeq", 0.0).select(x.builder.intrinsic("copysign", x.like(0.0), y), adjusted)


def _floordiv(x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """Compute NumPy's floor_divide from the remainder, so the two are consistent; x / y if y is 0."""
    r = fmod(x, y)
    quotient = (x - r) / y
    adjusts = (r.compare("olt", 0.0) ^ y.compare("olt", 0.0)) & r.compare("une", 0.0)
    quotient = adjusts.select(quotient - 1.0, quotient)
    floor = x.builder.intrinsic("floor", quotient)
    floor = (quotient - floor).compare("ogt", 0.5).select(floor + 1.0, floor)
    zero = x.builder.intrinsic("copysign", x.like(0.0), x / y)
    result = quotient.compare("oeq", 0.0).select(zero, floor)
    return y.compare("oeq", 0.0).select(x / y, result)


for _type in FLOAT_BITS:
    for _name, _build in (("fmod", _fmod), ("mod", _mod), ("floordiv", _floordiv)):
        FUNCTIONS.define(f"tf.{_name}.{_type}", _type, _type, _type)(_build)
