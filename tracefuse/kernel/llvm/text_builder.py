"""Building blocks of LLVM IR text: values with operators, the builder of one function, and what the processor has.

The emitter and the maths functions write LLVM IR through these: `x * x + 1.0` appends the instructions and gives the
value that holds the result. A function that is built twice gives the same text.

Knows: LLVM's spelling of types, literals and instructions. Must not know: the kernel IR, which functions exist.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tracefuse.caches import memoized
from tracefuse.kernel.interrupt_shield import shielded

FLOAT_BITS = {"float": 32, "double": 64}


@dataclass(frozen=True, slots=True)
class Processor:
    """What the emitted text depends on: half conversions in hardware, the width of a vector in bits, stores of vectors
    past the caches (and the fence that orders them, of x86), products of vectors and powers of two."""

    half_conversions: bool
    vector_bits: int
    streaming_stores: bool = False
    scales: bool = False


@memoized("the processor of this machine", key="none", most=1, clears=False)
def host_processor() -> Processor:
    """The processor of this machine."""
    return shielded(_ask_for_processor)


def _ask_for_processor() -> Processor:
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    wide = bool(features.get("avx512f", False))
    # Older LLVM has no vectors of ldexp.
    scales = wide and bool(features.get("avx512vl", False)) and binding.llvm_version_info[0] >= 22
    return Processor(bool(features.get("f16c", False)), 512 if wide else 256, bool(features.get("avx2", False)), scales)


def float_literal(value: float, type_: str) -> str:
    """LLVM's hexadecimal spelling of a float; it is the one of a double for both types."""
    if type_ == "float":
        with np.errstate(over="ignore"):
            value = float(np.float32(value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


@dataclass(frozen=True, slots=True)
class Value:
    """An operand of LLVM IR: a literal or the name of a result. Operators append instructions to its builder."""

    builder: Builder
    text: str
    type: str

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    @property
    def is_float(self) -> bool:
        return self.type in FLOAT_BITS

    def like(self, other: Value | float) -> Value:
        """`other`, a Python number turned into a literal of this value's type."""
        return other if isinstance(other, Value) else self.builder.literal(other, self.type)

    def binary(self, operation: str, other: Value | float, flags: str = "") -> Value:
        right = self.like(other)
        return self.builder.emit(f"{operation} {flags}{self}, {right.text}", self.type)

    def __add__(self, other: Value | float) -> Value:
        return self.binary("fadd" if self.is_float else "add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self.binary("fsub" if self.is_float else "sub", other)

    def __rsub__(self, other: float) -> Value:
        return self.like(other) - self

    def __mul__(self, other: Value | float) -> Value:
        return self.binary("fmul" if self.is_float else "mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self.binary("fdiv", other)

    def __rtruediv__(self, other: float) -> Value:
        return self.like(other) / self

    def __neg__(self) -> Value:
        return self.builder.emit(f"fneg {self}", self.type) if self.is_float else self.like(0) - self

    def __and__(self, other: Value | int) -> Value:
        return self.binary("and", other)

    def __or__(self, other: Value | int) -> Value:
        return self.binary("or", other)

    def __xor__(self, other: Value | int) -> Value:
        return self.binary("xor", other)

    def __invert__(self) -> Value:
        return self ^ -1

    def __lshift__(self, other: Value | int) -> Value:
        return self.binary("shl", other)

    def __rshift__(self, other: Value | int) -> Value:
        """Shift that keeps the sign."""
        return self.binary("ashr", other)

    def logical_shift(self, other: Value | int) -> Value:
        return self.binary("lshr", other)

    def compare(self, predicate: str, other: Value | float) -> Value:
        """`predicate` is LLVM's: olt, une, ... for floats, slt, ult, eq, ... for integers."""
        right = self.like(other)
        return self.builder.emit(f"{'fcmp' if self.is_float else 'icmp'} {predicate} {self}, {right.text}", "i1")

    def select(self, yes: Value | float, no: Value | float) -> Value:
        """`yes` where this i1 is true; at least one of the two is a Value."""
        model = yes if isinstance(yes, Value) else no
        assert isinstance(model, Value)
        return self.builder.emit(f"select i1 {self.text}, {model.like(yes)}, {model.like(no)}", model.type)

    def convert(self, operation: str, type_: str) -> Value:
        return self.builder.emit(f"{operation} {self} to {type_}", type_)

    def bits(self) -> Value:
        """The bits of a float as an integer."""
        return self.convert("bitcast", f"i{FLOAT_BITS[self.type]}")

    def absolute(self) -> Value:
        return self.builder.intrinsic("fabs", self)

    def fused(self, factor: Value | float, addend: Value | float) -> Value:
        """self * factor + addend, rounded once where the processor can, else twice."""
        return self.builder.intrinsic("fmuladd", self, self.like(factor), self.like(addend))


class Builder:
    """The instructions of one function, the intrinsics that it declares, and the functions that it calls.

    scales: the processor multiplies vectors by powers of two.
    """

    def __init__(self, scales: bool = False) -> None:
        self.scales = scales
        self.lines: list[str] = []
        self.declarations: dict[str, str] = {}
        self.functions: dict[str, None] = {}
        self._used: dict[str, int] = {}

    def name(self, hint: str) -> str:
        """A new local name that starts with `hint`."""
        hint = re.sub(r"[^A-Za-z0-9_]", "_", hint)
        count = self._used.get(hint, 0)
        self._used[hint] = count + 1
        return f"%{hint}.{count}"

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def label(self, label: str) -> None:
        self.lines.append(f"{label[1:]}:")

    def emit(self, text: str, type_: str, hint: str = "t") -> Value:
        name = self.name(hint)
        self.line(f"{name} = {text}")
        return Value(self, name, type_)

    def literal(self, value: float, type_: str) -> Value:
        if type_ in FLOAT_BITS:
            return Value(self, float_literal(float(value), type_), type_)
        if type_ == "i1":
            return Value(self, "true" if value else "false", type_)
        return Value(self, str(int(value)), type_)

    def call(self, symbol: str, result: str, arguments: Sequence[Value], flags: str = "") -> Value:
        listed = ", ".join(str(a) for a in arguments)
        return self.emit(f"call {flags}{result} @{symbol}({listed})", result)

    def intrinsic(self, name: str, *arguments: Value, suffix: str | None = None, flags: str = "") -> Value:
        """A call of `llvm.<name>` overloaded on the first argument; the result has that argument's type."""
        type_ = arguments[0].type
        if suffix is None:
            suffix = f"f{FLOAT_BITS[type_]}" if type_ in FLOAT_BITS else type_
        symbol = f"llvm.{name}.{suffix}"
        self.declarations[symbol] = f"declare {type_} @{symbol}({', '.join(a.type for a in arguments)})"
        return self.call(symbol, type_, arguments, flags)

    def external(self, symbol: str, result: str, *arguments: Value) -> Value:
        """A call of a function of the C library that reads and writes no memory."""
        types = ", ".join(a.type for a in arguments)
        self.declarations[symbol] = f"declare {result} @{symbol}({types}) nounwind willreturn memory(none)"
        return self.call(symbol, result, arguments)

    def function(self, symbol: str, result: str, *arguments: Value) -> Value:
        """A call of one of the emitted functions (`kernel/llvm/float32_math.py`)."""
        self.functions[symbol] = None
        return self.call(symbol, result, arguments)

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """c[0] + c[1] x + c[2] x**2 + ... by Horner's rule."""
        total = self.literal(coefficients[-1], x.type)
        for coefficient in reversed(coefficients[:-1]):
            total = total.fused(x, coefficient)
        return total


@dataclass(frozen=True, slots=True)
class Definition:
    """A function that emitted code may call: its types, and how its body is built from its arguments."""

    result: str
    arguments: tuple[str, ...]
    build: Callable[..., Value]


class Definitions(dict[str, Definition]):
    """Functions by symbol; filled by decorating their builders."""

    def define(
        self, symbol: str, result: str, *arguments: str
    ) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
        """Decorates the builder of `symbol`."""

        def register(build: Callable[..., Value]) -> Callable[..., Value]:
            self[symbol] = Definition(result, arguments, build)
            return build

        return register
