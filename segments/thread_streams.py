"""Streams as host threads, for devices whose work runs on the thread that calls it.

Each pool stream is a thread that runs its work in order; the caller's stream is the calling thread. A thread starts
with the first work of its stream and ends with the run, so none is left between runs or in a forked child.
"""

from __future__ import annotations

import contextvars
import functools
import queue
import threading
from collections.abc import Callable, Sequence


class _Worker:
    """One stream worker: a thread that runs its tasks in order."""

    def __init__(self, run: ThreadStreams) -> None:
        self.tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._run = run
        # Work runs in the caller's context, so options set there apply.
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
    """The streams of one run (see segments.Streams). The first exception of any work is raised in the caller."""

    def __init__(self) -> None:
        self._workers: dict[int, _Worker] = {}
        self._error: BaseException | None = None
        self._failed = False

    @property
    def failed(self) -> bool:
        """Whether work has raised or the run was abandoned, so remaining work can be skipped."""
        return self._failed

    def current(self) -> object:
        """Return the caller's stream."""
        return None

    def pool(self, index: int) -> object:
        """Return the worker of a pool stream."""
        if index not in self._workers:
            self._workers[index] = _Worker(self)
        return self._workers[index]

    def run(self, stream: object, work: Callable[[], None]) -> None:
        """Run work now on the caller's stream, or queue it on a worker."""
        if isinstance(stream, _Worker):
            stream.tasks.put(lambda: self._guarded(work))
        else:
            self._raise()
            work()

    def record(self, stream: object) -> object:
        """Return an event that a worker sets in stream order; None for the caller, whose work has already run."""
        if not isinstance(stream, _Worker):
            return None
        event = threading.Event()
        stream.tasks.put(event.set)
        return event

    def wait(self, stream: object, event: object) -> None:
        """Make a worker wait in stream order; on the caller's stream, block."""
        if not isinstance(event, threading.Event):
            return
        if isinstance(stream, _Worker):
            stream.tasks.put(event.wait)  # type: ignore[arg-type]
        else:
            event.wait()
            self._raise()

    def finish(self, failed: bool) -> None:
        """Join all workers. If the run failed, work that has not begun is skipped."""
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
        except BaseException as error:  # re-raised when the caller waits for this stream
            self._error, self._failed = self._error or error, True

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error


def run_on_threads(workers: Sequence[Callable[[int], None]], total: int) -> None:
    """Call workers[k % len(workers)](k) for each k below `total`; return when all calls have completed.

    Each worker runs its calls in order on its own thread, the first on the caller's. The first exception is raised
    here, and calls that have not begun by then are skipped.
    """
    streams = ThreadStreams()

    def work(worker: Callable[[int], None], begin: int) -> None:
        for k in range(begin, total, len(workers)):
            if streams.failed:
                return
            worker(k)

    try:
        for position, worker in enumerate(workers[1:], 1):
            streams.run(streams.pool(position), functools.partial(work, worker, position))
        work(workers[0], 0)
        streams.finish(False)
    except BaseException:
        streams.finish(True)
        raise
