"""Calls of functions with lists that hold rows of arrays: functions of NumPy get an array in the place of the list."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse.dtypes import dtype_of, float64
from tracefuse.frontend.control_flow.carried_types import LeafType, as_leaf, converted, is_value, type_of
from tracefuse.frontend.control_flow.joined_lists import (
    are_rows,
    handed_out,
    have_entries,
    is_joined,
    is_plain,
    new_list,
    rows_of,
    whole,
    with_entries,
)
from tracefuse.frontend.control_flow.joined_reads import is_builtin, iterated
from tracefuse.frontend.numpy_api.statistics.reductions import sort as np_sort
from tracefuse.frontend.python_numbers.number_arithmetic import number
from tracefuse.frontend.python_numbers.number_questions import assume
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.assignment import getitem
from tracefuse.frontend.tracer.record.appended_rows import ConditionalEntry, JoinedColumns, JoinedRows
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.values.symbolic_size import wrap
from tracefuse.frontend.tracer.values.traced import Traced

_JOINING: dict[Any, Callable[[Any], Any]] = {
    np.stack: lambda rows: rows,
    np.vstack: lambda rows: rows if len(rows.extents) == 2 else shaping.reshape(rows, _joined_shape(rows)),
    np.concatenate: lambda rows: shaping.reshape(rows, _joined_shape(rows)),
}
"""What functions that join the arrays of a list return for an array of rows with at least two axes."""

_SEQUENCES = frozenset({
    np.hstack, np.dstack, np.column_stack, np.block, np.select, np.choose, np.broadcast_arrays, np.einsum, np.ix_,
    np.linalg.multi_dot, np.histogramdd, np.ravel_multi_index, np.meshgrid, np.result_type, np.lexsort, np.piecewise,
    np.tril_indices_from, np.triu_indices_from, np.fill_diagonal, np.put, np.putmask, np.place, np.copyto,
    np.isfortran, np.trim_zeros, np.can_cast, np.shares_memory, np.may_share_memory, np.isscalar,
})  # fmt: skip
"""Functions of NumPy that read the entries of a list one by one, and those that do something else with an array."""


_READERS = frozenset((len, sum, any, all, max, min, list, tuple, sorted, set, print, isinstance, type, str, repr))
"""Functions of Python that keep no list that they get."""


def call_with_lists(function: Callable[..., Any], arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """Calls a function that has lists of the rewritten code among its arguments."""
    original = getattr(function, "__wrapped__", function)
    if original is len and len(arguments) == 1 and is_joined(arguments[0]):
        return length(arguments[0])
    if original in (enumerate, zip, reversed):
        return function(*map(iterated, arguments), **keywords)
    passed = [_argument(original, one, keywords) if is_joined(one) else one for one in arguments]
    if original in (list, tuple, sorted, set) and len(passed) == 1 and passed[0] is not arguments[0]:
        passed = [with_entries(one) for one in arguments]
    if original not in _READERS and not _is_of_numpy(original):
        passed = [handed_out(one) for one in passed]
    if any(one is not before for one, before in zip(passed, arguments, strict=True)) and original in _JOINING:
        return _JOINING[original](passed[0])
    return function(*passed, **keywords)


def sorted_list(function: Callable[..., Any], value: Any, reverse: Any) -> Any:
    """Returns a sorted list. Calls with NaN run Python's function, as their order depends on how it compares."""
    only = whole(value) if is_joined(value) and is_builtin("sorted", function) else None
    rows = rows_of(only) if isinstance(only, JoinedRows) and is_plain(only) else None
    is_real = rows is not None and len(rows.extents) == 1 and not rows.value.dtype.is_complex
    if only is None or not is_real or type(reverse) is not bool or not _are_numbers(rows):
        return function(with_entries(value), reverse=reverse)
    assert isinstance(only, JoinedRows)
    order = slice(None, None, -1)
    result = np_sort(getitem(rows, order) if reverse else rows, kind="stable")  # type: ignore[arg-type]
    result = traced_ops.copy(getitem(result, order) if reverse else result)
    return new_list(JoinedRows(result, None, 1, only.weak))


