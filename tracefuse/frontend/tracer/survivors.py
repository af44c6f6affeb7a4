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
from tracefuse.frontend.tracer.library_objects import ObjectOfArrays
from tracefuse.frontend.tracer.traced import Traced

_ATTEMPTS = 5
"""Collections before a traced value counts as alive: `gc.collect` does nothing while another thread collects."""


def check(names: Sequence[weakref.ref[Traced]]) -> None:
    """Raises TraceError if a traced value of a finished trace is alive, which names what holds it."""
    for attempt in range(_ATTEMPTS):
        if all(name() is None for name in names):
            return
        time.sleep(0.001 * attempt)
        gc.collect()
    alive = [traced for name in names if (traced := name()) is not None]
    alive = [traced for traced in alive if not _is_leaked(traced)]
    if alive:
        last = alive[-1]
        raise TraceError(
            f"a traced value is left in {_holder(last, alive)}, which no later call writes",
            hint="keep it in an attribute, a global, a list or a dict of your own, or return it",
            where=last.recorder.builder.values[last._number].where,
        )


def _is_leaked(traced: Traced) -> bool:
    """Whether only tuples that nothing refers to hold a value: NumPy leaks the operands of some calls that raise."""
    holders = [one for one in gc.get_referrers(traced) if not isinstance(one, (*_RUNNING, list))]
    for holder in holders:
        others = [one for one in gc.get_referrers(holder) if one is not holders and not isinstance(one, _RUNNING)]
        if type(holder) is not tuple or others:
            return False
    return bool(holders)


_RUNNING = (FrameType, GeneratorType)
"""What refers to a value while this module asks."""


def _holder(traced: Traced, alive: list[Any]) -> str:
    """Describes an object that holds a traced value, if need be through containers."""
    first, names = [traced], []
    for _ in range(_LEVELS):
        holders = [
            holder for one in first for holder in gc.get_referrers(one)
            if holder is not alive and holder is not first and not isinstance(holder, _RUNNING)
        ]  # fmt: skip
        made = next((holder for holder in holders if type(holder) is ObjectOfArrays), None)
        if made is not None:
            return f"an object of {made.__dict__['_class'].__name__}"
        names += [f"a {type(holder).__name__}" for holder in holders]
        first = [holder for holder in holders if type(holder) in (tuple, dict, list)]
    return next(iter(names), "an object of another library")


_LEVELS = 4
"""Containers within containers that are looked through."""
