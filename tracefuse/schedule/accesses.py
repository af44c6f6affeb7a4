"""How a kernel reads its inputs and writes its outputs: the parameter, the offset and the width of each access.

Lanes that are adjacent in memory and aligned to the number of lanes are read and written with one wide access. Values
that a later phase rereads are cached in registers or shared memory.

Must not know: ops, sizes, devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracefuse.dtypes import DType, float32
from tracefuse.ir.extents import Extent, terms_of
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
"""Bytes of the widest access of one thread; no access needs a larger alignment."""


class Accesses(Scopes):
    """Reads and writes of the values of a fusion, emitted into the open scopes.

    strides: for each tensor input, the stride of each axis in elements. aligned: inputs whose memory starts at a
    multiple of WIDEST_ACCESS; misaligned: inputs whose elements are not aligned to their own size. shared: tensors
    that may alias another tensor.
    streaming, streamed (set by the template): inputs that are read once, and outputs that are written past the caches.
    cached: the locations of values that an earlier phase cached; to_cache: the locations for values that a later phase
    reads, in registers or in shared memory that only the same thread reads. staged: the locations of outputs that are
    stored in shared memory first. awaited: asynchronous copies are pending.
    joins_groups (set by the template): lanes at a constant distance from an aligned group are taken from two groups.
    hoists_offsets (set by the template): what does not change in a loop is added to offsets outside of it.
    unrounded: maps a value that was rounded to a half type, and this type, to the unrounded value, so that a value
    stored in the type is rounded once.
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
        self.staged: dict[int, tuple[Buffer, Extent]] = {}
        self.awaited = False
        self.joins_groups = False
        self.hoists_offsets = False
        self.unrounded: dict[tuple[Expression, DType], Expression] = {}

    def offset(self, number: int, coordinates: Shape) -> Extent:
        """Returns the offset of an input's element in memory, in elements."""
        total: Extent = 0
        for coordinate, stride in zip(coordinates, self.strides[number], strict=True):
            total = total + coordinate * stride
        return total

    def buffer_of(self, number: int, *, written: bool = False) -> Buffer:
        """Returns the kernel parameter of an input or output tensor."""
        buffer = self.buffers.get(number)
        if buffer is None:
            dtype = self.fusion.values[number].dtype
            wide = max(min(self.lanes * dtype.itemsize, WIDEST_ACCESS), dtype.itemsize)
            alignment = wide if number in self.aligned else dtype.itemsize
            if self.lanes == 1 and number in self.streamed:
                alignment = CACHE_LINE
            packed = number in self.misaligned
            buffer = self.buffers[number] = Buffer(
                f"T{number}",
                dtype,
                written=written,
                alignment=1 if packed else alignment,
                packed=packed,
                exclusive=number not in self.shared,
            )
        return buffer

    def scalar(self, number: int) -> Expression:
        """Returns the kernel parameter of a host scalar, in its arithmetic type."""
        variable = self.scalars.get(number)
        if variable is None:
            variable = self.scalars[number] = Variable(f"S{number}", self.fusion.values[number].dtype.compute)
        return variable

    def is_wide(self, number: int, coordinates: Shape) -> bool:
        """Returns whether all lanes of an input's element are read with one wide access."""
        return self._is_wide(self.offset(number, coordinates)) and number in self.aligned

    def load(self, number: int, coordinates: Shape) -> Lanes:
        """Emits the load of an input's element; returns it in its arithmetic type."""
        buffer, offset = self.buffer_of(number), self.offset(number, coordinates)
        cache = "streaming" if number in self.streaming else "default"
        target = self.to_cache.get((number, coordinates))
        if self.is_wide(number, coordinates) and target is None and cache == "default" and self.joins_groups:
            lane_buffer = self._group(number, self.at_lane(offset, 0))
            lanes = self.per_lane(self.lane, lambda index: Load(lane_buffer, index))
        elif self.is_wide(number, coordinates):
            if target is None or target[0].space == "shared":
                place: tuple[Buffer, Extent] = self._allocate_lanes(f"x{number}", buffer.dtype), self.lane
            else:
                place = target
            lane_buffer, at = place
            self.append(Copy(lane_buffer, self._first(at), buffer, self._first(offset), self.lanes, cache))
            if target is not None and target[0] is not lane_buffer:
                self.append(Copy(target[0], self._first(target[1]), lane_buffer, self._first(at), self.lanes))
            lanes = self.per_lane(at, lambda index: Load(lane_buffer, index))
        else:
            place_of = self.hoisted(offset) if self.hoists_offsets else offset
            lanes = self._from_groups(number, offset) or self.per_lane(place_of, lambda at: Load(buffer, at, cache))
            if target is not None:
                lanes = self.name(f"x{number}", lanes)
                self.keep((number, coordinates), lanes)
        return self.name(f"v{number}", tuple(convert(e, e.dtype.compute) for e in lanes))

    def store(
        self, buffer: Buffer, offset: Extent, lanes: Lanes, *, aligned: bool = False, cache: str = "default"
    ) -> None:
        """Stores the lanes from `offset` on, with one wide access where the alignment allows."""
        shared = self.lanes > 1 and self.at_lane(offset, 0) == offset  # all lanes hold the same element
        exact = [self.unrounded.get((e, buffer.dtype), e) for e in (lanes[:1] if shared else self.spread(lanes))]
        if aligned and self._is_wide(offset):
            self._store_wide(buffer, offset, exact, cache)
            return
        offset = self.hoisted(offset) if self.hoists_offsets else offset
        for lane, expression in enumerate(exact):
            where = self.index.code(self.at_lane(offset, lane))
            self.append(Store(buffer, where, convert(expression, buffer.dtype), cache))

    def rounded(self, stem: str, lanes: Lanes, dtype: DType) -> Lanes:
        """Rounds the lanes to `dtype`, binds them to variables, and records the unrounded values."""
        before = self.name(stem, lanes)
        after = self.name(stem, tuple(convert(convert(e, dtype), dtype.compute) for e in before))
        self.unrounded.update({(rounded, dtype): exact for rounded, exact in zip(after, before, strict=True)})
        return after

    def keep(self, key: Key, lanes: Lanes) -> None:
        """Caches a value if a later phase reads it."""
        target = self.to_cache.get(key)
        if target is not None:
            buffer, index = target
            is_shared = self.lanes > 1 and self.at_lane(index, 0) == index  # all lanes hold the same element
            spread = lanes[:1] if is_shared else self.spread(lanes)
            if buffer.space == "shared" and self._is_wide(index):
                self._store_wide(buffer, index, spread, "default")
                return
            for lane, expression in enumerate(spread):
                where = self.index.code(self.at_lane(index, lane))
                self.append(Store(buffer, where, convert(expression, buffer.dtype)))

    # --- values cached for later phases -----------------------------------------------------------------------------

    def fetch(self, number: int, coordinates: Shape) -> None:
        """Reads an input into the cache; a copy to shared memory is asynchronous, see `await_copies`."""
        buffer, place = self.to_cache[(number, coordinates)]
        if buffer.space != "shared" or not self.can_start(number, coordinates):
            self.load(number, coordinates)
            return
        self.start_copy(number, coordinates, buffer, place)
        self.awaited = True

    def can_start(self, number: int, coordinates: Shape) -> bool:
        """Returns whether the hardware can copy an input's elements to shared memory asynchronously."""
        source, offset = self.buffer_of(number), self.offset(number, coordinates)
        size = self.lanes * source.dtype.itemsize
        alone = self.lanes == 1 and not source.packed
        plain = (alone or (self._is_wide(offset) and number in self.aligned)) and not source.dtype.is_complex
        return plain and (size in (4, 8) or size % WIDEST_ACCESS == 0)

    def start_copy(self, number: int, coordinates: Shape, buffer: Buffer, place: Extent) -> None:
        """Starts an asynchronous copy of an input's elements to shared memory."""
        source, offset = self.buffer_of(number), self.offset(number, coordinates)
        self.append(StartCopy(buffer, self._first(place), source, self._first(offset), self.lanes))

    def await_copies(self) -> None:
        """Waits for the pending asynchronous copies, if any."""
        if self.awaited:
            self.append(AwaitCopies())
        self.awaited = False

    def recall(self, buffer: Buffer, place: Extent) -> Lanes:
        """Loads a value that an earlier phase cached, in its arithmetic type."""
        if buffer.space == "shared" and self._is_wide(place):
            lane_buffer = self._allocate_lanes("cached", buffer.dtype)
            self.append(Copy(lane_buffer, self._first(self.lane), buffer, self._first(place), self.lanes))
            buffer, place = lane_buffer, self.lane
        return tuple(convert(e, e.dtype.compute) for e in self.per_lane(place, lambda at: Load(buffer, at)))

    # --- wide accesses ----------------------------------------------------------------------------------------------

    def _is_wide(self, place: Extent) -> bool:
        """Returns whether the lanes are adjacent and the first is at a multiple of their number."""
        start = self.at_lane(place, 0)
        return self.lanes > 1 and place - start == self.lane and self.is_multiple(start)

    def _from_groups(self, number: int, offset: Extent) -> Lanes:
        """Returns adjacent lanes that start inside an aligned group, from that group and the next; () if they do not.

        Both groups are inside the array: every row of it starts at a group and ends with one.
        """
        start = self.at_lane(offset, 0)
        shift = sum(factor for monomial, factor in terms_of(start) if not monomial) % self.lanes
        *outer, inner = self.strides[number] or (0,)
        rows = [*outer, self.fusion.shape_of(number)[-1] if inner == 1 else 1]
        if not self.joins_groups or number not in self.aligned or self.lanes == 1 or offset - start != self.lane:
            return ()
        if shift == 0 or not all(self.is_multiple(extent) for extent in (start - shift, *rows)):
            return ()
        places = [divmod(shift + lane, self.lanes) for lane in range(self.lanes)]
        groups = [self._group(number, start - shift + k * self.lanes) for k in range(2)]
        return tuple(Load(groups[group], self.index.code(lane)) for group, lane in places)

    def _group(self, number: int, offset: Extent) -> Buffer:
        """Returns the registers that hold an aligned group of lanes of an input; emits its load."""
        for level in reversed(self.levels):
            if (number, offset) in level.groups:
                return level.groups[number, offset]
        source = self.buffer_of(number)
        group = self.levels[-1].groups[number, offset] = self._allocate_lanes(f"x{number}", source.dtype)
        self.append(Copy(group, self.index.code(0), source, self.index.code(offset), self.lanes))
        return group

    def _first(self, place: Extent) -> Expression:
        """Returns the index of the first lane."""
        return self.index.code(self.at_lane(place, 0))

    def _allocate_lanes(self, stem: str, dtype: DType) -> Buffer:
        """Allocates registers for the elements of all lanes."""
        lane_buffer = Buffer(self.fresh(stem), dtype, "local", self.lanes)
        self.append(Allocate(lane_buffer))
        return lane_buffer

    def _store_wide(self, buffer: Buffer, place: Extent, lanes: Sequence[Expression], cache: str) -> None:
        rounds = buffer.dtype.is_half and all(e.dtype is float32 for e in lanes)  # the copy rounds, in pairs
        lane_buffer = self._allocate_lanes("y", float32 if rounds else buffer.dtype)
        for lane, expression in enumerate(lanes):
            self.append(Store(lane_buffer, self.index.code(lane), convert(expression, lane_buffer.dtype)))
        self.append(Copy(buffer, self._first(place), lane_buffer, self.index.code(0), self.lanes, cache))
