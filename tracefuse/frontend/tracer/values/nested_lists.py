"""Lists, tuples and dicts that users nest: their leaves, and the depth that an array of them would have.

A list may contain itself, so each container is visited once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tracefuse import source
from tracefuse.errors import ShapeError

MOST_AXES = 64
"""The axes that an array of NumPy can have."""


def leaves_of(values: Any, containers: tuple[type, ...] = (list, tuple)) -> Iterator[Any]:
    """Yields what nested containers hold, in no order of use; a value that is no container is the one leaf."""
    waiting: list[Any] = [values]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if not isinstance(value, containers):
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            entries: Any = value.values() if isinstance(value, dict) else value
            waiting += entries


def check_depth(values: Sequence[Any]) -> None:
    """Raises ShapeError for a list that no array holds: one that contains itself, or has more than 64 levels."""
    level: list[Any] = [values]
    for _ in range(MOST_AXES):
        inside = {id(entry): entry for part in level for entry in part if isinstance(entry, (list, tuple))}
        if not inside:
            return
        level = list(inside.values())
    raise ShapeError(
        f"a list contains itself, or more than {MOST_AXES} levels of lists, so no array has its shape",
        hint="stack arrays of one shape: np.stack([x, y])", where=source.user_line(),
    )  # fmt: skip
