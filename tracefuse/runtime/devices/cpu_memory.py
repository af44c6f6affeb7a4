"""Allocates CPU arrays from a cache of freed buffers.

A fresh large array costs a page fault for each 4 KiB, which takes longer than most kernels. So results are views of
byte arrays (owners) that the cache also refers to. Every view, slice, memoryview or DLPack capsule keeps its owner
alive, directly or indirectly. An owner that only the cache refers to therefore has no live view, and the cache reuses
it.
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
# The number of owners of a size class that a search examines before it allocates a new one.
TRIES = 4
# The limit on owners of one size class in the cache.
MAX_OWNERS = 64
# The same for owners of at most SMALL bytes: a list of numbers is as many results.
MAX_SMALL_OWNERS = 1024
# The most bytes of an owner whose place in the caches does not matter.
SMALL = 4096
# The limit on shapes with a remembered size class.
MAX_SHAPES = 4096

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
_Owners = deque[tuple[Bytes, int]]


class _SmallOwners(deque[tuple[Bytes, int]]):
    """Owners of at most SMALL bytes. The one that was taken goes to the end, so that a call with many small results
    finds each at once; larger ones are rather taken again, while the caches of a core have them."""


def _count_unused_references() -> int:
    """Returns the reference count of an owner that only its cache entry refers to, measured as in `BufferCache`."""
    owners = deque([(np.empty(1, np.uint8), 0)])
    owner, _ = owners[0]
    return getrefcount(owner)


_UNUSED = _count_unused_references()


def _class_bytes(size: int) -> int:
    """Rounds a size up to its class, a multiple of 64 bytes. Larger classes are an eighth apart, so that similar sizes
    share owners."""
    step = max(ALIGNMENT, 1 << max(size.bit_length() - 4, 0))
    return -(-size // step) * step


def _counts_references() -> bool:
    """Whether reference counts are exact, which they are not in a free-threaded build of Python."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


