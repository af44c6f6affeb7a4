"""Protection from interrupts: `shielded` runs work that must not stop half way on a thread that receives no signals.

Python handles signals on the main thread only, after any call: even inside llvmlite's lock, whose `with` is Python
code, and between a C function and the assignment of its result. So the main thread passes such work to another thread
and waits. An interrupt ends the wait, but not the work; the next call finds its result, such as a kernel in a cache.

The main thread only uses locks and threads of `_thread`, whose operations are atomic C calls. `threading.Thread`,
`Event` and `Future` hold locks in Python code, which an interrupt would leave locked.

A fork waits until no such work is running, so the child finds no lock held. Interpreter shutdown waits too: LLVM's
shutdown would free memory that a compiling thread uses.
"""

from __future__ import annotations

import _thread
import atexit
import contextvars
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

A = TypeVar("A")
T = TypeVar("T")

# The maximum delay before a wait notices a signal.
WAIT_SECONDS = 0.1
# The polling interval of work that starts during a fork.
FORK_POLL_SECONDS = 0.001

# The threads that run shielded work, each with a lock that is released at its end.
_running: dict[int, _thread.LockType] = {}
# One entry for each fork in progress.
_forks: list[None] = []
_is_ending = False


def shielded(work: Callable[[], T]) -> T:
    """Return `work()`, run in the caller's context. On the main thread, an interrupt ends only the wait."""
    # At interpreter shutdown nothing needs protection, and no thread may be available.
    if _is_ending or _thread.get_ident() != threading.main_thread().ident:
        return _run_registered(work)
    job = _Job(work)
    job.start()
    return job.result()


def shielded_map(work: Callable[[A], T], items: Sequence[A], threads: int) -> list[T]:
    """Return the results of `work` for `items`, in order, computed on `threads` threads in the caller's context.

    A failure does not stop the other items; the error of the first failed item is raised. After an interrupt no
    further item is started.
    """
    if _is_ending:
        return [work(item) for item in items]
    waiting = deque(enumerate(items))
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def work_off() -> None:
        while True:
            try:
                position, item = waiting.popleft()
            except IndexError:
                return
            try:
                results[position] = work(item)
            except BaseException as error:
                errors[position] = _without_first_frame(error)

    jobs = [_Job(work_off) for _ in range(min(threads, len(items)))]
    try:
        for job in jobs:
            job.start()
        for job in jobs:
            job.result()
    finally:
        waiting.clear()
    if errors:
        try:
            raise errors[min(errors)]
        finally:
            errors.clear()  # its traceback holds this frame
    return [results[position] for position in range(len(items))]


class _Job(Generic[T]):
    """Work that runs on a separate thread, in a copy of the creator's context."""

    __slots__ = ("_context", "_done", "_error", "_value", "_work")

    _value: T

    def __init__(self, work: Callable[[], T]) -> None:
        self._context, self._work = contextvars.copy_context(), work
        self._error: BaseException | None = None
        self._done = _thread.allocate_lock()
        self._done.acquire()

    def start(self) -> None:
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            _run_registered(self._run_unless_ending)
        except BaseException as error:
            self._error = _without_first_frame(error)
        finally:
            self._done.release()

    def _run_unless_ending(self) -> None:
        # Interpreter shutdown waits only for running work. This work was queued by an interrupted call.
        if _is_ending:
            raise RuntimeError("the interpreter is ending: nothing is begun on another thread")
        self._value = self._context.run(self._work)

    def result(self) -> T:
        """Wait for the work and return its result or raise its exception. Call it once."""
        # A signal that arrives right before the wait does not end it; the next iteration handles it.
        while not self._done.acquire(timeout=WAIT_SECONDS):
            pass
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            # Otherwise the error, its traceback and this frame would form a reference cycle.
            del error
        value = self._value
        # The thread may take a while to end, and would keep alive what the work returned and used.
        del self._value, self._work
        return value


def _without_first_frame(error: BaseException) -> BaseException:
    """Return the error without the catching frame in its traceback, which would form a reference cycle."""
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)


def _run_registered(work: Callable[[], T]) -> T:
    """Run `work` on this thread, registered so that forks and interpreter shutdown wait for it."""
    thread = _thread.get_ident()
    if thread in _running:
        return work()
    while True:
        done = _thread.allocate_lock()
        done.acquire()
        _running[thread] = done
        if not _forks:
            break
        # A fork that checked before the registration does not wait for this work, so this work waits for the fork.
        del _running[thread]
        done.release()
        time.sleep(FORK_POLL_SECONDS)
    try:
        return work()
    finally:
        _running.pop(thread, None)
        done.release()


def _wait_for_others() -> None:
    """Wait for the shielded work that other threads are running now."""
    for thread, done in list(_running.items()):
        if thread != _thread.get_ident():
            with done:
                pass


def _wait_at_exit() -> None:
    """Wait for running work, even through interrupts: the process ends right afterwards."""
    global _is_ending
    _is_ending = True
    while True:
        try:
            return _wait_for_others()
        except KeyboardInterrupt:
            continue


atexit.register(_wait_at_exit)
if hasattr(os, "register_at_fork"):
    # `before` callbacks run in reverse order: the fork is counted first, then it waits. The counting is C code, so no
    # interrupt can separate a fork from its count.
    os.register_at_fork(before=_wait_for_others)
    os.register_at_fork(before=functools.partial(_forks.append, None), after_in_parent=_forks.pop)
    os.register_at_fork(after_in_child=_forks.clear)
    os.register_at_fork(after_in_child=_running.clear)
