"""The statements of a vector loop that is written in vectors: arithmetic on adjacent elements."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

from segments.lazy_dataclasses import replace
from tracefuse import dtypes
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm import float32_math, scalar_ops
from tracefuse.kernel.llvm.hidden_invariants import HiddenInvariants, parts
from tracefuse.kernel.llvm.interleaving import PLAIN, has_functions, known_trips
from tracefuse.kernel.llvm.plain_loops import inlined, slope
from tracefuse.kernel.llvm.short_rows import ShortRow, bound_of, row_of
from tracefuse.kernel.llvm.strided_windows import Access, StridedPlace, StridedWindows, are_stored_together
from tracefuse.kernel.llvm.text_builder import Builder, LlvmValue, NotInVectorsError, Processor

_SOME_LANES = 2
"""The elements of the vectors that show whether an expression has a form on vectors."""

_GATHERED = 3
"""The gathered elements for each stored one from which on a loop does more than to move elements."""

_WITH_VALUE = (ir.Let, ir.Store, ir.Accumulate, ir.Declare, ir.Assign)


class VectorBody:
    """The statements of a loop whose values reach memory.

    variable: the loop's. names: the variables that their values depend on, other than in indices of adjacent elements.
    local: the variables that an iteration declares. is_index: whether an expression is index arithmetic that cannot
    overflow.
    """

    def __init__(
        self, loop: ir.For, invariants: HiddenInvariants, is_index: Callable[[ir.Expression], bool],
        processor: Processor,
    ) -> None:  # fmt: skip
        self.names: set[str] = set()
        self.local = {s.variable.name for s in ir.walk_statements(loop.body) if isinstance(s, ir.Declare)}
        self.variable, self._invariants, self._is_index, self._processor = (
            loop.variable.name,
            invariants,
            is_index,
            processor,
        )
        self._places: dict[str, ir.Expression] = {}
        self._bounds = {
            s.variable.name: bound
            for s in loop.body
            if isinstance(s, ir.Let) and (bound := bound_of(s.value)) is not None
        }  # fmt: skip
        # Of the unrolled loops, by their variables: with the statements that only say where elements are.
        self._bodies: dict[str, tuple[ir.Statement, ...]] = {}
        # By identity, while the places of variables are the same.
        self._known: dict[int, tuple[ir.Expression, ir.Expression, int | None]] = {}
        # The parts of the values of statements, by identity.
        self._parts: dict[int, tuple[ir.Statement, tuple[ir.Expression, ...]]] = {}
        self._find_places(loop.body)
        self.statements = self._needed(loop.body)

    def _find_places(self, body: Sequence[ir.Statement]) -> None:
        """Find what indices are called in a body, in terms of the loop's variable and of those before the loop."""
        for s in body:
            if isinstance(s, ir.Let) and s.value.dtype is dtypes.int64:
                place = inlined(s.value, self._places)
                if self._is_index(place):
                    self._places[s.variable.name] = place

    def _needed(self, body: Sequence[ir.Statement]) -> tuple[ir.Statement, ...]:
        """Return the statements whose values reach memory, and note what these depend on."""
        needed: list[ir.Statement] = []
        for s in reversed(body):
            if isinstance(s, ir.For):
                self._bodies[s.variable.name] = s.body
                self.begin_copy(s, 0)
                s = replace(s, body=self._needed(s.body))
            elif isinstance(s, ir.Let) and s.variable.name not in self.names:
                continue
            needed.append(s)
            self.names.update(part.name for part in self._values(s) if isinstance(part, ir.Variable))
        return tuple(reversed(needed))

    def _values(self, s: ir.Statement) -> Iterator[ir.Expression]:
        """Yield the parts of a statement's value, with the indices of elements that are not adjacent."""
        if not isinstance(s, _WITH_VALUE):
            return
        known = self._parts.get(id(s))
        if known is None:
            known = self._parts[id(s)] = s, tuple(parts(s.value))
        waiting: list[Iterable[ir.Expression]] = [known[1]]
        while waiting:
            for part in waiting.pop():
                yield part
                if isinstance(part, ir.Load) and self.step(part.index) is None and self.distance(part.index) is None:
                    waiting.append(parts(part.index))

    def sums(self) -> list[ir.Accumulate]:
        """Return the reductions over the loop."""
        accumulated = (s for s in ir.walk_statements(self.statements) if isinstance(s, ir.Accumulate))
        return [s for s in accumulated if s.variable.name not in self.local]

    def reads_what_it_writes(self) -> bool:
        """Whether an iteration of an outer loop may read what the one before has written, as running sums do.

        Columns that are added up in local arrays do not count: these are stored without a mask.
        """
        stored = {s.buffer.name: s.buffer for s in ir.walk_statements(self.statements) if isinstance(s, ir.Store)}
        if all(buffer.space == "local" for buffer in stored.values()):
            return False
        return any(
            isinstance(part, ir.Load) and part.buffer.name in stored
            for s in ir.walk_statements(self.statements) for part in self._values(s)
        )  # fmt: skip

    def invariant_loads(self) -> dict[tuple[str, ir.Expression], ir.Load]:
        """Return the loads of elements that all iterations read and none writes, by buffer and place."""
        return {
            (part.buffer.name, self.place(part.index)): replace(part, index=self.place(part.index))
            for s in self.statements
            for part in self._values(s)
            if isinstance(part, ir.Load) and self.step(part.index) == 0 and _is_apart(part.buffer, self._stored)
        }

    def begin_copy(self, loop: ir.For, number: int) -> None:
        """Begin the iteration of an unrolled loop in which its variable is `number`."""
        self._known.clear()
        self._places[loop.variable.name] = ir.Constant(number, loop.variable.dtype)
        self._find_places(self._bodies[loop.variable.name])

    def place(self, index: ir.Expression) -> ir.Expression:
        """Return an index in terms of the loop's variable and of those before the loop."""
        return self._found(index)[1]

    def step(self, index: ir.Expression) -> int | None:
        """Return by how many positions an index grows with each iteration; None if that is not known."""
        return self._found(index)[2]

    def _found(self, index: ir.Expression) -> tuple[ir.Expression, ir.Expression, int | None]:
        """Return an index, its place and its step. It is asked for many times, and comparing indices takes long."""
        found = self._known.get(id(index))
        if found is None:
            place = inlined(index, self._places)
            found = self._known[id(index)] = index, place, self._invariants.step(place)
        return found

    def distance(self, index: ir.Expression) -> ir.Expression | None:
        """Return by how many positions an index grows with each iteration; None for an index that is not linear."""
        place = self.place(index)
        if any(isinstance(e, ir.Variable) and self._invariants.is_data(e.name) for e in parts(place)):
            return None
        return slope(place, self.variable)

    def is_possible(self) -> bool:
        """Return whether all statements have a form on vectors, and LLVM has no better one."""
        return self._are_possible(self.statements) and self._windows_are_possible() and not self._moves_elements()

    def _moves_elements(self) -> bool:
        """Return whether the loop mainly gathers elements that it stores, which LLVM does one by one.

        Sums in local arrays are not stored for good.
        """
        if self._has_functions:
            return False
        stores = sum(access.stores and access.buffer.space != "local" for access in self._accesses)
        return 0 < self._gathered() < _GATHERED * stores

    @functools.cached_property
    def _has_functions(self) -> bool:
        return has_functions(self.statements)

    def _gathered(self) -> int:
        """Return how many loads are of elements far from all others."""
        return sum(
            not access.stores and (access.place is None or not self.windows.of(access.place).is_dense)
            for access in self._accesses
        )

    @functools.cached_property
    def _accesses(self) -> list[Access]:
        """The loads of elements that are not adjacent, and all stores, in order."""
        return list(self._accesses_of(self.statements))

    def _accesses_of(self, body: Sequence[ir.Statement]) -> Iterator[Access]:
        for s in body:
            if isinstance(s, ir.For):
                for number in copies(s):
                    self.begin_copy(s, number)
                    yield from self._accesses_of(s.body)
                continue
            for part in self._values(s):
                if isinstance(part, ir.Load) and self.step(part.index) not in (0, 1) and self.short_row(part) is None:
                    yield Access(part.buffer, self.place_of(part.buffer, part.index), stores=False)
            if isinstance(s, ir.Store):
                place = None if self.step(s.index) == 1 else self.place_of(s.buffer, s.index, stores=True)
                yield Access(s.buffer, place, stores=True)

    def short_row(self, load: ir.Load) -> ShortRow | None:
        """Return the row in registers that has what a load reads at a position that is data; None for others."""
        if not self._bounds:
            return None
        place = self.place(load.index)
        return row_of(load, place, self._bounds, lambda e: self.step(e) == 0, self._processor)

    @functools.cached_property
    def windows(self) -> StridedWindows:
        """The elements at a distance that an iteration reads, and those that it writes."""
        return StridedWindows(access.place for access in self._accesses if access.place is not None)

    def place_of(self, buffer: ir.Buffer, index: ir.Expression, *, stores: bool = False) -> StridedPlace | None:
        """Return where an element at a distance is; None for another element. stores: what is done with it."""
        distance = self.distance(index)
        if distance is None:
            return None
        place = self.place(index)
        terms, offset = self._invariants.terms(place)
        is_apart = stores or _is_apart(buffer, self._stored)
        return StridedPlace(
            buffer, (buffer.name, stores, terms, 0 if is_apart else offset), offset, place, distance, is_apart
        )

    @functools.cached_property
    def _stored(self) -> list[ir.Buffer]:
        stored = (s.buffer for s in ir.walk_statements(self.statements) if isinstance(s, ir.Store))
        return list({buffer.name: buffer for buffer in stored}.values())

    def _windows_are_possible(self) -> bool:
        """Return whether stores are of adjacent elements, or of all elements of windows together.

        At some distances LLVM's code for windows is faster, but not that of functions.
        """
        windows = {self.windows.of(a.place): a.stores for a in self._accesses if a.place is not None}
        return all(
            (self._has_functions or not window.has_many_shuffles)
            and (not stores or are_stored_together(window, self._accesses, _is_apart))
            for window, stores in windows.items()
        )

    def _are_possible(self, body: Sequence[ir.Statement]) -> bool:
        return all(map(self._is_possible, body))

    def _is_possible(self, s: ir.Statement) -> bool:
        match s:
            case ir.For():
                self.begin_copy(s, 0)
                return s.kind == "unroll" and bool(known_trips(s)) and self._are_possible(s.body)
            case ir.Assign() if s.variable.name not in self.local:
                return False
            case ir.Declare() | ir.Assign() | ir.Accumulate() if s.variable.dtype.is_half:
                return False
            case ir.Store() if s.block is not None or (self.step(s.index) != 1 and self.distance(s.index) is None):
                return False
            case ir.Let() | ir.Store() | ir.Accumulate() | ir.Comment() | ir.Declare() | ir.Assign():
                return all(map(self._has_form, self._values(s)))
        return False

    def _has_form(self, e: ir.Expression) -> bool:
        """Return whether an expression has a form on vectors, if its arguments have."""
        match e:
            case ir.Cast():
                is_plain = not (e.dtype.is_half or e.argument.dtype.is_half)
            case ir.Call():
                is_plain = e.name in PLAIN and not e.arguments[-1].dtype.is_half
            case _:
                return True
        return is_plain or _is_written_in_vectors(e, self._processor)

    @functools.cached_property
    def has_local_arrays(self) -> bool:
        """Whether statements read or write local arrays."""
        loads = (
            p.buffer for s in ir.walk_statements(self.statements) for p in self._values(s) if isinstance(p, ir.Load)
        )
        return any(buffer.space == "local" for buffer in (*self._stored, *loads))

    @functools.cached_property
    def has_rare_paths(self) -> bool:
        """Whether a function has a second formula for rare arguments."""
        return any(
            isinstance(part, ir.Call) and part.dtype.is_floating and float32_math.has_rare_path(part.name, part.dtype)
            for s in ir.walk_statements(self.statements)
            for part in self._values(s)
        )


