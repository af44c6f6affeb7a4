"""The array API's functions that create arrays. In a trace sizes may be symbolic.

Outside of a trace they return NumPy arrays, or CuPy arrays for a GPU `device`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import ScalarError
from tracefuse.frontend.array_api.standard_calls import as_arrays, recorder_for
from tracefuse.frontend.numpy_api.arrangement import grids
from tracefuse.frontend.numpy_api.twins import creation
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.runtime.devices import arrays, cuda_arrays

_numpy: Any = np  # its creation functions take more than their annotations tell


def _create(device: Any, make: Callable[[Any], Any]) -> Any:
    """Returns make(numpy), or make(cupy) on the GPU `device`."""
    number = arrays.device_number(device)
    if number is None:
        return make(_numpy)
    with cuda_arrays.on_device(number):
        return make(cuda_arrays.namespace())


def _record_or_create(
    sizes: tuple[Any, ...], device: Any, record: Callable[[Any], Any], make: Callable[[Any], Any]
) -> Any:
    """Returns record(recorder) in a trace, else make(numpy or cupy)."""
    recorder = recorder_for(*sizes)
    if recorder is None:
        return _create(device, make)
    recorder.require_device(device)
    result = record(recorder)
    if isinstance(result, Traced):
        result.own_memory()
    return result


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array of `shape` with every element `fill_value`."""
    return _record_or_create(
        (shape, fill_value), device, lambda recorder: creation.filled(recorder, shape, fill_value, dtype),
        lambda m: m.full(shape, fill_value, dtype),
    )  # fmt: skip


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array of zeros; float64 if `dtype` is None."""
    return full(shape, 0, dtype=np.float64 if dtype is None else dtype, device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array of ones; float64 if `dtype` is None."""
    return full(shape, 1, dtype=np.float64 if dtype is None else dtype, device=device)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array whose elements may be anything; here zeros."""
    return zeros(shape, dtype=dtype, device=device)


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Any:
    """start, start + step, ... before stop. Sizes may be symbolic; other bounds are asked for their values."""
    first, last = (0, start) if stop is None else (start, stop)
    return _record_or_create(
        (start, stop, step), device, lambda recorder: creation.arange(recorder, first, last, step, dtype=dtype),
        lambda m: m.arange(first, last, step, dtype),
    )  # fmt: skip


def linspace(start: Any, stop: Any, /, num: Any, *, dtype: Any = None, device: Any = None, endpoint: Any = True) -> Any:
    """`num` numbers from start to stop, evenly spaced."""
    return _record_or_create(
        (start, stop, num), device, lambda recorder: grids.linspace(start, stop, num, bool(endpoint), dtype=dtype),
        lambda m: m.linspace(start, stop, num, dtype=dtype, endpoint=endpoint),
    )  # fmt: skip


def eye(n_rows: Any, n_cols: Any = None, /, *, k: Any = 0, dtype: Any = None, device: Any = None) -> Any:
    """Ones on the k-th diagonal, zeros elsewhere."""
    target = np.float64 if dtype is None else dtype
    return _record_or_create(
        (n_rows, n_cols, k), device, lambda recorder: creation.eye(recorder, n_rows, n_cols, k, target),
        lambda m: m.eye(n_rows, n_cols, k, target),
    )  # fmt: skip


def fftfreq(n: Any, /, *, d: Any = 1.0, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of a Fourier transform of n samples with spacing d; float64 if `dtype` is None."""
    return _record_or_create(
        (n, d), device, lambda recorder: _in_type(creation.fftfreq(recorder, n, d), dtype),
        lambda m: _in_type(m.fft.fftfreq(n, d), dtype),
    )  # fmt: skip


def rfftfreq(n: Any, /, *, d: Any = 1.0, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of a Fourier transform of n real samples with spacing d; float64 if `dtype` is None."""
    return _record_or_create(
        (n, d), device, lambda recorder: _in_type(creation.rfftfreq(recorder, n, d), dtype),
        lambda m: _in_type(m.fft.rfftfreq(n, d), dtype),
    )  # fmt: skip


def _in_type(array: Any, dtype: Any) -> Any:
    return array if dtype is None else array.astype(dtype)


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: Any = None) -> Any:
    """`obj` as an array; inside a trace it becomes part of it."""
    recorder = recorder_for(obj)
    if recorder is None:
        if device is None and arrays.kind_of(obj) == "cupy":
            device = obj.device
        if arrays.device_number(device) is None:
            array = np.asarray(obj, dtype, copy=copy)
            dtype_of(array.dtype)  # NumPy makes objects of integers beyond 64 bits
            return array
        return _create(device, lambda m: m.array(obj, dtype) if copy else m.asarray(obj, dtype))
    recorder.require_device(device)
    if isinstance(obj, (list, tuple)):
        return traced_ops.as_tensor(creation.array(recorder, obj, dtype))
    traced = traced_ops.as_tensor(obj)
    if dtype is not None:
        if copy is False and traced.value.dtype is not dtype_of(dtype):
            message = f"asarray(copy=False) of {traced.value.dtype.name} as {dtype_of(dtype).name} needs a copy"
            raise ScalarError(message, hint="leave out copy=False", where=source.user_line())
        return as_arrays(traced_ops.astype(traced, dtype, copy=copy is True), [traced])
    return as_arrays(traced_ops.copy(traced), []) if copy is True else traced


def from_dlpack(x: Any, /, *, device: Any = None, copy: Any = None) -> Any:
    """`x`, of any library that supports DLPack, as an array of NumPy, or of CuPy if its memory is on a GPU."""
    if recorder_for(x) is not None:
        return asarray(x, device=device, copy=copy)
    is_on_gpu = x.__dlpack_device__()[0] == _DLPACK_CUDA if device is None else arrays.device_number(device) is not None
    if not is_on_gpu:
        return np.from_dlpack(x, device=device, copy=copy)
    return _create(device, lambda m: m.array(m.from_dlpack(x)) if copy else m.from_dlpack(x))


_DLPACK_CUDA = 2
"""The number of CUDA's devices in DLPack."""


def meshgrid(*vectors: Any, indexing: str = "xy") -> tuple[Any, ...]:
    """Coordinate arrays from coordinate vectors."""
    if recorder_for(*vectors) is None:
        return tuple(_numpy.meshgrid(*vectors, indexing=indexing))
    return tuple(grids.meshgrid(*vectors, indexing=indexing))
