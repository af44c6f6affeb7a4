"""Reads of lists that hold rows of arrays, where the number of entries does not matter: `for v in out`, `out[0]`."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any

from tracefuse import pytrees
from tracefuse.frontend.control_flow.carried_types import is_value
from tracefuse.frontend.control_flow.iterated_entries import EntriesOfList
from tracefuse.frontend.control_flow.joined_lists import (
    REASON,
    are_rows,
    count_of,
    is_joined,
    is_plain,
    kind_of_entries,
    new_list,
    numbered,
    rows_of,
    whole,
    with_entries,
)
from tracefuse.frontend.control_flow.recorded_ranges import LoopRange
from tracefuse.frontend.tracer.array_ops.assignment import getitem
from tracefuse.frontend.tracer.record.appended_rows import JoinedColumns, JoinedRows
from tracefuse.frontend.tracer.record.recorder import current
from tracefuse.frontend.tracer.values.listed_rows import ListedRows, RowsOf
from tracefuse.frontend.tracer.values.symbolic_size import extent_of, wrap
from tracefuse.frontend.tracer.values.traced import Traced


def as_result(value: Any, cls: type = list) -> Any:
    """Returns a list for the result of the call: with arrays of rows, if it holds them in the place of its entries.

    A list at several places of the result is one object.
    """
    recorder = current.get()
    if recorder is not None and cls is list and id(value) in recorder.loops.returned:
        return recorder.loops.returned[id(value)]
    is_inside = recorder is not None and recorder.body is not None
    if is_inside or not is_joined(value) or not any(map(are_rows, value)):
        return _in_class(with_entries(value), cls)
    parts: list[RowsOf | None] = []
    values: list[Any] = []
    for one in value:
        columns = one.columns if isinstance(one, JoinedColumns) else (one,)
        rows = [rows_of(column) for column in columns if isinstance(column, JoinedRows) and not column.sources]
        if rows and len(rows) == len(columns) and all(array is not None for array in rows):
            kinds = tuple((column.depth, kind_of_entries(column) is not None) for column in columns)
            parts.append(RowsOf(kinds, one.structure if isinstance(one, JoinedColumns) else None))
            values += rows
        elif is_value(one):
            parts.append(None)
            values.append(one)
        else:
            return _in_class(with_entries(value), cls)
    result = ListedRows(cls, parts, values)
    if cls is list:
        recorder.loops.returned[id(value)] = result  # type: ignore[union-attr]
    return result


def _in_class(entries: Any, cls: type) -> Any:
    return entries if cls is list else cls(entries)


def iterated(value: Any) -> Any:
    """Returns what a loop over a list iterates over: any number of rows, if it has some."""
    only = whole(value) if is_joined(value) else None
    columns = only.columns if isinstance(only, JoinedColumns) else (only,)
    pairs = [(rows_of(one), one) for one in columns if isinstance(one, JoinedRows) and not one.sources]
    rows = [(array, one) for array, one in pairs if array is not None]
    if not rows or len(rows) < len(columns):
        return with_entries(value)

    def entry(position: Any) -> Any:
        return _copy_of_entry(only, [(getitem(array, position), one) for array, one in rows])

    first, _ = rows[0]
    loop = LoopRange(first.recorder, 0, first.extents[0], entry=entry, reason=REASON)
    return EntriesOfList(loop, lambda: iter(with_entries(value)))


def entry_at(value: Any, index: Any) -> Any:
    """Returns an entry of a list."""
    extent = extent_of(index)
    only = whole(value) if is_joined(value) and extent is not None else None
    columns = only.columns if isinstance(only, JoinedColumns) else (only,)
    rows = [one for one in columns if isinstance(one, JoinedRows) and not one.sources]
    length = extent_of(count_of(rows[0])) if len(rows) == len(columns) else None
    if extent is None or length is None:
        return with_entries(value)[index]
    recorder = rows[0].rows.recorder
    is_negative = not recorder.decide(0, "<=", extent, "the sign of an index")
    position = extent + length if is_negative else extent
    if not recorder.decide(0, "<=", position, REASON) or not recorder.decide(position + 1, "<=", length, REASON):
        return with_entries(value)[index]

    def make() -> Any:
        return _copy_of_entry(only, [(getitem(one.rows, wrap(position, recorder)), one) for one in rows])

    key = (id(value), tuple(id(one.rows) for one in rows), position, id(recorder.body))
    return recorder.loops.copies.at(key, make) if _has_containers(only) else make()


def _has_containers(only: JoinedRows | JoinedColumns | None) -> bool:
    """Whether the entries of a list are lists or dicts, or tuples of such."""
    if not isinstance(only, JoinedColumns):
        return only is not None and only.depth > 1
    waiting = [pytrees.unflatten(only.structure, [None] * len(only.columns))]
    while waiting and not isinstance(waiting[-1], (list, dict)):
        one = waiting.pop()
        waiting += one if isinstance(one, tuple) else ()
    return bool(waiting) or any(_has_containers(one) for one in only.columns if isinstance(one, JoinedRows))


def _copy_of_entry(only: JoinedRows | JoinedColumns | None, rows: list[tuple[Traced, JoinedRows]]) -> Any:
    """Returns an entry of a list. rows: its row in the array of each column."""
    entries = [numbered(row, one) for row, one in rows]
    entry = pytrees.unflatten(only.structure, entries) if isinstance(only, JoinedColumns) else entries[0]
    if _has_containers(only):
        rows[0][0].recorder.loops.copies.note(entry, rows[0][1].symbol)
    return entry


def part_of(value: Any, key: slice) -> Any:
    """Returns a slice of a list, or of another sequence."""
    only = whole(value) if is_joined(value) else None
    is_symbolic = all(end is None or extent_of(end) is not None for end in (key.start, key.stop, key.step))
    columns = only.columns if isinstance(only, JoinedColumns) else (only,)
    is_symbolic = is_symbolic and not _has_containers(only)  # those of a part are those of the list
    parts = [_part(one, key) if is_symbolic and isinstance(one, JoinedRows) else None for one in columns]
    if any(one is None for one in parts):
        return with_entries(value)[key]
    known = tuple(one for one in parts if one is not None)
    return new_list(JoinedColumns(known, only.structure) if isinstance(only, JoinedColumns) else known[0])


def _part(joined: JoinedRows, key: slice) -> JoinedRows | None:
    rows = None if joined.sources else rows_of(joined)
    if rows is None:
        return None
    part = getitem(rows, key)
    part.own_memory()
    return JoinedRows(part, None, joined.depth, joined.weak, symbol=joined.symbol)


def reverse(value: Any, *arguments: Any) -> None:
    """Reverses a list in place."""
    if is_joined(value) and not arguments:
        value[:] = part_of(value, slice(None, None, -1))
    else:
        with_entries(value).reverse(*arguments)


def first_of(function: Callable[..., Any], value: list[Any]) -> Any:
    """Returns the first entry of a list, of which `function` returns one; it raises for a list without any."""
    only = whole(value) if is_joined(value) else None
    length = extent_of(count_of(only)) if isinstance(only, JoinedRows) and is_plain(only) else None
    if isinstance(only, JoinedRows) and length is not None and only.rows.recorder.decide(1, "<=", length, REASON):
        return entry_at(value, 0)
    entries = with_entries(value)
    return entries[0] if entries else function(entries)


def after_first(value: list[Any]) -> Any:
    """Returns what a loop over the other entries iterates over."""
    return iterated(part_of(value, slice(1, None)))


def is_builtin(name: str, function: Any) -> bool:
    """Whether a function is the one of Python, and loops compute what it does."""
    if name == "sum" and sys.version_info >= (3, 12):
        return False  # compensated for the rounding of floats
    return getattr(function, "__wrapped__", function) is getattr(builtins, name)
