"""Cube roots of both float types, without divisions.

Errors are stated as in `kernel/llvm/float32_math.py`.
"""

from __future__ import annotations

from tracefuse.kernel.llvm.double_words import fma
from tracefuse.kernel.llvm.text_builder import LlvmFunctions, LlvmValue

FUNCTIONS = LlvmFunctions()
# (1 - h)**(-1/3) - 1, divided by h.
_STEP = (1 / 3, 2 / 9, 14 / 81)
_RANGE = {"float": (2.0**-100, float.fromhex("0x1.fffffep127")), "double": (2.0**-960, float.fromhex("0x1p1023"))}
"""The magnitudes between which no intermediate result is subnormal or infinite."""
_SCALE = 54


def _inverse_guess(a: LlvmValue) -> LlvmValue:
    """a**(-1/3) to about 3.4 %, from a third of the bits of a."""
    bits = a.bits()
    if a.type == "float":
        guess = bits.convert("sitofp", "float").fused(-1 / 3, 1419900032.0)
        return guess.convert("fptosi", "i32").convert("bitcast", "float")
    third = (bits.logical_shift(32) * 0x55555556).logical_shift(32)
    return ((third.like(0x553EE000) - third) << 32).convert("bitcast", "double")


def _refined(y: LlvmValue, a: LlvmValue, terms: int) -> LlvmValue:
    """y (1 + h / 3 + ...) with h = 1 - a y**3: an error of y counts with its power of the terms plus 1."""
    h = (a * -y).fused(y * y, 1.0)
    return (y * h).fused(y.builder.polynomial(h, _STEP[:terms]), y)


def _root(x: LlvmValue) -> LlvmValue:
    """The cube root of x with |x| in _RANGE: a y**2, and a step of Newton that takes the exact residual."""
    a = x.absolute()
    y = _refined(_inverse_guess(a), a, 3)
    if a.type == "double":
        y = _refined(y, a, 2)
    inverse_square = y * y
    root = a * inverse_square
    square = root * root
    residual = fma(-fma(root, root, -square), root, fma(-square, root, a))
    root = (residual * inverse_square).fused(1 / 3, root)
    return x.builder.intrinsic("copysign", root, x)


def _special_root(x: LlvmValue) -> LlvmValue:
    """The cube root of tiny numbers by scaling; infinities and NaN are their own."""
    tiny = x.absolute().compare("olt", _RANGE[x.type][0])
    scaled = tiny.select(x * 2.0**_SCALE, x * 2.0**-_SCALE)
    factor = tiny.select(x.like(2.0 ** (-_SCALE // 3)), 2.0 ** (_SCALE // 3))
    result = _root(scaled) * factor
    unchanged = ~x.absolute().compare("olt", float("inf")) | x.compare("oeq", 0.0)
    return unchanged.select(x, result)


def _cube_root(x: LlvmValue) -> LlvmValue:
    """0.6 ulp."""
    a = x.absolute()
    least, most = _RANGE[x.type]
    zero = x.compare("oeq", 0.0)
    rare = ~(zero | (a.compare("oge", least) & a.compare("olt", most)))
    return x.builder.replaced_if_rare(rare, f"tf.cbrt.special.{x.type}", zero.select(x, _root(x)), x)


for _type in _RANGE:
    FUNCTIONS.define_rare(f"tf.cbrt.special.{_type}", _type, _type)(_special_root)
    FUNCTIONS.define(f"tf.cbrt.{_type}", _type, _type)(_cube_root)
