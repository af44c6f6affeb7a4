"""Loads and stores of adjacent elements in an iteration of a loop that is written in vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.interleaving import known_trips
from tracefuse.kernel.llvm.scalar_ops import memory_type, register_type
from tracefuse.kernel.llvm.text_builder import FLOAT_BITS, Builder, LlvmValue, vector_type
from tracefuse.kernel.llvm.vector_bodies import VectorBody
from tracefuse.kernel.llvm.vector_sums import VectorSums

if TYPE_CHECKING:
    from tracefuse.kernel.llvm.statements import Emitter

_LEAST_STREAMED = 16
"""The bytes of the smallest vector that non-temporal stores have."""


class MaskedVectors:
    """The memory accesses of an iteration.

    read: the elements that all iterations read, by buffer and place. first: what the loop's variable is for the first
    element. lanes: the elements of the iteration. mask: which of them the loop has; None if all.
    """

    def __init__(
        self, emitter: Emitter, body: VectorBody, sums: VectorSums,
        read: Mapping[tuple[str, ir.Expression], LlvmValue], first: LlvmValue, lanes: int, mask: LlvmValue | None,
    ) -> None:  # fmt: skip
        self._emitter, self._builder, self._body, self._sums = emitter, emitter.builder, body, sums
        self._read = read
        self.lanes, self._first, self._mask = lanes, first, mask

    def place(self, index: ir.Expression) -> ir.Expression:
        """Return an index in terms of the loop's variable and of those before the loop."""
        return self._body.place(index)

    def load(self, e: ir.Load, pointer: str, aligned: int) -> LlvmValue | None:
        """Emit the load of elements of memory's type from a buffer; return None if all iterations load one element."""
        step, type_, lanes = self._body.step(e.index), memory_type(e.dtype), self.lanes
        whole = vector_type(type_, lanes)
        if step == 0:
            return self._read.get((e.buffer.name, self.place(e.index)))
        if step is None:
            return self._gathered(e, pointer, aligned)
        address = self._emitter.address(e.buffer, e.index)
        text = f"load {whole}, {address}, align {aligned}"
        if self._mask is not None and e.buffer.space == "local":
            return self._whole(text, e.buffer, type_)
        if self._mask is not None:
            symbol = self._declare("load", type_, f"declare {whole} @%s(ptr, i32, <{lanes} x i1>, {whole})")
            # Elements behind the last one are zeros, or like the first one where zeros could take a rare path.
            others = f"{whole} zeroinitializer"
            if self._body.has_rare_paths:
                first = self._builder.emit(f"load {type_}, {address}, align {aligned}", type_)
                others = str(self._builder.repeat(first, lanes))
            text = f"call {whole} @{symbol}({address}, i32 {aligned}, {self._mask}, {others})"
        return self._builder.emit(text, type_, e.buffer.name, lanes)

    def _whole(self, text: str, buffer: ir.Buffer, type_: str) -> LlvmValue:
        """Emit the load of a vector of a local array, which has room behind its last element (`ROOM_BEHIND`).

        A processor forwards what was stored before to a load of a whole vector sooner than to a masked one. What is
        behind the last element is replaced as for other loads: arithmetic on what lies there by chance may take long.
        """
        assert self._mask is not None
        value = self._builder.emit(text, type_, buffer.name, self.lanes)
        value = self._builder.emit(f"freeze {value}", type_, buffer.name, self.lanes)
        if self._body.has_rare_paths:
            return self._mask.select(value, self._builder.emit(f"extractelement {value}, i64 0", type_))
        return self._mask.select(value, 0)

    def _gathered(self, e: ir.Load, pointer: str, aligned: int) -> LlvmValue:
        """Emit the loads of elements that are not adjacent. Behind the last element they are like the first one."""
        builder, type_, lanes = self._builder, memory_type(e.dtype), self.lanes
        positions = self._positions(e.index)
        if self._mask is not None:
            first = builder.emit(f"extractelement {positions}, i64 0", "i64")
            positions = self._mask.select(positions, first)
        places = builder.emit(f"getelementptr inbounds {type_}, ptr {pointer}, {positions}", "ptr", "places", lanes)
        whole, all_lanes = vector_type(type_, lanes), f"<{lanes} x i1> splat (i1 true)"
        suffix = f".v{lanes}p0"
        declaration = f"declare {whole} @%s(<{lanes} x ptr>, i32, <{lanes} x i1>, {whole})"
        symbol = self._declare("gather", type_, declaration, suffix)
        text = f"call {whole} @{symbol}({places}, i32 {aligned}, {all_lanes}, {whole} poison)"
        return builder.emit(text, type_, e.buffer.name, lanes)

    def _positions(self, index: ir.Expression) -> LlvmValue:
        """Emit the positions of all lanes: for equal distances, those of the first one and of multiples."""
        distance = self._body.distance(index)
        if distance is None:
            return self._emitter.index(index)
        emitter, variable = self._emitter, self._body.variable
        of_lanes, emitter.vectors = emitter.variables.get(variable), None
        emitter.variables[variable] = self._first
        first, step = emitter.index(self._body.place(index)), emitter.index(distance)
        emitter.vectors = self
        if of_lanes is not None:
            emitter.variables[variable] = of_lanes
        return numbers(self._builder, self.lanes, "i64").binary("mul", step, "nsw ").binary("add", first, "nsw ")

    def unrolled(self, s: ir.For) -> None:
        """Emit the iterations of an unrolled loop."""
        assert isinstance(s.start, ir.Constant)
        first = int(s.start.value.real)
        for number in range(first, first + (known_trips(s) or 0)):
            self._body.begin_copy(s, number)
            self._emitter.variables[s.variable.name] = self._builder.literal(number, register_type(s.variable.dtype))
            self._emitter.statements(s.body)

    def store(self, value: LlvmValue, address: LlvmValue, buffer: ir.Buffer, aligned: int, streamed: bool) -> None:
        """Emit the store of adjacent elements. streamed: it is non-temporal, where vectors fill parts of lines.

        In a local array what is behind the last element is stored again, as a masked store is not forwarded to loads.
        """
        lanes, mark = self.lanes, ""
        value = value if value.lanes else self._builder.repeat(value, lanes)
        whole = vector_type(value.type, lanes)
        if self._mask is None:
            size = lanes * buffer.dtype.itemsize
            if streamed and size % _LEAST_STREAMED == 0:
                aligned, mark = min(size & -size, ir.CACHE_LINE), self._emitter.metadata.non_temporal()
            self._builder.line(f"store {value}, {address}, align {aligned}{mark}")
            return
        if buffer.space == "local":
            before = self._builder.emit(f"load {whole}, {address}, align {aligned}", value.type, buffer.name, lanes)
            value = self._mask.select(value, before)
            self._builder.line(f"store {value}, {address}, align {aligned}")
            return
        symbol = self._declare("store", value.type, f"declare void @%s({whole}, ptr, i32, <{lanes} x i1>)")
        self._builder.line(f"call void @{symbol}({value}, {address}, i32 {aligned}, {self._mask})")

    def accumulate(self, s: ir.Accumulate, value: LlvmValue) -> None:
        """Emit the accumulation of a value in each lane."""
        if s.variable.name in self._body.local:
            emitter = self._emitter
            emitter.assign(s.variable, emitter.accumulated(s, emitter.read(s.variable), value))
        else:
            self._sums.add(s, value, self.lanes, self._mask)

    def _declare(self, name: str, type_: str, text: str, suffix: str = ".p0") -> str:
        element = f"f{FLOAT_BITS[type_]}" if type_ in FLOAT_BITS else type_
        symbol = f"llvm.masked.{name}.v{self.lanes}{element}{suffix}"
        self._builder.declarations[symbol] = text % symbol
        return symbol


def numbers(builder: Builder, lanes: int, type_: str) -> LlvmValue:
    """Return the vector 0, 1, 2, ..."""
    return LlvmValue(builder, f"<{', '.join(f'{type_} {n}' for n in range(lanes))}>", type_, lanes)


def below(builder: Builder, count: LlvmValue, lanes: int) -> LlvmValue:
    """Return the mask of the first `count` lanes; count is an i64, at most a few times `lanes`."""
    type_ = "i32" if lanes <= 16 else "i16"
    return numbers(builder, lanes, type_).compare("ult", count.convert("trunc", type_))
