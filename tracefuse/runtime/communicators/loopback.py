"""Ranks as threads of one process: each runs its own program, and they exchange through mailboxes.

`run_ranks(4, function)` calls `function` on four ranks. As in separate processes, a rank waits for the others in an
exchange, so that programs that differ hang without the comparison of their exchanges.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tracefuse.errors import CommunicationError
from tracefuse.runtime.communicators.agreement import END, Agreement
from tracefuse.runtime.communicators.current_world import use_world
from tracefuse.runtime.communicators.host_communicator import HostCommunicator
from tracefuse.runtime.communicators.messenger import Messenger
from tracefuse.runtime.communicators.record_texts import record_text
from tracefuse.runtime.communicators.world import HINT, Communicator, World

Key: TypeAlias = tuple[Any, int, int, int]


class Mailboxes:
    """The messages between threads, by (channel, sender, receiver, number): the order in which they were posted."""

    def __init__(self, size: int) -> None:
        self.agreement = Agreement(size)
        self._lock = threading.Lock()
        self._messages: dict[Key, Any] = {}

    def put(self, key: Key, content: Any) -> None:
        """Adds a message."""
        with self._lock:
            self._messages[key] = content

    def take(self, key: Key) -> Any | None:
        """Returns a message and removes it, None if it is not there yet."""
        with self._lock:
            return self._messages.pop(key, None)


class _Receiving:
    """The messages that a rank still waits for."""

    def __init__(self, mailboxes: Mailboxes, waiting: dict[Key, Any]) -> None:
        self._mailboxes, self._waiting = mailboxes, waiting

    def is_done(self) -> bool:
        for key, target in list(self._waiting.items()):
            content = self._mailboxes.take(key)
            if content is None:
                return False
            if content.shape == target.shape and content.dtype == target.dtype:  # otherwise the ranks differ
                target[...] = content
                del self._waiting[key]
        return not self._waiting


class MailMessenger(Messenger):
    """Messages of a thread. ranks: those of the group. channel: identifies the communicator."""

    def __init__(self, mailboxes: Mailboxes, ranks: Sequence[int], rank: int, channel: Any) -> None:
        self.rank, self.size = ranks.index(rank), len(ranks)
        self._mailboxes, self._ranks, self._channel = mailboxes, tuple(ranks), channel
        self._posted: Counter[tuple[int, int]] = Counter()

    def post(self, sends: Mapping[int, Any], receives: Mapping[int, Any]) -> _Receiving:
        me = self._ranks[self.rank]
        for rank, content in sends.items():
            self._mailboxes.put(self._key(me, self._ranks[rank]), np.array(content))
        return _Receiving(
            self._mailboxes, {self._key(self._ranks[rank], me): target for rank, target in receives.items()}
        )

    def _key(self, sender: int, receiver: int) -> Key:
        """Returns the key of the next message between two ranks, one of which is this one."""
        self._posted[sender, receiver] += 1
        return self._channel, sender, receiver, self._posted[sender, receiver]


class LoopbackWorld(World):
    """One rank of the threads of a process."""

    def __init__(self, mailboxes: Mailboxes, rank: int) -> None:
        super().__init__(rank, mailboxes.agreement.size)
        self._mailboxes, self._made = mailboxes, 0

    def make_communicator(self, ranks: Sequence[int], groups: Sequence[Sequence[int]]) -> Communicator:
        self._made += 1
        group = ranks or (self.rank,)
        return HostCommunicator(MailMessenger(self._mailboxes, group, self.rank, self._made), self)

    def report(self) -> None:
        self._mailboxes.agreement.report(self.rank, (record_text(record, self.rank) for record in self.take_records()))
        self.failure = self._mailboxes.agreement.failure

    def close(self) -> None:
        """Reports the end of the program."""
        self.records.append((END,))
        self.report()

    def fail(self, error: BaseException) -> None:
        """Reports that the rank raised."""
        self.report()
        if self.failure is None:
            self._mailboxes.agreement.lose(self.rank, f"raised {type(error).__name__}: {error}")


def single_world() -> LoopbackWorld:
    """Returns the world of a process that no launcher started: one rank."""
    return LoopbackWorld(Mailboxes(1), 0)


def run_ranks(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Calls function(*arguments) on `count` ranks, each in a thread of its own, and returns their results in order.

    If ranks raise, the error of the lowest rank that failed on its own is raised, after all ranks ended.
    """
    mailboxes = Mailboxes(count)
    results: list[Any] = [None] * count
    errors: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        world = LoopbackWorld(mailboxes, rank)
        with use_world(world):
            try:
                results[rank] = function(*arguments)
                world.close()
            except BaseException as error:
                world.fail(error)
                errors[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise _first(errors)
    if mailboxes.agreement.failure is not None:
        raise CommunicationError(mailboxes.agreement.failure, hint=HINT)
    return results


def _first(errors: Mapping[int, BaseException]) -> BaseException:
    """Returns the error of a rank that failed on its own, otherwise of the lowest rank."""
    alone = [error for _, error in sorted(errors.items()) if not isinstance(error, CommunicationError)]
    return (alone or [errors[min(errors)]])[0]
