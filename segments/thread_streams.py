"""Streams as worker threads, for devices whose work is done by whoever calls it.

A stream of the pool is a thread that does its work in order; the caller's stream is the calling thread. Threads begin
with the first work of their stream and end with the run, so that nothing is left between runs, nor for a child of fork.

Knows: threads, queues, events. Must not know: programs, buffers.
"""

from __future__ import annotations

import contextvars
import functools
import queue
import threading
from collections.abc import Callable, Sequence


class _Worker:
    """One stream: its work in order, on a thread of its own."""

    def __init__(self, run: ThreadStreams) -> None:
        self.tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._run = run
        # The options and the like of the caller hold for the work, too.
        context = contextvars.copy_context()
        self.thread = threading.Thread(target=context.run, args=(self._work,), name="tracefuse stream", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while True:
            task = self.tasks.get()
            if task is None:
                return
            task()


class ThreadStreams:
    """The streams of one run (segments.Streams). What work raises is raised in the caller, the first of it."""

    def __init__(self) -> None:
        self._workers: dict[int, _Worker] = {}
        self._error: BaseException | None = None
        self._failed = False

    @property
    def failed(self) -> bool:
        """Whether some work has raised, or the run is given up, so that no more of it is wanted."""
        return self._failed

    def current(self) -> object:
        """Return the caller's stream."""
        return None

    def pool(self, index: int) -> object:
        """Return the thread of a stream of the pool."""
        if index not in self._workers:
            self._workers[index] = _Worker(self)
        return self._workers[index]

    def run(self, stream: object, work: Callable[[], None]) -> None:
        """Do work now on the caller's stream, or queue it."""
        if isinstance(stream, _Worker):
            stream.tasks.put(lambda: self._guarded(work))
        else:
            self._raise()
            work()

    def record(self, stream: object) -> object:
        """Return an event that a worker sets in its turn; None for the caller, whose work is done."""
        if not isinstance(stream, _Worker):
            return None
        event = threading.Event()
        stream.tasks.put(event.set)
        return event

    def wait(self, stream: object, event: object) -> None:
        """Let a worker wait in its turn; the caller waits here."""
        if not isinstance(event, threading.Event):
            return
        if isinstance(stream, _Worker):
            stream.tasks.put(event.wait)  # type: ignore[arg-type]
        else:
            event.wait()
            self._raise()

    def finish(self, failed: bool) -> None:
        """Wait for all threads to end; work that has not begun is left out where the run has failed."""
        self._failed = self._failed or failed
        for worker in self._workers.values():
            worker.tasks.put(None)
        for worker in self._workers.values():
            worker.thread.join()
        self._workers.clear()
        if not failed:
            self._raise()

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            work()
        except BaseException as error:  # it is raised where the caller waits for this stream
            self._error, self._failed = self._error or error, True

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error


def run_on_threads(lanes: Sequence[Callable[[int], None]], total: int) -> None:
    """Call lanes[k % len(lanes)](k) for each k below `total`; return when all is done.

    Each lane is called in order, on a thread of its own; the first on the caller's. What a call raises is raised here,
    and calls that have not begun by then are left out.
    """
    streams = ThreadStreams()

    def work(lane: Callable[[int], None], begin: int) -> None:
        for k in range(begin, total, len(lanes)):
            if streams.failed:
                return
            lane(k)

    try:
        for position, lane in enumerate(lanes[1:], 1):
            streams.run(streams.pool(position), functools.partial(work, lane, position))
        work(lanes[0], 0)
        streams.finish(False)
    except BaseException:
        streams.finish(True)
        raise
