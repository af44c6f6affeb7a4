"""What an iteration appends to a list whose entries are tuples or dicts: a column of rows for each value in them.

out.append((i, x[i]))        columns of i and of x[i], which loops carry and count like two lists
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from segments.lazy_dataclasses import replace
from tracefuse import pytrees
from tracefuse.frontend.control_flow.joined_appends import JoinedAppends
from tracefuse.frontend.control_flow.recorded_carries import CarriedVariable
from tracefuse.frontend.tracer.record.appended_rows import ConditionalEntry, JoinedColumns, JoinedRows

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration


def columns_of(entry: Any) -> tuple[Sequence[Any], Any] | None:
    """Returns the values in a tuple or a dict, and its structure; None for another entry of a list."""
    if isinstance(entry, JoinedColumns):
        return entry.columns, entry.structure
    if not isinstance(entry, (tuple, dict)):
        return None
    values, structure = pytrees.flatten(entry, lambda node: type(node) is list)
    return (values, structure) if values and not structure.is_leaf() else None


class ColumnAppends:
    """What one iteration appends to one list, as columns. appends: to the lists of each column."""

    def __init__(self, filled: list[Any], appends: Sequence[JoinedAppends], structure: Any) -> None:
        self.list, self._appends, self._structure = filled, appends, structure

    @classmethod
    def of(cls, iteration: RecordedIteration, filled: list[Any], size: int, name: str) -> ColumnAppends | None:
        """Returns the entries of a list from a position on; None if they are no columns."""
        new = [columns_of(one) for one in list.__getitem__(filled, slice(size, None))]
        known = [one for one in new if one is not None]
        if not known or len(known) < len(new) or any(structure != known[0][1] for _, structure in known):
            return None
        appends = []
        for place, values in enumerate(zip(*(values for values, _ in known), strict=True)):
            joined = JoinedAppends.of(iteration, list(values), 0, f"{name}[{place}]")
            if joined is None:
                return None
            appends.append(joined)
        return cls(filled, appends, known[0][1])

    @property
    def carried(self) -> list[CarriedVariable]:
        """The variables that carry rows and counts."""
        return [variable for one in self._appends for variable in one.carried]

    def write(self, after: dict[str, Any]) -> None:
        """Writes the entries of the iteration. after: gets the arrays and counts, among the variables."""
        for one in self._appends:
            one.write(after)

    def fill(self, values: dict[str, Any]) -> None:
        """Appends the rows to the list. values: what variables hold after the loop, without the rows then."""
        filled = []
        for one in self._appends:
            one.list.clear()
            one.fill(values)
            filled.append(one.list)
        for entries in zip(*filled, strict=True):
            self.list.append(JoinedColumns(tuple(_counted_alike(entries)), self._structure))

    def parts(self) -> Sequence[JoinedAppends]:
        """Returns what the iteration appends to the lists of the columns."""
        return self._appends


def _counted_alike(entries: Sequence[Any]) -> Iterator[Any]:
    """Yields what columns hold, with the count or the condition of the first, which is that of all."""
    first = entries[0]
    for entry in entries:
        if isinstance(first, JoinedRows):
            yield replace(entry, count=first.count)
        else:
            assert isinstance(first, ConditionalEntry)
            yield replace(entry, condition=first.condition)
