"""New CuPy arrays for the code of a call, which makes many of them.

CuPy's array type passes its arguments on as a tuple and a dict, twice. The calls that it ends in take two thirds of the
time. Small arrays that are made together share an allocation: taking memory from CuPy's pool takes as long as the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tracefuse.runtime.devices import cuda_arrays

Constructor: TypeAlias = Callable[[tuple[int, ...], Any, Any], Any]
"""Makes a C-contiguous array of a shape and a dtype in memory."""

MOST_TOGETHER = 8
"""The most arrays of an allocation, which lives as long as one of them."""
MOST_BYTES = 64 * 1024
"""Of an array that shares an allocation. The smallest has at least half the bytes of the largest."""
POOL_BYTES = 512
"""The alignment of allocations from CuPy's pool, and of arrays in one."""


def constructor() -> Constructor:
    """Returns a function that does what CuPy's array type does, and CuPy's array type if they differ in this CuPy."""
    array_type: Any = cuda_arrays.array_type()
    bare = array_type.__base__.__new__

    def construct(shape: tuple[int, ...], dtype: Any, memory: Any) -> Any:
        array = bare(array_type)
        array._init(shape, dtype, memory)
        return array

    cuda = cuda_arrays.namespace().cuda
    somewhere = cuda.MemoryPointer(cuda.UnownedMemory(POOL_BYTES, POOL_BYTES, None, 0), 0)
    example = (2, 3, 1), np.dtype(np.float32), somewhere
    try:
        is_equal = _described(construct(*example)) == _described(array_type(*example))
    except (AttributeError, TypeError):
        is_equal = False
    return construct if is_equal else array_type


def _described(array: Any) -> tuple[Any, ...]:
    flags = array.flags
    return (
        type(array), array.shape, array.strides, array.dtype, array.size, array.nbytes, array.data.ptr, array.base,
        array._c_contiguous, flags.c_contiguous, flags.f_contiguous, flags.owndata,
    )  # fmt: skip


def distance(sizes: Sequence[int]) -> int:
    """Returns the bytes from one array to the next if arrays of these sizes share an allocation, else 0."""
    most = max(sizes)
    return 0 if most > MOST_BYTES or most > 2 * min(sizes) else -(-most // POOL_BYTES) * POOL_BYTES


def several(construct: Constructor) -> Callable[..., list[Any]]:
    """Returns a function that makes up to MOST_TOGETHER arrays, each given by its shape, its dtype and its bytes.

    It returns the arrays, then their addresses. They share an allocation if they are small and of about equal size.
    """
    allocate = cuda_arrays.allocator()

    def make(*asked: tuple[tuple[int, ...], Any, int]) -> list[Any]:
        sizes = [size for _, _, size in asked]
        step = distance(sizes)
        if step:
            memory = allocate(step * len(sizes))
            places = [memory + place for place in range(0, step * len(sizes), step)]
        else:
            places = [allocate(size) for size in sizes]
        arrays = [construct(shape, dtype, place) for (shape, dtype, _), place in zip(asked, places, strict=True)]
        return [*arrays, *[place.ptr for place in places]]

    return make
