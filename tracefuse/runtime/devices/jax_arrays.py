"""Shares memory with arrays of JAX: on the host by JAX's own call for one array, on a GPU through DLPack.

The call that makes a JAX array of memory is the one that `jax.device_put` ends in. It is no public name of JAX, so it
is tried once on an array of its own, and without it the public functions serve, which take ten times as long.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tracefuse.caches import memoized

MOST_TYPES = 4096
"""Shapes and dtypes whose type of JAX is remembered."""


def on_host(array: Any) -> bool:
    """Whether a JAX array, on one device, is in the memory of the host."""
    return next(iter(array.devices())).platform == "cpu"  # type: ignore[no-any-return]


def entered(array: Any) -> Any:
    """Returns the NumPy or CuPy array that shares the memory of a JAX array."""
    if on_host(array):
        # np.asarray is also zero-copy, and unlike NumPy's DLPack it supports bfloat16.
        return np.asarray(array)
    import cupy

    return cupy.from_dlpack(array)


def given_out(array: Any) -> Any:
    """Returns a NumPy or CuPy array as a JAX array that shares its memory, if JAX takes its dtype as it is.

    JAX converts 64-bit types where they are disabled. An array without 64-byte alignment is copied.
    """
    import jax

    if not isinstance(array, (np.ndarray, np.generic)):
        return _from_gpu(array)
    if type(array) is np.ndarray and jax.config.jax_default_device is None:
        wide = array.dtype.itemsize >= 8
        to_jax = _host_put(False)
        if to_jax is not None and not (wide and jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype):
            return to_jax(array)
    return jax.numpy.asarray(array)


def given_out_weakly(array: Any) -> Any:
    """Returns a NumPy or CuPy array as a JAX array that promotes as a Python number; see `given_out`."""
    import jax

    is_plain = type(array) is np.ndarray and jax.config.jax_default_device is None
    if is_plain and jax.dtypes.canonicalize_dtype(array.dtype) == array.dtype:
        put = _host_put(True)
        if put is not None:
            return put(array)
    result = given_out(array)
    return jax.lax.convert_element_type_p.bind(result, new_dtype=result.dtype, weak_type=True, sharding=None)


@memoized("what releases the memory of arrays that JAX dropped", key="none", most=1, clears=False)
def release_dropped() -> Callable[[], Any] | None:
    """Returns JAX's function that gives the memory of dropped arrays back to their owners; None without one.

    JAX keeps memory that it shares with NumPy until this function runs, which JAX's own calls do seldom: results would
    always be in new memory.
    """
    try:
        collect: Callable[[], Any] = importlib.import_module("jaxlib._jax").collect_garbage
    except (ImportError, AttributeError):
        return None
    return collect


def _from_gpu(array: Any) -> Any:
    import jax

    if array.dtype == ml_dtypes.bfloat16:
        bits = jax.dlpack.from_dlpack(array.view(np.uint16))
        return jax.lax.bitcast_convert_type(bits, jax.numpy.bfloat16)
    if array.dtype == np.bool_ or array.dtype.itemsize == 8 or array.dtype == np.complex128:
        # JAX has its own rules for 64-bit types, and old versions do not import bool through DLPack.
        return jax.numpy.asarray(array)
    return jax.dlpack.from_dlpack(array)


@memoized("how JAX takes an array of the host without a copy", key="whether it is weak", most=2, clears=False)
def _host_put(is_weak: bool) -> Callable[[np.ndarray[Any, Any]], Any] | None:
    """Returns the function that shares the memory of an array with JAX; None if this version of JAX has none.

    Its results are placed as those of jax.numpy.asarray are: uncommitted if the host is JAX's default device.
    """
    import jax

    device = jax.local_devices(backend="cpu")[0]
    sharding, devices = jax.sharding.SingleDeviceSharding(device), [device]
    committed = jax.local_devices()[0] != device
    try:
        batched_device_put = importlib.import_module("jaxlib._jax").batched_device_put
        type_of = _type_of

        def to_jax(array: np.ndarray[Any, Any]) -> Any:
            return batched_device_put(
                type_of(array.shape, array.dtype, is_weak), sharding, (array,), devices, committed
            )

        probe = np.arange(3, dtype=np.float32)
        result = to_jax(probe)
        fits = isinstance(result, jax.Array) and result.committed == committed and result.weak_type == is_weak
        return to_jax if fits and np.array_equal(np.asarray(result), probe) else None
    except (ImportError, AttributeError, TypeError):
        return None


@memoized("the type of JAX of a shape and dtype", key="shape, dtype and whether it is weak", most=MOST_TYPES)
def _type_of(shape: tuple[int, ...], dtype: np.dtype[Any], is_weak: bool) -> Any:
    import jax

    return jax.core.ShapedArray(shape, dtype, weak_type=is_weak)
