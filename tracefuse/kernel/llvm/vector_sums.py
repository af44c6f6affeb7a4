"""Reductions in loops that are written in vectors: an accumulator for each lane, joined after the loop."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from tracefuse.dtypes import DType
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.scalar_ops import register_type
from tracefuse.kernel.llvm.text_builder import LlvmValue, vector_type

if TYPE_CHECKING:
    from tracefuse.kernel.llvm.statements import Emitter

_FLOATS = {"add": "fadd", "mul": "fmul", "minimum": "fminimum", "maximum": "fmaximum"}
_PREDICATES = {"minimum": "olt", "maximum": "ogt"}
"""By extreme, LLVM's comparison of numbers whose first operand it keeps."""

_BITS = {"add": "or", "mul": "and", "minimum": "and", "maximum": "or", "and": "and", "or": "or"}
_INTEGERS = {"add": "add", "mul": "mul", "and": "and", "or": "or", "minimum": "min", "maximum": "max"}


def is_flag(s: ir.Statement) -> bool:
    """Return whether a statement raises a variable to a constant if a condition holds: a mask is its accumulator.

    Joining the lanes of numbers after a short loop takes longer than the loop, and the next one has to wait for it.
    """
    if not isinstance(s, ir.Accumulate) or s.operation != "maximum" or not s.variable.dtype.is_integer:
        return False
    value = s.value
    return (
        isinstance(value, ir.Call)
        and value.name == "select"
        and isinstance(value.arguments[1], ir.Constant)
        and value.arguments[1].value.real > 0
        and value.arguments[2] == ir.Constant(0, s.variable.dtype)
    )


def _raised(s: ir.Accumulate) -> ir.Expression:
    assert isinstance(s.value, ir.Call)
    return s.value.arguments[1]


