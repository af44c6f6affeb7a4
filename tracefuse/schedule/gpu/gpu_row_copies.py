"""Copies of a contiguous range of rows between memory and shared memory, by all threads of a block.

An array whose elements start at a multiple of 16 bytes is copied 16 bytes at a time; what is left after the last wide
access, and other arrays, one element at a time.

Must not know: sizes, CUDA C++.
"""

from __future__ import annotations

from collections.abc import Callable

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Extent, ceildiv, substitute, symbol
from tracefuse.kernel.kernel_ir import Allocate, Barrier, Buffer, Copy, Load, StartCopy
from tracefuse.kernel.scalar_code import convert
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import WIDE_BYTES, bind_loops, when
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.scopes import Key

UNROLL = 8
"""The accesses of a thread before it tests for the end of the rows."""


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What passes through shared memory: input elements and outputs.

    rows: of a block. columns: the most elements of a row.
    """

    reads: tuple[Key, ...]
    outputs: tuple[int, ...]
    rows: int
    columns: int


class RowCopies:
    """The copies of the rows of a block from `first` on, which have `elements` elements, by `threads` threads."""

    def __init__(
        self, body: Body, region: Region, staged: StagedRows, first: Extent, elements: Extent, thread: Extent,
        threads: int,
    ) -> None:  # fmt: skip
        self.body, self.region, self.staged = body, region, staged
        self.first, self.elements, self.thread, self.threads = first, elements, thread, threads
        self.position = symbol("element", extent=staged.columns * staged.rows)
        self.buffers = [self._allocate(number) for number in (*(key[0] for key in staged.reads), *staged.outputs)]

    def _allocate(self, number: int) -> Buffer:
        buffer = Buffer(
            self.body.fresh(f"rows{number}"), self.body.fusion.values[number].dtype, "shared",
            self.staged.columns * self.staged.rows,
        )  # fmt: skip
        self.body.append(Allocate(buffer))
        return buffer

    def _width(self, number: int, offset: Extent) -> int:
        """Returns the elements of a wide access, or 1. offset: of the current element in terms of the loops."""
        start = substitute(offset, {loop.symbol: 0 for loop in self.region.nest.loops})
        dtype = self.body.fusion.values[number].dtype
        width = WIDE_BYTES // dtype.itemsize
        # The first row of a block is a multiple of the threads, and so of the width.
        aligned = number in self.body.aligned and isinstance(start, int) and start % width == 0
        return width if aligned and not dtype.is_complex else 1

    def _each(self, width: int, copy: Callable[[int], None]) -> None:
        """Opens loops over the elements of the rows, `width` at a time; inside, the loops are at the first of them."""
        body, inner = self.body, self.region.nest.loops[-1]
        most = -(-self.staged.columns * self.staged.rows // (self.threads * width))
        parts = min(UNROLL, most)
        turn, part = symbol("turn", extent=most), symbol("part", extent=parts)
        turns = 1 if most == parts else ceildiv(inner.extent * (self.staged.rows // self.threads), parts * width)
        with body.loop(turn, turns), body.loop(part, parts, "unroll"):
            place = (turn * parts + part) * self.threads + self.thread
            with when(body, [body.index.compare("lt", place, self.elements // width)]):
                self._at(place * width, lambda: copy(width))
        if width > 1:
            place = self.elements // width * width + self.thread
            with when(body, [body.index.compare("lt", place, self.elements)]):
                self._at(place, lambda: copy(1))

    def _at(self, place: Extent, emit: Callable[[], None]) -> None:
        body = self.body
        body.bind(self.position, body.index.code(place))
        bind_loops(body, self.region.nest.parallel, self.first)
        body.bind(self.region.nest.loops[-1].index, body.index.code(self.position))
        emit()

    def _wide_buffer(self, number: int, *, written: bool = False) -> Buffer:
        """Returns the parameter of a tensor whose memory starts at a multiple of WIDE_BYTES."""
        buffer = replace(self.body.buffer_of(number, written=written), alignment=WIDE_BYTES)
        self.body.buffers[number] = buffer
        return buffer

    def fill(self) -> None:
        """Copies the inputs into shared memory."""
        for key, buffer in zip(self.staged.reads, self.buffers, strict=False):
            self._fill(key, buffer)
        if self.staged.reads:
            self.body.await_copies()
            self.body.append(Barrier())

    def _fill(self, key: Key, buffer: Buffer) -> None:
        body, (number, coordinates) = self.body, key

        def copy(width: int) -> None:
            if width == 1:
                body.to_cache[key] = (buffer, self.position)
                body.fetch(*key)
                del body.to_cache[key]
                return
            to, source = body.index.code(self.position), body.index.code(body.offset(number, coordinates))
            body.append(StartCopy(buffer, to, self._wide_buffer(number), source, width))
            body.awaited = True

        self._each(self._width(number, body.offset(number, coordinates)), copy)

    def drain(self) -> None:
        """Copies the outputs from shared memory."""
        if self.staged.outputs:
            self.body.append(Barrier())
        for output, buffer in zip(self.staged.outputs, self.buffers[len(self.staged.reads) :], strict=True):
            self._drain(output, buffer)

    def _drain(self, output: int, buffer: Buffer) -> None:
        body, offset = self.body, self.region.output_offset(output)

        def copy(width: int) -> None:
            at = body.index.code(self.position)
            if width == 1:
                element = convert(Load(buffer, at), buffer.dtype.compute)
                body.store(body.buffer_of(output, written=True), offset, (element,))
                return
            registers = Buffer(body.fresh("held"), buffer.dtype, "local", width)
            body.append(Allocate(registers))
            zero = body.index.code(0)
            body.append(Copy(registers, zero, buffer, at, width))
            body.append(Copy(self._wide_buffer(output, written=True), body.index.code(offset), registers, zero, width))

        self._each(self._width(output, offset), copy)

    def redirect(self, slot: Extent) -> None:
        """Makes reads and stores of the row in `slot` use shared memory."""
        inner = self.region.nest.loops[-1]
        places = [(buffer, slot * inner.extent + inner.index) for buffer in self.buffers]
        self.body.cached.update(zip(self.staged.reads, places, strict=False))
        self.body.staged.update(zip(self.staged.outputs, places[len(self.staged.reads) :], strict=True))
