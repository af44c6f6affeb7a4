"""Convolutions with a few taps, as sums of shifted vectors that are fused with what is around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MOST_TAPS = {"valid": 11, "same": 7, "full": 7}
"""The most taps by mode. Where windows reach beyond the ends, each tap adds two parts to the loop."""


def few_taps(name: str, x: Any, taps: Any, mode: Any) -> int:
    """Returns the number of taps if a sum of shifted vectors computes the windows of x, else 0; guards the number.

    It does for numbers that add up in their own type.
    """
    if mode not in MOST_TAPS or len(x.extents) != 1 or len(taps.extents) != 1:
        return 0
    kinds = {value.value.dtype.kind for value in (x, taps)}
    if not kinds <= {"int", "uint", "float", "complex"} or any(v.value.dtype.is_half for v in (x, taps)):
        return 0
    recorder, (count,) = x.recorder, taps.extents
    if not recorder.decide(count, "<=", MOST_TAPS[mode], f"whether np.{name} has few taps"):
        return 0
    return int(recorder.pin(count, f"np.{name}"))


def sum_of_windows(x: Any, taps: Sequence[Any], mode: str) -> Any:
    """Returns the sums of the products of each window of x with the taps, in order.

    Products with elements beyond the ends count nothing, whatever the tap is.
    """
    count = len(taps)
    left = {"valid": 0, "same": count // 2, "full": count - 1}[mode]
    right = {"valid": 0, "same": count - 1 - count // 2, "full": count - 1}[mode]
    total: Any = None
    for k, tap in enumerate(taps):
        product = x * tap
        product = np.pad(product, (max(left - k, 0), max(right - (count - 1 - k), 0)))
        first, last = max(k - left, 0), max(count - 1 - k - right, 0)
        product = product[first : product.shape[0] - last]
        total = product if total is None else total + product
    return total
