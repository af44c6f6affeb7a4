"""Lists in the result of a call whose entries are the rows of an array that the call computes.

A trace has one output for all entries, so it serves lists of any length.

Must not know: recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse import pytrees


@dataclass(frozen=True, slots=True)
class RowsOf:
    """How rows of arrays become entries of a list.

    kinds: for each array, how deep the entries are lists (1 if they are the rows, 2 if they are lists of the entries of
    each row, and so on), and whether the elements become numbers of Python. structure: of the tuples or dicts in which
    rows of all arrays are an entry; None if the rows of the only array are.
    """

    kinds: tuple[tuple[int, bool], ...]
    structure: Any = None

    def entries(self, arrays: Sequence[Any]) -> list[Any]:
        """Returns the entries: numbers of Python, or what iteration over an array of the caller's library yields."""
        columns = [
            array.tolist() if are_python else _rows(array, depth)
            for array, (depth, are_python) in zip(arrays, self.kinds, strict=True)
        ]
        if self.structure is None:
            return columns[0]
        if self.structure.type is tuple and self.structure.num_children == len(columns):
            return list(zip(*columns, strict=True))
        return [pytrees.unflatten(self.structure, row) for row in zip(*columns, strict=True)]


def _rows(array: Any, depth: int) -> list[Any]:
    return list(array) if depth == 1 else [_rows(row, depth - 1) for row in array]


class ListedRows:
    """A list, or a tuple, in the result of a trace, as a node of a pytree.

    parts: None for an entry, which is the next of the values; for a sequence of entries, how they are made of the rows
    of the next values.
    """

    def __init__(self, cls: type, parts: Sequence[RowsOf | None], values: Iterable[Any]) -> None:
        self.cls, self.parts, self.values = cls, tuple(parts), tuple(values)

    def __repr__(self) -> str:
        return f"{self.cls.__name__} of {self.values!r} and of the rows of those that are arrays"

    def in_class(self) -> Any:
        """Returns the list, or the tuple, with all entries."""
        return self.entries() if self.cls is list else self.cls(self.entries())

    def entries(self) -> list[Any]:
        """Returns all entries."""
        entries: list[Any] = []
        values = iter(self.values)
        for part in self.parts:
            if part is None:
                entries.append(next(values))
            else:
                entries += part.entries([next(values) for _ in part.kinds])
        return entries


def _rebuilt(metadata: tuple[type, tuple[RowsOf | None, ...]], values: Iterable[Any]) -> Any:
    """Returns the list, or its description if its values are descriptions of arrays."""
    cls, parts = metadata
    node = ListedRows(cls, parts, values)
    if not all(hasattr(value, "__array__") or hasattr(value, "__float__") for value in node.values):
        return node
    return node.in_class()


pytrees.register_pytree_node(ListedRows, lambda node: (node.values, (node.cls, node.parts)), _rebuilt)
