"""How a kernel reads its inputs and writes its results: which parameter, at which offset, how wide.

Neighbouring lanes that lie side by side at a multiple of their number are one wide access. Values that a later phase
reads again are kept in memory of the kernel.

Knows: strides, alignment, buffers. Must not know: ops, how a template lays its loops out, sizes, devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracefuse.dtypes import DType, float32
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion, Shape
from tracefuse.kernel.kernel_ir import (
    CACHE_LINE,
    Allocate,
    AwaitCopies,
    Buffer,
    Copy,
    Expression,
    Load,
    StartCopy,
    Store,
    Variable,
)
from tracefuse.kernel.scalar_code import convert
from tracefuse.schedule.scopes import Key, Lanes, Scopes

WIDEST_ACCESS = 16
"""Bytes of the widest access of one thread, which is all that memory needs to be aligned to."""


class Accesses(Scopes):
    """Reads and writes of the values of a fusion, emitted into the open scopes.

    strides: per tensor input, elements between neighbours along each axis. aligned: inputs whose memory starts at a
    multiple of the wide access; misaligned: those whose elements are not at multiples of their size. shared: tensors
    that may be one array under two numbers.
    streaming, streamed (to be set): inputs of which nothing is read twice, and outputs that give way in the caches to
    what is read.
    cached: where values lie that an earlier phase kept; to_cache: where those go that a later phase reads, in registers
    or in shared memory, where a thread finds what it has left itself. awaited: copies to there have been started.
    unrounded: by the name of a value that was rounded to a half type, the value before: what is stored is rounded once.
    """

    def __init__(
        self, fusion: Fusion, strides: Mapping[int, Shape], index_dtype: DType, *, lanes: int = 1,
        aligned: frozenset[int] = frozenset(), misaligned: frozenset[int] = frozenset(),
        shared: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        super().__init__(index_dtype, lanes)
        self.fusion, self.strides = fusion, strides
        self.aligned, self.misaligned, self.shared = aligned, misaligned, shared
        self.buffers: dict[int, Buffer] = {}
        self.scalars: dict[int, Variable] = {}
        self.streaming: frozenset[int] = frozenset()
        self.streamed: frozenset[int] = frozenset()
        self.cached: dict[Key, tuple[Buffer, Extent]] = {}
        self.to_cache: dict[Key, tuple[Buffer, Extent]] = {}
        self.awaited = False
        self.unrounded: dict[Expression, Expression] = {}

    def offset(self, number: int, coordinates: Shape) -> Extent:
        """The position in memory, in elements from the first, of an input's element."""
        total: Extent = 0
        for coordinate, stride in zip(coordinates, self.strides[number], strict=True):
            total = total + coordinate * stride
        return total

    def buffer_of(self, number: int, *, written: bool = False) -> Buffer:
        """The parameter for a tensor that crosses the kernel's border."""
        found = self.buffers.get(number)
        if found is None:
            dtype = self.fusion.values[number].dtype
            wide = max(min(self.lanes * dtype.itemsize, WIDEST_ACCESS), dtype.itemsize)
            alignment = wide if number in self.aligned else dtype.itemsize
            if self.lanes == 1 and number in self.streamed:
                alignment = CACHE_LINE
            packed = number in self.misaligned
            found = self.buffers[number] = Buffer(
                f"T{number}",
                dtype,
                written=written,
                alignment=1 if packed else alignment,
                packed=packed,
                exclusive=number not in self.shared,
            )
        return found

    def scalar(self, number: int) -> Expression:
        """The kernel parameter of a host scalar, in its arithmetic type."""
        found = self.scalars.get(number)
        if found is None:
            found = self.scalars[number] = Variable(f"S{number}", self.fusion.values[number].dtype.compute)
        return found

    def is_wide(self, number: int, coordinates: Shape) -> bool:
        """Whether the lanes of an input's element are read in one access."""
        return self._is_wide(self.offset(number, coordinates)) and number in self.aligned

    def load(self, number: int, coordinates: Shape) -> Lanes:
        """An element of an input, in its arithmetic type."""
        buffer, offset = self.buffer_of(number), self.offset(number, coordinates)
        cache = "streaming" if number in self.streaming else "default"
        target = self.to_cache.get((number, coordinates))
        if self.is_wide(number, coordinates):
            if target is None or target[0].space == "shared":
                place: tuple[Buffer, Extent] = self._piece(f"x{number}", buffer.dtype), self.lane
            else:
                place = target
            held, at = place
            self.append(Copy(held, self._first(at), buffer, self._first(offset), self.lanes, cache))
            if target is not None and target[0] is not held:
                self.append(Copy(target[0], self._first(target[1]), held, self._first(at), self.lanes))
            lanes = self.per_lane(at, lambda index: Load(held, index))
        else:
            lanes = self.per_lane(offset, lambda index: Load(buffer, index, cache))
            if target is not None:
                lanes = self.name(f"x{number}", lanes)
                self.keep((number, coordinates), lanes)
        return self.name(f"v{number}", tuple(convert(e, e.dtype.compute) for e in lanes))

    def store(
        self, buffer: Buffer, offset: Extent, lanes: Lanes, *, aligned: bool = False, cache: str = "default"
    ) -> None:
        """Writes the lanes at `offset` and what follows, as one wide access where memory allows."""
        shared = self.lanes > 1 and self.at_lane(offset, 0) == offset  # all lanes are about one element
        exact = [self.unrounded.get(e, e) for e in (lanes[:1] if shared else self.spread(lanes))]
        if aligned and self._is_wide(offset):
            self._store_wide(buffer, offset, exact, cache)
            return
        for lane, expression in enumerate(exact):
            where = self.index.code(self.at_lane(offset, lane))
            self.append(Store(buffer, where, convert(expression, buffer.dtype), cache))

    def rounded(self, stem: str, lanes: Lanes, dtype: DType) -> Lanes:
        """The lanes, named, in the form that they have in memory as `dtype`; what they were before is remembered."""
        before = self.name(stem, lanes)
        after = self.name(stem, tuple(convert(convert(e, dtype), dtype.compute) for e in before))
        self.unrounded.update(zip(after, before, strict=True))
        return after

    def keep(self, key: Key, lanes: Lanes) -> None:
        """Stores a value that a later phase reads, where one was asked for."""
        target = self.to_cache.get(key)
        if target is not None:
            buffer, index = target
            spread = self.spread(lanes)
            if buffer.space == "shared" and self._is_wide(index):
                self._store_wide(buffer, index, spread, "default")
                return
            for lane, expression in enumerate(spread):
                where = self.index.code(self.at_lane(index, lane))
                self.append(Store(buffer, where, convert(expression, buffer.dtype)))

    # --- what phases keep for later ones ----------------------------------------------------------------------------

    def fetch(self, number: int, coordinates: Shape) -> None:
        """Reads an input into where later phases find it; a copy to shared memory is only started (`await_copies`)."""
        buffer, place = self.to_cache[(number, coordinates)]
        if buffer.space != "shared" or not self.can_start(number, coordinates):
            self.load(number, coordinates)
            return
        self.start_copy(number, coordinates, buffer, place)
        self.awaited = True

    def can_start(self, number: int, coordinates: Shape) -> bool:
        """Whether a copy of an input's elements to shared memory can be started and awaited."""
        source, offset = self.buffer_of(number), self.offset(number, coordinates)
        size = self.lanes * source.dtype.itemsize
        alone = self.lanes == 1 and not source.packed
        plain = (alone or (self._is_wide(offset) and number in self.aligned)) and not source.dtype.is_complex
        return plain and (size in (4, 8) or size % WIDEST_ACCESS == 0)

    def start_copy(self, number: int, coordinates: Shape, buffer: Buffer, place: Extent) -> None:
        """Starts a copy of an input's elements to shared memory."""
        source, offset = self.buffer_of(number), self.offset(number, coordinates)
        self.append(StartCopy(buffer, self._first(place), source, self._first(offset), self.lanes))

    def await_copies(self) -> None:
        """Waits for the copies that were started, if any were."""
        if self.awaited:
            self.append(AwaitCopies())
        self.awaited = False

    def recall(self, buffer: Buffer, place: Extent) -> Lanes:
        """What an earlier phase kept, in its arithmetic type."""
        if buffer.space == "shared" and self._is_wide(place):
            held = self._piece("kept", buffer.dtype)
            self.append(Copy(held, self._first(self.lane), buffer, self._first(place), self.lanes))
            buffer, place = held, self.lane
        return tuple(convert(e, e.dtype.compute) for e in self.per_lane(place, lambda at: Load(buffer, at)))

    # --- wide accesses ----------------------------------------------------------------------------------------------

    def _is_wide(self, place: Extent) -> bool:
        """Whether the lanes are neighbours from a multiple of their number on."""
        start = self.at_lane(place, 0)
        return self.lanes > 1 and place - start == self.lane and self.is_multiple(start)

    def _first(self, place: Extent) -> Expression:
        """Where the first lane is."""
        return self.index.code(self.at_lane(place, 0))

    def _piece(self, stem: str, dtype: DType) -> Buffer:
        """Registers for the elements of all lanes."""
        held = Buffer(self.fresh(stem), dtype, "local", self.lanes)
        self.append(Allocate(held))
        return held

    def _store_wide(self, buffer: Buffer, place: Extent, lanes: Sequence[Expression], cache: str) -> None:
        rounds = buffer.dtype.is_half and all(e.dtype is float32 for e in lanes)  # by the copy, in pairs
        held = self._piece("y", float32 if rounds else buffer.dtype)
        for lane, expression in enumerate(lanes):
            self.append(Store(held, self.index.code(lane), convert(expression, held.dtype)))
        self.append(Copy(buffer, self._first(place), held, self.index.code(0), self.lanes, cache))
