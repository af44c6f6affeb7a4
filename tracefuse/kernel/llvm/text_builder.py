"""A builder of LLVM IR text: values with operators, the builder of one function, and the processor's features.

The emitter and the math functions write LLVM IR through it: `x * x + 1.0` appends the instructions and returns the
value that holds the result. The text is deterministic: building a function twice gives the same text.
"""

from __future__ import annotations

import platform
import re
import struct
from collections.abc import Callable, Sequence

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import memoized
from tracefuse.dtypes import DType
from tracefuse.kernel.interrupt_shield import shielded
from tracefuse.kernel.llvm.rare_paths import call_attributes, guard_symbol

FLOAT_BITS = {"float": 32, "double": 64}


@dataclass(frozen=True, slots=True)
class Processor:
    """The processor features that the emitted text depends on.

    half_conversions: hardware conversions of float16. vector_bits: the width of a vector register.
    streaming_stores: non-temporal vector stores, with the x86 fence that orders them.
    scales: an instruction that multiplies vectors by powers of two.
    converts_longs: instructions that convert vectors of floats to 64-bit integers.
    slow_masked_stores: a masked store of a vector takes as long as ten others, and loads wait for it.
    masks: every instruction on vectors takes a mask of their lanes.
    halves_vectors: an instruction on a vector takes as long as two on halves of it.
    """

    half_conversions: bool
    vector_bits: int
    streaming_stores: bool = False
    scales: bool = False
    converts_longs: bool = True
    slow_masked_stores: bool = False
    masks: bool = False
    halves_vectors: bool = False


@memoized("the processor of this machine", key="none", most=1, clears=False)
def host_processor() -> Processor:
    """Return the features of this machine's processor."""
    return shielded(_ask_for_processor)


def _ask_for_processor() -> Processor:
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    wide = bool(features.get("avx512f", False))
    # Older LLVM cannot vectorize ldexp.
    scales = wide and bool(features.get("avx512vl", False)) and binding.llvm_version_info[0] >= 22
    streams = bool(features.get("avx2", False))
    arm = platform.machine() in ("aarch64", "arm64")
    longs = arm or bool(features.get("avx512dq", False))
    return Processor(
        bool(features.get("f16c", False)), 512 if wide else 256, streams, scales, longs,
        slow_masked_stores=not arm and not wide, masks=bool(features.get("avx512vl") and features.get("avx512bw")),
        halves_vectors=wide and binding.get_host_cpu_name() == "znver4",
    )  # fmt: skip