class BufferCache:
    """Owners by size class.

    A new view is returned only if the reference count proves that it is the only one. Another thread that examines the
    same owner sees the view in the count. So owners stay in their deques, and an interrupt loses none.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._classes: OrderedDict[int, _Owners] = OrderedDict()
        # The size class of a shape and dtype, so that the common call computes no size.
        self._known: dict[tuple[tuple[int, ...], DType], _Owners] = {}
        self._lock = threading.RLock()
        # The bytes of all owners. An interrupt can leave it too high until `_shrink` counts again.
        self._bytes = 0
        self.limit = limit if _counts_references() else 0

    @property
    def nbytes(self) -> int:
        """The bytes of all owners that the cache refers to, in use or free."""
        with self._lock:
            self._bytes = sum(class_size * len(owners) for class_size, owners in self._classes.items())
            return self._bytes

    def empty(self, shape: tuple[int, ...], dtype: DType) -> npt.NDArray[np.generic]:
        """Returns a C-contiguous array, 64-byte aligned and uninitialized, that shares no memory with a live one."""
        owners = self._known.get((shape, dtype))
        if owners:
            try:
                owner, offset = owners[0]
            except IndexError:  # cleared by another thread
                return self._make(shape, dtype)
            if getrefcount(owner) == _UNUSED:
                view = np.ndarray(shape, dtype.numpy, owner, offset)
                if getrefcount(owner) == _UNUSED + 1:  # otherwise another thread has created a view, too
                    if type(owners) is _SmallOwners:
                        owners.rotate(-1)
                    return view
            return self._search(owners, shape, dtype)
        return self._make(shape, dtype)

    def owners(self, shape: tuple[int, ...], dtype: DType) -> _Owners | None:
        """Returns the owners, with their offsets, of arrays of a shape and type; None if there have been none."""
        return self._known.get((shape, dtype))

    def _search(self, owners: _Owners, shape: tuple[int, ...], dtype: DType) -> npt.NDArray[np.generic]:
        """Examines the owners after the first one, which is in use. Allocates a new owner if they are in use, too."""
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
        if size == 0:  # kernels that would store past the caches test the alignment before they see that it is empty
            owner = self._new(ALIGNMENT)
            return np.ndarray(shape, dtype.numpy, owner, -int(owner.__array_interface__["data"][0]) % ALIGNMENT)
        class_size = _class_bytes(size)
        owners = self._classes.get(class_size)
        if owners and (shape, dtype) not in self._known:
            self._known[shape, dtype] = owners
            return self._search(owners, shape, dtype)
        owner = self._new(class_size + ALIGNMENT)
        offset = -int(owner.__array_interface__["data"][0]) % ALIGNMENT
        view = np.ndarray(shape, dtype.numpy, owner, offset)
        if class_size <= self.limit:
            with self._lock:
                self._keep(class_size, (owner, offset))
                if len(self._known) >= MAX_SHAPES:
                    self._known.clear()
                self._known[shape, dtype] = self._classes[class_size]
        return view

    def _new(self, size: int) -> Bytes:
        try:
            return np.empty(size, np.uint8)
        except MemoryError:
            pass
        # The memory of free buffers may be enough.
        self.clear()
        return np.empty(size, np.uint8)

    def _keep(self, class_size: int, entry: tuple[Bytes, int]) -> None:
        owners = self._classes.get(class_size)
        if owners is None:
            owners = self._classes[class_size] = _SmallOwners() if class_size <= SMALL else deque()
        # The most recently extended class comes last, and `_shrink` starts with the first.
        self._classes.move_to_end(class_size)
        self._bytes += class_size
        owners.append(entry)
        if len(owners) > (MAX_SMALL_OWNERS if class_size <= SMALL else MAX_OWNERS):
            self._drop(owners, class_size)
        self._shrink()

    def _drop(self, owners: _Owners, class_size: int) -> None:
        owners.popleft()
        self._bytes -= class_size

    def _shrink(self) -> None:
        """Drops the oldest owners until the limit holds. Arrays that are views of them stay alive."""
        if self._bytes > self.limit and self.nbytes <= self.limit:  # counted again
            return
        for class_size in list(self._classes):
            owners = self._classes[class_size]
            while self._bytes > self.limit and owners:
                self._drop(owners, class_size)
            if self._bytes <= self.limit:
                return

    def clear(self) -> None:
        """Drops all owners."""
        with self._lock:
            for owners in self._classes.values():
                owners.clear()
            self._bytes = 0


_cache = BufferCache()
register(Cache(
    "runtime.devices.cpu_memory.BufferCache._classes", "memory of freed CPU results", "size class",
    f"{DEFAULT_LIMIT >> 20} MiB, {MAX_OWNERS} buffers of a size class, {MAX_SMALL_OWNERS} small ones; the oldest go",
    cleared_by=CLEAR_CACHES, clear=_cache.clear,
))  # fmt: skip
register(Cache(
    "runtime.devices.cpu_memory.BufferCache._known", "the size class of an array", "shape, element type",
    f"{MAX_SHAPES}, then none",
))  # fmt: skip


empty = _cache.empty
owners = _cache.owners


_NEW = 0x505
"""The flags of an array that is C-contiguous, owns its memory, is aligned, and can be written."""


def as_result(array: Any, dtype: DType) -> npt.NDArray[np.generic]:
    """Returns a new C-contiguous array that owns its memory as it is, and otherwise a copy that is aligned, too.

    NumPy aligns to elements alone. Copying a large array to the next cache line takes longer than many functions.
    """
    source = np.asarray(array)
    if source.flags.num & _NEW == _NEW:
        return source
    result = empty(source.shape, dtype)
    result[...] = source
    return result


def product_of(dtype: DType) -> Callable[[Any, Any, bool], Any]:
    """Returns a function that multiplies two matrices of `dtype`, or stacks of matrices, into a new array.

    Its third argument says whether the last two axes of the second operand are transposed.
    """

    def product(a: Any, b: Any, transposed: bool) -> Any:
        right = b.swapaxes(-1, -2) if transposed else b
        shape = (a.shape[0],) if a.ndim == 2 == right.ndim else (*_batch_shape(a, right), a.shape[-2])
        return np.matmul(a, right, out=empty((*shape, right.shape[-1]), dtype))

    return product


def _batch_shape(a: Any, b: Any) -> tuple[int, ...]:
    return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])


class _Donated(ctypes.Array[ctypes.c_char]):
    """The bytes of a donated array. A new array in these bytes, and all views of it, refer to this object.

    root: the array that owns the memory.
    """

    _type_, _length_ = ctypes.c_char, 0
    root: npt.NDArray[np.generic]


@memoized("the ctypes type of a donated buffer", key="bytes", most=64)
def _donated_type(size: int) -> type[_Donated]:
    return type("_Donated", (_Donated,), {"_type_": ctypes.c_char, "_length_": size})


def reuse_buffer(array: npt.NDArray[np.generic], shape: tuple[int, ...], dtype: DType) -> npt.NDArray[np.generic]:
    """Returns a new array in the memory of `array`, which is contiguous, writable and has the same number of bytes."""
    size, owner = array.nbytes, owner_of(array)
    # An array in a donated buffer refers to the first donor, so that repeated donation does not build a chain.
    root = owner.root if isinstance(owner, _Donated) and len(owner) == size else array
    # Arrays of ml_dtypes types do not support the buffer protocol.
    exported: Any = root if root.dtype.kind != "V" else root.view(f"u{root.itemsize}")
    memory: Any = _donated_type(size).from_buffer(exported)
    memory.root = root
    return np.ndarray(shape, dtype.numpy, memory)


def standing_for(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> npt.NDArray[np.generic]:
    """Returns a placeholder array with the given shape and strides in elements. It has the memory of one element."""
    memory = np.empty(1, dtype.numpy)
    return np.lib.stride_tricks.as_strided(memory, shape, tuple(dtype.itemsize * stride for stride in strides))


def owner_of(array: npt.NDArray[np.generic]) -> object:
    """Returns the object that lives as long as an array or any view of it."""
    owner: object = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner


def address(array: npt.NDArray[np.generic]) -> int:
    """Returns the address of the first element."""
    return int(array.__array_interface__["data"][0])


def clear_cache() -> None:
    """Frees all cached buffers that are not in use."""
    _cache.clear()


def cached_bytes() -> int:
    """Returns the bytes of all buffers of the cache, in use or free."""
    return _cache.nbytes
