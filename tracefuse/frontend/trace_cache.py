"""The traces of one fused function, and the fast paths that lead to them."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

from tracefuse.caches import CLEAR_CACHES, BoundedTable, Cache, register
from tracefuse.compiler.executable import Executable
from tracefuse.compiler.placed_fusion import CacheInfo
from tracefuse.compiler.plan_cache import PlanCache
from tracefuse.config import Options
from tracefuse.dynamic.guard_failures import FailureCounts
from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.compiled_stages import Environment
from tracefuse.frontend.calls.fast_path import FastPath, Watched, write_fast_path
from tracefuse.frontend.calls.question_tree import QuestionTree
from tracefuse.frontend.calls.retraces import changed_numbers, explain_retrace
from tracefuse.frontend.calls.trace_entry import Entry
from tracefuse.frontend.calls.tree_path import TreePath, tree_path
from tracefuse.frontend.tracer.record.recorder import current
from tracefuse.runtime import replayed_methods
from tracefuse.runtime.memory.buffer_facts import OutputBufferUse

MOST_TRACES = 64
"""Traces per key, and fast paths per call signature; the oldest is evicted first."""

MOST_TRACES_ONCE = 32
"""Traces per key of a function that served fewer calls by a trace that it had. Other calls run the function itself."""

MOST_TRACES_UNUSED = 8
"""The same for a function that reads state and served fewer than one call for every four traces."""

FUNCTION_RUNS, CALLS_BETWEEN_SEARCHES = 16, 64
"""After so many calls in a row that ran the function itself, calls with their signature run it without a search for a
trace, but for one in so many."""

MOST_KEYS = 1024
"""Trace keys, and call signatures with fast paths; the least recently used is evicted first."""


TraceKey: TypeAlias = tuple[Options, Hashable]
"""The options in force, and the key of the call's arguments."""


