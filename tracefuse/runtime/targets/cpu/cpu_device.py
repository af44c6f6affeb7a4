"""The CPU as a device: NumPy arrays in this machine's memory.

Launches are synchronous, and streams are threads.

Must not know: kernels, plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from segments import Streams, ThreadStreams
from tracefuse.dtypes import DType
from tracefuse.errors import DeviceError
from tracefuse.runtime.devices import cpu_memory, cuda_arrays
from tracefuse.runtime.targets.numpy_device import NumpyDevice


class CpuDevice(NumpyDevice):
    """The memory of this machine, with NumPy arrays. A launch returns when its work has finished."""

    def as_array(self, value: Any) -> Any:
        if cuda_arrays.is_array(value):
            raise DeviceError(
                f"a CuPy array of device {cuda_arrays.device_of(value)} is given to a function for the CPU",
                hint="leave target= out, or pass x.get()",
            )
        if not isinstance(value, np.ndarray):
            raise DeviceError(f"{type(value).__name__} is no NumPy array", hint="pass np.asarray(x)")
        return np.asarray(value)

    def is_wide(self, array: Any) -> bool:
        return False

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return cpu_memory.empty(shape, dtype)

    def free_owners(self, shape: tuple[int, ...], dtype: DType) -> Sequence[Any] | None:
        return cpu_memory.owners(shape, dtype)

    def open_streams(self) -> Streams:
        return ThreadStreams()
