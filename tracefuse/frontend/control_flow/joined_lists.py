"""Lists whose entries are rows of arrays that recorded loops have filled, where rewritten code reads them.

A function of NumPy gets the array in the place of the list. Everything else gets the list with its entries, the number
of which the trace then depends on.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse.dtypes import float64
from tracefuse.frontend.control_flow.carried_types import LeafType, as_leaf, converted, is_value, type_of
from tracefuse.frontend.control_flow.recorded_carries import value_of_type
from tracefuse.frontend.python_numbers.number_arithmetic import number
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.assignment import getitem
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.record.appended_rows import ConditionalEntry, JoinedRows, Row
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values.symbolic_size import extent_of, wrap
from tracefuse.frontend.tracer.values.traced import Traced

REASON = "a list that a loop appends to"
_JOINING: dict[Any, Callable[[Any], Any]] = {
    np.stack: lambda rows: rows,
    np.vstack: lambda rows: rows if len(rows.extents) == 2 else shaping.reshape(rows, _joined_shape(rows)),
    np.concatenate: lambda rows: shaping.reshape(rows, _joined_shape(rows)),
}
"""What functions that join the arrays of a list return for an array of rows with at least two axes."""

_SEQUENCES = frozenset({
    np.hstack, np.dstack, np.column_stack, np.block, np.select, np.choose, np.broadcast_arrays, np.einsum, np.ix_,
    np.linalg.multi_dot, np.histogramdd, np.ravel_multi_index, np.meshgrid, np.result_type, np.lexsort, np.piecewise,
})  # fmt: skip
"""Functions of NumPy that read the entries of a list one by one."""


def new_list(*entries: Any) -> list[Any]:
    """Returns a list that only rewritten code reads."""
    result, recorder = list(entries), current.get()
    if recorder is not None:
        recorder.loops.lists[id(result)] = result
    return result


def _joined_shape(rows: Traced) -> tuple[Any, ...]:
    return (-1, *rows.recorder.sizes(rows.extents[2:]))


def is_joined(value: Any) -> bool:
    """Whether a value is a list that may hold arrays in the place of entries."""
    recorder = current.get()
    return type(value) is list and recorder is not None and recorder.loops.lists.get(id(value)) is value


def with_entries(value: Any) -> Any:
    """Returns a list, which then holds its entries, and so do the lists in it; any other value as it is."""
    if not is_joined(value):
        return value
    entries: list[Any] = []
    for one in value:
        entries += _entries_of(one) if isinstance(one, JoinedRows) else [_settled(one)]
    value[:] = entries
    return value


def _settled(entry: Any) -> Any:
    if isinstance(entry, ConditionalEntry):
        raise NotInEveryIteration("an iteration reads a list to which a branch appends")
    return with_entries(entry)


def _entries_of(joined: JoinedRows) -> list[Any]:
    if joined.sources:
        raise NotInEveryIteration("a list of views of an array is read", joined.symbol)
    rows = joined.rows
    recorder: Recorder = rows.recorder
    length = rows.extents[0] if joined.count is None else extent_of(_count_of(joined))
    if length is None:
        raise NotInEveryIteration("values decide how many entries a list has")
    entries = []
    for position in range(recorder.pin(length, REASON)):
        row = getitem(rows, position)
        if joined.depth > 1:
            row.own_memory()
            entries.append(new_list(*_entries_of(JoinedRows(row, None, joined.depth - 1, joined.weak))))
            continue
        if joined.weak is not None:
            row = value_of_type(recorder, row.number, LeafType(row.value.dtype, row.extents, joined.weak))
        recorder.loops.rows[id(row)] = Row(row, rows, position)
        entries.append(row)
    return entries


def _count_of(joined: JoinedRows) -> Any:
    """Returns the number of entries, as a size."""
    if joined.count is None:
        return wrap(joined.rows.extents[0], joined.rows.recorder)
    if joined.rows.recorder.body is not None:
        raise NotInEveryIteration("an iteration reads a list whose length values decide")
    return as_size(joined.count)


def array_of(value: list[Any]) -> Traced | None:
    """Returns a new array with the entries of a list; None if they are not all rows of one array, or there is none."""
    joined = value[-1] if value else None
    if not isinstance(joined, JoinedRows) or any(isinstance(one, JoinedRows) for one in value[:-1]):
        return None
    rows, first = _rows_of(joined), value[:-1]
    if rows is None:
        return None
    if not first:
        return traced_ops.copy(rows)  # type: ignore[no-any-return]
    entries = [_entry_like(one, rows) for one in first]
    if any(one is None for one in entries):
        return None
    return shaping.concatenate([shaping.stack(entries), rows])  # type: ignore[no-any-return]


def _entry_like(entry: Any, rows: Traced) -> Traced | None:
    """Returns an entry in the type of the rows behind it, which NumPy takes for all; None if it may take another."""
    if not is_value(entry):
        return None
    leaf = as_leaf(rows.recorder, entry)
    kind = type_of(leaf)
    is_integer = type(entry) is int and rows.value.dtype is float64 and abs(entry) < 2**53
    if kind.shape != rows.extents[1:] or (kind.dtype is not rows.value.dtype and not is_integer):
        return None
    return converted(leaf, LeafType(rows.value.dtype, kind.shape, None))


def _rows_of(joined: JoinedRows) -> Traced | None:
    """Returns the rows that are entries; None if there is none."""
    if any(source.state()[0] != number for source, number in joined.sources):
        raise NotInEveryIteration("an array is written of which a list holds views", joined.symbol)
    if joined.count is None:
        return joined.rows
    count = _count_of(joined)
    if extent_of(count) is None or extent_of(count) == 0:
        return None
    return getitem(joined.rows, slice(0, count))  # type: ignore[no-any-return]


def call_with_lists(function: Callable[..., Any], arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """Calls a function that has lists of the rewritten code among its arguments."""
    original = getattr(function, "__wrapped__", function)
    if original is len and len(arguments) == 1 and is_joined(arguments[0]):
        return _length(arguments[0])
    passed = [_argument(original, one, keywords) if is_joined(one) else one for one in arguments]
    if original in (list, tuple, sorted, set) and len(passed) == 1 and passed[0] is not arguments[0]:
        passed = [with_entries(one) for one in arguments]
    if any(one is not before for one, before in zip(passed, arguments, strict=True)) and original in _JOINING:
        return _JOINING[original](passed[0])
    return function(*passed, **keywords)


def _argument(original: Any, value: list[Any], keywords: dict[str, Any]) -> Any:
    name = getattr(original, "__module__", None) or ""
    is_of_numpy = isinstance(original, np.ufunc) or name.split(".")[0] == "numpy"
    if is_of_numpy and original not in _SEQUENCES and not (original in _JOINING and keywords):
        array = array_of(value)
        if array is not None and (original not in _JOINING or len(array.extents) > 1):
            return array
    return with_entries(value)


def _length(value: list[Any]) -> Any:
    """Returns the number of entries of a list; that of rows which values have chosen is a computed number."""
    total: Any = 0
    for one in value:
        if isinstance(one, ConditionalEntry):
            raise NotInEveryIteration("an iteration reads a list to which a branch appends")
        if not isinstance(one, JoinedRows):
            total = total + 1
        elif one.count is None:
            total = total + wrap(one.rows.extents[0], one.rows.recorder)
        else:
            total = total + number(one.count, "int")
    return total


def is_builtin(name: str, function: Any) -> bool:
    """Whether a function is the one of Python, and loops compute what it does."""
    if name == "sum" and sys.version_info >= (3, 12):
        return False  # compensated for the rounding of floats
    return getattr(function, "__wrapped__", function) is getattr(builtins, name)


def first_of(function: Callable[..., Any], value: list[Any]) -> Any:
    """Returns the first entry of a list, of which `function` returns one; it raises for a list without any."""
    array = _plain_rows(value)
    if array is not None:
        return getitem(array, 0)
    entries = with_entries(value)
    return entries[0] if entries else function(entries)


def after_first(value: list[Any]) -> Any:
    """Returns what a loop over the other entries iterates over."""
    array = _plain_rows(value)
    return value[1:] if array is None else getitem(array, slice(1, None))


def _plain_rows(value: Any) -> Traced | None:
    """Returns the array of which numbers of NumPy are all entries; None for other lists."""
    joined = value[0] if is_joined(value) and len(value) == 1 else None
    if not isinstance(joined, JoinedRows) or joined.weak is not None or joined.depth > 1:
        return None
    return _rows_of(joined) if len(joined.rows.extents) == 1 else None
