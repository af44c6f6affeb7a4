"""Vectors of elements at a distance: loads and stores of windows, whose elements are separated in registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracefuse.kernel.llvm.scalar_ops import memory_type
from tracefuse.kernel.llvm.strided_windows import StridedWindow
from tracefuse.kernel.llvm.text_builder import Builder, LlvmValue, shuffled, vector_type

if TYPE_CHECKING:
    from tracefuse.kernel.llvm.masked_vectors import MaskedVectors


class WindowVectors:
    """The vectors of one window in an iteration.

    pointer: of the window's first element in the first iteration. left: how many iterations there are, if they may be
    fewer than the lanes.
    """

    def __init__(
        self, accesses: MaskedVectors, window: StridedWindow, pointer: LlvmValue, aligned: int, left: LlvmValue | None,
    ) -> None:  # fmt: skip
        self._accesses, self._builder, self._window = accesses, accesses.builder, window
        self._type, self._aligned, self._lanes = memory_type(window.first.buffer.dtype), aligned, accesses.lanes
        self._pointer, self._left = pointer, left
        self._loaded: dict[int, LlvmValue] = {}
        self._pointers: list[LlvmValue] = []
        self._stored: dict[int, LlvmValue] = {}

    def load(self, offset: int) -> LlvmValue:
        """Return the elements with an offset, which are loaded with the others of the window or were before."""
        if not self._loaded:
            if self._window.is_loaded_whole:
                self._loaded = self._separated(self._whole())
            elif self._window.is_loaded_by_rows:
                self._loaded = self._separated(self._rows())
        if offset not in self._loaded:
            self._loaded[offset] = self._one_by_one(offset)
        return self._loaded[offset]

    # loads of adjacent windows

    def _whole(self) -> list[LlvmValue]:
        """Emit the loads of all elements of the iterations, from the lowest address on."""
        step, lanes, window = self._window.step, self._lanes, self._window
        assert step is not None
        reach = abs(step)
        end = reach * (lanes - 1) + window.span
        first = self._pointer if step > 0 else self._moved(self._pointer, step * (lanes - 1))
        return [self._part(first, number * lanes, end) for number in range(reach)]

    def _part(self, first: LlvmValue, begin: int, end: int) -> LlvmValue:
        """Emit the load of the elements from `begin` on, without those from `end` on."""
        lanes = self._lanes
        if self._left is not None:
            mask = self._mask(begin, end)
            return self._accesses.masked_load(self._moved(first, begin), self._type, self._aligned, mask)
        behind = max(begin + lanes - end, 0)
        value = self._load(self._moved(first, begin - behind), lanes)
        places = [place if place < lanes else None for place in range(behind, behind + lanes)]
        return shuffled(self._builder, value, None, places) if behind else value

    def _mask(self, begin: int, end: int) -> LlvmValue:
        """Emit which elements from `begin` on belong to iterations that there are."""
        assert self._left is not None
        step, lanes = self._window.step, self._lanes
        assert step is not None
        left = self._left.convert("trunc", "i32")
        places = [begin + place for place in range(lanes)]
        if step > 0:
            bound = left.binary("mul", step).binary("sub", step - self._window.span)
            return _listed(self._builder, places).compare("slt", bound)
        bound = self._builder.literal(lanes, "i32").binary("sub", left).binary("mul", -step)
        # Elements from `end` on belong to no iteration.
        return _listed(self._builder, [place if place < end else -(1 << 31) for place in places]).compare("sge", bound)

    # loads of rows

    def _rows(self) -> list[LlvmValue]:
        """Emit the loads of the windows of all iterations, one behind the other in vectors."""
        lanes, width = self._lanes, self._window.span
        parts = [self._load(self._pointer_of(number), width) for number in range(lanes)]
        while width < lanes:
            width *= 2
            parts = [
                shuffled(self._builder, one, other, range(width))
                for one, other in zip(parts[::2], parts[1::2], strict=True)
            ]
        return [
            shuffled(self._builder, part, None, range(begin, begin + lanes)) if width > lanes else part
            for part in parts
            for begin in range(0, width, lanes)
        ]

    def _pointer_of(self, number: int) -> LlvmValue:
        """Return the address of the window of an iteration; behind the last one there is, of that one."""
        if not self._pointers:
            self._pointers.append(self._pointer)
        while len(self._pointers) <= number:
            distance = self._accesses.distance(self._window.first)
            if self._left is not None:
                distance = self._left.compare("sgt", len(self._pointers)).select(distance, 0)
            text = f"getelementptr inbounds {self._type}, {self._pointers[-1]}, {distance}"
            self._pointers.append(self._builder.emit(text, "ptr", "place"))
        return self._pointers[number]

    def _one_by_one(self, offset: int) -> LlvmValue:
        """Emit the loads of the elements with an offset, one for each iteration."""
        whole = vector_type(self._type, self._lanes)
        value = LlvmValue(self._builder, "poison", self._type, self._lanes)
        for number in range(self._lanes):
            one = self._load(self._moved(self._pointer_of(number), offset), 0)
            text = f"insertelement {whole} {value.text}, {one}, i64 {number}"
            value = self._builder.emit(text, self._type, lanes=self._lanes)
        return value

    # stores

    def store(self, offset: int, value: LlvmValue) -> None:
        """Store the elements with an offset, with the last ones of the window."""
        self._stored[offset] = value if value.lanes else self._builder.repeat(value, self._lanes)
        if len(self._stored) < len(self._window.offsets):
            return
        lanes, reach = self._lanes, self._window.span
        vectors = _interleaved(self._builder, [self._stored[offset] for offset in self._window.offsets])
        for number, vector in enumerate(vectors):
            begin = number * lanes
            mask = None if self._left is None else self._mask(begin, reach * lanes)
            address = self._moved(self._pointer, begin)
            self._accesses.store_masked(vector, address, self._window.first.buffer, self._aligned, mask)

    # elements in registers

    def _separated(self, vectors: Sequence[LlvmValue]) -> dict[int, LlvmValue]:
        """Return the elements of a window by their offsets, of the vectors that have all."""
        found = _separated(self._builder, vectors, self._window.offsets)
        if self._window.is_loaded_whole and (self._window.step or 0) < 0:
            backwards = range(self._lanes - 1, -1, -1)
            found = {offset: shuffled(self._builder, value, None, backwards) for offset, value in found.items()}
        return found

    def _load(self, pointer: LlvmValue, lanes: int) -> LlvmValue:
        text = f"load {vector_type(self._type, lanes)}, {pointer}, align {self._aligned}"
        return self._builder.emit(text, self._type, self._window.first.buffer.name, lanes)

    def _moved(self, pointer: LlvmValue, offset: int) -> LlvmValue:
        """Return the address of another element; that of the first lane, which may be none, is in no array."""
        if not offset:
            return pointer
        return self._builder.emit(f"getelementptr {self._type}, {pointer}, i64 {offset}", "ptr", "place")


def _separated(
    builder: Builder, vectors: Sequence[LlvmValue], offsets: Sequence[int]
) -> dict[int, LlvmValue]:  # fmt: skip
    """Return vectors of every len(vectors)-th element from an offset on, for each offset."""
    count, lanes = len(vectors), vectors[0].lanes
    if count == 1:
        return dict.fromkeys(offsets, vectors[0])
    if count % 2:
        return {offset: _every(builder, vectors, offset) for offset in offsets}
    found: dict[int, LlvmValue] = {}
    for odd in (0, 1):
        wanted = [offset for offset in offsets if offset % 2 == odd]
        if wanted:
            places = range(odd, 2 * lanes, 2)
            half = [
                shuffled(builder, one, other, places) for one, other in zip(vectors[::2], vectors[1::2], strict=True)
            ]
            separated = _separated(builder, half, [offset // 2 for offset in wanted])
            found.update({offset: separated[offset // 2] for offset in wanted})
    return found


def _every(builder: Builder, vectors: Sequence[LlvmValue], offset: int) -> LlvmValue:
    """Return the elements `offset`, `offset` + len(vectors), ... of vectors that lie one behind the other."""
    count, lanes = len(vectors), vectors[0].lanes
    return _picked(builder, vectors, [divmod(offset + number * count, lanes) for number in range(lanes)])


def _picked(builder: Builder, vectors: Sequence[LlvmValue], places: Sequence[tuple[int, int]]) -> LlvmValue:
    """Return a vector of elements of several vectors. places: for each lane the vector, by number, and its lane."""
    lanes, value = vectors[0].lanes, vectors[0]
    for number, vector in enumerate(vectors[1:], 1):
        chosen = [
            None if of > number else lanes + place if of == number else place if number == 1 else lane
            for lane, (of, place) in enumerate(places)
        ]
        value = shuffled(builder, value, vector, chosen)
    return value


def _interleaved(builder: Builder, vectors: Sequence[LlvmValue]) -> list[LlvmValue]:
    """Return vectors of the first elements of all, then of the second ones, and so on, one behind the other."""
    count, lanes = len(vectors), vectors[0].lanes
    if count == 1:
        return list(vectors)
    if count % 2 == 0:
        halves = [_interleaved(builder, vectors[odd::2]) for odd in (0, 1)]
        pairs = [place for number in range(lanes) for place in (number, lanes + number)]
        return [
            shuffled(builder, one, other, part)
            for one, other in zip(*halves, strict=True)
            for part in (pairs[:lanes], pairs[lanes:])
        ]
    results: list[LlvmValue] = []
    for number in range(count):
        elements = (divmod(number * lanes + lane, count) for lane in range(lanes))
        results.append(_picked(builder, vectors, [(of, place) for place, of in elements]))
    return results


def _listed(builder: Builder, values: Sequence[int]) -> LlvmValue:
    return LlvmValue(builder, f"<{', '.join(f'i32 {value}' for value in values)}>", "i32", len(values))
