"""The table of caches: what this process keeps beyond a call, and how each cache is cleared.

A cache holds what could be computed again. Each one registers here, next to its definition, so that `clear_caches` and
the table of docs/caches_and_security.md cannot miss one.

Knows: names, bounds, functions that clear. Must not know: what a cache holds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")
Held = TypeVar("Held")
Function = TypeVar("Function", bound=Callable[..., object])

THE_PROCESS = "the process"
CLEAR_CACHES = "`clear_caches()`"
NEVER = "never"


@dataclass(frozen=True, slots=True)
class Cache:
    """One row of the table.

    name: the module and the attribute, without `tracefuse.`. owner: what the cache dies with. cleared_by: who empties
    it. clear: empties it now; None where only its owner can.
    """

    name: str
    keeps: str
    key: str
    bound: str
    owner: str = THE_PROCESS
    cleared_by: str = NEVER
    clear: Callable[[], None] | None = None


TABLE: dict[str, Cache] = {}
"""Every cache of the modules that are imported, by name."""


def register(cache: Cache) -> None:
    """Adds a row; a cache that can be cleared from here is cleared by `clear_caches`."""
    TABLE[cache.name] = cache


def memoized(keeps: str, *, key: str, most: int | None, bound: str = "", clears: bool = True) -> (
    Callable[[Function], Function]
):  # fmt: skip
    """Decorates a function to remember its results, and registers that cache.

    most: results kept; None where the arguments bound them, as `bound` says. clears: whether `clear_caches` forgets
    them; not for a fact of the machine or for an object that there must be one of.
    """

    def decorate(function: Function) -> Function:
        remembering = functools.lru_cache(maxsize=most)(function)
        name = f"{function.__module__.removeprefix('tracefuse.')}.{function.__qualname__}"
        clear = remembering.cache_clear if clears else None
        cleared_by = CLEAR_CACHES if clears else NEVER
        kept = bound or ("1" if most == 1 else f"{most}, least recently used")
        register(Cache(name, keeps, key, kept, THE_PROCESS, cleared_by, clear))
        return remembering  # type: ignore[return-value]

    return decorate


def clear_all() -> None:
    """Empties every cache that can be cleared from here, higher layers first: they refer to what lower ones hold."""
    for cache in reversed(list(TABLE.values())):
        if cache.clear is not None:
            cache.clear()


class BoundedTable(dict[Key, Held], Generic[Key, Held]):
    """A dict that keeps the `most` entries added, or moved to the end, last.

    Reading is a dict's. Threads may write at the same time; which of their entries stay is not defined.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: Key, value: Held) -> None:
        super().__setitem__(key, value)
        if len(self) > self.most:
            for oldest in list(self)[: len(self) - self.most]:
                self.drop(oldest)

    def drop(self, key: Key) -> None:
        """Forgets an entry, to make room for another."""
        self.pop(key, None)

    def move_to_end(self, key: Key) -> None:
        """Makes an entry the last one to be dropped."""
        value = self.pop(key, None)
        if value is not None:
            super().__setitem__(key, value)
