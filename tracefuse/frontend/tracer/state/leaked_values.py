"""Traced values that outlive their trace: an object that calls cannot write back has kept them.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Sequence
from types import FrameType, GeneratorType
from typing import Any

from tracefuse.errors import TraceError
from tracefuse.frontend.tracer.values.traced import Traced

_COLLECTIONS = 2
"""Full collections after which a traced value counts as alive: finalizers that the first runs may release others."""

_LONGEST_WAIT = 5.0
"""Seconds: `gc.collect` does nothing while another thread collects, or in a finalizer that a collection runs."""


def check(names: Sequence[weakref.ref[Traced]]) -> None:
    """Raises TraceError if a traced value of a finished trace is alive, which names what holds it."""
    if not _are_alive(names):
        return
    gc.collect(1)  # all that the trace created, see tracefuse/young_objects.py
    collections, deadline = 0, time.monotonic() + _LONGEST_WAIT
    while collections < _COLLECTIONS and time.monotonic() < deadline:
        if not _are_alive(names):
            return
        if _collects():
            collections += 1
        else:
            time.sleep(0.001)
    if not _are_alive(names):
        return
    alive = [traced for name in names if (traced := name()) is not None]
    alive = [traced for traced in alive if not _is_leaked(traced)]
    if alive:
        last = alive[-1]
        raise TraceError(
            f"a traced value is left in {_holder(last, alive)}, which no later call writes",
            hint="keep it in an attribute, a global, a list or a dict of your own, or return it",
            where=last.recorder.builder.values[last._number].where,
        )


class _Cycle:
    """Garbage that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


def _collects() -> bool:
    """Asks for a full collection; returns whether one ran."""
    garbage = weakref.ref(_Cycle())
    gc.collect()
    return garbage() is None


def _are_alive(names: Sequence[weakref.ref[Traced]]) -> bool:
    return any(name() is not None for name in names)


def _is_leaked(traced: Traced) -> bool:
    """Whether only tuples that nothing refers to hold a value: NumPy leaks the operands of some calls that raise."""
    holders = [referrer for referrer in gc.get_referrers(traced) if not isinstance(referrer, (*_RUNNING, list))]
    for holder in holders:
        other_referrers = [
            referrer
            for referrer in gc.get_referrers(holder)
            if referrer is not holders and not isinstance(referrer, _RUNNING)
        ]
        if type(holder) is not tuple or other_referrers:
            return False
    return bool(holders)


_RUNNING = (FrameType, GeneratorType)
"""What refers to a value while this module asks."""


def _holder(traced: Traced, alive: list[Any]) -> str:
    """Describes an object that holds a traced value."""
    for holder in gc.get_referrers(traced):
        if holder is not alive and not isinstance(holder, FrameType):
            return f"a {type(holder).__name__}"
    return "an object of another library"