def _are_numbers(rows: Traced | None) -> bool:
    """Whether no element is NaN, which later calls check."""
    if rows is None or rows.recorder.body is not None:
        return False
    return not rows.value.dtype.is_floating or assume(traced_ops.apply("eq", rows, rows).all())


def _is_of_numpy(original: Any) -> bool:
    name = getattr(original, "__module__", None) or ""
    return isinstance(original, np.ufunc) or name.split(".")[0] == "numpy"


def _argument(original: Any, value: list[Any], keywords: dict[str, Any]) -> Any:
    if _is_of_numpy(original) and original not in _SEQUENCES and not (original in _JOINING and keywords):
        array = array_of(value)
        if array is not None and (original not in _JOINING or len(array.extents) > 1):
            array.is_list = True
            return array
    return with_entries(value)


def _joined_shape(rows: Traced) -> tuple[Any, ...]:
    return (-1, *rows.recorder.sizes(rows.extents[2:]))


def array_of(value: list[Any]) -> Traced | None:
    """Returns a new array with the entries of a list: rows of arrays, and values like them before, between and after.

    Returns None for other entries, and for a list without rows.
    """
    if len(value) == 1 and isinstance(value[0], JoinedColumns):
        return _table(value[0])
    rows = _rows_of_all([one for one in value if are_rows(one)])
    if not rows:
        return None
    first, parts = rows[0], list[Traced]()
    for is_rows, entries in itertools.groupby(value, are_rows):
        if is_rows:
            parts += [rows.pop(0) for _ in entries]
            continue
        values = [_entry_like(one, first) for one in entries]
        if any(one is None for one in values):
            return None
        parts.append(shaping.stack(values))
    return traced_ops.copy(parts[0]) if len(parts) == 1 else shaping.concatenate(parts)  # type: ignore[no-any-return]


def _rows_of_all(joined: Sequence[Any]) -> list[Traced]:
    """Returns the rows of what stands for entries; none if they differ in type or shape, or a list may be empty."""
    known = [rows_of(one) for one in joined if isinstance(one, JoinedRows) and one.depth == joined[0].depth]
    rows = [one for one in known if one is not None]
    kinds = {(one.value.dtype, one.extents[1:]) for one in rows}
    if len(rows) < len(joined) or len(kinds) > 1:
        return []
    return rows if all(have_entries(one, joined[0].depth) for one in rows) else []


def _table(joined: JoinedColumns) -> Traced | None:
    """Returns an array with a row for each tuple of numbers or of arrays; None for other entries."""
    columns = [rows_of(one) for one in joined.columns if isinstance(one, JoinedRows) and one.depth == 1]
    is_flat = joined.structure.type is tuple and joined.structure.num_children == len(joined.columns)
    known = [one for one in columns if one is not None]
    if not is_flat or len(known) < len(joined.columns) or not have_entries(known[0], 1):
        return None
    first = known[0]
    if any(len(one.extents) != len(first.extents) for one in known):
        return None
    pairs = [pair for one in known[1:] for pair in zip(first.extents[1:], one.extents[1:], strict=True)]
    if not all(first.recorder.decide(pair[0], "==", pair[1], "the shapes of arrays in a tuple") for pair in pairs):
        return None
    dtype = dtype_of(functools.reduce(np.promote_types, (one.value.dtype.numpy for one in known)))
    return shaping.stack([converted(one, LeafType(dtype, one.extents, None)) for one in known], 1)  # type: ignore[no-any-return]


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


def length(value: list[Any]) -> Any:
    """Returns the number of entries of a list; that of rows which values have chosen is a computed number."""
    if len(value) == 1 and isinstance(value[0], JoinedRows) and value[0].count is not None:
        return number(value[0].count, "int")  # whose size is known once it is asked for
    total: Any = 0
    for one in value:
        if isinstance(one, JoinedColumns):
            one = one.columns[0]
        if isinstance(one, ConditionalEntry):
            raise NotInEveryIteration("an iteration reads a list to which a branch appends")
        if not isinstance(one, JoinedRows):
            total = total + 1
        elif one.count is None:
            total = total + wrap(one.rows.extents[0], one.rows.recorder)
        else:
            total = total + number(one.count, "int")
    return total
