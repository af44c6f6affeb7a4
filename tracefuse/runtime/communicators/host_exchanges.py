"""Exchanges of NumPy arrays, as rounds of messages.

Sums are computed by this rank's share: every rank receives its chunk from all others, adds the chunks in the order of
the ranks, and sends the result to all. So the bits depend on the number of ranks alone, for every element type.
Each function is a generator that yields the messages to wait for.

Must not know: fusions, plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from tracefuse.dtypes import dtype_of
from tracefuse.runtime.communicators.messenger import Messenger, Pending

Rounds: TypeAlias = Iterator[Pending]
Exchange: TypeAlias = Callable[..., Rounds]
"""Called with a messenger, the source and the target, which are contiguous, and the parameters of the exchange."""

SMALL = 1 << 14
"""Bytes up to which a sum sends whole arrays in one round instead of chunks in two."""

_COMBINE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def _reduced(parts: Sequence[Any], combine: str, target: Any) -> None:
    """Combines arrays in order into `target`. Halves are summed in float32 and rounded once."""
    function = _COMBINE[combine]
    dtype = dtype_of(target.dtype)
    if dtype.is_half and combine == "sum":
        total = parts[0].astype(np.float32)
        for part in parts[1:]:
            function(total, part.astype(np.float32), out=total)
        target[...] = total
        return
    if len(parts) == 1:
        target[...] = parts[0]
        return
    function(parts[0], parts[1], out=target)
    for part in parts[2:]:
        function(target, part, out=target)


def _others(messenger: Messenger) -> list[int]:
    return [rank for rank in range(messenger.size) if rank != messenger.rank]


def _flat(array: Any) -> Any:
    return array.reshape(-1)


def all_reduce(messenger: Messenger, source: Any, target: Any, *, combine: str) -> Rounds:
    """Combines the sources of all ranks; every rank gets the result."""
    elements, result = _flat(source), _flat(target)
    if elements.nbytes <= SMALL:
        received = np.empty((messenger.size, elements.size), elements.dtype)
        received[messenger.rank] = elements
        peers = _others(messenger)
        yield messenger.post(dict.fromkeys(peers, elements), {rank: received[rank] for rank in peers})
        _reduced(list(received), combine, result)
        return
    length = -(-elements.size // messenger.size)
    chunks = [slice(rank * length, min((rank + 1) * length, elements.size)) for rank in range(messenger.size)]
    reduced_chunk = result[chunks[messenger.rank]]
    yield from _reduce_chunks(messenger, [elements[chunk] for chunk in chunks], reduced_chunk, combine)
    peers = _others(messenger)
    yield messenger.post(dict.fromkeys(peers, reduced_chunk), {rank: result[chunks[rank]] for rank in peers})


def _reduce_chunks(messenger: Messenger, chunks: Sequence[Any], target: Any, combine: str) -> Rounds:
    """Combines chunk r of all ranks on rank r, into `target`."""
    received = np.empty((messenger.size, target.size), target.dtype)
    received[messenger.rank] = chunks[messenger.rank]
    peers = _others(messenger)
    yield messenger.post({rank: chunks[rank] for rank in peers}, {rank: received[rank] for rank in peers})
    _reduced(list(received), combine, target)


def reduce_scatter(messenger: Messenger, source: Any, target: Any, *, combine: str) -> Rounds:
    """Combines the sources, which have a leading axis with an entry for each rank; rank r gets entry r."""
    chunks = list(source.reshape(messenger.size, -1))
    yield from _reduce_chunks(messenger, chunks, _flat(target), combine)


def all_gather(messenger: Messenger, source: Any, target: Any) -> Rounds:
    """Every rank gets the sources of all ranks, one after the other."""
    parts = target.reshape(messenger.size, -1)
    elements = _flat(source)
    parts[messenger.rank] = elements
    peers = _others(messenger)
    yield messenger.post(dict.fromkeys(peers, elements), {rank: parts[rank] for rank in peers})


def all_to_all(messenger: Messenger, source: Any, target: Any) -> Rounds:
    """Rank r gets entry r of the leading axis of every rank's source."""
    rows, parts = source.reshape(messenger.size, -1), target.reshape(messenger.size, -1)
    parts[messenger.rank] = rows[messenger.rank]
    peers = _others(messenger)
    yield messenger.post({rank: rows[rank] for rank in peers}, {rank: parts[rank] for rank in peers})


def send_receive(messenger: Messenger, source: Any, target: Any, *, pairs: Sequence[tuple[int, int]]) -> Rounds:
    """Sends the source of each first rank of a pair to the second; a rank that receives nothing gets zeros."""
    elements, result = _flat(source), _flat(target)
    senders = [sender for sender, receiver in pairs if receiver == messenger.rank]
    receivers = [receiver for sender, receiver in pairs if sender == messenger.rank]
    if senders == [messenger.rank]:
        result[...] = elements
    elif not senders:
        result[...] = 0
    sends = {rank: elements for rank in receivers if rank != messenger.rank}
    yield messenger.post(sends, {rank: result for rank in senders if rank != messenger.rank})


def broadcast_from(messenger: Messenger, source: Any, target: Any, *, root: int) -> Rounds:
    """Every rank gets the source of rank `root`."""
    if messenger.rank == root:
        _flat(target)[...] = _flat(source)
        yield messenger.post(dict.fromkeys(_others(messenger), _flat(source)), {})
    else:
        yield messenger.post({}, {root: _flat(target)})


EXCHANGES: dict[str, Exchange] = {
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "all_to_all": all_to_all,
    "send_receive": send_receive,
    "broadcast_from": broadcast_from,
}
"""Every exchange by name."""
