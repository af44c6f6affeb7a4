"""The registry of caches: everything that the process keeps between calls, and how to clear it.

A cache holds only what can be recomputed. Each cache registers next to its definition, so that `clear_caches` and the
table in docs/caches_and_security.md are complete.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Generic, TypeVar

from segments.lazy_dataclasses import dataclass

Key = TypeVar("Key")
Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., object])

THE_PROCESS = "the process"
CLEAR_CACHES = "`clear_caches()`"
NEVER = "never"


@dataclass(frozen=True, slots=True)
class Cache:
    """The description of a cache.

    name: module and attribute, without `tracefuse.`. keeps, key, bound: its entries, their key, and its limit. owner:
    the object whose lifetime the cache shares. cleared_by: the function that empties it. clear: empties it; None if
    only its owner can.
    """

    name: str
    keeps: str
    key: str
    bound: str
    owner: str = THE_PROCESS
    cleared_by: str = NEVER
    clear: Callable[[], None] | None = None


TABLE: dict[str, Cache] = {}
"""The caches of all imported modules, by name."""


def register(cache: Cache) -> None:
    """Adds a cache. `clear_caches` calls its `clear`."""
    TABLE[cache.name] = cache


def memoized(keeps: str, *, key: str, most: int | None, bound: str = "", clears: bool = True) -> (
    Callable[[Function], Function]
):  # fmt: skip
    """Decorates a function with a registered LRU cache.

    most: results to keep; None if the possible arguments limit them, as `bound` says. clears: whether `clear_caches`
    drops them; False for singletons and for facts about the machine, this package and NumPy.
    """

    def decorate(function: Function) -> Function:
        cached = functools.lru_cache(maxsize=most)(function)
        name = f"{function.__module__.removeprefix('tracefuse.')}.{function.__qualname__}"
        clear = cached.cache_clear if clears else None
        cleared_by = CLEAR_CACHES if clears else NEVER
        kept = bound or ("1" if most == 1 else f"{most}, least recently used")
        register(Cache(name, keeps, key, kept, THE_PROCESS, cleared_by, clear))
        return cached  # type: ignore[return-value]

    return decorate


def clear_all() -> None:
    """Empties every cache that has `clear`, higher layers first, since they refer to entries of lower ones."""
    for cache in reversed(list(TABLE.values())):
        if cache.clear is not None:
            cache.clear()


class BoundedTable(dict[Key, Value], Generic[Key, Value]):
    """A dict that keeps the last `most` entries that were added or moved to the end.

    Reads are those of dict. Threads may write concurrently; which of their entries survive is unspecified.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        if len(self) > self.most:
            for oldest in list(self)[: len(self) - self.most]:
                self.drop(oldest)

    def drop(self, key: Key) -> None:
        """Evicts an entry."""
        self.pop(key, None)

    def move_to_end(self, key: Key) -> None:
        """Makes an entry the last to be evicted."""
        value = self.pop(key, None)
        if value is not None:
            super().__setitem__(key, value)
