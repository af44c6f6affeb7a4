"""Work that makes many objects, without walks of the garbage collector over every object of the process.

A trace and a compilation make tens of thousands of objects, nearly all of which live no longer. The collector would
take their number for a reason to walk over all that the process has imported, which takes a tenth of a second. Among
objects that are kept young, cycles are also found without that walk.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_NEVER = 2**31 - 1
"""A threshold that no count of collections reaches."""


_in_use: set[object] = set()
_lock = threading.Lock()
_threshold = gc.get_threshold()[1]


def keeps_objects_young(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function during whose calls no new object reaches the garbage collector's oldest generation.

    Objects of the youngest generation are collected as ever.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        use = object()
        try:
            _begin(use)
            return function(*args, **kwargs)
        finally:
            _end(use)

    return call


def _begin(use: object) -> None:
    global _threshold
    with _lock:
        first, second, third = gc.get_threshold()
        if second != _NEVER:
            _threshold = second
            gc.set_threshold(first, _NEVER, third)
        _in_use.add(use)


def _end(use: object) -> None:
    """Ends a use, also one that an interrupt kept from beginning."""
    with _lock:
        _in_use.discard(use)
        first, second, third = gc.get_threshold()
        if not _in_use and second == _NEVER:
            gc.set_threshold(first, _threshold, third)
