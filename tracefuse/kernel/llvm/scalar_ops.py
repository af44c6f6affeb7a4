"""Scalar operations as LLVM IR: every primitive and every cast of the kernel IR.

A float16 or bfloat16 value is an i16 that holds its bits; a bool is an i1. Instructions are defined for all inputs:
a select replaces unsafe divisors, shift counts are clamped, and casts to integers saturate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.errors import InternalError
from tracefuse.kernel.llvm import float32_math, float64_powers, float_remainders
from tracefuse.kernel.llvm.integer_division import divide_integers
from tracefuse.kernel.llvm.text_builder import Builder, LlvmValue, Processor

_HALVES = {"float16": "half", "bfloat16": "bfloat"}
_FLOAT_PREDICATES = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "round": "roundeven", "trunc": "trunc"}


def register_type(dtype: DType) -> str:
    """Return the LLVM type of a value of `dtype`."""
    if dtype.kind == "complex":
        raise InternalError(f"{dtype.name} in a kernel: complex numbers must be split into their parts")
    if dtype.kind == "bool":
        return "i1"
    if dtype.is_floating and not dtype.is_half:
        return "float" if dtype.itemsize == 4 else "double"
    return f"i{8 * dtype.itemsize}"


def memory_type(dtype: DType) -> str:
    """Return the LLVM type of an element in memory, where a bool is a byte."""
    return "i8" if dtype.kind == "bool" else register_type(dtype)


def constant(builder: Builder, value: bool | int | float | complex, dtype: DType) -> LlvmValue:
    """Return `value` as a literal of `dtype`."""
    type_ = register_type(dtype)
    assert not isinstance(value, complex)
    if dtype.is_half:
        bits = int(dtype.numpy.type(value).view("uint16"))
        return builder.literal(bits, type_)
    return builder.literal(value, type_)


# ---------------------------------------------------------------------------------------------------------------------
# casts


def _half_name(dtype: DType) -> str:
    return _HALVES[dtype.name]


def _widen(value: LlvmValue, dtype: DType, processor: Processor) -> LlvmValue:
    """Convert a half value to float32, exactly."""
    if dtype.name == "float16" and processor.half_conversions:
        return value.convert("bitcast", "half").convert("fpext", "float")
    return value.builder.function(f"tf.{_half_name(dtype)}.to.float", "float", value)


def _narrow(value: LlvmValue, dtype: DType, processor: Processor) -> LlvmValue:
    """Round a float32 value to a half type."""
    if dtype.name == "float16" and processor.half_conversions:
        return value.convert("fptrunc", "half").convert("bitcast", "i16")
    return value.builder.function(f"tf.float.to.{_half_name(dtype)}", "i16", value)


def _sticky(value: LlvmValue, signed: bool) -> LlvmValue:
    """Return an integer that float64 represents exactly and that rounds to a half type like the 64-bit `value`.

    Above 2**53 the low 12 bits are replaced by one sticky bit.
    """
    large = value.builder.intrinsic("abs", value, value.builder.literal(0, "i1")) if signed else value
    low = value & 0xFFF
    cut = (value ^ low) | low.compare("ne", 0).select(value.like(0x800), 0)
    return large.compare("ugt", 1 << 53).select(cut, value)


def _to_half(value: LlvmValue, source: DType, target: DType, processor: Processor) -> LlvmValue:
    """Convert with a single rounding: values that float32 cannot represent are rounded to odd on the way."""
    if source is dtypes.float64 or (source.is_integer and source.itemsize >= 4):
        if source.is_integer and source.itemsize == 8:
            value = _sticky(value, source.kind == "int")
        wide = cast(value, source, dtypes.float64, processor)
        value = value.builder.function("tf.double.to.float.odd", "float", wide)
    else:
        value = cast(value, source, dtypes.float32, processor)
    return _narrow(value, target, processor)


def _saturate(value: LlvmValue, target: DType, processor: Processor) -> LlvmValue:
    """Convert a float to an integer toward zero with saturation; NaN becomes 0.

    It clamps the float around the plain conversion, because LLVM does not vectorize its saturating intrinsic. The
    comparison that fails for NaN clamps it to the lower limit, which is 0 for unsigned integers.
    """
    bits = 8 * target.itemsize
    signed = target.kind == "int"
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    exact = bits <= (24 if value.type == "float" else 53)
    number = value.compare("uno", value).select(0.0, value) if signed else value
    number = number.compare("ogt", float(low)).select(number, float(low))
    over = number.compare("oge", float(high + 1))
    inside = number.compare("olt", float(high)).select(number, float(high)) if exact else over.select(0.0, number)
    if bits == 64 and not processor.converts_longs:
        result = _long_of(inside)
    else:
        result = inside.convert("fptosi" if signed or bits < 32 else "fptoui", f"i{max(bits, 32)}")
    if bits < 32:
        return result.convert("trunc", f"i{bits}")
    return result if exact else over.select(high, result)


def _long_of(value: LlvmValue) -> LlvmValue:
    """Truncate a float of 64-bit integers, signed or not, by operations that vectors have.

    Each half of the integer is the low bits of a float64 whose last place is one.
    """
    value = value if value.type == "double" else value.convert("fpext", "double")
    whole = value.builder.intrinsic("trunc", value)
    high = value.builder.intrinsic("floor", whole.binary("fmul", whole.like(2.0**-32)))
    low = whole.binary("fsub", high.binary("fmul", high.like(2.0**32)))
    upper, lower = (half.binary("fadd", half.like(1.5 * 2.0**52)).bits() for half in (high, low))
    return (upper << 32) | (lower & 0xFFFFFFFF)


def _to_integer(value: LlvmValue, source: DType, target: DType, processor: Processor) -> LlvmValue:
    type_ = register_type(target)
    if source.is_floating:
        return _saturate(value, target, processor)
    if source.itemsize == target.itemsize and source.kind != "bool":
        return value
    if source.itemsize > target.itemsize:
        return value.convert("trunc", type_)
    return value.convert("sext" if source.kind == "int" else "zext", type_)


def cast(value: LlvmValue, source: DType, target: DType, processor: Processor) -> LlvmValue:
    """Convert `value`: floats round to nearest even, float to integer saturates with NaN as 0, bool is `!= 0`."""
    if source is target:
        return value
    if source.is_half:
        return cast(_widen(value, source, processor), dtypes.float32, target, processor)
    if target.is_half:
        return _to_half(value, source, target, processor)
    if target.kind == "bool":
        return value.compare("une" if source.is_floating else "ne", 0)
    if target.is_integer:
        return _to_integer(value, source, target, processor)
    type_ = register_type(target)
    if source.is_floating:
        return value.convert("fpext" if target.itemsize > source.itemsize else "fptrunc", type_)
    if source is dtypes.uint64 and target is dtypes.float32:
        return _float_of_uint64(value)
    return value.convert("sitofp" if source.kind == "int" else "uitofp", type_)


def _float_of_uint64(value: LlvmValue) -> LlvmValue:
    """Converts a uint64 to float32 by signed conversions: of itself, or of its half, which keeps whether a bit is lost.

    LLVM takes two values of `uitofp` with 32 equal high bits for uint32, also where these bits are 1.
    """
    half = (value.logical_shift(1) | (value & 1)).convert("sitofp", "float")
    return value.compare("slt", 0).select(half + half, value.convert("sitofp", "float"))


# ---------------------------------------------------------------------------------------------------------------------
# integers


def _shift(name: str, a: LlvmValue, b: LlvmValue, signed: bool) -> LlvmValue:
    """Shift; a count of the width or more, which includes negative counts, shifts all bits out."""
    width = int(a.type[1:])
    inside = b.compare("ult", width)
    if name == "shr" and signed:
        return a >> inside.select(b, width - 1)
    count = inside.select(b, 0)
    return inside.select(a << count if name == "shl" else a.logical_shift(count), 0)


def _integer(
    name: str, dtype: DType, arguments: list[LlvmValue], processor: Processor, invariant: bool
) -> LlvmValue | None:
    a, *rest = arguments
    signed = dtype.kind == "int"
    sign = "s" if signed else "u"
    match name:
        case "add":
            return a + rest[0]
        case "sub":
            return a - rest[0]
        case "mul":
            return a * rest[0]
        case "neg":
            return -a
        case "abs":
            return a.builder.intrinsic("abs", a, a.builder.literal(0, "i1")) if signed else a
        case "minimum" | "maximum":
            return a.builder.intrinsic(f"{sign}{name[:3]}", a, rest[0])
        case "floordiv" | "mod" | "truncdiv" | "truncmod":
            return divide_integers(name, a, rest[0], signed, processor, invariant=invariant)
        case "shl" | "shr" | "shr_logical":
            return _shift(name, a, rest[0], signed)
        case "pow" | "gcd":
            return a.builder.function(f"tf.{name}.{sign}{a.type[1:]}", a.type, a, rest[0])
        case "fast_divide":
            low = a & 0xFFFFFFFF
            carried = (low * (rest[0] & 0xFFFFFFFF)).logical_shift(32)
            return (low * rest[0].logical_shift(32) + carried).logical_shift(30)
        case "lt" | "le" | "gt" | "ge":
            return a.compare(sign + name, rest[0])
        case "isnan" | "isinf":
            return a.builder.literal(0, "i1")
        case "isfinite":
            return a.builder.literal(1, "i1")
        case "signbit":
            return a.compare("slt", 0) if signed else a.builder.literal(0, "i1")
    return _bitwise(name, arguments)


def _bitwise(name: str, arguments: list[LlvmValue]) -> LlvmValue | None:
    a = arguments[0]
    if name == "not":
        return ~a
    if name in ("and", "or", "xor"):
        return a.binary(name, arguments[1])
    if name in ("eq", "ne"):
        return a.compare(name, arguments[1])
    return None


def _bool(name: str, arguments: list[LlvmValue]) -> LlvmValue | None:
    if name in ("minimum", "mul"):
        return arguments[0] & arguments[1]
    if name in ("maximum", "add"):
        return arguments[0] | arguments[1]
    if name in ("lt", "le", "gt", "ge"):
        return arguments[0].compare("u" + name, arguments[1])
    return _bitwise(name, arguments)


# ---------------------------------------------------------------------------------------------------------------------
# floats


def extremum(name: str, a: LlvmValue, b: LlvmValue) -> LlvmValue:
    """Return the minimum or maximum of two floats, NaN if either is; the second of equal ones, as NumPy's on x86.

    A choice by one comparison would lose the sign of a zero: LLVM moves casts of floats across such choices.
    """
    return a.compare("oeq", b).select(b, extremum_in_any_order(name, a, b))


def extremum_in_any_order(name: str, a: LlvmValue, b: LlvmValue) -> LlvmValue:
    """As `extremum`, either of zeros of both signs: a form whose reductions LLVM vectorizes."""
    return a.builder.intrinsic(name, a, b, flags="nsz ")


def _float_predicate(name: str, a: LlvmValue) -> LlvmValue | None:
    infinity = a.like(float("inf"))
    match name:
        case "isnan":
            return a.compare("uno", a)
        case "isinf":
            return a.absolute().compare("oeq", infinity)
        case "isfinite":
            return a.absolute().compare("olt", infinity)
        case "signbit":
            return a.bits().compare("slt", 0)
    return None


def _float(name: str, arguments: list[LlvmValue], flags: str) -> LlvmValue | None:
    a = arguments[0]
    builder = a.builder
    by_constant = float_remainders.by_constant(name, *arguments) if len(arguments) == 2 else None
    if by_constant is not None:
        return by_constant
    match name:
        case "add" | "sub" | "mul" | "div":
            return a.binary("f" + name, arguments[1], flags)
        case "rounded_product":
            return a.binary("fmul", arguments[1])
        case "neg":
            return -a
        case "abs":
            return a.absolute()
        case "sqrt" | "fma" | "copysign":
            return builder.intrinsic(name, *arguments, flags=flags if name == "sqrt" else "")
        case "rsqrt":
            return a.like(1.0).binary("fdiv", builder.intrinsic("sqrt", a, flags=flags), flags)
        case "minimum" | "maximum":
            return extremum(name, a, arguments[1])
        case "truncmod":
            return float_remainders.fmod(a, arguments[1])
        case "lt" | "le" | "gt" | "ge" | "eq" | "ne":
            return a.compare(_FLOAT_PREDICATES[name], arguments[1])
        case "floor" | "ceil" | "round" | "trunc":
            return builder.intrinsic(_ROUNDINGS[name], a)
        case "truncdiv":
            return builder.intrinsic("trunc", a.binary("fdiv", arguments[1]))
    predicate = _float_predicate(name, a)
    if predicate is not None:
        return predicate
    short = float64_powers.constant_power(a, arguments[1]) if name == "pow" else None
    if short is not None:
        return short
    symbol = f"tf.{name}.{a.type}"
    return builder.function(symbol, a.type, *arguments) if symbol in float32_math.FUNCTIONS else None


def _half_nextafter(a: LlvmValue, b: LlvmValue, wide_a: LlvmValue, wide_b: LlvmValue) -> LlvmValue:
    """Compute nextafter on the bits of halves, as float32_math.py does for float32. `wide_a`, `wide_b`: the values."""
    up = wide_a.compare("olt", wide_b) ^ a.compare("slt", 0)
    stepped = a + up.select(a.like(1), -1)
    result = wide_a.compare("oeq", 0.0).select((b & -0x8000) | 1, stepped)
    result = wide_a.compare("oeq", wide_b).select(b, result)
    result = wide_b.compare("uno", wide_b).select(b, result)
    return wide_a.compare("uno", wide_a).select(a, result)


def _half(name: str, dtype: DType, arguments: list[LlvmValue], flags: str, processor: Processor) -> LlvmValue | None:
    """Emit a primitive on halves: comparisons and sign operations are exact, others round the float32 result once."""
    if name in ("neg", "abs", "signbit", "copysign"):
        a = arguments[0]
        if name == "copysign":
            return (a & 0x7FFF) | (arguments[1] & -0x8000)
        return {"neg": lambda: a ^ -0x8000, "abs": lambda: a & 0x7FFF, "signbit": lambda: a.compare("slt", 0)}[name]()
    wide = [_widen(a, dtype, processor) for a in arguments]
    if name == "nextafter":
        return _half_nextafter(arguments[0], arguments[1], wide[0], wide[1])
    result = _float(name, wide, flags)
    return result if result is None or result.type == "i1" else _narrow(result, dtype, processor)


def _bitcast(value: LlvmValue, source: DType, target: DType) -> LlvmValue:
    type_ = register_type(target)
    if source.itemsize != target.itemsize:
        raise InternalError(f"kernel IR: bitcast of {source.name} to {target.name}: widths differ")
    return value if value.type == type_ else value.convert("bitcast", type_)


def primitive(
    name: str, arguments: list[LlvmValue], dtype: DType, result: DType, *, flags: str, processor: Processor,
    invariant: bool = False,
) -> LlvmValue:  # fmt: skip
    """Emit primitive `name` on values of `dtype`, that of the last argument; only bitcast uses `result`.

    flags: LLVM's fast-math flags for arithmetic, each followed by a space. invariant: the last argument is equal for
    all elements.
    Raises InternalError if the primitive is not defined for that dtype.
    """
    name = {"exp_term": "exp", "exp2_term": "exp2"}.get(name, name)
    if name == "select":
        return arguments[0].select(arguments[1], arguments[2])
    if name == "bitcast":
        return _bitcast(arguments[0], dtype, result)
    families: dict[str, Callable[[], LlvmValue | None]] = {
        "bool": lambda: _bool(name, arguments),
        "int": lambda: _integer(name, dtype, arguments, processor, invariant),
        "uint": lambda: _integer(name, dtype, arguments, processor, invariant),
        "float": functools.partial(_float, name, arguments, flags),
    }
    if dtype.is_half:
        families["float"] = lambda: _half(name, dtype, arguments, flags, processor)
    value = families[dtype.kind]() if dtype.kind in families else None
    if value is None:
        raise InternalError(f"kernel IR: {name} is not defined for {dtype.name}")
    return value
