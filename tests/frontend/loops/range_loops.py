"""Checks that a loop is recorded or unrolled, and gives what NumPy gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import fuse


def is_recorded(function: Any, *arguments: Any) -> bool:
    """Whether a call of a fused function runs a recorded loop."""
    return "range_loop" in str(function.definition(*arguments))


def check(function: Callable[..., Any], *arguments: Any, recorded: bool, **given_options: Any) -> Any:
    """Compares a call with NumPy, with what it does to its arguments; returns the fused function."""
    ours, theirs = (
        [one.copy() if isinstance(one, np.ndarray) else one for one in arguments] for _ in range(2)
    )  # fmt: skip
    fused = fuse(function, **given_options)
    assert is_recorded(fused, *arguments) == recorded
    result, expected = fused(*ours), function(*theirs)
    np.testing.assert_equal(ours, theirs)
    np.testing.assert_equal(result, expected)
    return fused


def recurrence(x: Any, b: Any) -> Any:
    for i in range(1, x.shape[0]):
        x[i] = b[i] - x[i - 1]
