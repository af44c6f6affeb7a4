"""Where arrays lie: which bytes they take, and whether two of them share some.

Bounds are compared first; where they meet, NumPy decides exactly, on addresses alone, so that interleaved slices are
apart. Where that would take it too long, two arrays count as sharing.

Knows: addresses, shapes, strides. Must not know: fusions, plans, kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tracefuse.dynamic.layouts import known_bounds
from tracefuse.runtime.targets.array_device import ArrayDevice

MOST_WORK = 1 << 14
"""Steps of NumPy's search for a byte that two arrays share, at most."""


@dataclass(frozen=True, slots=True)
class Span:
    """The memory of an array: address of element 0, shape, strides in bytes (0 where an axis has one element), bytes
    of an element."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    def bounds(self) -> tuple[int, int]:
        """The first byte, and the one after the last."""
        low, high = known_bounds(self.shape, self.strides, self.itemsize)
        return self.address + low, self.address + high

    def shares_bytes_with(self, other: Span) -> bool:
        if 0 in self.shape or 0 in other.shape:
            return False
        (low, high), (other_low, other_high) = self.bounds(), other.bounds()
        if low >= other_high or other_low >= high:
            return False
        try:
            return bool(np.shares_memory(_bytes_of(self), _bytes_of(other), MOST_WORK))  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            return True


def span(device: ArrayDevice, array: Any) -> Span:
    """Where an array of `device` lies."""
    strides = tuple(0 if extent == 1 else stride for extent, stride in zip(array.shape, array.strides, strict=True))
    return Span(device.address(array), tuple(array.shape), strides, array.dtype.itemsize)


APART, SAME, SHARES = "apart", "same", "shares"


def relation(device: ArrayDevice, one: Any, two: Any) -> str:
    """SAME where two arrays have the same elements of one type in the same places, SHARES where they share bytes
    otherwise, APART where they share none."""
    if not device.may_share(one, two):
        return APART
    if one is two:
        return SAME
    first, second = span(device, one), span(device, two)
    if first == second and one.dtype == two.dtype:
        return SAME
    return SHARES if first.shares_bytes_with(second) else APART


class _Described:
    """What NumPy takes for an array at an address; nothing reads or writes there."""

    def __init__(self, described: Span) -> None:
        self.__array_interface__ = {
            "version": 3, "typestr": f"|V{described.itemsize}", "data": (described.address, True),
            "shape": described.shape, "strides": described.strides,
        }  # fmt: skip


def _bytes_of(described: Span) -> Any:
    return np.asarray(_Described(described))
