"""What an iteration appends to lists that only rewritten code reads: rows of arrays, with a count if values decide it.

Such lists are the results of comprehensions, and local variables that only new lists are bound to. After the loop the
list holds the array, and not an entry for each row, so a trace serves any number of entries; see `joined_lists.py`.

A branch gives the iteration around it an entry with the condition of the branch. A loop with such entries, and one
that may end early, counts: each iteration writes its entry behind those counted so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.assignment import setitem
from tracefuse.frontend.tracer.array_ops.in_place import SharedByLoop
from tracefuse.frontend.tracer.record.appended_rows import ConditionalEntry, JoinedRows
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.values.symbolic_size import wrap
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.frontend.tracer.values.views import owner_of
from tracefuse.ir.extents import maximum, symbols

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration
    from tracefuse.frontend.tracer.record.recorder import Recorder

MOST_IN_ITERATION = 64
"""The number of entries of one list that an iteration appends at most."""


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry that an iteration appends, as an array.

    condition: whether it is appended; None for always. depth: 0 for an array or a number, 1 for a list of them. weak:
    the kind of number of Python. is_spliced: whether the rows of the array are entries. named: the array that the user
    has, if it is one.
    """

    value: Traced
    condition: Traced | None
    depth: int
    weak: str | None
    is_spliced: bool = False
    named: Traced | None = None

    @property
    def kind(self) -> tuple[Any, ...]:
        """What is equal for entries in one array."""
        return self.value.value.dtype, self.value.extents, self.depth, self.weak


def new_entry(recorder: Recorder, value: Any) -> NewEntry | None:
    """Returns what a list gets as an array; None for an object that is no array, number or list of equal ones."""
    if isinstance(value, ConditionalEntry):
        return NewEntry(value.value, value.condition, value.depth, value.weak)
    if isinstance(value, JoinedRows):
        return NewEntry(value.rows, None, value.depth, value.weak, True) if value.count is None else None
    if type(value) is list:
        entries = [new_entry(recorder, one) for one in value]
        first = entries[0] if entries else None
        if first is None or any(one is None or one.condition is not None for one in entries):
            return None
        if first.is_spliced:
            return replace(first, is_spliced=False) if len(entries) == 1 else None
        if len({one.kind for one in entries if one is not None}) > 1:
            return None
        stacked = shaping.stack([one.value for one in entries if one is not None])
        return NewEntry(stacked, None, first.depth + 1, first.weak)
    if not is_value(value):
        return None
    leaf = as_leaf(recorder, value)
    named = value if isinstance(value, Traced) and is_array(value) else None
    return NewEntry(leaf, None, 0, type_of(leaf).weak, False, named)


