"""Remainders of floats: fmod, and NumPy's remainder and floor_divide.

The processor's instruction for fmod takes one step for a few bits of the quotient. A quotient below 2**53 needs one
division and one fused multiply-add, which are exact; only larger ones call the C library, in a branch that vectors do
not have. Constant divisors need none: a quotient by a power of two is exact, and the quotients of float32 numbers are
reduced by multiples of the divisor in a few steps of float64.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

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


_STEP = 50
"""The bits of a quotient of which a step of float64 leaves less than one."""

_RANGE = (2.0**-40, 2.0**100)
"""The divisors, positive or negative, of which float64 represents the needed multiples and their inverses."""


def _by_power_of_two(a: LlvmValue, divisor: float) -> LlvmValue:
    """Return a modulo the divisor, for positive a; NaN for infinity."""
    return fma(-a.builder.intrinsic("trunc", a * (1.0 / divisor)), divisor, a)


def _in_steps(a: LlvmValue, divisor: float) -> LlvmValue:
    """Return a modulo the divisor, for a positive double that a float32 widened to; NaN for infinity.

    The rounded quotient by each multiple is at most one integer too large or too small.
    """
    steps = math.ceil((128 - math.log2(divisor)) / _STEP)
    for step in reversed(range(steps)):
        multiple = divisor * 2.0 ** (_STEP * step)
        rest = fma(-a.builder.intrinsic("trunc", a * (1.0 / multiple)), multiple, a)
        rest = rest.compare("olt", 0.0).select(rest + multiple, rest)
        a = rest.compare("oge", multiple).select(rest - multiple, rest)
    return a


def _fmod_by(x: LlvmValue, divisor: float) -> LlvmValue | None:
    """The remainder of x / divisor with the sign of x, without branches; None if a branch is needed."""
    size = abs(divisor)
    is_power = math.frexp(size)[0] == 0.5
    if not _RANGE[0] <= size <= _RANGE[1] or (x.type == "double" and not (is_power and size >= 1)):
        return None
    a = x.absolute()
    wide = a if x.type == "double" else a.convert("fpext", "double")
    rest = (_by_power_of_two if is_power else _in_steps)(wide, size)
    if x.type == "float":
        rest = rest.convert("fptrunc", "float")
    return x.builder.intrinsic("copysign", rest, x)


def by_constant(name: str, x: LlvmValue, y: LlvmValue) -> LlvmValue | None:
    """Emit a remainder or floor_divide for a constant divisor without branches; None if y is none of those."""
    build = _OF_REMAINDER.get(name)
    if build is None or y.text.startswith("%"):
        return None
    divisor = struct.unpack("<d", int(y.text, 16).to_bytes(8, "little"))[0]
    rest = _fmod_by(x, divisor) if math.isfinite(divisor) else None
    return None if rest is None else build(x, y, rest)


def _mod(x: LlvmValue, y: LlvmValue, r: LlvmValue) -> LlvmValue:
    """Compute NumPy's remainder from fmod: the result, including zero, has the divisor's sign."""
    adjusts = r.compare("olt", 0.0) ^ y.compare("olt", 0.0)
    adjusted = adjusts.select(r + y, r)
    return r.compare("oeq", 0.0).select(x.builder.intrinsic("copysign", x.like(0.0), y), adjusted)


def _floordiv(x: LlvmValue, y: LlvmValue, r: LlvmValue) -> LlvmValue:
    """Compute NumPy's floor_divide from fmod, so the two are consistent; x / y if y is 0."""
    quotient = (x - r) / y
    adjusts = (r.compare("olt", 0.0) ^ y.compare("olt", 0.0)) & r.compare("une", 0.0)
    quotient = adjusts.select(quotient - 1.0, quotient)
    floor = x.builder.intrinsic("floor", quotient)
    floor = (quotient - floor).compare("ogt", 0.5).select(floor + 1.0, floor)
    zero = x.builder.intrinsic("copysign", x.like(0.0), x / y)
    result = quotient.compare("oeq", 0.0).select(zero, floor)
    return y.compare("oeq", 0.0).select(x / y, result)


_OF_REMAINDER: dict[str, Callable[[LlvmValue, LlvmValue, LlvmValue], LlvmValue]] = {
    "truncmod": lambda x, y, r: r,
    "mod": _mod,
    "floordiv": _floordiv,
}
"""Returns each function of x and y from fmod(x, y)."""


def _define(name: str, type_: str) -> None:
    build = _OF_REMAINDER[name]
    FUNCTIONS.define(f"tf.{name}.{type_}", type_, type_, type_)(lambda x, y: build(x, y, fmod(x, y)))


for _type in FLOAT_BITS:
    FUNCTIONS.define(f"tf.fmod.{_type}", _type, _type, _type)(_fmod)
    for _name in ("mod", "floordiv"):
        _define(_name, _type)