class VectorSums:
    """The accumulators of a loop.

    statements: its reductions. wide, lanes: the elements of its wide iterations and of the others.
    """

    def __init__(self, emitter: Emitter, statements: Sequence[ir.Accumulate], wide: int, lanes: int) -> None:
        self._emitter, self._builder, self._wide, self._lanes = emitter, emitter.builder, wide, lanes
        self._flags = {id(s): s for s in statements if is_flag(s)}
        self._sums = {s.variable.name: s for s in statements if not is_flag(s)}
        self._statements = statements
        self._slots: dict[tuple[str, int], str] = {}

    def are_possible(self, read: Set[str]) -> bool:
        """Return whether all sums are joined in one way, of which no value depends on. read: names of variables."""
        return all(
            s.variable.name not in read
            and (s.operation == self._sums[s.variable.name].operation if s.variable.name in self._sums else is_flag(s))
            and not s.variable.dtype.is_half
            and _reduction(s.operation, s.variable.dtype) is not None
            for s in self._statements
        )

    def begin(self) -> None:
        """Emit the neutral elements of the accumulators."""
        neutrals = {self._key(s): self._neutral(s) for s in self._sums.values()}
        neutrals |= {self._key(s): self._builder.literal(0, "i1") for s in self._flags.values()}
        for key, neutral in neutrals.items():
            for width in dict.fromkeys((self._wide, self._lanes)):
                slot = self._builder.name(f"{key}_{width}")
                self._slots[key, width] = slot
                self._emitter.entry.append(f"  {slot} = alloca {vector_type(neutral.type, width)}, align 64")
                self._builder.line(f"store {self._builder.repeat(neutral, width)}, ptr {slot}")

    def _key(self, s: ir.Accumulate) -> str:
        """Return the name of a sum's accumulators; each flag has its own."""
        return f"{s.variable.name}_{list(self._flags).index(id(s))}" if id(s) in self._flags else s.variable.name

    def _neutral(self, s: ir.Accumulate) -> LlvmValue:
        """Return what the accumulators of a sum start from."""
        if self._starts_from_variable(s):
            return self._emitter.read(s.variable)
        value = 1.0 if s.operation == "mul" else -0.0
        return self._builder.literal(value, register_type(s.variable.dtype))

    def _starts_from_variable(self, s: ir.Accumulate) -> bool:
        """Return whether all accumulators of a sum start from what the variable is, which changes no extreme."""
        return s.operation not in ("add", "mul") or s.variable.dtype.kind == "bool"

    def add(self, s: ir.Accumulate, value: LlvmValue, width: int, mask: LlvmValue | None) -> None:
        """Emit the accumulation of a value in each lane of the mask."""
        before = self._load(s, width)
        if id(s) in self._flags:
            after = before | value.compare("ne", 0)
        else:
            after = self._emitter.accumulated(s, before, value)
        self._store(s, width, after if mask is None else mask.select(after, before))

    def fold(self, done: LlvmValue) -> None:
        """Emit the accumulators of wide iterations joined to those of the others. done: the elements so far."""
        if not self._statements or self._wide == self._lanes:
            return
        builder = self._builder
        folds, folded = builder.name("fold"), builder.name("folded")
        builder.line(f"br {done.compare('ne', 0)}, label {folds}, label {folded}")
        builder.label(folds)
        for s in (*self._sums.values(), *self._flags.values()):
            value, width = self._load(s, self._wide), self._wide
            while width > self._lanes:
                width //= 2
                one, other = self._part(value, 0, width), self._part(value, width, width)
                value = one | other if id(s) in self._flags else self._emitter.accumulated(s, one, other)
            self._store(s, width, value)
        builder.line(f"br label {folded}")
        builder.label(folded)

    def _part(self, value: LlvmValue, first: int, width: int) -> LlvmValue:
        listed = ", ".join(f"i32 {first + n}" for n in range(width))
        type_ = vector_type(value.type, value.lanes)
        return self._builder.emit(
            f"shufflevector {value}, {type_} poison, <{width} x i32> <{listed}>", value.type, lanes=width
        )

    def end(self, width: int, trips: LlvmValue) -> None:
        """Emit the accumulators of all lanes joined to the variables. width: of the last iterations.

        trips: the iterations of one element: without one, the variables stay as they are.
        """
        for s in self._flags.values():
            raised, before = self._emitter.expression(_raised(s)), self._emitter.read(s.variable)
            mask = self._builder.emit(f"bitcast {self._load(s, width)} to i{width}", f"i{width}").compare("ne", 0)
            after = self._emitter.accumulated(s, before, mask.select(raised, 0))
            self._emitter.assign(s.variable, trips.compare("sgt", 0).select(after, before))
        for s in self._sums.values():
            value = self._load(s, width)
            if value.is_float and s.operation in ("add", "mul"):
                joined = self._joined_by_halves(s, value, width)
            else:
                joined = self._extreme(s, value) if value.is_float else self._joined(s, value, width)
            if not self._starts_from_variable(s):
                joined = self._emitter.accumulated(s, self._emitter.read(s.variable), joined)
            self._emitter.assign(s.variable, joined)

    def _joined_by_halves(self, s: ir.Accumulate, value: LlvmValue, width: int) -> LlvmValue:
        """Emit the sum of all lanes: the upper half is added to the lower one until one lane is left."""
        while width > 1:
            width //= 2
            value = self._emitter.accumulated(s, self._part(value, 0, width), self._part(value, width, width))
        return self._builder.emit(f"extractelement {value}, i64 0", value.type)

    def _joined(self, s: ir.Accumulate, value: LlvmValue, width: int) -> LlvmValue:
        """Emit the join of all lanes of integers."""
        type_ = value.type
        symbol = f"llvm.vector.reduce.{_reduction(s.operation, s.variable.dtype)}.v{width}{type_}"
        self._builder.declarations[symbol] = f"declare {type_} @{symbol}({vector_type(type_, width)})"
        return self._builder.emit(f"call {type_} @{symbol}({value})", type_)

    def _extreme(self, s: ir.Accumulate, value: LlvmValue) -> LlvmValue:
        """Emit the extreme of a vector of floats: that of its numbers, or NaN if it has one.

        An extreme that passes NaN on takes several dependent instructions for each halving of a vector.
        """
        builder, count, joined = self._builder, value.lanes, value
        while joined.lanes > 1:
            half = joined.lanes // 2
            first, last = self._part(joined, 0, half), self._part(joined, half, half)
            joined = first.compare(_PREDICATES[s.operation], last).select(first, last)
        joined = builder.emit(f"extractelement {joined}, i64 0", value.type)
        is_nan = builder.emit(f"bitcast {value.compare('uno', value)} to i{count}", f"i{count}").compare("ne", 0)
        rare = self._emitter.metadata.add('!{{!"branch_weights", i32 1, i32 100000}}')
        numbers, nan, done = (builder.name(f"{s.variable.name}_{part}") for part in ("numbers", "nan", "joined"))
        builder.line(f"br label {numbers}")
        builder.label(numbers)
        builder.line(f"br {is_nan}, label {nan}, label {done}, !prof {rare}")
        builder.label(nan)
        builder.line(f"br label {done}")
        builder.label(done)
        other = builder.literal(float("nan"), value.type)
        return builder.emit(f"phi {value.type} [ {joined.text}, {numbers} ], [ {other.text}, {nan} ]", value.type)

    def _load(self, s: ir.Accumulate, width: int) -> LlvmValue:
        type_ = "i1" if id(s) in self._flags else register_type(s.variable.dtype)
        text = f"load {vector_type(type_, width)}, ptr {self._slots[self._key(s), width]}"
        return self._builder.emit(text, type_, s.variable.name, width)

    def _store(self, s: ir.Accumulate, width: int, value: LlvmValue) -> None:
        self._builder.line(f"store {value}, ptr {self._slots[self._key(s), width]}")


def _reduction(operation: str, dtype: DType) -> str | None:
    """Return the name of LLVM's reduction of a vector; None if there is none."""
    if dtype.kind == "bool":
        return _BITS.get(operation)
    if dtype.kind == "float":
        return _FLOATS.get(operation)
    name = _INTEGERS.get(operation) if dtype.is_integer else None
    return f"{'s' if dtype.kind == 'int' else 'u'}{name}" if name in ("min", "max") else name