def float_literal(value: float, type_: str) -> str:
    """Return LLVM's hexadecimal literal of a float, which has the form of a double for both types."""
    if type_ == "float":
        with np.errstate(over="ignore"):
            value = float(np.float32(value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def vector_type(type_: str, lanes: int) -> str:
    """Return the type of a vector, or `type_` if it has no lanes."""
    return f"<{lanes} x {type_}>" if lanes else type_


LINKED = ".linked"
"""The end of the symbols of math functions that kernels are linked with (`kernel/llvm/linked_functions.py`)."""

_VARIANT = re.compile(r"(.+)\.v([0-9]+)")


def lanes_variant(symbol: str, lanes: int) -> str:
    """Return the variant of a function on vectors of `lanes` elements; the function itself for 0."""
    return f"{symbol}.v{lanes}" if lanes else symbol


def function_and_lanes(symbol: str) -> tuple[str, int]:
    """Return what `lanes_variant` made a symbol of."""
    variant = _VARIANT.fullmatch(symbol)
    return (variant[1], int(variant[2])) if variant else (symbol, 0)


class NotInVectorsError(Exception):
    """A function has no form on vectors: it branches, or calls a library."""


@dataclass(frozen=True, slots=True)
class LlvmValue:
    """An operand in LLVM IR: a literal or the name of a result. Operators append instructions to its builder.

    type: of the value, or of an element of a vector. lanes: the elements of a vector, 0 for another value. An operation
    on a vector and another value repeats the other value in all lanes.
    """

    builder: Builder
    text: str
    type: str
    lanes: int = 0

    def __str__(self) -> str:
        return f"{vector_type(self.type, self.lanes)} {self.text}"

    @property
    def is_float(self) -> bool:
        return self.type in FLOAT_BITS

    def like(self, other: LlvmValue | float) -> LlvmValue:
        """Return `other`, with a Python number converted to a literal of this value's type."""
        return other if isinstance(other, LlvmValue) else self.builder.literal(other, self.type)

    def binary(self, operation: str, other: LlvmValue | float, flags: str = "") -> LlvmValue:
        left, right = self.builder.spread(self, self.like(other))
        return self.builder.emit(f"{operation} {flags}{left}, {right.text}", self.type, lanes=left.lanes)

    def __add__(self, other: LlvmValue | float) -> LlvmValue:
        return self.binary("fadd" if self.is_float else "add", other)

    def __sub__(self, other: LlvmValue | float) -> LlvmValue:
        return self.binary("fsub" if self.is_float else "sub", other)

    def __rsub__(self, other: float) -> LlvmValue:
        return self.like(other) - self

    def __mul__(self, other: LlvmValue | float) -> LlvmValue:
        return self.binary("fmul" if self.is_float else "mul", other)

    def __truediv__(self, other: LlvmValue | float) -> LlvmValue:
        return self.binary("fdiv", other)

    def __rtruediv__(self, other: float) -> LlvmValue:
        return self.like(other) / self

    def __neg__(self) -> LlvmValue:
        if self.is_float:
            return self.builder.emit(f"fneg {self}", self.type, lanes=self.lanes)
        return self.like(0) - self

    def __and__(self, other: LlvmValue | int) -> LlvmValue:
        return self.binary("and", other)

    def __or__(self, other: LlvmValue | int) -> LlvmValue:
        return self.binary("or", other)

    def __xor__(self, other: LlvmValue | int) -> LlvmValue:
        return self.binary("xor", other)

    def __invert__(self) -> LlvmValue:
        return self ^ -1

    def __lshift__(self, other: LlvmValue | int) -> LlvmValue:
        return self.binary("shl", other)

    def __rshift__(self, other: LlvmValue | int) -> LlvmValue:
        """Shift right arithmetically."""
        return self.binary("ashr", other)

    def logical_shift(self, other: LlvmValue | int) -> LlvmValue:
        return self.binary("lshr", other)

    def compare(self, predicate: str, other: LlvmValue | float) -> LlvmValue:
        """Compare by an LLVM predicate: olt, une, ... for floats; slt, ult, eq, ... for integers."""
        left, right = self.builder.spread(self, self.like(other))
        operation = "fcmp" if self.is_float else "icmp"
        return self.builder.emit(f"{operation} {predicate} {left}, {right.text}", "i1", lanes=left.lanes)

    def select(self, yes: LlvmValue | float, no: LlvmValue | float) -> LlvmValue:
        """Return `yes` if this i1 is true, else `no`; at least one of the two is an LlvmValue."""
        model = yes if isinstance(yes, LlvmValue) else no
        assert isinstance(model, LlvmValue)
        condition, left, right = self.builder.spread(self, model.like(yes), model.like(no))
        return self.builder.emit(f"select {condition}, {left}, {right}", model.type, lanes=left.lanes)

    def convert(self, operation: str, type_: str) -> LlvmValue:
        return self.builder.emit(f"{operation} {self} to {vector_type(type_, self.lanes)}", type_, lanes=self.lanes)

    def bits(self) -> LlvmValue:
        """Return the bits of a float as an integer."""
        return self.convert("bitcast", f"i{FLOAT_BITS[self.type]}")

    def absolute(self) -> LlvmValue:
        return self.builder.intrinsic("fabs", self)

    def fused(self, factor: LlvmValue | float, addend: LlvmValue | float) -> LlvmValue:
        """Return self * factor + addend, rounded once if the processor has fused multiply-add, else twice."""
        return self.builder.intrinsic("fmuladd", self, self.like(factor), self.like(addend))


@dataclass(frozen=True, slots=True)
class Mutable:
    """A variable in a stack slot, which LLVM promotes to registers. lanes: of a vector, 0 for another value."""

    pointer: str
    dtype: DType
    lanes: int = 0


class Builder:
    """Collects the instructions of one function, the intrinsics it declares and the emitted functions it calls.

    scales, vector_bits: see `Processor`. branches: whether the function may have more than one block. is_linked: tells
    the functions that are called as others, with which the module is linked, from those that are emitted.
    """

    def __init__(self, scales: bool = False, vector_bits: int = 256, *, branches: bool = True) -> None:
        self.scales, self.vector_bits, self._branches = scales, vector_bits, branches
        self.is_linked: Callable[[str], bool] | None = None
        self.lines: list[str] = []
        self.declarations: dict[str, str] = {}
        self.functions: dict[str, None] = {}
        self._used: dict[str, int] = {}

    def name(self, hint: str) -> str:
        """Return a new local name that starts with `hint`."""
        if not (hint.isidentifier() and hint.isascii()):
            hint = re.sub(r"[^A-Za-z0-9_]", "_", hint)
        count = self._used.get(hint, 0)
        self._used[hint] = count + 1
        return f"%{hint}.{count}"

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def label(self, label: str) -> None:
        if not self._branches:
            raise NotInVectorsError(label)
        self.lines.append(f"{label[1:]}:")

    def emit(self, text: str, type_: str, hint: str = "t", lanes: int = 0) -> LlvmValue:
        """Append an instruction with a result. type_, lanes: of the result."""
        name = self.name(hint)
        self.line(f"{name} = {text}")
        return LlvmValue(self, name, type_, lanes)

    def spread(self, *values: LlvmValue) -> tuple[LlvmValue, ...]:
        """Return the values, with those that are no vectors repeated in all lanes if another one is a vector."""
        lanes = max(value.lanes for value in values)
        return tuple(value if value.lanes == lanes else self.repeat(value, lanes) for value in values)

    def repeat(self, value: LlvmValue, lanes: int) -> LlvmValue:
        """Return a vector of equal elements."""
        if not value.text.startswith("%"):
            return LlvmValue(self, f"splat ({value})", value.type, lanes)
        type_ = vector_type(value.type, lanes)
        first = self.emit(f"insertelement {type_} poison, {value}, i64 0", value.type, lanes=lanes)
        mask = f"<{lanes} x i32> zeroinitializer"
        return self.emit(f"shufflevector {first}, {type_} poison, {mask}", value.type, lanes=lanes)

    def literal(self, value: float, type_: str) -> LlvmValue:
        if type_ in FLOAT_BITS:
            return LlvmValue(self, float_literal(float(value), type_), type_)
        if type_ == "i1":
            return LlvmValue(self, "true" if value else "false", type_)
        return LlvmValue(self, str(int(value)), type_)

    def call(self, symbol: str, result: str, arguments: Sequence[LlvmValue], flags: str = "") -> LlvmValue:
        listed = ", ".join(map(str, arguments))
        lanes = max((a.lanes for a in arguments), default=0)
        return self.emit(f"call {flags}{vector_type(result, lanes)} @{symbol}({listed})", result, lanes=lanes)

    def intrinsic(self, name: str, *arguments: LlvmValue, suffix: str | None = None, flags: str = "") -> LlvmValue:
        """Call `llvm.<name>`, overloaded on the first argument; the result has that argument's type.

        suffix: the types that it is overloaded on, if not that one alone. Literals of i1 choose a variant.
        """
        type_ = arguments[0].type
        if suffix is None:
            suffix = f"f{FLOAT_BITS[type_]}" if type_ in FLOAT_BITS else type_
        lanes = max(a.lanes for a in arguments)
        if lanes:
            suffix = ".".join(f"v{lanes}{part}" for part in suffix.split("."))
            arguments = tuple(a if a.type == "i1" or a.lanes else self.repeat(a, lanes) for a in arguments)
        symbol = f"llvm.{name}.{suffix}"
        types = ", ".join(vector_type(a.type, a.lanes) for a in arguments)
        self.declarations[symbol] = f"declare {vector_type(type_, lanes)} @{symbol}({types})"
        return self.call(symbol, type_, arguments, flags)

    def external(self, symbol: str, result: str, *arguments: LlvmValue) -> LlvmValue:
        """Call a C library function that accesses no memory."""
        if any(a.lanes for a in arguments):
            raise NotInVectorsError(symbol)
        types = ", ".join(a.type for a in arguments)
        self.declarations[symbol] = f"declare {result} @{symbol}({types}) nounwind willreturn memory(none)"
        return self.call(symbol, result, arguments)

    def function(self, symbol: str, result: str, *arguments: LlvmValue) -> LlvmValue:
        """Call one of the emitted functions (`kernel/llvm/float32_math.py`), on vectors its variant."""
        arguments = self.spread(*arguments)
        called = lanes_variant(symbol, arguments[0].lanes)
        if self.is_linked is None or not self.is_linked(called):
            self.functions[called] = None
            return self.call(called, result, arguments)
        returned, *types = (vector_type(type_, arguments[0].lanes) for type_ in (result, *(a.type for a in arguments)))
        linked = f"{called}{LINKED}"
        self.declarations[linked] = f"declare {returned} @{linked}({', '.join(types)}) nounwind willreturn memory(none)"
        return self.call(linked, result, arguments)

    def replaced_if_rare(self, rare: LlvmValue, symbol: str, fast: LlvmValue, *arguments: LlvmValue) -> LlvmValue:
        """Return `fast`, or where the i1 `rare` holds, the rare function `symbol` (`LlvmFunctions.define_rare`)."""
        fast, rare, *arguments_ = self.spread(fast, rare, *arguments)
        self.functions[lanes_variant(symbol, fast.lanes)] = None
        guard = lanes_variant(guard_symbol(symbol), fast.lanes)
        listed = ", ".join(map(str, (fast, rare, *arguments_)))
        attributes = "" if fast.lanes else f" {call_attributes(symbol, len(arguments), self.vector_bits)}"
        text = f"call {vector_type(fast.type, fast.lanes)} @{guard}({listed}){attributes}"
        return self.emit(text, fast.type, lanes=fast.lanes)

    def polynomial(self, x: LlvmValue, coefficients: Sequence[float]) -> LlvmValue:
        """Return c[0] + c[1] x + c[2] x**2 + ..., evaluated by Horner's rule."""
        total = self.literal(coefficients[-1], x.type)
        for coefficient in reversed(coefficients[:-1]):
            total = total.fused(x, coefficient)
        return total


@dataclass(frozen=True, slots=True)
class LlvmFunction:
    """A function that emitted code may call: its types and the builder of its body.

    is_rare: it is called by its guard alone (`kernel/llvm/rare_paths.py`).
    """

    result: str
    arguments: tuple[str, ...]
    build: Callable[..., LlvmValue]
    is_rare: bool = False


class LlvmFunctions(dict[str, LlvmFunction]):
    """A table of functions by symbol, filled by decorating their builders."""

    def define(
        self, symbol: str, result: str, *arguments: str
    ) -> Callable[[Callable[..., LlvmValue]], Callable[..., LlvmValue]]:
        """Return a decorator that registers the builder of `symbol`."""

        def register(build: Callable[..., LlvmValue]) -> Callable[..., LlvmValue]:
            self[symbol] = LlvmFunction(result, arguments, build)
            return build

        return register

    def define_rare(
        self, symbol: str, result: str, *arguments: str
    ) -> Callable[[Callable[..., LlvmValue]], Callable[..., LlvmValue]]:
        """Return a decorator that registers the builder of `symbol`, a function for rare arguments."""

        def register(build: Callable[..., LlvmValue]) -> Callable[..., LlvmValue]:
            self[symbol] = LlvmFunction(result, arguments, build, is_rare=True)
            return build

        return register


def shuffled(builder: Builder, one: LlvmValue, other: LlvmValue | None, places: Sequence[int | None]) -> LlvmValue:
    """Emit a vector of elements of two vectors. places: of its elements; None for any."""
    listed = ", ".join("i32 poison" if place is None else f"i32 {place}" for place in places)
    second = f"{vector_type(one.type, one.lanes)} poison" if other is None else str(other)
    text = f"shufflevector {one}, {second}, <{len(places)} x i32> <{listed}>"
    return builder.emit(text, one.type, lanes=len(places))
