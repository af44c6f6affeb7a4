"""The backend of this machine's processor: LLVM kernels on NumPy arrays.

Knows: NumPy arrays, the compiler for the CPU. Must not know: segments, plans, frontends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from segments import Streams, ThreadStreams
from tracefuse.dtypes import DType
from tracefuse.errors import DeviceError
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.kernel_ir import Kernel
from tracefuse.kernel.llvm.cpu_functions import compile_cpu
from tracefuse.runtime.devices import cpu_memory, cuda_arrays
from tracefuse.runtime.targets.backend import Backend
from tracefuse.schedule.choose import Target

PLAIN = 0x101
"""C-contiguous and aligned: NPY_ARRAY_C_CONTIGUOUS (1) and NPY_ARRAY_ALIGNED (0x100) of NumPy's C interface."""


class CpuBackend(Backend):
    """LLVM kernels on NumPy arrays."""

    array_type = np.ndarray

    def __init__(self) -> None:
        self.target = Target("cpu")

    def compile(self, kernel: Kernel, disk: DiskCache | None = None) -> Any:
        return compile_cpu(kernel, disk)

    def entry(self, function: Any) -> Callable[..., None]:
        return function.launch  # type: ignore[no-any-return]

    def product(self, dtype: DType) -> Callable[[Any, Any, bool], Any] | None:
        return cpu_memory.product_of(dtype)

    def as_result(self, array: Any, dtype: DType) -> Any:
        return cpu_memory.as_result(array, dtype)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return cpu_memory.empty(shape, dtype)

    def as_array(self, value: Any) -> Any:
        if cuda_arrays.is_array(value):
            raise DeviceError(
                f"a CuPy array of device {cuda_arrays.device_of(value)} is given to a function for the CPU",
                hint="leave target= out, or pass x.get()",
            )
        if not isinstance(value, np.ndarray):
            raise DeviceError(f"{type(value).__name__} is no NumPy array", hint="pass np.asarray(x)")
        return np.asarray(value)

    def open_streams(self) -> Streams:
        return ThreadStreams()

    def is_plain(self, array: Any) -> bool:
        return array.flags.num & PLAIN == PLAIN  # type: ignore[no-any-return]

    def plain_text(self, name: str, address: str, itemsize: int) -> str:
        return f"{name}.flags.num & {PLAIN} == {PLAIN}"

    def is_wide(self, array: Any) -> bool:
        return False

    def is_aligned(self, array: Any) -> bool:
        return bool(array.flags.aligned)

    def is_writable(self, array: Any) -> bool:
        return bool(array.flags.writeable)

    def address(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0])
