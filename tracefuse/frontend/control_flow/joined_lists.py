"""Lists whose entries are rows of arrays that recorded loops have filled.

Only rewritten code reads them, see `joined_reads.py` and `joined_calls.py`. What these do not cover gets the list with
its entries, on the number of which the trace then depends.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tracefuse import pytrees
from tracefuse.dtypes import DType, bool_, complex128, float64, int64, uint64
from tracefuse.frontend.control_flow.carried_types import LeafType, as_leaf, converted, is_value, type_of
from tracefuse.frontend.control_flow.joined_appends import ENTRY
from tracefuse.frontend.control_flow.joined_columns import columns_of
from tracefuse.frontend.control_flow.recorded_carries import value_of_type
from tracefuse.frontend.python_numbers.number_questions import needs_elements
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.assignment import getitem
from tracefuse.frontend.tracer.array_ops.in_place import SharedByLoop
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.record.appended_rows import MIXED, ConditionalEntry, JoinedColumns, JoinedRows, Row
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values.symbolic_size import extent_of, wrap
from tracefuse.frontend.tracer.values.traced import Traced

REASON = "a list that a loop appends to"
MOST_LISTED = 1024
"""The most elements of an array that are recorded one by one, as the entries of its list."""


def new_list(*entries: Any) -> list[Any]:
    """Returns a list that only rewritten code reads."""
    result, recorder = list(entries), current.get()
    if recorder is not None:
        recorder.loops.lists[id(result)] = result
    return result


def is_joined(value: Any) -> bool:
    """Whether a value is a list that may hold arrays in the place of entries."""
    recorder = current.get()
    return type(value) is list and recorder is not None and recorder.loops.lists.get(id(value)) is value


def with_entries(value: Any) -> Any:
    """Returns a list, which then holds its entries, and so do the lists in it; any other value as it is."""
    if not is_joined(value):
        return value
    recorder = current.get()
    if recorder is not None and any(map(are_rows, value)):
        recorder.loops.copies.check_none_of(id(value))
    entries: list[Any] = []
    for one in value:
        entries += _entries_of(one) if are_rows(one) else [_settled(one)]
    value[:] = entries
    return value


def handed_out(value: Any) -> Any:
    """Returns a list with its entries. It and those in it have them from now on: other code may read and keep it."""
    recorder, waiting = current.get(), [value]
    while waiting:
        one = waiting.pop()
        if is_joined(one) and recorder is not None:
            waiting += with_entries(one)
            del recorder.loops.lists[id(one)]
    return value


def are_rows(entry: Any) -> bool:
    """Whether something stands for entries, as many as it has rows."""
    return isinstance(entry, JoinedRows) or (
        isinstance(entry, JoinedColumns) and isinstance(entry.columns[0], JoinedRows)
    )


def _settled(entry: Any) -> Any:
    if isinstance(entry, (ConditionalEntry, JoinedColumns)):
        raise NotInEveryIteration("an iteration reads a list to which a branch appends")
    return with_entries(entry)


def _entries_of(joined: JoinedRows | JoinedColumns) -> list[Any]:
    if isinstance(joined, JoinedColumns):
        columns = [_entries_of(one) for one in joined.columns if isinstance(one, JoinedRows)]
        return [pytrees.unflatten(joined.structure, row) for row in zip(*columns, strict=True)]
    if joined.sources:
        raise NotInEveryIteration("a list of views of an array is read", joined.symbol)
    rows = joined.rows
    recorder: Recorder = rows.recorder
    length = rows.extents[0] if joined.count is None else extent_of(count_of(joined))
    if length is None:
        raise NotInEveryIteration("values decide how many entries a list has")
    if joined.symbol is None and recorder.known(length) > MOST_LISTED:
        raise needs_elements(rows, "tolist()", "return the array and convert it outside")
    weak = kind_of_entries(joined)
    entries = []
    for position in range(recorder.pin(length, REASON)):
        row = getitem(rows, position)
        if joined.depth > 1:
            row.own_memory()
            inner = JoinedRows(row, None, joined.depth - 1, joined.weak, symbol=joined.symbol)
            entries.append(new_list(*_entries_of(inner)))
            continue
        if weak is not None:
            row = value_of_type(recorder, row.number, LeafType(row.value.dtype, row.extents, weak))
        recorder.loops.rows[id(row)] = Row(row, rows, position)
        entries.append(row)
    return entries


def count_of(joined: JoinedRows) -> Any:
    """Returns the number of entries, as a size."""
    if joined.count is None:
        return wrap(joined.rows.extents[0], joined.rows.recorder)
    count = as_size(joined.count)
    if extent_of(count) is None and joined.rows.recorder.body is not None:
        raise NotInEveryIteration("an iteration reads a list whose length values decide")
    return count


def have_entries(array: Traced, depth: int) -> bool:
    """Whether no list is empty that `depth` axes of an array become; guarded. NumPy gives empty lists its own type."""
    return all(array.recorder.decide(1, "<=", extent, "a list without entries") for extent in array.extents[:depth])


def rows_of(joined: JoinedRows) -> Traced | None:
    """Returns the rows that are entries; None if there is none."""
    if any(source.state()[0] != number for source, number in joined.sources):
        raise NotInEveryIteration("an array is written of which a list holds views", joined.symbol)
    if joined.count is None:
        return joined.rows
    count = count_of(joined)
    if extent_of(count) is None or extent_of(count) == 0:
        return None
    return getitem(joined.rows, slice(0, count))  # type: ignore[no-any-return]


def whole(value: list[Any]) -> JoinedRows | JoinedColumns | None:
    """Returns what stands for all entries of a list; None if they differ in type or shape, or none are rows."""
    if len(value) < 2 or not any(map(are_rows, value)):
        return value[0] if value and are_rows(value[0]) else None
    known = [columns_of(one) for one in value]
    structures = {None if one is None else one[1] for one in known}
    if len(structures) > 1:
        return None
    if None not in structures:
        columns = [whole([*one]) for one in zip(*(one[0] for one in known if one is not None), strict=True)]
        rows = tuple(one for one in columns if isinstance(one, JoinedRows))
        return JoinedColumns(rows, structures.pop()) if len(rows) == len(columns) else None
    parts = [_as_rows(one) for one in value]
    arrays = [part[0] for part in parts if part is not None]
    kinds = {None if part is None else part[1] for part in parts}
    if len(kinds) > 1 or len(arrays) < len(parts):
        return None
    symbol = next(one.symbol for one in value if isinstance(one, JoinedRows))
    rows = shaping.concatenate(arrays)
    if symbol is not None:
        rows.read_only = SharedByLoop(ENTRY, symbol)  # the entries are other arrays
    return JoinedRows(rows, None, 1, next(part[1][2] for part in parts if part is not None), symbol=symbol)


def _as_rows(entry: Any) -> tuple[Traced, tuple[Any, ...]] | None:
    """Returns an array of entries, with what is equal for all entries of one array; None for other entries."""
    if isinstance(entry, JoinedRows):
        array = rows_of(entry) if is_plain(entry) else None
        return None if array is None else (array, (array.value.dtype, array.extents[1:], entry.weak))
    if not is_value(entry):
        return None
    leaf = as_leaf(current.get(), entry)  # type: ignore[arg-type]
    kind = type_of(leaf)
    return shaping.expand_dims(leaf, 0), (kind.dtype, kind.shape, kind.weak)


def is_plain(joined: JoinedRows) -> bool:
    return joined.depth == 1 and not joined.sources


def numbered(row: Traced, joined: JoinedRows) -> Any:
    """Returns an entry: a row, a number of Python, or a list."""
    if joined.depth > 1:
        row.own_memory()
        return with_entries(new_list(JoinedRows(row, None, joined.depth - 1, joined.weak, symbol=joined.symbol)))
    weak = kind_of_entries(joined)
    if weak is None:
        return row
    return value_of_type(row.recorder, row.number, LeafType(row.value.dtype, row.extents, weak))


def kind_of_entries(joined: JoinedRows | ConditionalEntry) -> str | None:
    """Returns the kind of number of Python that entries are; None if they are none."""
    if joined.weak == MIXED:
        symbol = joined.symbol if isinstance(joined, JoinedRows) else None
        raise NotInEveryIteration("entries of a list are numbers of Python in some iterations only", symbol)
    return joined.weak


_OF_KIND: Mapping[str, tuple[DType, str]] = MappingProxyType(
    {
        "bool": (bool_, "bool"),
        "int": (int64, "int"),
        "uint": (int64, "int"),
        "float": (float64, "float"),
        "complex": (complex128, "complex"),
    }
)
"""The type that holds the elements of arrays of a kind as numbers of Python, and their kind."""


def listed(array: Any) -> Any:
    """Returns `array.tolist()`: a list that holds a copy of the array, if it is traced."""
    is_array = isinstance(array, Traced) and array.extents and array.value.dtype is not uint64
    if not is_array or array.recorder.contents.ask(array.number, "tolist()") is not None:
        return array.tolist()
    if not have_entries(array, len(array.extents)):
        return array.tolist()
    dtype, kind = _OF_KIND[array.value.dtype.kind]
    rows = converted(traced_ops.copy(array), LeafType(dtype, array.extents, None))
    return new_list(JoinedRows(rows, None, len(array.extents), kind))
