"""What the variables of a function reach in containers and objects, to notice what an iteration of a loop changes.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from tracefuse.frontend.tracer.function_clones import EMPTY, contents_of
from tracefuse.frontend.tracer.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.traced import Traced

MOST_OBJECTS = 4096
"""A loop of a function whose variables reach more objects is not recorded."""

MOST_BYTES = 1 << 20
"""The size of the largest NumPy array among them."""


class ReachableContents:
    """The entries of every container and object that some values reach."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._entries: list[tuple[Any, list[Any]]] = []
        waiting, seen = list(values), set()
        while waiting:
            value = waiting.pop()
            if id(value) in seen or isinstance(value, _LEAVES):
                continue
            seen.add(id(value))
            entries = _entries_of(value)
            self._entries.append((value, entries))
            if len(self._entries) > MOST_OBJECTS:
                raise NotInEveryIteration(f"the variables reach more than {MOST_OBJECTS} objects")
            waiting += entries

    @property
    def objects(self) -> set[int]:
        """The ids of the containers and objects."""
        return {id(value) for value, _ in self._entries}

    @property
    def records(self) -> set[int]:
        """The ids of the objects in which the entries are kept."""
        return {id(self._entries), *map(id, self._entries)}

    def forget(self) -> None:
        """Drops the objects and their entries."""
        self._entries.clear()

    def grown_lists(self) -> list[tuple[list[Any], int]]:
        """Returns the lists that have more entries now, with the number that they had.

        Raises NotInEveryIteration if anything else has other entries.
        """
        grown = []
        for value, before in self._entries:
            now = _entries_of(value)
            is_array = isinstance(value, np.ndarray)
            is_longer = isinstance(value, list) and len(now) > len(before)
            unchanged = now[: len(before)] if is_longer else now
            if len(unchanged) != len(before) or not all(
                map(operator.eq if is_array else operator.is_, before, unchanged)
            ):
                raise NotInEveryIteration(f"an iteration changes a {type(value).__name__}")
            if is_longer:
                grown.append((value, len(before)))
        return grown


_LEAVES = (Traced, SymbolicSize, bool, int, float, complex, str, bytes, type(None), type, ModuleType, np.generic)


def _entries_of(value: Any) -> list[Any]:
    """Returns what a container or an object holds; the bytes of an array."""
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, np.ndarray):
        if value.nbytes > MOST_BYTES and value.flags.writeable:
            raise NotInEveryIteration("a variable is a large array of NumPy")
        return [value.tobytes()] if value.flags.writeable else []
    if isinstance(value, FunctionType):
        cells = [contents_of(cell) for cell in value.__closure__ or ()]
        return [content for content in cells if content is not EMPTY] + list(value.__defaults__ or ())
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if hasattr(type(value), "__next__"):
        raise NotInEveryIteration(f"a variable is a {type(value).__name__}")
    if type(value).__module__.startswith(("tracefuse.", "numpy.")):
        return []
    names = [name for content in type(value).__mro__ for name in content.__dict__.get("__slots__", ())]
    slots = [getattr(value, name) for name in names if name != "__dict__" and hasattr(value, name)]
    return [*slots, *getattr(value, "__dict__", {}).values()]
