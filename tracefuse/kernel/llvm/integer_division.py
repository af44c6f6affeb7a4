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


def _high_product(a: LlvmValue, factor: LlvmValue, bits: int) -> LlvmValue:
    """Return the product of unsigned integers of `bits` bits over 2**bits; of 64 bits from products of halves."""
    if int(a.type[1:]) > bits:
        return (a * factor).logical_shift(bits)
    if bits < 64:
        wide = f"i{2 * bits}"
        return (a.convert("zext", wide) * factor.convert("zext", wide)).logical_shift(bits).convert("trunc", a.type)
    mask = (1 << 32) - 1
    (low, high), (low_factor, high_factor) = (((v & mask), v.logical_shift(32)) for v in (a, factor))
    middle = high * low_factor + (low * low_factor).logical_shift(32)
    other = low * high_factor + (middle & mask)
    return high * high_factor + middle.logical_shift(32) + other.logical_shift(32)


def _wide_quotient(high: LlvmValue, divisor: LlvmValue, bits: int) -> LlvmValue:
    """Return floor(high * 2**bits / divisor) for unsigned high < divisor, once outside of loops.

    Of 64 bits in two digits of 32 (Knuth, "The Art of Computer Programming", volume 2, 4.3.1, algorithm D): a digit is
    estimated from the upper half of the divisor, and at most 2 too large.
    """
    if bits < 64:
        wide = f"i{2 * bits}"
        high, below = (v if v.type == wide else v.convert("zext", wide) for v in (high, divisor))
        quotient = (high << bits).binary("udiv", below)
        return quotient if divisor.type == wide else quotient.convert("trunc", divisor.type)
    shift = divisor.builder.intrinsic("ctlz", divisor, divisor.builder.literal(0, "i1"))
    rest, scaled = high << shift, divisor << shift
    upper, lower = scaled.logical_shift(32), scaled & ((1 << 32) - 1)
    digits = []
    for _ in range(2):
        digit = rest.binary("udiv", upper.builder.intrinsic("umax", upper, upper.like(1)))
        left = rest - digit * upper
        for _ in range(2):
            large = digit.compare("ugt", (1 << 32) - 1) | (digit * lower).compare("ugt", left << 32)
            large = large & left.compare("ult", 1 << 32)
            digit, left = large.select(digit - 1, digit), large.select(left + upper, left)
        rest = (rest << 32) - digit * scaled
        digits.append(digit)
    return (digits[0] << 32) + digits[1]


def _divide_by_invariant(name: str, a: LlvmValue, b: LlvmValue, signed: bool) -> LlvmValue:
    """Return a // b or a % b for a divisor that is equal for all elements of a loop: a product with its inverse.

    The quotient by a divisor of at least 2 is a product with a rounded 2**k / b (Granlund and Montgomery, "Division by
    invariant integers using multiplication", 1994, figures 4.1 and 6.1). A negative quotient is the complement of that
    of the complement.
    """
    if signed:
        negative = b.compare("slt", 0).convert("sext", a.type)
        turned = a ^ negative
        dividend = turned - negative
        sign = turned.compare("slt", negative).convert("sext", a.type)
        quotient = _positive_quotient(dividend ^ sign, (b ^ negative) - negative) ^ sign
        is_small = (b + 1).compare("ult", 3)
    else:
        dividend, quotient = a, _unsigned_quotient(a, b)
        is_small = b.compare("eq", 0)
    if name == "mod":
        return is_small.select(0, a - quotient * b)
    if not signed:
        return quotient
    return is_small.select(dividend & b.compare("ne", 0).convert("sext", a.type), quotient)


def _positive_quotient(a: LlvmValue, divisor: LlvmValue) -> LlvmValue:
    """Return floor(a / divisor) of unsigned integers with a <= 2**(bits - 1); 2 takes the place of smaller divisors."""
    bits, (wide, size) = int(a.type[1:]), _widened(a, divisor)
    size = a.builder.intrinsic("umax", size, size.like(2))
    places = _ceiling_logarithm(size) - 1
    factor = _wide_quotient(size.like(1) << places, size, bits) + 1
    return _narrowed(_high_product(wide, factor, bits).logical_shift(places), a.type)


