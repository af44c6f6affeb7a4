"""Entries of lists that a recorded loop appends to: rows of one array, which is joined again without its entries.

Must not know: overlays of values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Symbol

MIXED = "mixed"
"""In place of a kind of numbers: entries are numbers of Python in some iterations, and NumPy's in others."""


@dataclass(frozen=True, slots=True)
class Row:
    """An entry of a list, which is row `position` of an array."""

    entry: Traced
    rows: Traced
    position: int


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """What a list holds in the place of the entries that a recorded loop appends, until the function reads it.

    rows: an array with the entries. count: how many of its rows are entries, if values decide that; None for all.
    depth: 1 if the entries are the rows; 2 if they are lists of the entries of each row, and so on. weak: the kind of
    number of Python that they are, or `MIXED`; None for arrays and numbers of NumPy. sources: the arrays of which
    entries are views, with their contents. symbol: the counter of the loop.
    """

    rows: Traced
    count: Traced | None
    depth: int
    weak: str | None
    sources: tuple[tuple[Traced, int], ...] = ()
    symbol: Symbol | None = None


@dataclass(frozen=True, slots=True)
class ConditionalEntry:
    """What a list holds in the place of an entry that a branch of a recorded loop appends if it runs.

    condition: whether it has run. value: the entry, a list of arrays of `depth` levels. sources: the arrays of which it
    is a view.
    """

    value: Traced
    condition: Traced
    depth: int
    weak: str | None
    sources: tuple[Traced, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinedColumns:
    """What a list holds in the place of entries that are tuples or dicts with the same structure.

    columns: the values of all entries at each place of the structure, or what stands for those of one.
    """

    columns: tuple[JoinedRows, ...] | tuple[ConditionalEntry, ...]
    structure: Any


@dataclass(slots=True)
class RowRange:
    """Rows of an array, from `start` up to `stop`."""

    rows: Traced
    start: int
    stop: int

    def of(self, getitem: Callable[[Traced, Any], Any]) -> Any:
        """Returns the rows."""
        return getitem(self.rows, slice(self.start, self.stop))


def with_ranges(known: dict[int, Row], entries: Sequence[Any]) -> list[Any]:
    """Returns entries of a list, with a RowRange for rows that follow one another. known: by the id of the entry."""
    result = list[Any]()
    for entry in entries:
        row = known.get(id(entry))
        last = result[-1] if result else None
        if row is None:
            result.append(entry)
        elif isinstance(last, RowRange) and last.rows is row.rows and last.stop == row.position:
            last.stop += 1
        else:
            result.append(RowRange(row.rows, row.position, row.position + 1))
    return result