class TraceCache:
    """The traces of one function by trace key, its fast paths by call signature, and counts of both.

    recent: the argument count of the last call and the plans that ran it, if the arguments alone selected them.
    direct: the plans that ran it, the address of the count of calls without Python code, and `FastPath.watched`; None
    if calls need Python code. hits: the calls with Python code that found a trace.
    recent_first: `FastPath.first` of the last call if it has one, for functions that read state.
    fast_paths: read without the lock. Everything else is read and written under `lock`, which is reentrant.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.recent: tuple[int, PlanCache[Any]] | None = None
        self.direct: tuple[PlanCache[Any], int, Watched] | None = None
        self._direct_hits = ctypes.c_int64()
        self.recent_first: Callable[[Sequence[Any], Any], Sequence[Any] | None] | None = None
        self.fast_paths: BoundedTable[tuple[Any, ...], list[FastPath | TreePath]] = BoundedTable(MOST_KEYS)
        self.guard_failures = FailureCounts()
        self.hits = 0
        self.trees: BoundedTable[TraceKey, QuestionTree] = BoundedTable(MOST_KEYS)
        self._entries: BoundedTable[TraceKey, list[Entry]] = _Entries(self)
        self._traces = self._compiles_dropped = 0
        self._left: BoundedTable[TraceKey, bool] = BoundedTable(MOST_KEYS)
        self._changing: BoundedTable[TraceKey, frozenset[Any]] = BoundedTable(MOST_KEYS)
        # By call signature: how many calls ran the function itself, and the hits before.
        self._function_runs: BoundedTable[tuple[Any, ...], tuple[int, int]] = BoundedTable(MOST_KEYS)
        _alive.add(self)

    def remember(self, kind: type, count: int, path: FastPath | TreePath, is_bound: bool) -> None:
        """Sets what later calls try first: a path for calls of an object of a class, with a number of arguments.

        is_bound: whether the object is a bound method.
        """
        if path.plans_alone is not None and not is_bound:
            self.recent = count, path.plans_alone
        self.recent_first, self.direct = path.first, None
        if not isinstance(path, FastPath) or path.watched is None or is_bound:
            return
        if isinstance(path.entry.executable, Executable):
            plans = path.entry.executable.plans
            self.direct = plans, ctypes.addressof(self._direct_hits), path.watched
            replayed_methods.prepare(kind, plans.first, current)

    @property
    def all_hits(self) -> int:
        """How many calls found a trace."""
        return self.hits + self._direct_hits.value

    def entries(self, key: TraceKey) -> list[Entry]:
        """The traces with this key, newest first."""
        entries = self._entries.get(key)
        if entries is None:
            return []
        self._entries.move_to_end(key)
        return entries

    def attempts(self, options: Options, call: CallArguments) -> list[CallArguments]:
        """Returns a call as it is and asking for conditions.

        It asks at once if traces that ask were completed, and none that does not: a condition has failed inside of
        such a trace, which every call would run up to there.
        """
        attempts, tables = [call, call.asking()], (self.trees, self._entries)
        unasked, asked = (any((options, (one.key,)) in table for table in tables) for one in attempts)
        return attempts[1:] if asked and not unasked else attempts

    def entries_with(self, options: Options) -> list[Entry]:
        """The traces of all keys with these options."""
        return [
            entry
            for (entry_options, _), entries in self._entries.items()
            if entry_options is options
            for entry in entries
        ]

    def latest(self, count: int) -> list[Entry]:
        """The newest trace of each of the keys that were added last, newest first, at most `count`."""
        with self.lock:
            return [entries[0] for entries in reversed(list(self._entries.values())) if entries][:count]

    def latest_trees(self, count: int) -> list[QuestionTree]:
        """The trees that were added last, newest first, at most `count`."""
        with self.lock:
            return list(self.trees.values())[: -count - 1 : -1]

    def add(self, key: TraceKey, entry: Entry) -> None:
        """Adds a trace in front: sizes that changed once tend to stay."""
        entries = [entry, *self._entries.get(key, ())]
        self._traces += 1
        self.count_dropped(entries[MOST_TRACES:])
        self._entries[key] = entries[:MOST_TRACES]

    def add_fast_path(self, signature: tuple[Any, ...], fast_path: FastPath | TreePath) -> None:
        """Adds a fast path for calls with this signature, to be tried first."""
        self.fast_paths[signature] = [fast_path, *self.fast_paths.get(signature, ())][:MOST_TRACES]

    def add_trace_path(
        self, signature: tuple[Any, ...], entry: Entry, call: CallArguments, use: OutputBufferUse, has_out: bool
    ) -> None:  # fmt: skip
        """Adds a fast path to an entry, unless there is one or none can be written."""
        if not self.has_fast_path(signature, entry, use):
            fast_path = write_fast_path(entry, call, use, has_out)
            if fast_path is not None:
                self.add_fast_path(signature, fast_path)

    def add_tree_path(
        self, signature: tuple[Any, ...], tree: QuestionTree | None, entry: Entry | None, call: CallArguments
    ) -> None:  # fmt: skip
        """Adds a fast path along a tree, unless there is one or none is possible.

        entry: of the last stage; None if the call ran the function itself, which this counts.
        """
        if entry is None:
            found = self.all_hits
            count, hits = self._function_runs.get(signature, (0, found))
            self._function_runs[signature] = count + 1 if hits == found else 1, found
        paths = self.fast_paths.get(signature, ())
        if tree is None or any(isinstance(path, TreePath) and path.tree is tree for path in paths):
            return
        path = tree_path(tree, entry, call)
        if path is not None:
            self.add_fast_path(signature, path)

    def count_call(self, key: TraceKey, environment: Environment) -> None:
        """Counts a call that followed a tree to its result, once nothing that the trace assumed has failed."""
        if environment.is_known:
            self.hits += 1
            if key in self.trees:
                self.trees[key].hits += 1

    def is_full(self, entries: Sequence[Entry]) -> bool:
        """Whether another trace beside these, of one key, would not pay."""
        count, hits = len(entries), self.all_hits
        if hits >= count:
            return count >= MOST_TRACES
        is_unused = 4 * hits < count and entries[0].trace.reads_state if entries else False
        return count >= (MOST_TRACES_UNUSED if is_unused else MOST_TRACES_ONCE)

    def with_numbers(self, key: TraceKey, entries: Sequence[Entry], call: CallArguments) -> CallArguments:
        """A call that no trace fits, with the numbers of the state that differ from the newest one or did before."""
        numbers = self._changing.get(key, frozenset())
        if entries:
            numbers = self._changing[key] = numbers | changed_numbers(entries[0].trace, call.roots)
        return call._replace(numbers=numbers)

    def runs_function(self, signature: tuple[Any, ...]) -> bool:
        """Whether a call runs the function itself without a search for a trace, since so many before it did."""
        known = self._function_runs.get(signature)
        if known is None or known[0] < FUNCTION_RUNS:
            return False
        searches = known[0] >= FUNCTION_RUNS + CALLS_BETWEEN_SEARCHES
        self._function_runs[signature] = FUNCTION_RUNS - 1 if searches else known[0] + 1, known[1]
        return not searches

    def first_left(self, key: TraceKey, call: CallArguments) -> str | None:
        """How a call differs from the traces with its key, if it is the first that runs the function itself."""
        if key in self._left:
            return None
        self._left[key] = True
        cause = explain_retrace(self.entries(key), call)
        return "" if cause is None else str(cause)

    def has_fast_path(self, signature: tuple[Any, ...], entry: Entry, use: Any) -> bool:
        """Whether a signature has a fast path to this entry with these output buffers and donated arguments."""
        return any(
            fast_path.entry is entry and fast_path.use == use for fast_path in self.fast_paths.get(signature, ())
        )

    def count_dropped(self, entries: list[Entry]) -> None:
        """Counts the plans of entries that are dropped, so that `info` still reports them."""
        self._compiles_dropped += sum(entry.compiles for entry in entries)

    def info(self) -> CacheInfo:
        """Counts since the cache was cleared."""
        with self.lock:
            compiles = sum(entry.compiles for entries in self._entries.values() for entry in entries)
            compiles += sum(tree.compiler.compiles for tree in self.trees.values())
            traces = self._traces + sum(tree.traces for tree in self.trees.values())
            return CacheInfo(traces, self._compiles_dropped + compiles, self.all_hits)

    def clear(self) -> None:
        """Drops every trace and resets the counts to 0."""
        with self.lock:
            self.recent = self.recent_first = self.direct = None
            self.fast_paths.clear()
            self._entries.clear()
            self.trees.clear()
            self._left.clear()
            self._changing.clear()
            self._function_runs.clear()
            self._traces = self.hits = self._compiles_dropped = self._direct_hits.value = 0


class _Entries(BoundedTable[TraceKey, list[Entry]]):
    """A table that counts the plans of the traces it evicts, and drops the fast paths that lead to them."""

    def __init__(self, cache: TraceCache) -> None:
        super().__init__(MOST_KEYS)
        self._cache = weakref.ref(cache)

    def drop(self, key: TraceKey) -> None:
        entries, cache = self.pop(key, []), self._cache()
        if cache is None:
            return
        cache.count_dropped(entries)
        cache.recent = cache.recent_first = cache.direct = None
        for signature, paths in list(cache.fast_paths.items()):
            if any(fast_path.entry in entries for fast_path in paths):
                cache.fast_paths.drop(signature)


_alive: weakref.WeakSet[TraceCache] = weakref.WeakSet()


def clear_all_traces() -> None:
    """Drops the traces of every live fused function."""
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
    "frontend.trace_cache.TraceCache.trees", "trees of questions about computed values, with their stages",
    "as for traces", f"{MOST_KEYS} keys", _OWNER, _CLEARED,
))  # fmt: skip
register(Cache(
    "frontend.trace_cache.TraceCache._left", "whether calls run the function itself, since there are too many traces",
    "as for traces", f"{MOST_KEYS} keys", _OWNER, _CLEARED,
))  # fmt: skip
register(Cache(
    "frontend.trace_cache.TraceCache._changing", "routes to numbers of the state that differed between calls",
    "as for traces", f"{MOST_KEYS} keys", _OWNER, _CLEARED,
))  # fmt: skip
register(Cache(
    "frontend.trace_cache.TraceCache._function_runs", "how often calls in a row ran the function itself",
    "call signature", f"{MOST_KEYS} keys", _OWNER, _CLEARED,
))  # fmt: skip
register(Cache(
    "frontend.trace_cache._alive", "the trace caches that `clear_caches()` empties", "the cache itself",
    "fused functions that are alive", cleared_by=CLEAR_CACHES, clear=clear_all_traces,
))  # fmt: skip