def _unsigned_quotient(a: LlvmValue, divisor: LlvmValue) -> LlvmValue:
    """Return floor(a / divisor) of unsigned integers, 0 for the divisor 0."""
    builder, bits, (wide, size) = a.builder, int(a.type[1:]), _widened(a, divisor)
    is_zero, places = size.compare("eq", 0), _ceiling_logarithm(size)
    size, first = builder.intrinsic("umax", size, size.like(1)), builder.intrinsic("umin", places, size.like(1))
    power = (size.like(1) << (places - first)) << first  # 0 in place of 2**bits
    factor = is_zero.select(0, _wide_quotient(power - size, size, bits) + 1)
    part = _high_product(wide, factor, bits)
    return _narrowed((part + (wide - part).logical_shift(first)).logical_shift(places - first), a.type)


def _widened(*values: LlvmValue) -> tuple[LlvmValue, ...]:
    """Return unsigned integers, of 8 bits as ones of 16: vectors have no shift of 8 bits."""
    return tuple(v.convert("zext", "i16") if v.type == "i8" else v for v in values)


def _narrowed(value: LlvmValue, type_: str) -> LlvmValue:
    return value if value.type == type_ else value.convert("trunc", type_)


def _ceiling_logarithm(a: LlvmValue) -> LlvmValue:
    """Return the least k with a <= 2**k; of 0 the number of bits."""
    return a.like(int(a.type[1:])) - a.builder.intrinsic("ctlz", a - 1, a.builder.literal(0, "i1"))


def _needs_product(divisor: str, type_: str, signed: bool) -> bool:
    """Whether LLVM's own code for a constant divisor is no vector code, or slower: of narrow signed integers."""
    is_power_of_two = int(divisor) > 0 and int(divisor).bit_count() == 1
    return not is_power_of_two and (type_ == "i64" or (signed and type_ != "i32"))


def divide_integers(
    name: str, a: LlvmValue, b: LlvmValue, signed: bool, processor: Processor, *, invariant: bool = False
) -> LlvmValue:
    """Divide with x / 0 = x % 0 = 0; the smallest integer divided by -1 wraps.

    invariant: b is equal for all elements.
    """
    if b.text == "0" or (b.text == "-1" and not name.endswith("div")):
        return a.like(0)
    if b.text == "-1":
        return -a
    constant_divisor = is_literal(b)
    floors = name in ("floordiv", "mod")
    if floors and (_needs_product(b.text, a.type, signed) if constant_divisor else invariant):
        return _divide_by_invariant(name, a, b, signed)
    # Vector instructions convert between 64-bit integers and doubles where they scale by powers of two. Indices use
    # "truncdiv" and "truncmod", mostly outside of vector loops.
    divide = _divide_wide if floors and a.type == "i64" and processor.scales else _divide
    if constant_divisor:
        quotient, remainder = _rounded(floors and signed, *_divide(a, b, signed), b)
        return quotient if name.endswith("div") else remainder
    zero = b.compare("eq", 0)
    if not signed:
        quotient, remainder = divide(a, zero.select(1, b), signed)
        return zero.select(0, quotient if name.endswith("div") else remainder)
    negates = b.compare("eq", -1)
    safe = (zero | negates).select(1, b)
    quotient, remainder = _rounded(floors, *divide(a, safe, signed), safe)
    if name.endswith("div"):
        return zero.select(0, negates.select(-a, quotient))
    return (zero | negates).select(0, remainder)


def _rounded(
    floors: bool, quotient: LlvmValue, remainder: LlvmValue, divisor: LlvmValue
) -> tuple[LlvmValue, LlvmValue]:
    """Return a quotient rounded toward zero and its remainder; floors: rounded down."""
    if not floors:
        return quotient, remainder
    adjusts = remainder.compare("ne", 0) & (remainder ^ divisor).compare("slt", 0)
    return quotient + adjusts.convert("sext", quotient.type), remainder + adjusts.select(divisor, 0)
