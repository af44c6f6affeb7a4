"""Memory of the CPU: new arrays from a cache of freed buffers, and where an array's elements are.

A fresh large array costs a page fault for each 4 KiB, which is more than most kernels cost. So results are views of
byte arrays (owners) that the cache also holds. An owner that nobody but the cache refers to has no live view, because
every view, slice, memoryview or DLPack capsule refers to it directly or through others; it is then handed out again.

Knows: NumPy's arrays, reference counts. Must not know: kernels, fusions.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from sys import getrefcount
from typing import Any

import numpy as np
import numpy.typing as npt

from tracefuse.caches import CLEAR_CACHES, Cache, memoized, register
from tracefuse.dtypes import DType

ALIGNMENT = 64
DEFAULT_LIMIT = 256 << 20
# Owners of one size class that are looked at before a new one is made, and that are kept at most.
TRIES = 4
MOST_OWNERS = 64
# Shapes whose size class is remembered.
MOST_SHAPES = 4096

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
_Owners = deque[tuple[Bytes, int]]


def _references_of_unused() -> int:
    """What getrefcount says of an owner that only its entry refers to, asked in the same way as below."""
    owners = deque([(np.empty(1, np.uint8), 0)])
    owner, _ = owners[0]
    return getrefcount(owner)


_UNUSED = _references_of_unused()


def _class_bytes(size: int) -> int:
    """The size class: a multiple of 64 bytes, larger sizes in steps of an eighth, so that close sizes share owners."""
    step = max(ALIGNMENT, 1 << max(size.bit_length() - 4, 0))
    return -(-size // step) * step


def _counts_references() -> bool:
    """Whether reference counts are exact: they are not in a build of Python without the global lock."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


class BufferCache:
    """Owners by size class.

    A view is handed out if it turns out to be the only one: whoever looks at the same owner later, or at the same time
    in another thread, sees it. So owners stay in their deques, and an interrupt loses none.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._classes: OrderedDict[int, _Owners] = OrderedDict()
        # The class of a shape and type, so that the usual call computes no size.
        self._known: dict[tuple[tuple[int, ...], DType], _Owners] = {}
        self._lock = threading.RLock()
        # Of all owners; more for a while where an interrupt came between it and its owner, see `_shrink`.
        self._bytes = 0
        self.limit = limit if _counts_references() else 0

    @property
    def nbytes(self) -> int:
        """Bytes of all owners that the cache refers to, in use or free."""
        with self._lock:
            self._bytes = sum(kept * len(owners) for kept, owners in self._classes.items())
            return self._bytes

    def empty(self, shape: tuple[int, ...], dtype: DType) -> npt.NDArray[np.generic]:
        """See the function of this name."""
        owners = self._known.get((shape, dtype))
        if owners:
            try:
                owner, offset = owners[0]
            except IndexError:  # cleared by another thread
                return self._make(shape, dtype)
            if getrefcount(owner) == _UNUSED:
                view = np.ndarray(shape, dtype.numpy, owner, offset)
                if getrefcount(owner) == _UNUSED + 1:  # else another thread has just made one, too
                    return view
            return self._search(owners, shape, dtype)
        return self._make(shape, dtype)

    def _search(self, owners: _Owners, shape: tuple[int, ...], dtype: DType) -> npt.NDArray[np.generic]:
        """The first owner is in use: looks at some more."""
        for _ in range(TRIES):
            owners.rotate(-1)
            try:
                owner, offset = owners[0]
            except IndexError:
                break
            if getrefcount(owner) == _UNUSED:
                view = np.ndarray(shape, dtype.numpy, owner, offset)
                if getrefcount(owner) == _UNUSED + 1:
                    return view
        return self._make(shape, dtype)

    def _make(self, shape: tuple[int, ...], dtype: DType) -> npt.NDArray[np.generic]:
        size = math.prod(shape) * dtype.itemsize
        if size > sys.maxsize:
            raise MemoryError(f"Unable to allocate {size} bytes for an array with shape {shape}")
        if size == 0:
            return np.empty(shape, dtype.numpy)
        kept = _class_bytes(size)
        owners = self._classes.get(kept)
        if owners and (shape, dtype) not in self._known:
            self._known[shape, dtype] = owners
            return self._search(owners, shape, dtype)
        owner = self._new(kept + ALIGNMENT)
        offset = -int(owner.__array_interface__["data"][0]) % ALIGNMENT
        view = np.ndarray(shape, dtype.numpy, owner, offset)
        if kept <= self.limit:
            with self._lock:
                self._keep(kept, (owner, offset))
                if len(self._known) >= MOST_SHAPES:
                    self._known.clear()
                self._known[shape, dtype] = self._classes[kept]
        return view

    def _new(self, size: int) -> Bytes:
        try:
            return np.empty(size, np.uint8)
        except MemoryError:
            pass
        # What is free here may be what is missing.
        self.clear()
        return np.empty(size, np.uint8)

    def _keep(self, kept: int, entry: tuple[Bytes, int]) -> None:
        owners = self._classes.setdefault(kept, deque())
        # The class last added to comes last.
        self._classes.move_to_end(kept)
        self._bytes += kept
        owners.append(entry)
        if len(owners) > MOST_OWNERS:
            self._drop(owners, kept)
        self._shrink()

    def _drop(self, owners: _Owners, kept: int) -> None:
        owners.popleft()
        self._bytes -= kept

    def _shrink(self) -> None:
        """Forgets the oldest owners until the limit holds. The arrays that live in them stay alive."""
        if self._bytes > self.limit and self.nbytes <= self.limit:  # counted again
            return
        for kept in list(self._classes):
            owners = self._classes[kept]
            while self._bytes > self.limit and owners:
                self._drop(owners, kept)
            if self._bytes <= self.limit:
                return

    def clear(self) -> None:
        """Forgets all owners."""
        with self._lock:
            for owners in self._classes.values():
                owners.clear()
            self._bytes = 0


_cache = BufferCache()
register(Cache(
    "runtime.devices.cpu_memory.BufferCache._classes", "memory of freed CPU results", "size class",
    f"{DEFAULT_LIMIT >> 20} MiB, {MOST_OWNERS} buffers of a size class; the oldest go", cleared_by=CLEAR_CACHES,
    clear=_cache.clear,
))  # fmt: skip
register(Cache(
    "runtime.devices.cpu_memory.BufferCache._known", "the size class of an array", "shape, element type",
    f"{MOST_SHAPES}, then none",
))  # fmt: skip


def empty(shape: tuple[int, ...], dtype: DType) -> npt.NDArray[np.generic]:
    """A new C-contiguous array, 64-byte aligned, with unspecified content, that shares memory with no live array."""
    return _cache.empty(shape, dtype)


def as_result(array: Any, dtype: DType) -> npt.NDArray[np.generic]:
    """An array of NumPy's making where it is C-contiguous and aligned, else a copy that is."""
    made = np.asarray(array)
    if made.flags.c_contiguous and address(made) % ALIGNMENT == 0:
        return made
    result = empty(made.shape, dtype)
    result[...] = made
    return result


