"""Where CuPy's arrays keep what a call reads of them: extents, whether they are contiguous, type, address, device.

CuPy states no layout, so the fields are found by their values in arrays that differ in all of them. Where one is not
found at exactly one place, calls read the arrays by Python code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse.caches import memoized
from tracefuse.errors import DeviceError
from tracefuse.kernel.llvm.device_arrays import ArrayLayout
from tracefuse.kernel.llvm.device_records import DeviceCalls
from tracefuse.kernel.llvm.replay_records import counts_references
from tracefuse.runtime.devices import cuda_arrays, new_cuda_arrays

_HEADER = object.__basicsize__
_INVALID_CONTEXT = 201
"""CUDA_ERROR_INVALID_CONTEXT of the driver."""
_LEAST_ADDRESS = 1 << 16
"""A pointer to memory of the process is larger."""

_EXAMPLES = (
    ((3, 5, 7), "C", "f4", 3), ((5, 3, 2), "F", "f8", 5), ((11, 13), None, "i2", 6), ((17,), "C", "u1", 9),
    ((4, 9), "F", "f2", 12), ((2, 3, 5, 7), None, "c8", 3), ((6, 5), "C", "i8", 10),
)  # fmt: skip
"""Shape, order (None: neither), type, and number of the device of the arrays in which the fields are looked for."""


def _examples() -> list[Any]:
    cupy: Any = cuda_arrays.namespace()
    arrays = []
    for k, (shape, order, dtype, device) in enumerate(_EXAMPLES):
        memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(1 << 20, 1 << 20, None, device), 4096 * k + 512)
        itemsize = np.dtype(dtype).itemsize
        strides: list[int] = [2 * itemsize] if order is None else [itemsize]
        for extent in shape[:0:-1] if order != "F" else shape[:-1]:
            strides.append(strides[-1] * extent)
        ordered = tuple(strides if order == "F" else strides[::-1])
        arrays.append(cuda_arrays.array_type()(shape, np.dtype(dtype), memory, ordered))
    return arrays


def _place(objects: Sequence[Any], step: int, fits: Callable[[int, int], bool]) -> int:
    """Returns the only place in objects of one type at which `fits(address, number of the object)` holds for all.

    Raises LookupError if there are others or none.
    """
    size = type(objects[0]).__basicsize__
    places = [
        place for place in range(_HEADER, size - step + 1, step)
        if all(fits(id(one) + place, k) for k, one in enumerate(objects))
    ]  # fmt: skip
    if len(places) != 1:
        raise LookupError(f"a field is at {places}")
    return places[0]


def _holds(address: int, values: Sequence[int]) -> bool:
    """Whether a vector of C++, its first address and the one behind its last element, holds these values."""
    first, end = (ctypes.c_uint64 * 2).from_address(address)
    if first < _LEAST_ADDRESS or end - first != 8 * len(values):
        return False
    return list((ctypes.c_int64 * len(values)).from_address(first)) == list(values)


@memoized("where CuPy's arrays keep their fields", key="none", most=1, clears=False)
def array_layout() -> ArrayLayout | None:
    """Returns the places of the fields, None if this CuPy's arrays do not have them."""
    word, half = ctypes.c_uint64.from_address, ctypes.c_int32.from_address
    try:
        arrays = _examples()
        memories = [array.data for array in arrays]
        last = 8  # the second word of a vector is in the object, too
        return ArrayLayout(
            extents=_place(arrays, 8, lambda at, k: at + last < _end(arrays[k]) and _holds(at, arrays[k].shape)),
            contiguous=_place(arrays, 4, lambda at, k: half(at).value == int(arrays[k]._c_contiguous)),
            dtype=_place(arrays, 8, lambda at, k: word(at).value == id(arrays[k].dtype)),
            memory=_place(arrays, 8, lambda at, k: word(at).value == id(memories[k])),
            address=_place(memories, 8, lambda at, k: word(at).value == memories[k].ptr),
            device=_place(memories, 4, lambda at, k: half(at).value == memories[k].device_id),
        )
    except (AttributeError, LookupError, TypeError):
        return None


def _end(array: Any) -> int:
    return id(array) + int(type(array).__basicsize__)


@memoized("what replayed calls use of CuPy", key="device", most=None, bound="GPUs", clears=False)
def device_calls(device: int) -> DeviceCalls | None:
    """Returns the functions of CuPy and the driver that replayed calls use, None if calls cannot be replayed."""
    layout = array_layout() if counts_references() else None
    launch = _launch_kernel()
    if layout is None or launch is None:
        return None
    array_type: Any = cuda_arrays.array_type()
    is_bare = new_cuda_arrays.constructor() is not array_type
    several = cuda_arrays.device_count() > 1
    return DeviceCalls(
        layout, array_type, launch, cuda_arrays.current_stream_function(),
        cuda_arrays.current_device_function() if several else None, device, _failed, cuda_arrays.allocator(),
        array_type.__base__.__new__, getattr(array_type, "_init", None) or _failed,
        new_cuda_arrays.distance if is_bare else None,
    )  # fmt: skip


def _launch_kernel() -> int | None:
    """Returns the address of the driver's function that launches a kernel."""
    try:
        return ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, ctypes.c_void_p).value
    except (AttributeError, OSError):
        return None


def _failed(error: int) -> None:
    """Raises DeviceError for an error of the driver; returns if the call may begin again in Python.

    A thread that has not called CUDA's runtime has no context, and the first launch of the call finds it missing.
    """
    from cupy_backends.cuda.api import driver, runtime

    if error == _INVALID_CONTEXT:
        runtime.free(0)  # gives the thread the context of its device
        return
    raise DeviceError(f"the driver rejected the launch of a kernel: {driver.CUDADriverError(error)}")