class JoinedAppends:
    """What one iteration appends to one list. name: of the variables that carry the rows and their number."""

    def __init__(self, iteration: RecordedIteration, filled: list[Any], entries: list[NewEntry], name: str) -> None:
        self.iteration, self.recorder, self.list, self.entries = iteration, iteration.recorder, filled, entries
        self.first = entries[0]
        for one in entries:
            if one.named is not None:
                self._check(one.named)
            if any(iteration.symbol in symbols(extent) for extent in one.value.extents):
                raise NotInEveryIteration("the shape of what an iteration appends depends on the counter")
        self.names = f"({name})", f"({name}, count)"
        self.is_counted = iteration.condition is not None or any(one.condition is not None for one in entries)
        self.carried = self._in_branch() if iteration.is_branch else self._in_loop()

    @classmethod
    def of(cls, iteration: RecordedIteration, filled: list[Any], size: int, name: str) -> JoinedAppends | None:
        """Returns the entries of a list from a position on; None if they are no rows of one array."""
        new = list.__getitem__(filled, slice(size, None))
        known = [new_entry(iteration.recorder, one) for one in new] if len(new) <= MOST_IN_ITERATION else []
        entries = [one for one in known if one is not None]
        is_known = len(entries) == len(new) and len({one.kind for one in entries}) == 1
        is_unknown_length = iteration.length == UNKNOWN_LENGTH
        spliced = [one for one in entries if one.is_spliced]
        if not is_known or is_unknown_length or (spliced and (len(entries) > 1 or iteration.condition is not None)):
            return None
        return cls(iteration, filled, entries, name)

    def _check(self, array: Traced) -> None:
        """Raises NotInEveryIteration for an array that may be written after the iteration has appended it."""
        check_value(self.iteration, "what an iteration appends to a list", array)

    def _variable(self, name: str, kind: LeafType) -> CarriedVariable:
        recorder = self.recorder
        with outside_of(self.iteration.body):
            zeros = converted(as_leaf(recorder, recorder.movement("full", [0], shape=kind.shape)), kind)
        variable = CarriedVariable(name, None, zeros, kind)
        variable.enter(self.iteration.body)
        return variable

    def _in_loop(self) -> list[CarriedVariable]:
        count = maximum(0, self.iteration.length)
        leading = (count * len(self.entries),) if self.is_counted else (count, len(self.entries))
        if len(self.entries) == 1:
            leading = (count,)
        kind = LeafType(self.first.value.value.dtype, (*leading, *self.first.value.extents), None)
        variables = [self._variable(self.names[0], kind)]
        if self.is_counted:
            variables.append(self._variable(self.names[1], LeafType(int64, (), None)))
        return variables

    def _in_branch(self) -> list[CarriedVariable]:
        variables = []
        for place, one in enumerate(self.entries):
            kind = LeafType(one.value.value.dtype, one.value.extents, None)
            variables.append(self._variable(f"{self.names[0]}{place}", kind))
            variables.append(truth_variable(self.iteration.body, f"{self.names[1]}{place}", False))
        return variables

    def write(self, after: dict[str, Any]) -> None:
        """Writes the entries of the iteration. after: gets the arrays and counts, among the variables."""
        if self.iteration.is_branch:
            for place, one in enumerate(self.entries):
                rows, flag = self.carried[2 * place : 2 * place + 2]
                after[rows.name] = one.value
                after[flag.name] = True if one.condition is None else one.condition
            return
        rows = self.carried[0]
        array = value_of_type(self.recorder, rows.inside.state()[0], rows.type)
        self.iteration.body.owners.add(id(array))
        after[rows.name] = array
        if not self.is_counted:
            position = wrap(self.iteration.position, self.recorder)
            for place, one in enumerate(self.entries):
                setitem(array, position if len(self.entries) == 1 else (position, place), one.value)
            return
        count = self.carried[1].inside
        for one in self.entries:
            setitem(array, count, one.value)
            step = 1 if one.condition is None else traced_ops.apply("cast", one.condition, dtype=int64)
            count = traced_ops.apply("add", count, step)
        after[self.carried[1].name] = count

    def fill(self, values: dict[str, Any]) -> None:
        """Appends the rows to the list. values: what variables hold after the loop, without the rows then."""
        results = [values.pop(one.name) for one in self.carried]
        if self.iteration.is_branch:
            for place, one in enumerate(self.entries):
                self.list.append(ConditionalEntry(results[2 * place], results[2 * place + 1], one.depth, one.weak))
            return
        rows, count = results[0], results[1] if self.is_counted else None
        if self.first.is_spliced or (len(self.entries) > 1 and count is None):
            rows = shaping.reshape(rows, (-1, *self.recorder.sizes(rows.extents[2:])))
        rows.own_memory()
        depth = self.first.depth + (not self.first.is_spliced)
        self.list.append(JoinedRows(rows, count, depth, self.first.weak))

    def share(self, values: dict[str, Any], after: dict[str, Any]) -> None:
        """Makes variables read-only that hold an array which is an entry of the list, too."""
        shared = SharedByLoop("an entry of a list that a loop appends to", self.iteration.symbol)
        appended = {id(one.named) for one in self.entries if one.named is not None}
        for name in (name for name, value in after.items() if id(value) in appended and name in values):
            values[name].read_only = shared


def names_of(appends: Sequence[JoinedAppends]) -> list[CarriedVariable]:
    """Returns the variables that carry rows and counts."""
    return [variable for one in appends for variable in one.carried]
