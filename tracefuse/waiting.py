"""A progress bar for work that takes longer than a second, in a terminal only.

It needs rich (the extra `progress`); without rich, and where standard error is no terminal, nothing is shown. The bar
disappears when the work ends.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

DELAY = 1.0
"""Seconds of work before the bar appears."""

_display = threading.Lock()
"""Held by the bar that is shown: a terminal shows one at a time."""


class _Bar:
    """A bar that appears after a delay. Steps may be counted on any thread."""

    def __init__(self, doing: str, total: int) -> None:
        self._doing, self._total = doing, total
        self._done, self._latest = 0, ""
        self._lock = threading.Lock()
        self._progress: Any = None
        self._task: Any = None
        self._is_over = False
        self._timer = threading.Timer(DELAY, self._appear)
        self._timer.daemon = True

    def start(self) -> None:
        self._timer.start()

    def count(self, latest: str = "") -> None:
        """Counts one step. latest: what it was."""
        with self._lock:
            self._done, self._latest = self._done + 1, latest
            if self._progress is not None:
                self._progress.update(self._task, completed=self._done, latest=latest)

    def _appear(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        except ImportError:
            return
        with self._lock:
            if self._is_over or not _display.acquire(blocking=False):
                return
            columns = (
                TextColumn("tracefuse: {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TextColumn("{task.fields[latest]}"),
            )  # fmt: skip
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task(
                self._doing, total=self._total, completed=self._done, latest=self._latest
            )
            self._progress.start()

    def end(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._progress is not None:
                self._progress.stop()
                self._progress = None
                _display.release()


@contextlib.contextmanager
def counted_steps(doing: str, total: int) -> Iterator[Callable[..., None]]:
    """Gives the function that counts one step of `total`; after a second, a bar shows how far the work is.

    doing: what the bar calls the work, such as "compiling kernels". The function takes the name of the step.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield _count_nothing
        return
    bar = _Bar(doing, total)
    bar.start()
    try:
        yield bar.count
    finally:
        bar.end()


def _count_nothing(latest: str = "") -> None:
    """Counts nothing: there is no terminal."""
