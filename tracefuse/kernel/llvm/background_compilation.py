"""Compilation on a background thread: of optimized code for kernels that run quickly compiled code meanwhile.

One thread takes the jobs in order. It begins when the kernels of a plan have been compiled, so that these do not wait
for it, and ends with the last job. At a fork it ends after the job that it runs: parent and child go on with threads of
their own. The interpreter ends after the last job, so that the next process finds all code on disk; an interrupt
meanwhile leaves out the jobs that wait. A job that fails warns, on this thread; where warnings are errors, the next
plan or `wait` raises.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from tracefuse.kernel.interrupt_shield import shielded

POLL_SECONDS = 0.001
"""The polling interval of waits, which an interrupt may end at any time."""


class Job(Protocol):
    """Work for the background thread."""

    def run(self) -> None:
        """Do the work; what it raises becomes a warning."""
        ...


class _BackgroundThread:
    """The background thread and its jobs."""

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.failures: deque[str] = deque()
        # One entry for each fork in progress and each block of `held`: no job is begun.
        self.holds: list[None] = []
        self.is_over = False
        self.is_running = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the thread if there are jobs and none runs. Raises RuntimeError if the system has no more threads."""
        with self._lock:
            if self.is_running or not self.jobs or self.holds:
                return
            thread = threading.Thread(target=self._work, name="tracefuse compilation", daemon=True)
            self.is_running = True
            try:
                thread.start()
            except BaseException:
                self.is_running = False
                raise
            self._thread = thread

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                try:
                    shielded(job.run)  # forks and the end of the interpreter wait for it
                except BaseException as error:
                    self._report(f"the optimized code of a kernel is not used, which goes on without: {error}")
                del job
        except BaseException:  # of what an application has made of warnings
            self.is_running = False
            raise

    def _next(self) -> Job | None:
        with self._lock:
            if self.holds or not self.jobs:
                self.is_running = False
                return None
            return self.jobs.popleft()

    def _report(self, message: str) -> None:
        try:
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        except RuntimeWarning:
            self.failures.append(message)

    def end_before_fork(self) -> None:
        """Wait until the thread has ended, after the job that it runs."""
        if self._thread is not None:
            self._thread.join()

    def is_busy(self) -> bool:
        """Whether jobs wait or one runs, or the thread has not ended yet."""
        return self.is_running or bool(self.jobs) or (self._thread is not None and self._thread.is_alive())


_worker = _BackgroundThread()


def is_possible() -> bool:
    """Whether jobs may be added: not while the interpreter ends."""
    return not _worker.is_over


def add(job: Job) -> None:
    """Add a job, which runs after a call of `begin`."""
    _worker.jobs.append(job)


def begin() -> None:
    """Begin the jobs that wait; do not wait for them. Warns of jobs that failed where this was an error."""
    if _worker.jobs and not _worker.is_running:
        # No more threads can be started, now or at the end of the interpreter: kernels run as they are meanwhile.
        with contextlib.suppress(RuntimeError):
            shielded(_worker.start)
    while _worker.failures:
        warnings.warn(_worker.failures.popleft(), RuntimeWarning, stacklevel=3)


def wait() -> None:
    """Wait until there are no jobs. Warns as `begin` does."""
    while _worker.is_busy():
        if _worker.jobs and not _worker.is_running:
            shielded(_worker.start)
        time.sleep(POLL_SECONDS)
    begin()


def is_busy() -> bool:
    """Return whether jobs wait or one runs."""
    return _worker.is_busy()


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Begin no job inside, so that the processor time of this process is that of other work."""
    _worker.holds.append(None)
    try:
        yield
    finally:
        _go_on()


def _finish_at_exit() -> None:
    """Wait for all jobs. An interrupt, or a system without threads at that time, leaves out those that wait."""
    try:
        wait()
    except (KeyboardInterrupt, RuntimeError):
        _worker.jobs.clear()
    finally:
        _worker.is_over = True


def _go_on() -> None:
    _worker.holds.pop()
    begin()


def _go_on_in_child() -> None:
    """Replace the worker, whose thread the child does not have and whose lock another thread may have held."""
    global _worker
    jobs, _worker = _worker.jobs, _BackgroundThread()
    _worker.jobs.extend(jobs)
    begin()


atexit.register(_finish_at_exit)
if hasattr(os, "register_at_fork"):
    # Those before run in reverse order: the fork is counted first.
    os.register_at_fork(before=lambda: _worker.end_before_fork())
    os.register_at_fork(
        before=lambda: _worker.holds.append(None), after_in_parent=_go_on, after_in_child=_go_on_in_child
    )