def product_of(dtype: DType) -> Callable[[Any, Any, bool], Any]:
    """A function of two matrices of a type and whether the second is transposed: their product, in a new array."""

    def product(a: Any, b: Any, transposed: bool) -> Any:
        right = b.T if transposed else b
        return np.matmul(a, right, out=empty((a.shape[0], right.shape[1]), dtype))

    return product


class _Donated(ctypes.Array[ctypes.c_char]):
    """The bytes of another array, from which a new one is made; all views of the new one refer to this.

    root: the array that has the memory.
    """

    _type_, _length_ = ctypes.c_char, 0
    root: npt.NDArray[np.generic]


@memoized("the ctypes type of a donated buffer", key="bytes", most=64)
def _donated_type(size: int) -> type[_Donated]:
    return type("_Donated", (_Donated,), {"_type_": ctypes.c_char, "_length_": size})


def over(array: npt.NDArray[np.generic], shape: tuple[int, ...], dtype: DType) -> npt.NDArray[np.generic]:
    """A new array in the memory of another, which is contiguous, writable and has as many bytes."""
    size, owner = array.nbytes, owner_of(array)
    # What lies in such memory already refers to what that is of, so that no chain of arrays grows.
    root = owner.root if isinstance(owner, _Donated) and len(owner) == size else array
    # Types that are not NumPy's own do not show their bytes.
    shown: Any = root if root.dtype.kind != "V" else root.view(f"u{root.itemsize}")
    memory: Any = _donated_type(size).from_buffer(shown)
    memory.root = root
    return np.ndarray(shape, dtype.numpy, memory)


def standing_for(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> npt.NDArray[np.generic]:
    """An array with strides in elements that nothing reads or writes: it has one element's memory."""
    memory = np.empty(1, dtype.numpy)
    return np.lib.stride_tricks.as_strided(memory, shape, tuple(dtype.itemsize * stride for stride in strides))


def owner_of(array: npt.NDArray[np.generic]) -> object:
    """What lives as long as an array or any view of it."""
    owner: object = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner


def address(array: npt.NDArray[np.generic]) -> int:
    """The address of the element with all coordinates 0."""
    return int(array.__array_interface__["data"][0])


def set_cache_limit(limit: int) -> None:
    """Lets the cache of freed buffers hold at most `limit` bytes; 0 turns it off."""
    _cache.limit = limit if _counts_references() else 0
    _cache.clear()


def clear_cache() -> None:
    """Gives the memory of all freed buffers back."""
    _cache.clear()


def cached_bytes() -> int:
    """Bytes of the buffers that the cache knows, in use or free."""
    return _cache.nbytes
