"""Finds the bytes that arrays occupy, and whether two arrays overlap.

The bounds decide most cases. If they overlap, NumPy solves the problem exactly from addresses and strides, so that
interleaved slices count as apart. If the search exceeds a limit, the arrays count as overlapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.dynamic.layouts import known_bounds
from tracefuse.runtime.targets.array_device import ArrayDevice

MAX_WORK = 1 << 14
"""The limit on the steps of NumPy's search for a shared byte."""


@dataclass(frozen=True, slots=True)
class Span:
    """The memory of an array.

    address: of element 0. strides: in bytes, 0 for an axis of extent 1. itemsize: the bytes of an element.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    def bounds(self) -> tuple[int, int]:
        """Returns the address of the first byte and the address after the last byte."""
        low, high = known_bounds(self.shape, self.strides, self.itemsize)
        return self.address + low, self.address + high

    def shares_bytes_with(self, other: Span) -> bool:
        """Whether some byte belongs to both arrays; also True if the search for one exceeds MAX_WORK."""
        if 0 in self.shape or 0 in other.shape:
            return False
        (low, high), (other_low, other_high) = self.bounds(), other.bounds()
        if low >= other_high or other_low >= high:
            return False
        try:
            return bool(np.shares_memory(_bytes_of(self), _bytes_of(other), MAX_WORK))  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            return True


def span(device: ArrayDevice, array: Any) -> Span:
    """Returns the span of an array of `device`."""
    strides = tuple(0 if extent == 1 else stride for extent, stride in zip(array.shape, array.strides, strict=True))
    return Span(device.address(array), tuple(array.shape), strides, array.dtype.itemsize)


APART, SAME, SHARES = "apart", "same", "shares"


def relation(device: ArrayDevice, left: Any, right: Any) -> str:
    """Returns SAME for equal dtype, address, shape and strides, SHARES for any other overlap, APART for no overlap."""
    if not device.may_share(left, right):
        return APART
    if left is right:
        return SAME
    first, second = span(device, left), span(device, right)
    if first == second and left.dtype == right.dtype:
        return SAME
    return SHARES if first.shares_bytes_with(second) else APART


FEW_SPANS = 16
"""The most spans that are sorted in Python: NumPy sorts more of them faster."""


def are_apart(starts: Sequence[int], sizes: Sequence[int], written: int) -> bool:
    """Whether no span shares a byte with one of the first `written` spans. sizes: in bytes."""
    if len(starts) > FEW_SPANS:
        return _many_are_apart(np.array(starts), np.array(sizes), written)
    end = end_of_written = 0
    for start, size, position in sorted(zip(starts, sizes, range(len(starts)), strict=True)):
        if size == 0:
            continue
        if start < (end if position < written else end_of_written):
            return False
        end = max(end, start + size)
        if position < written:
            end_of_written = max(end_of_written, start + size)
    return True


def _many_are_apart(starts: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any], written: int) -> bool:
    order = starts.argsort()
    order = order[sizes[order] > 0]
    first, is_written = starts[order], order < written
    after = first + sizes[order]
    ends, ends_of_written = np.maximum.accumulate([after, np.where(is_written, after, 0)], axis=1)
    return not (first[1:] < np.where(is_written[1:], ends[:-1], ends_of_written[:-1])).any()


def neighbours(spans: Sequence[Span]) -> list[set[int]]:
    """Returns for each span the positions of the others whose bounds overlap its own: all that it may share bytes with.

    It sorts the bounds, so that each of many arrays that lie apart is compared with few others.
    """
    bounds = [(*one.bounds(), k) for k, one in enumerate(spans)]
    found: list[set[int]] = [set() for _ in spans]
    open_spans: list[tuple[int, int]] = []
    for start, stop, k in sorted(bound for bound in bounds if bound[0] < bound[1]):
        open_spans = [(end, other) for end, other in open_spans if end > start]
        for _, other in open_spans:
            found[k].add(other)
            found[other].add(k)
        open_spans.append((stop, k))
    return found


class _AddressOnly:
    """Presents a span to NumPy as an array. Nothing reads or writes its elements."""

    def __init__(self, memory: Span) -> None:
        self.__array_interface__ = {
            "version": 3, "typestr": f"|V{memory.itemsize}", "data": (memory.address, True),
            "shape": memory.shape, "strides": memory.strides,
        }  # fmt: skip


def _bytes_of(memory: Span) -> Any:
    return np.asarray(_AddressOnly(memory))
