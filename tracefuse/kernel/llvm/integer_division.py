"""Division of integers as LLVM IR, in steps that vectors have: processors have no vector division of integers."""

from __future__ import annotations

from tracefuse.kernel.llvm.text_builder import LlvmValue, Processor


def is_literal(value: LlvmValue) -> bool:
    return not value.text.startswith("%")


def _divide(a: LlvmValue, b: LlvmValue, signed: bool) -> tuple[LlvmValue, LlvmValue]:
    """Return quotient and remainder, rounded toward zero; b is neither 0 nor (signed) -1.

    Up to 32 bits, a product with the inverse in floats of twice the width truncates to the quotient. LLVM optimizes
    constant divisors itself.
    """
    bits, sign = int(a.type[1:]), "s" if signed else "u"
    if bits > 32 or is_literal(b):
        return a.binary(f"{sign}div", b), a.binary(f"{sign}rem", b)
    wide, more = ("double", 2.0**-50) if bits == 32 else ("float", 2.0**-22)
    divisor = b.convert(f"{sign}itofp", wide)
    # One division for all elements of a loop with one divisor. The factor makes up for the roundings: the product is
    # not below an exact quotient, and does not reach the next integer.
    inverse = divisor.like(1 + more) / divisor
    quotient = (a.convert(f"{sign}itofp", wide) * inverse).convert(f"fpto{sign}i", a.type)
    return quotient, a - quotient * b


_LESS = 1 - 2.0**-50
"""A factor that makes a rounded quotient of 64-bit integers no larger than the exact one."""


def _divide_wide(a: LlvmValue, b: LlvmValue, signed: bool) -> tuple[LlvmValue, LlvmValue]:
    """Return quotient and remainder of 64-bit integers as `_divide` does, in steps that vectors have.

    The quotient of doubles, made a little smaller, leaves a remainder that is not negative and at most 2**16 times the
    divisor; a second quotient leaves one below twice the divisor.
    """
    top, bottom = (v.builder.intrinsic("abs", v, v.builder.literal(0, "i1")) if signed else v for v in (a, b))
    divisor = bottom.convert("uitofp", "double")
    inverse = divisor.like(_LESS) / divisor
    quotient, rest = a.like(0), top
    for _ in range(2):
        part = (rest.convert("uitofp", "double") * inverse).convert("fptoui", a.type)
        quotient, rest = quotient + part, rest - part * bottom
    above = rest.compare("uge", bottom)
    quotient, rest = above.select(quotient + 1, quotient), above.select(rest - bottom, rest)
    if not signed:
        return quotient, rest
    return (a ^ b).compare("slt", 0).select(-quotient, quotient), a.compare("slt", 0).select(-rest, rest)


def _high_product(a: LlvmValue, factor: int) -> LlvmValue:
    """Return the upper 64 bits of the product of an unsigned i64 and a constant, from products of 32-bit halves."""
    mask = (1 << 32) - 1
    low, high = a & mask, a.logical_shift(32)
    middle = high * (factor & mask) + (low * (factor & mask)).logical_shift(32)
    other = low * (factor >> 32) + (middle & mask)
    return high * (factor >> 32) + middle.logical_shift(32) + other.logical_shift(32)


def _divide_wide_by(a: LlvmValue, divisor: int, signed: bool) -> tuple[LlvmValue, LlvmValue]:
    """Return floor(a / divisor) and the remainder of a 64-bit integer; the divisor is no power of two, and positive.

    The quotient is a product with a rounded 2**k / divisor (Granlund and Montgomery, "Division by invariant integers
    using multiplication", 1994). A negative a is replaced by its complement, and so is the quotient.
    """
    places = divisor.bit_length()
    if signed:
        sign = a >> 63
        factor = (1 << (63 + places)) // divisor + 1
        quotient = _high_product(a ^ sign, factor).logical_shift(places - 1) ^ sign
    else:
        part = _high_product(a, ((1 << places) - divisor << 64) // divisor + 1)
        quotient = (part + (a - part).logical_shift(1)).logical_shift(places - 1)
    return quotient, a - quotient * divisor


def _is_power_of_two(literal: str) -> bool:
    return abs(int(literal)).bit_count() == 1


def divide_integers(name: str, a: LlvmValue, b: LlvmValue, signed: bool, processor: Processor) -> LlvmValue:
    """Divide with x / 0 = x % 0 = 0; the smallest integer divided by -1 wraps."""
    if b.text == "0" or (b.text == "-1" and not name.endswith("div")):
        return a.like(0)
    if b.text == "-1":
        return -a
    constant_divisor = is_literal(b)
    floors = a.type == "i64" and name in ("floordiv", "mod")
    has_short_form = constant_divisor and _is_power_of_two(b.text)
    if floors and constant_divisor and not has_short_form and int(b.text) > 0:
        return _divide_wide_by(a, int(b.text), signed)[name == "mod"]
    # Vector instructions convert between 64-bit integers and doubles where they scale by powers of two. Indices use
    # "truncdiv" and "truncmod", mostly outside of vector loops.
    divide = _divide_wide if floors and processor.scales and not has_short_form else _divide
    zero = b.compare("eq", 0)
    if not signed:
        safe = b if constant_divisor else zero.select(1, b)
        quotient, remainder = divide(a, safe, signed)
        return zero.select(0, quotient if name.endswith("div") else remainder)
    negates = b.compare("eq", -1)
    safe = b if constant_divisor else (zero | negates).select(1, b)
    quotient, remainder = divide(a, safe, signed)
    if name in ("floordiv", "mod"):
        adjusts = remainder.compare("ne", 0) & (remainder ^ safe).compare("slt", 0)
        quotient = quotient + adjusts.convert("sext", a.type)
        remainder = remainder + adjusts.select(safe, 0)
    if name.endswith("div"):
        return zero.select(0, negates.select(-a, quotient))
    return (zero | negates).select(0, remainder)
