"""Comparison of the results of loops with those of Python."""

from __future__ import annotations

from typing import Any

import numpy as np


def are_equal(result: Any, expected: Any) -> bool:
    """Whether results are equal, of one type, and numbers of Python where those of Python are."""
    if isinstance(expected, (tuple, list)):
        return len(result) == len(expected) and all(map(are_equal, result, expected))
    if expected is None or isinstance(expected, str):
        return bool(result is None if expected is None else result == expected)
    # A scalar of NumPy is returned as an array without axes.
    is_python = type(expected) in (bool, int, float)
    is_same_kind = type(result) is type(expected) if is_python else result.dtype == expected.dtype
    return is_same_kind and bool(np.array_equal(result, expected))
