"""float16 and bfloat16 conversions by integer operations, for processors without conversion instructions.

All round to nearest even, preserve NaN and the sign, and vectorize. A half value is an i16 that holds its bits: IEEE
754 binary16 for float16, the upper half of a float32 for bfloat16.
"""

from __future__ import annotations

from tracefuse.kernel.llvm.text_builder import LlvmFunctions, LlvmValue

FUNCTIONS = LlvmFunctions()


def _float(bits: LlvmValue) -> LlvmValue:
    return bits.convert("bitcast", "float")


@FUNCTIONS.define("tf.bfloat.to.float", "float", "i16")
def bfloat_to_float(x: LlvmValue) -> LlvmValue:
    return _float(x.convert("zext", "i32") << 16)


@FUNCTIONS.define("tf.float.to.bfloat", "i16", "float")
def float_to_bfloat(x: LlvmValue) -> LlvmValue:
    bits = x.bits()
    odd = bits.logical_shift(16) & 1
    chosen = x.compare("uno", x).select(bits | 0x400000, bits + odd + 0x7FFF)
    return chosen.logical_shift(16).convert("trunc", "i16")


@FUNCTIONS.define("tf.half.to.float", "float", "i16")
def half_to_float(x: LlvmValue) -> LlvmValue:
    """Shift exponent and mantissa into place, then multiply by 2**112 to correct the bias and normalize denormals."""
    wide = x.convert("zext", "i32")
    magnitude = (wide & 0x7FFF) << 13
    scaled = (_float(magnitude) * 2.0**112).bits()
    special = magnitude.compare("uge", 0x7C00 << 13)
    bits = special.select(magnitude | 0x7F800000, scaled)
    return _float(bits | ((wide & 0x8000) << 16))


@FUNCTIONS.define("tf.float.to.half", "i16", "float")
def float_to_half(x: LlvmValue) -> LlvmValue:
    """Round normal results in integer arithmetic; for denormal ones, adding 0.5 rounds into the low bits."""
    bits = x.bits()
    magnitude = bits & 0x7FFFFFFF
    odd = magnitude.logical_shift(13) & 1
    normal = (magnitude + odd + (0xFFF - (112 << 23))).logical_shift(13)
    denormal = (_float(magnitude) + 0.5).bits() - 0x3F000000
    small = magnitude.compare("ult", 113 << 23)
    result = small.select(denormal, normal)
    result = magnitude.compare("uge", 0x47800000).select(0x7C00, result)
    quiet = magnitude.logical_shift(13) & 0x3FF | 0x7E00
    result = magnitude.compare("ugt", 0x7F800000).select(quiet, result)
    return (result | (bits.logical_shift(16) & 0x8000)).convert("trunc", "i16")


@FUNCTIONS.define("tf.double.to.float.odd", "float", "double")
def double_to_float_odd(x: LlvmValue) -> LlvmValue:
    """Round to odd: an inexact result has its last bit set, so rounding it again to fewer bits is correct.

    S. Boldo and G. Melquiond, "When double rounding is odd", 2005.
    """
    near = x.convert("fptrunc", "float")
    back = near.convert("fpext", "double")
    error = x - back
    inexact = error.compare("one", 0.0) & (near.bits() & 1).compare("eq", 0)
    outward = x.absolute().compare("ogt", back.absolute())
    return _float(near.bits() + inexact.select(outward.select(near.bits().like(1), -1), 0))


TRUNCATE = "__truncdfhf2"
"""The function that LLVM's code generator calls when it fuses float64 to float32 to float16 into one conversion.

It belongs to the compiler's runtime library, which the process does not load. Modules with such conversions define it.
"""


@FUNCTIONS.define(TRUNCATE, "half", "double")
def double_to_half(x: LlvmValue) -> LlvmValue:
    """Convert with a single rounding."""
    return double_to_float_odd(x).convert("fptrunc", "half")
