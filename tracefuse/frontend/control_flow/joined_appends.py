"""What an iteration appends to lists that only rewritten code reads: rows of arrays, with a count if values decide it.

Such lists are the results of comprehensions, and local variables that only new lists are bound to. After the loop the
list holds the array, and not an entry for each row, so a trace serves any number of entries; see `joined_lists.py`.

A branch gives the iteration around it an entry with the condition of the branch. A loop with such entries, and one
that may end early, counts: each iteration writes its entry behind those counted so far.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import int64
from tracefuse.frontend.control_flow.carried_types import LeafType, as_leaf, converted, is_value, type_of
from tracefuse.frontend.control_flow.iteration_conditions import UNKNOWN_LENGTH, outside_of
from tracefuse.frontend.control_flow.recorded_carries import (
    CarriedVariable,
    is_array,
    truth_variable,
    value_of_type,
)
from tracefuse.frontend.control_flow.shared_arrays import check_value
from tracefuse.frontend.numpy_api.twins.even_ranges import integers
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.assignment import setitem
from tracefuse.frontend.tracer.array_ops.in_place import SharedByLoop
from tracefuse.frontend.tracer.array_ops.number_where import is_mixed
from tracefuse.frontend.tracer.record.appended_rows import MIXED, ConditionalEntry, JoinedColumns, JoinedRows
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.values.nested_lists import leaves_of
from tracefuse.frontend.tracer.values.symbolic_size import wrap
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.frontend.tracer.values.views import owner_of
from tracefuse.ir.extents import Extent, maximum, substitute, symbols
from tracefuse.ir.fusion import Shape

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration
    from tracefuse.frontend.tracer.record.recorder import Recorder

ENTRY = "an entry of a list that a loop appends to"

MOST_IN_ITERATION = 64
"""The number of entries of one list that an iteration appends at most."""


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry that an iteration appends, as an array, or several as its rows.

    condition: whether it is appended; None for always. depth: 0 for an array or a number, 1 for a list of them. weak:
    the kind of number of Python. is_spliced: whether the rows are entries. count: how many of them; None for all.
    named: the arrays that the user has among them. sources: the arrays of which entries are views.
    """

    value: Traced
    condition: Traced | None
    depth: int
    weak: str | None
    is_spliced: bool = False
    count: Traced | None = None
    named: tuple[Traced, ...] = ()
    sources: tuple[Traced, ...] = ()

    @property
    def shape(self) -> Shape:
        """The shape of an entry."""
        return self.value.extents[self.is_spliced :]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What is equal for entries in one array."""
        return self.value.value.dtype, self.shape, self.depth, self.weak


def new_entry(recorder: Recorder, value: Any) -> NewEntry | None:
    """Returns what a list gets as an array; None for an object that is no array, number or list of equal ones."""
    if isinstance(value, ConditionalEntry):
        return NewEntry(value.value, value.condition, value.depth, value.weak, sources=value.sources)
    if isinstance(value, JoinedRows):
        sources = tuple(array for array, _ in value.sources)
        return NewEntry(value.rows, None, value.depth - 1, value.weak, True, value.count, sources=sources)
    if type(value) is list:
        return _list_as_entry(recorder, value)
    if not is_value(value):
        return None
    leaf = as_leaf(recorder, value)
    named = (value,) if isinstance(value, Traced) and is_array(value) else ()
    return NewEntry(leaf, None, 0, MIXED if is_mixed(value) else type_of(leaf).weak, named=named)


def holds_rows(entries: Any) -> bool:
    """Whether lists, in one another, hold arrays in the place of entries."""
    leaves = leaves_of(entries, (list, tuple, dict))
    return any(isinstance(leaf, (JoinedRows, ConditionalEntry, JoinedColumns)) for leaf in leaves)


def _list_as_entry(recorder: Recorder, value: list[Any]) -> NewEntry | None:
    known = [new_entry(recorder, one) for one in value]
    entries = [one for one in known if one is not None and one.condition is None and one.count is None]
    if not entries or len(entries) < len(known) or len({one.kind for one in entries}) > 1:
        return None
    first = entries[0]
    if any(one.is_spliced for one in entries):
        entry = NewEntry(first.value, None, first.depth + 1, first.weak, sources=first.sources)
        return entry if len(entries) == 1 else None
    named = tuple(array for one in entries for array in one.named)
    sources = tuple(array for one in entries for array in one.sources)
    stacked = shaping.stack([one.value for one in entries])
    return NewEntry(stacked, None, first.depth + 1, first.weak, named=named, sources=sources)


class JoinedAppends:
    """What one iteration appends to one list. name: of the variables that carry the rows and their number."""

    def __init__(self, iteration: RecordedIteration, filled: list[Any], entries: list[NewEntry], name: str) -> None:
        self.iteration, self.recorder, self.list, self.entries = iteration, iteration.recorder, filled, entries
        self.first, self.symbol = entries[0], iteration.symbol
        self.results: list[Traced] = []
        self.sources = tuple(self._sources())
        for one in entries:
            if any(self.symbol in symbols(extent) for extent in one.shape):
                raise NotInEveryIteration("the shape of what an iteration appends depends on the counter")
        self.names = f"({name})", f"({name}, count)"
        self.is_counted = iteration.condition is not None or any(map(self._is_counted, entries))
        self.capacity = self._capacity()
        self.carried = self._in_branch() if iteration.is_branch else self._in_loop()

    def _sources(self) -> Iterator[Traced]:
        """Yields the arrays from before the loop of which entries are views, and which the iteration does not write."""
        carried = {id(one.array): one for one in self.iteration.body.arrays}
        for entry in self.entries:
            for source in entry.sources:
                one = carried.get(id(source))
                if one is None or one.is_written:
                    raise NotInEveryIteration("what an iteration appends to a list shares the memory of another array")
                yield source
            for array in entry.named:
                one = carried.get(id(owner_of(array)))
                if one is None or one.is_written:
                    check_value(self.iteration, "what an iteration appends to a list", array)
                else:
                    yield one.array

    @classmethod
    def of(cls, iteration: RecordedIteration, filled: list[Any], size: int, name: str) -> JoinedAppends | None:
        """Returns the entries of a list from a position on; None if they are no rows of one array."""
        new = list.__getitem__(filled, slice(size, None))
        known = [new_entry(iteration.recorder, one) for one in new] if len(new) <= MOST_IN_ITERATION else []
        entries = [one for one in known if one is not None]
        is_known = len(entries) == len(new) and len({one.kind for one in entries}) == 1
        return cls(iteration, filled, entries, name) if is_known and iteration.length != UNKNOWN_LENGTH else None

    def _is_counted(self, entry: NewEntry) -> bool:
        """Whether another number of entries may be appended in another iteration."""
        if not entry.is_spliced:
            return entry.condition is not None
        is_equal = entry.count is None and self.symbol not in symbols(entry.value.extents[0])
        return not is_equal or len(self.entries) > 1

    def _capacity(self) -> Extent:
        """Returns the most entries of an iteration."""
        total: Extent = 0
        for one in self.entries:
            rows = one.value.extents[0] if one.is_spliced else 1
            if self.symbol in symbols(rows):
                ends = (substitute(rows, {self.symbol: end}) for end in (self.iteration.low, self.iteration.high))
                most = functools.reduce(maximum, ends)
                if not self.recorder.always_holds(rows, most, "the entries that an iteration appends"):
                    raise NotInEveryIteration("the number of entries that an iteration appends depends on the counter")
                rows = most
            total = total + maximum(0, rows)
        return total

    def _variable(self, name: str, kind: LeafType) -> CarriedVariable:
        recorder = self.recorder
        with outside_of(self.iteration.body):
            zeros = converted(as_leaf(recorder, recorder.movement("full", [0], shape=kind.shape)), kind)
        variable = CarriedVariable(name, None, zeros, kind)
        variable.enter(self.iteration.body)
        return variable

    def _in_loop(self) -> list[CarriedVariable]:
        iterations = maximum(0, self.iteration.length)
        leading: Shape = (iterations, len(self.entries))
        if self.is_counted:
            leading = (iterations * self.capacity + 1,)  # the last row is no entry
        elif len(self.entries) == 1:
            leading = (iterations, *self.first.value.extents[: self.first.is_spliced])
        kind = LeafType(self.first.value.value.dtype, (*leading, *self.first.shape), None)
        variables = [self._variable(self.names[0], kind)]
        if self.is_counted:
            variables.append(self._variable(self.names[1], LeafType(int64, (), None)))
        return variables

    def _in_branch(self) -> list[CarriedVariable]:
        variables = []
        for place, one in enumerate(self.entries):
            kind = LeafType(one.value.value.dtype, one.value.extents, None)
            name = f"{self.names[1]}{place}"
            variables.append(self._variable(f"{self.names[0]}{place}", kind))
            if one.is_spliced:
                variables.append(self._variable(name, LeafType(int64, (), None)))
            else:
                variables.append(truth_variable(self.iteration.body, name, False))
        return variables

    def write(self, after: dict[str, Any]) -> None:
        """Writes the entries of the iteration. after: gets the arrays and counts, among the variables."""
        if self.iteration.is_branch:
            for place, one in enumerate(self.entries):
                rows, number = self.carried[2 * place : 2 * place + 2]
                after[rows.name] = one.value
                is_entry = True if one.condition is None else one.condition
                after[number.name] = self._count(one) if one.is_spliced else is_entry
            return
        rows = self.carried[0]
        array = value_of_type(self.recorder, rows.inside.state()[0], rows.type)
        self.iteration.body.owners.add(id(array))
        after[rows.name] = array
        if self.is_counted:
            after[self.carried[1].name] = self._write_counted(array, self.carried[1].inside)
            return
        position = wrap(self.iteration.position, self.recorder)
        for place, one in enumerate(self.entries):
            setitem(array, position if len(self.entries) == 1 else (position, place), one.value)

    def _write_counted(self, array: Traced, count: Traced) -> Traced:
        """Writes entries behind those that there are; returns how many there are then."""
        recorder, apply = self.recorder, traced_ops.apply
        for one in self.entries:
            if not one.is_spliced:
                setitem(array, count, one.value)
                step = 1 if one.condition is None else apply("cast", one.condition, dtype=int64)
            else:
                step = self._count(one)
                rows = integers(recorder, 0, wrap(one.value.extents[0], recorder), 1, int64)
                behind = recorder.scalar(array.extents[0] - 1)
                setitem(array, apply("where", apply("lt", rows, step), apply("add", rows, count), behind), one.value)
            count = apply("add", count, step)
        return count

    def _count(self, entry: NewEntry) -> Any:
        """Returns how many rows are entries."""
        return self.recorder.scalar(entry.value.extents[0]) if entry.count is None else entry.count

    def fill(self, values: dict[str, Any]) -> None:
        """Appends the rows to the list. values: what variables hold after the loop, without the rows then."""
        results = [values.pop(one.name) for one in self.carried]
        self.results = results[::2] if self.iteration.is_branch else results[:1]
        if self.iteration.is_branch:
            for place, one in enumerate(self.entries):
                value, number = results[2 * place : 2 * place + 2]
                if one.is_spliced:
                    self.list.append(self._joined(value, number, one))
                else:
                    self.list.append(ConditionalEntry(value, number, one.depth, one.weak, self.sources))
            return
        rows, count = results[0], results[1] if self.is_counted else None
        if count is None and (self.first.is_spliced or len(self.entries) > 1):
            rows = shaping.reshape(rows, (-1, *self.recorder.sizes(rows.extents[2:])))
        rows.own_memory()
        self.results = [rows]
        self.list.append(self._joined(rows, count, self.first))

    def _joined(self, rows: Traced, count: Traced | None, entry: NewEntry) -> JoinedRows:
        sources = tuple((source, source.state()[0]) for source in self.sources)
        return JoinedRows(rows, count, entry.depth + 1, entry.weak, sources, self.symbol)

    def parts(self) -> list[JoinedAppends]:
        """Returns itself: a list of arrays has one column."""
        return [self]

    def owners(self) -> list[int]:
        """Returns the ids of the arrays of an iteration whose memory the entries share."""
        return [id(owner_of(array)) for one in self.entries for array in one.named]

    def share(self, owners: Collection[int]) -> None:
        """Makes the rows read-only if entries share memory with another name. owners: the ids of arrays that have one.

        The rows of lists that an inner loop or a branch has filled stay read-only.
        """
        are_shared = any(isinstance(one.value.read_only, SharedByLoop) for one in self.entries)
        if are_shared or not set(self.owners()).isdisjoint(owners):
            for array in self.results:
                array.read_only = SharedByLoop(ENTRY, self.symbol)
