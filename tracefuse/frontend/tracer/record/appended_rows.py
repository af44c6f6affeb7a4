"""Entries of lists that a recorded loop appends to: rows of one array, which is joined again without its entries.

Must not know: overlays of values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tracefuse.frontend.tracer.values.traced import Traced


@dataclass(frozen=True, slots=True)
class Row:
    """An entry of a list, which is row `position` of an array."""

    entry: Traced
    rows: Traced
    position: int


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
