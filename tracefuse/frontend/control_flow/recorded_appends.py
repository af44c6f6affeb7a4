"""Lists to which every iteration of a recorded loop appends: the loop carries an array with a row for each iteration.

After the loop the list has an entry for each row, so a trace serves calls with as many iterations.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from segments.lazy_dataclasses import dataclass
from tracefuse import pytrees, source
from tracefuse.frontend.control_flow.carried_types import LeafType, as_leaf, converted, type_of
from tracefuse.frontend.control_flow.iteration_conditions import UNKNOWN_LENGTH, outside_of
from tracefuse.frontend.control_flow.joined_appends import ENTRY, JoinedAppends, holds_rows
from tracefuse.frontend.control_flow.joined_columns import ColumnAppends
from tracefuse.frontend.control_flow.recorded_carries import CarriedVariable, LoopBody, is_array, value_of_type
from tracefuse.frontend.control_flow.shared_arrays import check_value
from tracefuse.frontend.tracer.array_ops.assignment import getitem, setitem
from tracefuse.frontend.tracer.array_ops.in_place import SharedByLoop
from tracefuse.frontend.tracer.questions_in_loops import begin_again_rewritten
from tracefuse.frontend.tracer.record.appended_rows import Row
from tracefuse.frontend.tracer.record.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.state.container_records import record_of
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, wrap
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.frontend.tracer.values.views import owner_of
from tracefuse.ir.extents import Symbol, maximum, substitute, symbols

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration

MOST_ENTRIES = 64
"""The number of values that an iteration appends at most."""

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class _AppendedValue:
    """The array of rows for one value that iterations append. kind: the type of the value."""

    carried: CarriedVariable
    kind: LeafType
    is_array: bool


class Appends:
    """What one iteration appends to lists.

    grown: the lists, with the number of their entries before. after: the variables after the iteration.
    """

    def __init__(
        self, iteration: RecordedIteration, grown: Sequence[tuple[list[Any], int]], after: dict[str, Any]
    ) -> None:  # fmt: skip
        self.iteration, self.recorder = iteration, iteration.recorder
        self._count_first(grown)
        self._check_containers([new for one, size in grown for new in list.__getitem__(one, slice(size, None))], after)
        holders = {*map(id, grown), id(self.recorder.loops.lists)}
        for grown_list, _ in grown:
            self._check_unread(grown_list, after, holders)
        self._joined: list[JoinedAppends | ColumnAppends] = []
        grown = [(one, size) for one, size in grown if not self._join(one, size)]
        if grown:
            begin_again_rewritten(self.recorder, iteration.frame)
        if grown and iteration.condition is not None:
            raise NotInEveryIteration("an iteration appends to a list, and values decide how many iterations there are")
        if any(holds_rows(list.__getitem__(one, slice(size, None))) for one, size in grown):
            raise NotInEveryIteration("an iteration appends a list whose length values decide")
        # For each list and each new entry: the leaves, and their structure.
        self._entries = [
            (grown_list, [pytrees.flatten(entry) for entry in list.__getitem__(grown_list, slice(size, None))])
            for grown_list, size in grown
        ]
        leaves = [leaf for _, entries in self._entries for entry, _ in entries for leaf in entry]
        if len(leaves) > MOST_ENTRIES:
            raise NotInEveryIteration(f"an iteration appends more than {MOST_ENTRIES} values to lists")
        for leaf in leaves:
            if not isinstance(leaf, (Traced, SymbolicSize, *_CONSTANTS)):
                raise NotInEveryIteration(f"an iteration appends a {type(leaf).__name__} to a list")
        computed = {id(leaf): leaf for leaf in leaves if isinstance(leaf, Traced)}
        self._rows = {key: self._carry(k, leaf) for k, (key, leaf) in enumerate(computed.items())}
        for grown_list, size in grown:
            shorten(grown_list, size)

    def _count_first(self, grown: Sequence[tuple[list[Any], int]]) -> None:
        """Begins the trace again if a `while` loop has to be counted before it can append."""
        iteration, decisions = self.iteration, self.recorder.loops.decisions
        is_open = iteration.length == UNKNOWN_LENGTH and iteration.body.outside is None
        if grown and is_open and iteration.place not in decisions.counted:
            decisions.counted.add(iteration.place)
            raise AnotherAttempt

    def _check_containers(self, entries: list[Any], after: dict[str, Any]) -> None:
        """Raises NotInEveryIteration if a list or dict among the entries has another name: they become copies."""
        iteration, seen, waiting = self.iteration, set[int](), entries
        while waiting:
            one = waiting.pop()
            if isinstance(one, (list, dict)):
                if id(one) in seen:
                    raise NotInEveryIteration("an iteration appends one list twice")
                seen.add(id(one))
            if isinstance(one, (list, dict, tuple)):
                waiting += one.values() if isinstance(one, dict) else one
        if any(id(value) in seen for name, value in after.items() if name in iteration.needed | iteration.read):
            raise NotInEveryIteration("a list that an iteration appends to another one has a name after it")

    def _join(self, grown_list: list[Any], size: int) -> bool:
        """Whether a list holds arrays in the place of its new entries."""
        if self.recorder.loops.lists.get(id(grown_list)) is not grown_list:
            return False
        name = f"list {len(self._joined)}"
        joined = JoinedAppends.of(self.iteration, grown_list, size, name) or ColumnAppends.of(
            self.iteration, grown_list, size, name
        )
        if joined is None:
            return False
        self._joined.append(joined)
        shorten(grown_list, size)
        return True

    def _check_unread(self, grown_list: list[Any], after: dict[str, Any], holders: set[int]) -> None:
        """Raises NotInEveryIteration if the iteration may have read a list that it appends to.

        holders: the ids of objects that refer to it, but no code of the user reads.
        """
        iteration = self.iteration
        key = id(grown_list)  # a comprehension would hold the list in a cell
        names = {name for name, value in after.items() if id(value) == key}
        holders |= {id(iteration.frame), id(iteration.frame.f_locals), id(after)}
        body: Any = iteration.body
        while isinstance(body, LoopBody):
            holders |= body.iteration.carried_slots.contents.records | {
                id(body.iteration.objects),
                id(body.iteration.before),
            }
            body = body.outside
        other_holders = [holder for holder in gc.get_referrers(grown_list) if id(holder) not in holders]
        if not names.isdisjoint(iteration.code.loaded) or not all(map(_is_frame_of_package, other_holders)):
            begin_again_rewritten(self.recorder, iteration.frame)
            raise NotInEveryIteration("an iteration appends to a list that it may read")

    @property
    def carried(self) -> list[CarriedVariable]:
        """The arrays of rows, which the loop carries."""
        return [rows.carried for rows in self._rows.values()] + [
            variable for one in self._joined for variable in one.carried
        ]

    def _carry(self, position: int, leaf: Traced) -> _AppendedValue:
        iteration, recorder = self.iteration, self.recorder
        name = f"(rows {position})"
        is_shared = is_array(leaf)
        if is_shared:
            check_value(iteration, "what an iteration appends to a list", leaf)
        kind = type_of(as_leaf(recorder, leaf))
        if any(iteration.symbol in symbols(extent) for extent in kind.shape):
            raise NotInEveryIteration("the shape of what an iteration appends depends on the counter")
        rows = LeafType(kind.dtype, (maximum(0, iteration.length), *kind.shape), None)
        with outside_of(iteration.body):
            zeros = converted(as_leaf(recorder, recorder.movement("full", [0], shape=rows.shape)), rows)
        variable = CarriedVariable(name, None, zeros, rows)
        variable.enter(iteration.body)
        return _AppendedValue(variable, kind, is_shared)

    def write(self, after: dict[str, Any]) -> None:
        """Writes the rows of the iteration. after: gets the arrays, among the variables."""
        for joined in self._joined:
            joined.write(after)
        leaves = {id(leaf): leaf for _, entries in self._entries for entry, _ in entries for leaf in entry}
        for key, rows in self._rows.items():
            array = value_of_type(self.recorder, rows.carried.inside.state()[0], rows.carried.type)
            self.iteration.body.owners.add(id(array))
            setitem(array, wrap(self.iteration.position, self.recorder), as_leaf(self.recorder, leaves[key]))
            after[rows.carried.name] = array

    def fill(self, values: dict[str, Any], after: dict[str, Any]) -> None:
        """Appends the entries of all iterations to the lists.

        values: what variables hold after the loop, with the arrays of rows. after: what they hold after an iteration.
        """
        for joined in self._joined:
            joined.fill(values)
        self._share(values, after)
        if not self._entries:
            return
        iteration, recorder = self.iteration, self.recorder
        count = recorder.pin(maximum(0, iteration.length), "a list that a loop appends to")
        shared = SharedByLoop(ENTRY, iteration.symbol)
        arrays = {key: values.pop(rows.carried.name) for key, rows in self._rows.items()}
        for key, rows in self._rows.items():
            arrays[key].own_memory()
            if rows.is_array:
                arrays[key].read_only = shared
        for k in range(count):
            counter = iteration.high - k if iteration.reverse else iteration.low + k
            appended: dict[int, Any] = {}
            for grown_list, entries in self._entries:
                for leaves, structure in entries:
                    entry = [self._entry(leaf, k, {iteration.symbol: counter}, arrays, appended) for leaf in leaves]
                    grown_list.append(pytrees.unflatten(structure, entry))

    def _share(self, values: dict[str, Any], after: dict[str, Any]) -> None:
        """Makes variables and entries of lists read-only that share the memory of an array with one another.

        values, after: see `fill`.
        """
        parts = [part for joined in self._joined for part in joined.parts()]
        leaves = [leaf for _, entries in self._entries for entry, _ in entries for leaf in entry if is_array(leaf)]
        entries = [owner for part in parts for owner in part.owners()] + [id(owner_of(leaf)) for leaf in leaves]
        named = {name: id(owner_of(after[name])) for name in values if isinstance(after.get(name), Traced)}
        for part in parts:
            part.share({*named.values(), *(owner for owner, count in Counter(entries).items() if count > 1)})
        for name in (name for name, owner in named.items() if owner in entries):
            values[name].read_only = SharedByLoop(ENTRY, self.iteration.symbol)

    def _entry(
        self,
        leaf: Any,
        position: int,
        counter: Mapping[Symbol, Any],
        arrays: Mapping[int, Any],
        appended: dict[int, Any],
    ) -> Any:
        """Returns what one iteration appends. arrays: of rows. appended: by that iteration so far."""
        if isinstance(leaf, SymbolicSize):
            return wrap(substitute(leaf.extent, counter), self.recorder)
        if not isinstance(leaf, Traced):
            return leaf
        if id(leaf) not in appended:
            rows, array = self._rows[id(leaf)], arrays[id(leaf)]
            entry = getitem(array, position)
            if rows.kind.weak is not None:
                entry = value_of_type(self.recorder, entry.number, rows.kind)
            self.recorder.loops.rows[id(entry)] = Row(entry, array, position)
            appended[id(leaf)] = entry
        return appended[id(leaf)]


def _is_frame_of_package(holder: Any) -> bool:
    return isinstance(holder, FrameType) and source.is_internal(holder.f_code.co_filename)


def shorten(grown_list: list[Any], size: int) -> None:
    """Removes the new entries of a list, of the state too."""
    record = record_of(grown_list)
    if record is not None:
        record.appended -= list.__len__(grown_list) - size
    list.__delitem__(grown_list, slice(size, None))
