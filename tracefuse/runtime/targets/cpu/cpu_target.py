"""The CPU target: LLVM kernels on NumPy arrays.

Its array library is NumPy, with NumPy's BLAS for matrix products.

Must not know: segments, plans.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse.caches import memoized
from tracefuse.dtypes import DType
from tracefuse.kernel.llvm.cpu_functions import reads_arrays
from tracefuse.kernel.llvm.shared_functions import HEADER_BYTES
from tracefuse.runtime.devices import cpu_memory
from tracefuse.runtime.targets.array_library import ArrayLibrary
from tracefuse.runtime.targets.call_text import CallText
from tracefuse.runtime.targets.cpu.cpu_device import CpuDevice
from tracefuse.runtime.targets.cpu.cpu_kernel_compiler import CpuKernelCompiler
from tracefuse.runtime.targets.numpy_device import PLAIN
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.cpu.cpu_templates import CPU_TEMPLATES

CPU = "cpu"


class NumpyLibrary(ArrayLibrary):
    """NumPy, and its BLAS for matrix products."""

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return cpu_memory.empty(shape, dtype)

    def product_into(self) -> Callable[[Any, Any, Any], Any] | None:
        return np.matmul

    def product(self, dtype: DType) -> Callable[[Any, Any, bool], Any] | None:
        return cpu_memory.product_of(dtype)

    def as_result(self, array: Any, dtype: DType) -> Any:
        return cpu_memory.as_result(array, dtype)


class CpuCallText(CallText):
    """Writes expressions about NumPy arrays."""

    def plain_text(self, name: str, address: str, itemsize: int) -> str:
        return f"{name}.flags.num & {PLAIN} == {PLAIN}"

    def names(self) -> dict[str, Any]:
        return {**super().names(), "word_at": ctypes.c_size_t.from_address}

    def address_text(self, name: str, address: str) -> str:
        # NumPy's own ways to tell the address take 10 times as long as to read it from the header.
        text = f"word_at(id({name}) + {HEADER_BYTES}).value"
        return text if reads_arrays() else super().address_text(name, address)


@memoized("the target of the processor", key="none", most=1, clears=False)
def cpu_target() -> Target:
    """Returns the target of this machine's processor."""
    memory = CpuDevice()
    return Target(CPU, CPU_TEMPLATES, CpuKernelCompiler(), memory, NumpyLibrary(), CpuCallText(memory))
