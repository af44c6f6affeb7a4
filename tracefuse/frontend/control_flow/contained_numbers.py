"""`value in container` in a recorded loop, whose value differs between iterations, for containers of a few numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse.dtypes import float64
from tracefuse.frontend.control_flow.recorded_ranges import MOST_UNROLLED
from tracefuse.frontend.tracer.array_ops.traced_ops import apply
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced

_NUMBERS = (bool, int, float, np.number, np.bool_)
_INTEGERS = (bool, int, np.integer, np.bool_)
_LARGEST_EXACT = 2**53
"""The largest integer below which every integer is a float64, and so has the hash of an equal float."""


def numbers_contain(container: Any, value: Traced | SymbolicSize, compared: Callable[[str, Any, Any], Any]) -> Any:
    """Returns `value in container`: traced if comparisons with the entries give it, else what the container says.

    value: without axes. compared: returns a comparison, by the name of its op.
    """
    if type(container) is range and container.step == 1 and _is_integer(value):
        bounds = compared("ge", value, container.start), compared("lt", value, container.stop)
        return _joined("logical_and", bounds, False)
    if not _gives_equal_entry(container, value):
        return value in container
    return _joined("logical_or", [compared("eq", value, entry) for entry in container], True)


def _is_integer(value: Traced | SymbolicSize) -> bool:
    return isinstance(value, SymbolicSize) or value.value.dtype.kind in ("bool", "int", "uint")


def _gives_equal_entry(container: Any, value: Traced | SymbolicSize) -> bool:
    """Whether a container has a value if it equals an entry, and has few entries.

    NaN may be in it by identity. A set compares entries with equal hashes alone, and those of a narrow float and the
    nearest decimal number differ, as do those of large integers and the floats that NumPy finds equal to them.
    """
    if not isinstance(container, (tuple, list, set, frozenset)) or len(container) > MOST_UNROLLED:
        return False
    entries = list(container)
    if not all(isinstance(one, _NUMBERS) and bool(one == one) for one in entries):
        return False
    if isinstance(container, (tuple, list)):
        return True
    are_small = all(isinstance(one, _INTEGERS) and abs(int(one)) < _LARGEST_EXACT for one in entries)
    return are_small and (_is_integer(value) or (isinstance(value, Traced) and value.value.dtype is float64))


def _joined(op: str, truths: Any, decisive: bool) -> Any:
    """Returns `or` or `and` of truth values, traced ones among them. decisive: the one that decides."""
    if any(truth is decisive for truth in truths):
        return decisive
    traced = [truth for truth in truths if isinstance(truth, Traced)]
    return functools.reduce(functools.partial(apply, op), traced) if traced else not decisive
