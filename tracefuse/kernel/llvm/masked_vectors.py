"""Loads and stores of adjacent elements in an iteration of a loop that is written in vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.plain_loops import inlined
from tracefuse.kernel.llvm.scalar_ops import memory_type, register_type
from tracefuse.kernel.llvm.short_rows import REGISTER_BYTES, ShortRow, picked
from tracefuse.kernel.llvm.strided_vectors import WindowVectors
from tracefuse.kernel.llvm.strided_windows import StridedPlace, StridedWindow
from tracefuse.kernel.llvm.text_builder import FLOAT_BITS, Builder, LlvmValue, vector_type
from tracefuse.kernel.llvm.vector_bodies import VectorBody, copies
from tracefuse.kernel.llvm.vector_sums import VectorSums

if TYPE_CHECKING:
    from tracefuse.kernel.llvm.statements import Emitter

_LEAST_STREAMED = 16
"""The bytes of the smallest vector that non-temporal stores have."""


class MaskedVectors:
    """The memory accesses of an iteration.

    read: the elements that all iterations read, by buffer and place. first: what the loop's variable is for the first
    element. lanes: the elements of the iteration. left: how many of them the loop has; None if all.
    """

    def __init__(
        self, emitter: Emitter, body: VectorBody, sums: VectorSums,
        read: Mapping[tuple[str, ir.Expression], LlvmValue], first: LlvmValue, lanes: int, left: LlvmValue | None,
    ) -> None:  # fmt: skip
        self._emitter, self.builder, self._body, self._sums = emitter, emitter.builder, body, sums
        self._read = read
        self.lanes, self._first, self._left = lanes, first, left
        self._mask = None if left is None else below(self.builder, left, lanes)
        self._windows: dict[StridedWindow, WindowVectors] = {}

    def place(self, index: ir.Expression) -> ir.Expression:
        """Return an index in terms of the loop's variable and of those before the loop."""
        return self._body.place(index)

    def load(self, e: ir.Load, pointer: str, aligned: int) -> LlvmValue | None:
        """Emit the load of elements of memory's type from a buffer; return None if all iterations load one element."""
        step, type_, lanes = self._body.step(e.index), memory_type(e.dtype), self.lanes
        whole = vector_type(type_, lanes)
        if step == 0:
            return self._read.get((e.buffer.name, self.place(e.index)))
        if step is None and (row := self._body.short_row(e)) is not None:
            return picked(self.builder, self._registers(e, row, aligned), self._emitter.expression(row.position))
        if step != 1:
            place = self._body.place_of(e.buffer, e.index)
            return self._gathered(e, pointer, aligned) if place is None else self._strided(place, aligned)
        address = self._emitter.address(e.buffer, e.index)
        text = f"load {whole}, {address}, align {aligned}"
        if self._mask is not None and e.buffer.space == "local":
            return self._whole(text, e.buffer, type_)
        if self._mask is not None:
            # Elements behind the last one are zeros, or like the first one where zeros could take a rare path.
            others = self.builder.literal(0, type_)
            if self._body.has_rare_paths:
                others = self.builder.emit(f"load {type_}, {address}, align {aligned}", type_)
            return self.masked_load(address, type_, aligned, self._mask, others)
        return self.builder.emit(text, type_, e.buffer.name, lanes)

    def _registers(self, e: ir.Load, row: ShortRow, aligned: int) -> list[LlvmValue]:
        """Emit the loads of a short row into registers. They are the same in all iterations, as LLVM sees."""
        builder, type_ = self.builder, memory_type(e.dtype)
        lanes = REGISTER_BYTES // e.dtype.itemsize
        start = inlined(row.start, {row.position.name: ir.Constant(0, row.position.dtype)})
        first, registers = self._of_first(lambda: self._emitter.address(e.buffer, start)), list[LlvmValue]()
        for begin in range(0, row.count, lanes):
            pointer = builder.emit(f"getelementptr inbounds {type_}, {first}, i64 {begin}", "ptr", "place")
            if begin + lanes <= row.count:
                text = f"load {vector_type(type_, lanes)}, {pointer}, align {aligned}"
                registers.append(builder.emit(text, type_, e.buffer.name, lanes))
            else:
                mask = below(builder, builder.literal(row.count - begin, "i64"), lanes)
                registers.append(self.masked_load(pointer, type_, aligned, mask))
        return registers

    def masked_load(
        self, address: LlvmValue, type_: str, aligned: int, mask: LlvmValue, others: LlvmValue | None = None
    ) -> LlvmValue:
        """Emit the load of the elements of a mask. others: what the other ones are, by default 0."""
        lanes, whole = mask.lanes, vector_type(type_, mask.lanes)
        others = self.builder.repeat(self.builder.literal(0, type_) if others is None else others, lanes)
        symbol = self._declare("load", type_, f"declare {whole} @%s(ptr, i32, <{lanes} x i1>, {whole})", lanes=lanes)
        text = f"call {whole} @{symbol}({address}, i32 {aligned}, {mask}, {others})"
        return self.builder.emit(text, type_, lanes=lanes)

    def _strided(self, place: StridedPlace, aligned: int) -> LlvmValue:
        """Emit the load of elements at a distance, with those near them."""
        window = self._body.windows.of(place)
        vectors = self._windows.get(window) or self._window(window, aligned)
        if place.is_apart:
            self._windows[window] = vectors
        value = vectors.load(place.offset - window.first.offset)
        if self._mask is None or not self._body.has_rare_paths:
            return value
        return self._mask.select(value, self.builder.emit(f"extractelement {value}, i64 0", value.type))

    def _window(self, window: StridedWindow, aligned: int) -> WindowVectors:
        pointer = self._of_first(lambda: self._emitter.address(window.first.buffer, window.first.index))
        return WindowVectors(self, window, pointer, aligned, self._left)

    def _of_first(self, emit: Callable[[], LlvmValue]) -> LlvmValue:
        """Emit a value of the first lane."""
        emitter, variable = self._emitter, self._body.variable
        of_lanes, emitter.vectors = emitter.variables.get(variable), None
        emitter.variables[variable] = self._first
        value = emit()
        emitter.vectors = self
        if of_lanes is not None:
            emitter.variables[variable] = of_lanes
        return value

    def distance(self, place: StridedPlace) -> LlvmValue:
        """Emit by how much an index grows with an iteration."""
        return self._of_first(lambda: self._emitter.index(place.distance))

    def _whole(self, text: str, buffer: ir.Buffer, type_: str) -> LlvmValue:
        """Emit the load of a vector of a local array, which has room behind its last element (`ROOM_BEHIND`).

        A processor forwards what was stored before to a load of a whole vector sooner than to a masked one. What is
        behind the last element is replaced as for other loads: arithmetic on what lies there by chance may take long.
        """
        assert self._mask is not None
        value = self.builder.emit(text, type_, buffer.name, self.lanes)
        value = self.builder.emit(f"freeze {value}", type_, buffer.name, self.lanes)
        if self._body.has_rare_paths:
            return self._mask.select(value, self.builder.emit(f"extractelement {value}, i64 0", type_))
        return self._mask.select(value, 0)

    def _gathered(self, e: ir.Load, pointer: str, aligned: int) -> LlvmValue:
        """Emit the loads of elements at positions that are data; behind the last one they are like the first one."""
        builder, type_, lanes = self.builder, memory_type(e.dtype), self.lanes
        positions = builder.spread(self._emitter.index(e.index), numbers(builder, lanes, "i64"))[0]
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

    def unrolled(self, s: ir.For) -> None:
        """Emit the iterations of an unrolled loop."""
        for number in copies(s):
            self._body.begin_copy(s, number)
            self._emitter.variables[s.variable.name] = self.builder.literal(number, register_type(s.variable.dtype))
            self._emitter.statements(s.body)

    def store(self, s: ir.Store, value: LlvmValue, aligned: int, streamed: bool) -> None:
        """Emit the store of adjacent elements. streamed: it is non-temporal, where vectors fill parts of lines."""
        place = None if self._body.step(s.index) == 1 else self._body.place_of(s.buffer, s.index, stores=True)
        if place is not None:
            window = self._body.windows.of(place)
            vectors = self._windows.get(window)
            if vectors is None:
                vectors = self._windows[window] = self._window(window, aligned)
            vectors.store(place.offset - window.first.offset, value)
            return
        value, address = (
            value if value.lanes else self.builder.repeat(value, self.lanes),
            self._emitter.address(s.buffer, s.index),
        )
        mark, size = "", self.lanes * s.buffer.dtype.itemsize
        if self._mask is None and streamed and size % _LEAST_STREAMED == 0:
            aligned, mark = min(size & -size, ir.CACHE_LINE), self._emitter.metadata.non_temporal()
        self.store_masked(value, address, s.buffer, aligned, self._mask, mark)

    def store_masked(
        self, value: LlvmValue, address: LlvmValue, buffer: ir.Buffer, aligned: int, mask: LlvmValue | None,
        mark: str = "",
    ) -> None:  # fmt: skip
        """Emit the store of the elements of a mask, by default of all.

        In a local array what is behind the last element is stored again, as a masked store is not forwarded to loads.
        """
        whole = vector_type(value.type, value.lanes)
        if mask is not None and buffer.space != "local":
            symbol = self._declare("store", value.type, f"declare void @%s({whole}, ptr, i32, <{value.lanes} x i1>)")
            self.builder.line(f"call void @{symbol}({value}, {address}, i32 {aligned}, {mask})")
            return
        if mask is not None:
            before = self.builder.emit(
                f"load {whole}, {address}, align {aligned}", value.type, buffer.name, value.lanes
            )
            value = mask.select(value, before)
        self.builder.line(f"store {value}, {address}, align {aligned}{mark}")

    def accumulate(self, s: ir.Accumulate, value: LlvmValue) -> None:
        """Emit the accumulation of a value in each lane."""
        if s.variable.name in self._body.local:
            emitter = self._emitter
            emitter.assign(s.variable, emitter.accumulated(s, emitter.read(s.variable), value))
        else:
            self._sums.add(s, value, self.lanes, self._mask)

    def _declare(self, name: str, type_: str, text: str, suffix: str = ".p0", lanes: int = 0) -> str:
        element = f"f{FLOAT_BITS[type_]}" if type_ in FLOAT_BITS else type_
        symbol = f"llvm.masked.{name}.v{lanes or self.lanes}{element}{suffix}"
        self.builder.declarations[symbol] = text % symbol
        return symbol


def numbers(builder: Builder, lanes: int, type_: str) -> LlvmValue:
    """Return the vector 0, 1, 2, ..."""
    return LlvmValue(builder, f"<{', '.join(f'{type_} {n}' for n in range(lanes))}>", type_, lanes)


def below(builder: Builder, count: LlvmValue, lanes: int) -> LlvmValue:
    """Return the mask of the first `count` lanes; count is an i64, at most a few times `lanes`."""
    type_ = "i32" if lanes <= 16 else "i16"
    return numbers(builder, lanes, type_).compare("ult", count.convert("trunc", type_))
