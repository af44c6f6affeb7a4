"""Calls of a function over a mesh that are like earlier ones: they run without being flattened and matched again.

A call is known by the sharding, shape and type of each argument. What it runs, and the sharding and shape of each
result, follow from these alone where the trace reads nothing but its arguments.

Must not know: options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse import pytrees
from tracefuse.frontend.calls.trace_entry import Entry
from tracefuse.frontend.ranks.rank_variants import RankVariant
from tracefuse.frontend.ranks.sharded_array import ShardedArray
from tracefuse.frontend.tracer.values.result_leaves import OutputLeaf

Key = tuple[Any, ...]


def call_key(args: Sequence[Any], rank: int) -> Key | None:
    """Returns the key of a call, None unless all arguments are sharded arrays."""
    key: list[Any] = [rank]
    for argument in args:
        if type(argument) is not ShardedArray:
            return None
        local = argument.local
        key += (id(argument.sharding), argument.shape, local.dtype, type(local))
    return tuple(key)


class PreparedCall:
    """What a known call runs. It keeps the shardings of its key alive, whose identities are in the key."""

    def __init__(
        self, entry: Entry, variant: RankVariant, args: Sequence[ShardedArray], more: Sequence[Any],
        results: Sequence[ShardedArray],
    ) -> None:  # fmt: skip
        self.entry = entry
        self._run, self._more = variant.executable, tuple(more)
        self._shardings = [argument.sharding for argument in args]
        self._results = [(result.sharding, result.shape) for result in results]
        self._sources, self._structure = entry.trace.sources, entry.trace.structure

    def __call__(self, args: Sequence[ShardedArray]) -> Any:
        outputs = self._run([*(args[source].local for source in self._sources), *self._more])
        results = [
            ShardedArray.known(output, sharding, shape)
            for output, (sharding, shape) in zip(outputs, self._results, strict=True)
        ]
        return results[0] if self.entry.single else pytrees.unflatten(self._structure, results)


def can_prepare(entry: Entry, count: int) -> bool:
    """Whether calls with as many arguments, each one array, run by their key alone."""
    trace = entry.trace
    reads = (
        trace.conditions, trace.statics, trace.bypassed, trace.captured, trace.pairs, trace.apart, trace.scalar_guards,
        trace.new_objects,
    )  # fmt: skip
    plain = trace.results == tuple(OutputLeaf(k) for k in range(len(trace.results)))
    return not any(reads) and plain and sorted(trace.sources) == list(range(count))
