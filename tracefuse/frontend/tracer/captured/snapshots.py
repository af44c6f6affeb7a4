"""Snapshots: private copies of arrays, to see at a later call whether the contents of an array differ.

The comparison is of bytes, so that it tells zeros of different sign and different NaNs apart. Small arrays compare as
`bytes`, which takes 0.1 us. Larger arrays compare as integers, block by block, at the speed of memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from tracefuse.runtime.devices import arrays

_SMALL = 1 << 15
"""Most bytes of an array that is compared in one piece; larger arrays would allocate memory at each comparison."""

_BLOCK = 1 << 18
"""Bytes of a block of a larger array, so that what a comparison writes stays in the cache."""


class Snapshot:
    """A read-only copy of an array of any library. array: the copy, as a NumPy or CuPy array."""

    __slots__ = ("_bytes", "array")

    def __init__(self, array: Any) -> None:
        source = as_own(array)
        self.array = source.copy(order="K")
        self._bytes: bytes | None = None
        if isinstance(source, np.ndarray):
            self.array.setflags(write=False)
            if source.nbytes <= _SMALL:
                self._bytes = self.array.tobytes()

    def holds(self, array: Any) -> bool:
        """Whether an array has the element type, the shape and the bytes of the snapshot."""
        copy = self.array
        if type(array) is not np.ndarray:
            array = as_own(array)
        if type(array) is not type(copy) or array.shape != copy.shape or array.dtype != copy.dtype:
            return False
        if self._bytes is not None:
            return bool(array.tobytes() == self._bytes)
        return all(bool((block == block_of_copy).all()) for block, block_of_copy in _blocks(array, copy))

    @property
    def nbytes(self) -> int:
        """The bytes that a comparison reads of the array."""
        return int(self.array.nbytes)


def as_own(array: Any) -> Any:
    """Returns an array of any library as a NumPy or CuPy array that shares its memory; other values as they are."""
    kind = arrays.kind_of(array)
    native = array if kind is None else arrays.entering(kind)(array)
    return native.view(np.ndarray) if isinstance(native, np.ndarray) and type(native) is not np.ndarray else native


def checksum(array: np.ndarray[Any, Any]) -> int:
    """Returns a checksum of the bytes of a NumPy array in C order; large arrays are read block by block."""
    if array.dtype.hasobject or array.nbytes <= _SMALL:
        return zlib.crc32(array.tobytes())
    result = 0
    lead = len(array) if array.ndim and not array.flags.c_contiguous else 1
    step = max(1, _BLOCK * lead // array.nbytes)
    for start in range(0, lead, step):
        part = array if lead == 1 else array[start : start + step]
        for words in _words(np.ascontiguousarray(part)):
            result = zlib.crc32(words.data, result)
    return result


def _blocks(left: Any, right: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the bytes of two arrays of one shape and type side by side, as integers."""
    if not isinstance(left, np.ndarray):
        left, right = (array if array.flags.c_contiguous else array.copy(order="C") for array in (left, right))
        yield left.reshape(-1).view(np.uint8), right.reshape(-1).view(np.uint8)
        return
    if left.dtype.hasobject:  # the bytes are addresses; the copy keeps the objects alive
        yield np.frombuffer(left.tobytes(), np.uint8), np.frombuffer(right.tobytes(), np.uint8)
        return
    order = sorted(range(left.ndim), key=lambda axis: -abs(left.strides[axis]))
    left, right = left.transpose(order), right.transpose(order)
    if left.flags.c_contiguous and right.flags.c_contiguous:
        yield from zip(_words(left), _words(right), strict=True)
        return
    step = max(1, _BLOCK * len(left) // max(1, left.nbytes))
    for start in range(0, len(left), step):
        parts = (np.ascontiguousarray(array[start : start + step]) for array in (left, right))
        yield from zip(*map(_words, parts), strict=True)


def _words(array: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Yields the bytes of a contiguous array in blocks."""
    flat = array.reshape(-1).view(np.uint8)
    in_words = flat.size // 8 * 8
    words = flat[:in_words].view(np.uint64)
    step = _BLOCK // 8
    yield from (words[start : start + step] for start in range(0, words.size, step))
    yield flat[in_words:]
