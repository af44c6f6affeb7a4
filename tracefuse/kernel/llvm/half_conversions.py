"""float16 and bfloat16 conversions in integer operations, for processors that have none.

All round to nearest even, keep NaN a NaN and the sign, and vectorise. A half value is its bits in an i16.

Knows: the formats (IEEE 754 binary16; bfloat16 is the upper half of a float32). Must not know: the kernel IR.
"""

from __future__ import annotations

from tracefuse.kernel.llvm.text_builder import Definitions, Value

FUNCTIONS = Definitions()


def _float(bits: Value) -> Value:
    return bits.convert("bitcast", "float")


@FUNCTIONS.define("tf.bfloat.to.float", "float", "i16")
def bfloat_to_float(x: Value) -> Value:
    return _float(x.convert("zext", "i32") << 16)


@FUNCTIONS.define("tf.float.to.bfloat", "i16", "float")
def float_to_bfloat(x: Value) -> Value:
    bits = x.bits()
    odd = bits.logical_shift(16) & 1
    chosen = x.compare("uno", x).select(bits | 0x400000, bits + odd + 0x7FFF)
    return chosen.logical_shift(16).convert("trunc", "i16")


@FUNCTIONS.define("tf.half.to.float", "float", "i16")
def half_to_float(x: Value) -> Value:
    """Shifts exponent and mantissa into place; the product with 2**112 corrects the bias and makes denormals normal."""
    wide = x.convert("zext", "i32")
    magnitude = (wide & 0x7FFF) << 13
    scaled = (_float(magnitude) * 2.0**112).bits()
    special = magnitude.compare("uge", 0x7C00 << 13)
    bits = special.select(magnitude | 0x7F800000, scaled)
    return _float(bits | ((wide & 0x8000) << 16))


@FUNCTIONS.define("tf.float.to.half", "i16", "float")
def float_to_half(x: Value) -> Value:
    """Normal results round in integers; for denormal ones, adding 0.5 leaves the rounded result in the last bits."""
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
def double_to_float_odd(x: Value) -> Value:
    """Rounds to odd: where the result is not exact its last bit is 1, so that rounding it again to fewer bits is right
    (Boldo and Melquiond, "When double rounding is odd", 2005)."""
    near = x.convert("fptrunc", "float")
    back = near.convert("fpext", "double")
    error = x - back
    inexact = error.compare("one", 0.0) & (near.bits() & 1).compare("eq", 0)
    outward = x.absolute().compare("ogt", back.absolute())
    return _float(near.bits() + inexact.select(outward.select(near.bits().like(1), -1), 0))


TRUNCATE = "__truncdfhf2"
"""What LLVM's code generator calls where it makes one conversion of two, from float64 through float32 to float16.

The compiler's own library, which has it, is not part of the process: a module with such conversions brings it along.
"""


@FUNCTIONS.define(TRUNCATE, "half", "double")
def double_to_half(x: Value) -> Value:
    """Rounds once."""
    return double_to_float_odd(x).convert("fptrunc", "half")