def copies(loop: ir.For) -> range:
    """Return what the variable of an unrolled loop is in its copies."""
    trips = known_trips(loop)
    if trips is None or loop.kind != "unroll":
        return range(0)
    assert isinstance(loop.start, ir.Constant)
    first = int(loop.start.value.real)
    return range(first, first + trips)


def _is_apart(buffer: ir.Buffer, stored: Sequence[ir.Buffer]) -> bool:
    """Return whether stores to other buffers leave this one as it is."""
    return all(buffer.name != other.name and (buffer.exclusive or other.exclusive) for other in stored)


def _is_written_in_vectors(e: ir.Call | ir.Cast, processor: Processor) -> bool:
    """Return whether what an expression emits has no branch, and calls no library."""
    builder = Builder(processor.scales, processor.vector_bits, branches=False)

    def operand(argument: ir.Expression) -> LlvmValue:
        if isinstance(argument, ir.Constant):
            return scalar_ops.constant(builder, argument.value, argument.dtype)
        return LlvmValue(builder, "%x", scalar_ops.register_type(argument.dtype), _SOME_LANES)

    try:
        if isinstance(e, ir.Cast):
            scalar_ops.cast(operand(e.argument), e.argument.dtype, e.dtype, processor)
        else:
            arguments = [operand(argument) for argument in e.arguments]
            scalar_ops.primitive(e.name, arguments, e.arguments[-1].dtype, e.dtype, flags="", processor=processor)
    except NotInVectorsError:
        return False
    return all(map(float32_math.has_variant, builder.functions))
