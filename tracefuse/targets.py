"""Backends: what compiles and launches kernels for a target, and allocates memory for it.

The same few calls for the CPU (NumPy arrays, LLVM) and for a GPU (CuPy arrays, NVRTC); a backend is also the device
that a host program runs on.

Knows: devices and kernel compilers. Must not know: segments, plans, frontends.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracefuse.device import cpu, cuda
from tracefuse.dtypes import DType
from tracefuse.kernel.compile_cpu import compile_cpu
from tracefuse.kernel.compile_cuda import CudaCompiler
from tracefuse.kernel.ir import Kernel
from tracefuse.schedule.lower import Target


class Backend(ABC):
    """A target with its compiler and its memory (segments.Device)."""

    target: Target

    @abstractmethod
    def compile(self, kernel: Kernel) -> Any:
        """The compiled kernel; equal kernels are compiled once."""

    @abstractmethod
    def entry(self, function: Any) -> Callable[..., None]:
        """What launches a compiled kernel: called with arrays and numbers in the order of its parameters."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """A fresh array with unspecified content."""

    @abstractmethod
    def is_plain(self, array: Any) -> bool:
        """Whether an argument is C-contiguous, with aligned elements."""

    @abstractmethod
    def is_wide(self, array: Any) -> bool:
        """Whether an argument starts at a multiple of 16 bytes, where that matters to the target."""

    @abstractmethod
    def is_aligned(self, array: Any) -> bool:
        """Whether an argument's elements are at multiples of their size."""

    def allocate(self, spec: Any, values: Mapping[int, Any]) -> Any:
        return self.empty(spec.shape(values), spec.dtype)

    def launch(self, step: int, label: Any, inputs: list[Any], outputs: list[Any]) -> Sequence[Any] | None:
        return label.run(inputs, outputs)  # type: ignore[no-any-return]

    def release(self, buffer: Any) -> None:  # noqa: B027  (nothing to do is the right thing for both targets)
        """Memory goes back when the last reference does."""


class CpuBackend(Backend):
    """LLVM kernels on NumPy arrays."""

    def __init__(self) -> None:
        self.target = Target("cpu")

    def compile(self, kernel: Kernel) -> Any:
        return compile_cpu(kernel)

    def entry(self, function: Any) -> Callable[..., None]:
        return function.launch  # type: ignore[no-any-return]

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return cpu.empty(shape, dtype)

    def is_plain(self, array: Any) -> bool:
        flags = array.flags
        return flags.c_contiguous and flags.aligned  # type: ignore[no-any-return]

    def is_wide(self, array: Any) -> bool:
        return False

    def is_aligned(self, array: Any) -> bool:
        return bool(array.flags.aligned)


class CudaBackend(Backend):
    """CUDA kernels on CuPy arrays of one device, on the current stream."""

    def __init__(self, device: int) -> None:
        architecture = cuda.architecture(device)
        self.target = Target("cuda", architecture, cuda.multiprocessor_count(device))
        self.compiler = CudaCompiler(architecture)

    def compile(self, kernel: Kernel) -> Any:
        return self.compiler.compile(kernel)

    def entry(self, function: Any) -> Callable[..., None]:
        return function.launch  # type: ignore[no-any-return]

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return cuda.empty(shape, dtype)

    def is_plain(self, array: Any) -> bool:
        return array._c_contiguous  # type: ignore[no-any-return]

    def is_wide(self, array: Any) -> bool:
        return array.data.ptr % 16 == 0  # type: ignore[no-any-return]

    def is_aligned(self, array: Any) -> bool:
        return array.data.ptr % array.dtype.itemsize == 0  # type: ignore[no-any-return]


@functools.cache
def cpu_backend() -> CpuBackend:
    """The backend of this machine's processor."""
    return CpuBackend()


@functools.cache
def cuda_backend(device: int) -> CudaBackend:
    """The backend of one GPU. Raises DeviceError where there is none."""
    return CudaBackend(device)
