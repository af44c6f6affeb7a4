"""The world of the current thread: that of the process, or of a rank that is a thread.

The process's world is made at its first use, by the launcher's environment variables and the option `communicator`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tracefuse.runtime.communicators.world import World


class _RankOfThread(threading.local):
    world: World | None = None


_of_thread = _RankOfThread()
_of_process: list[World] = []
_lock = threading.Lock()


@contextmanager
def use_world(world: World) -> Iterator[World]:
    """Makes `world` the world of the current thread for a block."""
    before = _of_thread.world
    _of_thread.world = world
    try:
        yield world
    finally:
        _of_thread.world = before


def known_world() -> World | None:
    """Returns the world of the current thread or of the process, None if it has not been made."""
    return _of_thread.world or (_of_process[0] if _of_process else None)


def world_of_process(make: Callable[[], World]) -> World:
    """Returns the world of the current thread or of the process; `make` makes the latter once."""
    known = known_world()
    if known is not None:
        return known
    with _lock:
        if not _of_process:
            _of_process.append(make())
    return _of_process[0]
