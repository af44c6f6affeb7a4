"""The traces of one fused function, and the fast paths that lead to them.

Knows: trace entries, fast paths. Must not know: how a function is traced or called.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable
from typing import Any, TypeAlias

from tracefuse.caches import CLEAR_CACHES, BoundedTable, Cache, register
from tracefuse.compiler.placed_fusion import CacheInfo
from tracefuse.compiler.plan_cache import PlanCache
from tracefuse.config import Options
from tracefuse.dynamic.guard_failures import FailureCounts
from tracefuse.frontend.calls.fast_path import DirectCall
from tracefuse.frontend.calls.trace_entry import Entry

MOST_TRACES = 64
"""Traces kept for one key, and fast paths for one call signature; the oldest goes first."""

MOST_KEYS = 1024
"""Keys that traces are kept for, and call signatures that have fast paths; the one used longest ago goes first."""


TraceKey: TypeAlias = tuple[Options, Hashable]
"""The options in force and what a call says of its arguments."""


class TraceCache:
    """The traces of one function by trace key, its fast paths by call signature, and counts of both.

    recent: how many arguments the last call had, and the plans that ran it, where the arguments alone decided that.
    fast_paths: read without the lock. Everything else is read and changed under `lock`, which may be taken again by
    the thread that holds it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.recent: tuple[int, PlanCache[Any]] | None = None
        self.fast_paths: BoundedTable[tuple[Any, ...], list[DirectCall]] = BoundedTable(MOST_KEYS)
        self.guard_failures = FailureCounts()
        self.hits = 0
        self._entries: BoundedTable[TraceKey, list[Entry]] = _Entries(self)
        self._traces = self._compiles_dropped = 0
        _alive.add(self)

    def entries(self, key: TraceKey) -> list[Entry]:
        """The traces of a key, the newest first."""
        entries = self._entries.get(key)
        if entries is None:
            return []
        self._entries.move_to_end(key)
        return entries

    def entries_with(self, options: Options) -> list[Entry]:
        """The traces of every key with these options."""
        return [entry for (own, _), entries in self._entries.items() if own is options for entry in entries]

    def add(self, key: TraceKey, entry: Entry) -> None:
        """Adds a trace, in front: sizes that changed once tend to stay."""
        entries = [entry, *self._entries.get(key, ())]
        self._traces += 1
        self.count_dropped(entries[MOST_TRACES:])
        self._entries[key] = entries[:MOST_TRACES]

    def add_fast_path(self, signature: tuple[Any, ...], direct: DirectCall) -> None:
        """Lets the next call of this signature go directly to what `direct` runs."""
        self.fast_paths[signature] = [direct, *self.fast_paths.get(signature, ())][:MOST_TRACES]

    def has_fast_path(self, signature: tuple[Any, ...], entry: Entry, use: Any) -> bool:
        """Whether calls of a signature reach an entry directly, with this use of memory."""
        return any(direct.entry is entry and direct.use == use for direct in self.fast_paths.get(signature, ()))

    def count_dropped(self, entries: list[Entry]) -> None:
        """Keeps the count of plans of entries that are dropped."""
        self._compiles_dropped += sum(entry.compiles for entry in entries)

    def info(self) -> CacheInfo:
        """Counts since the cache was cleared."""
        with self.lock:
            compiles = sum(entry.compiles for entries in self._entries.values() for entry in entries)
            return CacheInfo(self._traces, self._compiles_dropped + compiles, self.hits)

    def clear(self) -> None:
        """Forgets every trace and sets the counts to 0."""
        with self.lock:
            self.recent = None
            self.fast_paths.clear()
            self._entries.clear()
            self._traces = self.hits = self._compiles_dropped = 0


class _Entries(BoundedTable[TraceKey, list[Entry]]):
    """Counts the plans of the traces that it drops, and drops the fast paths that lead to them."""

    def __init__(self, cache: TraceCache) -> None:
        super().__init__(MOST_KEYS)
        self._cache = weakref.ref(cache)

    def drop(self, key: TraceKey) -> None:
        entries, cache = self.pop(key, []), self._cache()
        if cache is None:
            return
        cache.count_dropped(entries)
        cache.recent = None
        for signature, directs in list(cache.fast_paths.items()):
            if any(direct.entry in entries for direct in directs):
                cache.fast_paths.drop(signature)


_alive: weakref.WeakSet[TraceCache] = weakref.WeakSet()


def clear_all_traces() -> None:
    """Forgets the traces of every fused function that is alive."""
    for cache in list(_alive):
        cache.clear()


_BOUND, _OWNER = f"{MOST_TRACES} for a key, {MOST_KEYS} keys", "a fused function"
_CLEARED = f"{CLEAR_CACHES}, `f.cache_clear()`"
register(Cache(
    "frontend.trace_cache.TraceCache._entries", "traces with their executables",
    "options; structure, static values and device of the arguments; rank, element type and extents of 1 of each array",
    _BOUND, _OWNER, _CLEARED,
))  # fmt: skip
register(Cache(
    "frontend.trace_cache.TraceCache.fast_paths", "the Python functions of the fast path",
    "call signature: types of the arguments, names of keywords", _BOUND, _OWNER, _CLEARED,
))  # fmt: skip
register(Cache(
    "frontend.trace_cache._alive", "the trace caches that `clear_caches()` empties", "the cache itself",
    "fused functions that are alive", cleared_by=CLEAR_CACHES, clear=clear_all_traces,
))  # fmt: skip
