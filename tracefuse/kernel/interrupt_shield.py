"""Work that an interrupt must not break off half way: `shielded` runs it on a thread that gets no signals.

Python handles signals on the main thread alone, after any call: also inside llvmlite's lock, whose `with` is written in
Python, and between a C function and the variable that takes its result. So the main thread gives such work to another
thread and waits. An interrupt ends the wait; the work goes on, and what it keeps (a kernel in a cache) is found by the
next call.

The main thread only uses locks and threads of `_thread`, whose operations are C and happen whole or not at all.
`threading.Thread`, `Event` and `Future` hold locks in Python code, which an interrupt leaves locked.

A fork waits until no such work is under way, so that the child finds no lock held. So does the end of the interpreter:
LLVM's own end would take its memory from under a thread that compiles.

Knows: threads, signals, forks, the end of the interpreter. Must not know: what is run.
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

# How late a wait may see a signal.
WAIT_SECONDS = 0.1
# How long work that came during a fork sleeps before it looks again.
FORK_POLL_SECONDS = 0.001

# The threads that are in shielded work, with a lock that is released when it is done.
_running: dict[int, _thread.LockType] = {}
# One entry for each fork that is under way.
_forks: list[None] = []
_is_ending = False


def shielded(work: Callable[[], T]) -> T:
    """What `work` returns or raises, in the caller's context. On the main thread an interrupt ends the wait alone."""
    # At the end of the interpreter there is nothing to keep usable, and perhaps no thread to be had.
    if _is_ending or _thread.get_ident() != threading.main_thread().ident:
        return _run_registered(work)
    job = _Job(work)
    job.start()
    return job.result()


def shielded_map(work: Callable[[A], T], items: Sequence[A], threads: int) -> list[T]:
    """The results of `work` for `items`, in order, made on so many threads at once, in the caller's context.

    All items are worked on, whatever fails; the first error in order is raised. After an interrupt no further item is
    begun.
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
    """Work that runs on a thread of its own, in a copy of the context that this was made in."""

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
        # The end of the interpreter waits for what is under way; what an interrupted call has just left here is not.
        if _is_ending:
            raise RuntimeError("the interpreter is ending: nothing is begun on another thread")
        self._value = self._context.run(self._work)

    def result(self) -> T:
        """Waits, and returns or raises what the work did; to be called once."""
        # A signal that comes right before the wait does not end it; it is seen at the next turn.
        while not self._done.acquire(timeout=WAIT_SECONDS):
            pass
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            # Else the error would hold its traceback, the traceback this frame, and the frame the error.
            del error
        return self._value


def _without_first_frame(error: BaseException) -> BaseException:
    """An error whose traceback leaves out the frame that caught it, which holds what the error is kept in."""
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)


def _run_registered(work: Callable[[], T]) -> T:
    """Runs `work` here, known to forks and to the end of the interpreter, which wait for it."""
    thread = _thread.get_ident()
    if thread in _running:
        return work()
    while True:
        done = _thread.allocate_lock()
        done.acquire()
        _running[thread] = done
        if not _forks:
            break
        # A fork that looked before this was known does not wait for it, so this waits for the fork.
        del _running[thread]
        done.release()
        time.sleep(FORK_POLL_SECONDS)
    try:
        return work()
    finally:
        _running.pop(thread, None)
        done.release()


def _wait_for_others() -> None:
    """Waits until no other thread is in the work that is under way now."""
    for thread, done in list(_running.items()):
        if thread != _thread.get_ident():
            with done:
                pass


def _wait_at_exit() -> None:
    """Waits for the work under way, also where it is interrupted: the process ends right after it."""
    global _is_ending
    _is_ending = True
    while True:
        try:
            return _wait_for_others()
        except KeyboardInterrupt:
            continue


atexit.register(_wait_at_exit)
if hasattr(os, "register_at_fork"):
    # What runs before a fork runs in reverse order: first forks are counted, then they wait. An interrupt cannot come
    # between a fork and its count, since the counting is C.
    os.register_at_fork(before=_wait_for_others)
    os.register_at_fork(before=functools.partial(_forks.append, None), after_in_parent=_forks.pop)
    os.register_at_fork(after_in_child=_forks.clear)
    os.register_at_fork(after_in_child=_running.clear)
