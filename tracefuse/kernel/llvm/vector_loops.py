"""Vector loops as instructions on vectors, which need no vectorizer.

LLVM's vectorizer, and what it leaves to its other passes, takes most of the time of a kernel's compilation. So loops of
plain statements on adjacent elements are written in vectors: a loop over several registers at a time, then the rest
one register at a time, where a mask keeps the elements behind the last one untouched. Loops that fill whole registers
need neither. Others, of elements that are not adjacent or of branches, are left to LLVM's vectorizer.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from segments.lazy_dataclasses import dataclass, replace
from tracefuse import dtypes
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm import linked_math
from tracefuse.kernel.llvm.hidden_invariants import HiddenInvariants
from tracefuse.kernel.llvm.interleaving import has_long_body, interleave_count, is_long, known_trips, widest
from tracefuse.kernel.llvm.masked_vectors import MaskedVectors, numbers
from tracefuse.kernel.llvm.text_builder import LlvmValue
from tracefuse.kernel.llvm.vector_bodies import VectorBody
from tracefuse.kernel.llvm.vector_sums import VectorSums, is_flag

if TYPE_CHECKING:
    from tracefuse.kernel.llvm.statements import Emitter

_ONE = ir.Constant(1, dtypes.int64)
_LEAST_OVERLAPPED = 17
"""The fewest elements of two vectors that overlap: LLVM takes one of 8 and single elements for up to 16."""

_OF_INDICES = frozenset(("add", "sub", "mul"))


def emit_in_vectors(emitter: Emitter, loop: ir.For) -> bool:
    """Emit a vector loop as instructions on vectors; return False, with nothing emitted, if that is not possible."""
    is_plain = loop.step == _ONE and loop.variable.dtype is dtypes.int64 and emitter.is_plain_index(loop.start)
    if not is_plain or emitter.access_group or loop.stop.dtype is not dtypes.int64:
        return False
    emitter.plain.add(loop.variable.name)
    vectors = VectorLoop(emitter, loop)
    if not vectors.is_possible():
        return False
    outer = emitter.invariants
    vectors.emit()
    emitter.invariants = outer
    return True


@dataclass(frozen=True, slots=True)
class Widths:
    """The elements of the wide iterations of a loop, those of the others, and its trips if they are known."""

    wide: int
    lanes: int
    trips: int | None

    @property
    def is_one_iteration(self) -> bool:
        """Whether one iteration has all elements."""
        return self.trips is not None and self.trips <= self.wide

    @property
    def leaves_one(self) -> bool:
        """Whether whole registers leave a single element."""
        return self.trips is not None and self.trips > self.lanes and self.trips % self.lanes == 1

    @property
    def is_mostly_masked(self) -> bool:
        """Whether a quarter or more of the only vector has no elements."""
        return self.trips is not None and 4 * self.trips <= 3 * self.lanes

    @property
    def fills_registers(self) -> bool:
        """Whether no iteration needs a mask."""
        return self.trips is not None and self.trips % self.lanes == 0


def _widths_of(loop: ir.For, vector_bytes: int, *, copies: bool) -> Widths:
    """Return the widths of the iterations of a loop. copies: whether an iteration may have several registers."""
    loop = replace(loop, body=tuple(s for s in loop.body if not is_flag(s)))  # which are masks, whatever they raise
    trips, lanes = known_trips(loop), vector_bytes // widest(loop.body)
    if trips is not None and trips < lanes:
        lanes = 1 << max(trips - 1, 1).bit_length()
        return Widths(lanes, lanes, trips)
    registers = interleave_count(loop, vector_bytes, in_vectors=True) if copies else 1
    return Widths(lanes * (1 << registers.bit_length() - 1), lanes, trips)


class VectorLoop:
    """A vector loop that is written in vectors."""

    def __init__(self, emitter: Emitter, loop: ir.For) -> None:
        self._emitter, self._builder, self._loop = emitter, emitter.builder, loop
        self._read: dict[tuple[str, ir.Expression], LlvmValue] = {}
        self._invariants = HiddenInvariants(loop, self._builder, self._is_index, emitter.index, hides=False)
        self._body = VectorBody(loop, self._invariants, self._is_index, emitter.processor)
        self._widths = _widths_of(loop, emitter.processor.vector_bits // 8, copies=not self._body.windows)
        self._sums = VectorSums(emitter, self._body.sums(), self._widths.wide, self._widths.lanes)

    def _is_index(self, e: ir.Expression) -> bool:
        """Return whether an expression is arithmetic on positions: also on those that data give before the loop."""
        if e.dtype is dtypes.int64:
            if isinstance(e, ir.Variable):
                return isinstance(self._emitter.variables.get(e.name), LlvmValue) or e.name in self._emitter.plain
            if isinstance(e, ir.Call) and e.name in _OF_INDICES:
                return all(map(self._is_index, e.arguments))
        return self._emitter.is_plain_index(e)

    @functools.cached_property
    def _is_in_parts(self) -> bool:
        """Whether the elements of the last register are stored in parts of 8, 4, 2 and 1, without a mask.

        A processor does not forward elements that were stored under a mask to a load, so what the iteration of an outer
        loop has written would be read late by the next one. Parts of one size at one place are forwarded.
        """
        widths, body = self._widths, self._body
        if widths.trips is None or widths.fills_registers or body.windows or body.has_local_arrays:
            return False
        return not body.sums() and body.reads_what_it_writes()

    @functools.cached_property
    def _overlaps(self) -> bool:
        """Whether two vectors that have elements in common store all elements, of a loop that fills no vector.

        Both compute the same there, from what the loop does not change.
        """
        widths, body = self._widths, self._body
        if not widths.is_mostly_masked or widths.trips is None or widths.trips < _LEAST_OVERLAPPED:
            return False
        if body.windows or body.sums() or body.has_local_arrays or is_long(self._loop.body):
            return False
        return not body.reads_what_it_writes()

    def is_possible(self) -> bool:
        """Return whether this processor has the instructions, and all statements have a form on vectors.

        Left to LLVM are loops of one iteration, those of functions that leave one element, which takes LLVM less time
        than the lanes of a vector, short bodies on a few elements of a vector, and loops of a known length that need a
        mask and have local arrays, which LLVM keeps in registers.
        """
        widths = self._widths
        if widths.trips == 1:
            return False
        if self._is_in_parts:
            return bool(widths.trips) and self._body.is_possible()
        if not (self._emitter.processor.masks or widths.fills_registers):
            return False
        if self._overlaps:
            return self._body.is_possible()
        if widths.leaves_one if is_long(self._loop.body) else widths.is_mostly_masked and not self._body.sums():
            return False
        if widths.trips is not None and not widths.fills_registers and self._body.has_local_arrays:
            return False
        if not widths.fills_registers and self._body.reads_what_it_writes():
            return False  # see `_is_in_parts`
        return widths.trips != 0 and self._sums.are_possible(self._body.names) and self._body.is_possible()

    def emit(self) -> None:
        """Emit the loop."""
        builder, known = self._builder, self._widths.trips
        start, stop = (self._emitter.expression(e, index=True) for e in (self._loop.start, self._loop.stop))
        if known is not None:
            trips = builder.literal(known, "i64")
        else:
            trips = stop if start.text == "0" else stop.binary("sub", start, "nsw ")
        end = self._read_before(trips)
        place = len(builder.lines)
        self._emitter.invariants = self._invariants
        self._sums.begin()
        if self._is_in_parts:
            self._parts(start)
        elif self._overlaps:
            self._halves(start)
        elif self._widths.is_one_iteration:
            left = None if self._widths.fills_registers else trips
            self._iteration(builder.literal(0, "i64"), self._widths.wide, left, start)
            self._sums.end(self._widths.wide, trips)
        else:
            self._loops(trips, start)
        builder.lines[place:place] = self._invariants.lines
        if end is not None:
            builder.line(f"br label {end}")
            builder.label(end)

    def _read_before(self, trips: LlvmValue) -> str | None:
        """Emit the loads of what no iteration changes, if there is one; return the label of the end of their branch."""
        loads, builder, end = self._body.invariant_loads(), self._builder, None
        if not loads:
            return None
        if self._widths.trips is None:
            some, end = (builder.name(f"{self._loop.variable.name}_{part}") for part in ("some", "none"))
            builder.line(f"br {trips.compare('sgt', 0)}, label {some}, label {end}")
            builder.label(some)
        self._read = {place: self._emitter.expression(load) for place, load in loads.items()}
        return end

    def _loops(self, trips: LlvmValue, start: LlvmValue) -> None:
        """Emit the loop over wide vectors, the one over single registers, and the rest."""
        widths = self._widths
        counter = self._whole_vectors(self._builder.literal(0, "i64"), trips, start, widths.wide)
        self._sums.fold(counter)
        most = widths.wide - 1 if widths.trips is None else widths.trips % widths.wide
        # A long body, and one whose rest is little of many elements, is emitted once for the rest, with a mask also
        # where a register is full.
        is_part = linked_math.is_part(self._emitter, self._loop)
        masks = not widths.fills_registers and (has_long_body(self._loop) or (is_part and not self._body.sums()))
        if most >= widths.lanes and not masks:
            counter, most = self._whole_vectors(counter, trips, start, widths.lanes), most % widths.lanes
        if not widths.fills_registers:
            repeats = masks and most > widths.lanes
            if is_part and masks and widths.wide <= 2 * widths.lanes:
                self._builder.is_linked = functools.partial(linked_math.is_linked, processor=self._emitter.processor)
            self._rest(counter, trips, start, repeats=repeats)
            self._builder.is_linked = None
        self._sums.end(widths.lanes, trips)

    def _parts(self, start: LlvmValue) -> None:
        """Emit the loop over wide vectors, and the rest in parts, each of the largest power of two that is left."""
        widths, literal = self._widths, self._builder.literal
        assert widths.trips is not None
        first = widths.trips // widths.wide * widths.wide
        if first:
            self._whole_vectors(literal(0, "i64"), literal(widths.trips, "i64"), start, widths.wide)
        while first < widths.trips:
            lanes = min(1 << (widths.trips - first).bit_length() - 1, widths.lanes)
            self._iteration(literal(first, "i64"), lanes, None, start)
            first += lanes

    def _halves(self, start: LlvmValue) -> None:
        """Emit the first elements that fill a vector, and the last ones."""
        trips = self._widths.trips
        assert trips is not None
        lanes = 1 << trips.bit_length() - 1
        for first in (0, trips - lanes):
            self._iteration(self._builder.literal(first, "i64"), lanes, None, start)

    def _whole_vectors(self, first: LlvmValue, trips: LlvmValue, start: LlvmValue, width: int) -> LlvmValue:
        """Emit the iterations from `first` on that have `width` elements; return the first element after them.

        The loop tests at its end, so that what does not change in it is computed before it.
        """
        builder, name = self._builder, self._loop.variable.name
        before, body, back, done = (builder.name(f"{name}_{part}") for part in ("before", "body", "back", "done"))
        counter, following, end = (
            LlvmValue(builder, builder.name(f"{name}{part}"), "i64") for part in ("", "_next", "_end")
        )
        builder.line(f"br label {before}")
        builder.label(before)
        builder.line(f"br {first.binary('add', width, 'nsw ').compare('sle', trips)}, label {body}, label {done}")
        builder.label(body)
        builder.line(f"{counter.text} = phi i64 [ {first.text}, {before} ], [ {following.text}, {back} ]")
        self._iteration(counter, width, None, start)
        builder.line(f"br label {back}")
        builder.label(back)
        builder.line(f"{following.text} = add nsw {counter}, {width}")
        builder.line(f"br {following.binary('add', width, 'nsw ').compare('sle', trips)}, label {body}, label {done}")
        builder.label(done)
        builder.line(f"{end.text} = phi i64 [ {first.text}, {before} ], [ {following.text}, {back} ]")
        return end

    def _rest(self, first: LlvmValue, trips: LlvmValue, start: LlvmValue, *, repeats: bool) -> None:
        """Emit the iterations from `first` on under a mask. repeats: whether there may be several."""
        builder, name, lanes = self._builder, f"{self._loop.variable.name}_rest", self._widths.lanes
        before, head, body, back, end = (
            builder.name(f"{name}_{part}") for part in ("before", "head", "body", "back", "end")
        )
        counter, following = first, builder.name(f"{name}_next")
        for label in (before, head):
            builder.line(f"br label {label}")
            builder.label(label)
        if repeats:
            counter = LlvmValue(builder, builder.name(name), "i64")
            builder.line(f"{counter.text} = phi i64 [ {first.text}, {before} ], [ {following}, {back} ]")
        builder.line(f"br {counter.compare('slt', trips)}, label {body}, label {end}")
        builder.label(body)
        self._iteration(counter, lanes, trips.binary("sub", counter, "nsw "), start)
        builder.line(f"br label {back}")
        builder.label(back)
        builder.line(f"{following} = add nsw {counter}, {lanes}")
        builder.line(f"br label {head if repeats else end}")
        builder.label(end)

    def _iteration(self, counter: LlvmValue, lanes: int, left: LlvmValue | None, start: LlvmValue) -> None:
        """Emit the statements for elements from `counter` on. left: how many there are, if they may be fewer."""
        emitter, self._invariants.counter = self._emitter, counter
        first = counter if start.text == "0" else start.binary("add", counter, "nsw ")
        if self._loop.variable.name in self._body.names:
            emitter.variables[self._loop.variable.name] = numbers(self._builder, lanes, "i64") + first
        emitter.vectors = MaskedVectors(emitter, self._body, self._sums, self._read, first, lanes, left)
        emitter.statements(self._body.statements)
        emitter.vectors = None
