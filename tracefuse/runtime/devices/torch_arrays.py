"""Shares memory with tensors of PyTorch: on the host by their own `numpy()`, on a GPU by address or through DLPack.

DLPack makes one library's stream wait for the other's, which takes the host 25 us a tensor. Where both libraries use
the same stream, as they do by default, there is nothing to wait for: CuPy takes the address of a contiguous tensor, and
PyTorch takes a capsule that was made without waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tracefuse.caches import memoized
from tracefuse.runtime.devices import cuda_arrays, new_cuda_arrays

_BY_ADDRESS = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
"""The dtypes of tensors that CuPy takes by their address. Complex tensors may be conjugated when they are read."""
WITHOUT_WAITING = -1
"""The stream of a DLPack capsule whose consumer needs no synchronization."""


def entered(tensor: Any) -> Any:
    """Returns the NumPy or CuPy array that shares the memory of a tensor."""
    if tensor.is_cuda:
        take = _taker_by_address()
        return take(tensor)
    half = _is_bfloat16(tensor.dtype)
    shared = (_as_uint16(tensor) if half else tensor).numpy()
    return shared.view(ml_dtypes.bfloat16) if half else shared


def given_out(array: Any) -> Any:
    """Returns a NumPy or CuPy array as a tensor that shares its memory."""
    import torch

    half = array.dtype == ml_dtypes.bfloat16
    plain = array.view(np.uint16) if half else array
    if isinstance(plain, np.ndarray) or not _same_stream_test()(plain.device.id):
        tensor = torch.from_dlpack(plain)
    else:
        tensor = torch.utils.dlpack.from_dlpack(plain.__dlpack__(stream=WITHOUT_WAITING))
    return tensor.view(torch.bfloat16) if half else tensor


def _is_bfloat16(dtype: Any) -> bool:
    import torch

    return dtype is torch.bfloat16


def _as_uint16(tensor: Any) -> Any:
    import torch

    return tensor.view(torch.uint16)


def _through_dlpack(tensor: Any) -> Any:
    cupy = cuda_arrays.namespace()
    if _is_bfloat16(tensor.dtype):
        return cupy.from_dlpack(_as_uint16(tensor)).view(ml_dtypes.bfloat16)
    return cupy.from_dlpack(tensor)


@memoized("how CuPy takes a tensor of PyTorch by its address", key="none", most=1, clears=False)
def _taker_by_address() -> Callable[[Any], Any]:
    """Returns the function from a tensor on a GPU to a CuPy array."""
    import torch

    types = {getattr(torch, name): np.dtype(name) for name in _BY_ADDRESS if name != "bfloat16"}
    types[torch.bfloat16] = np.dtype(ml_dtypes.bfloat16)
    cuda, construct, is_same_stream = cuda_arrays.namespace().cuda, new_cuda_arrays.constructor(), _same_stream_test()
    memory, pointer, strided = cuda.UnownedMemory, cuda.MemoryPointer, torch.strided

    def take(tensor: Any) -> Any:
        dtype, device = types.get(tensor.dtype), tensor.get_device()
        is_plain = type(tensor) is torch.Tensor and dtype is not None and tensor.layout is strided
        if is_plain and tensor.is_neg():
            tensor = tensor.resolve_neg()
        if not is_plain or tensor.requires_grad or not is_same_stream(device):
            return _through_dlpack(tensor)
        size = tensor.nbytes
        if not size or not tensor.is_contiguous():
            return _through_dlpack(tensor)
        return construct(tuple(tensor.shape), dtype, pointer(memory(tensor.data_ptr(), size, tensor, device), 0))

    return take


@memoized("whether CuPy and PyTorch use the same stream", key="none", most=1, clears=False)
def _same_stream_test() -> Callable[[int], bool]:
    """Returns the function that tells whether the current streams of both libraries on a GPU are the same.

    PyTorch's function that returns the address of a stream is no public name. Without it, the public one serves, which
    makes an object and takes ten times as long.
    """
    import torch

    address: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if address is None:

        def address(device: int) -> int:
            return int(torch.cuda.current_stream(device).cuda_stream)

    current, device_now = cuda_arrays.current_stream_function(), cuda_arrays.current_device_function()

    def is_same(device: int) -> bool:
        return bool(device == device_now() and address(device) == current().ptr)

    return is_same
