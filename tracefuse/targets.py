"""Backends: what compiles and launches kernels for a target, and allocates memory for it.

The same few calls for the CPU (NumPy arrays, LLVM) and for a GPU (CuPy arrays, NVRTC); a backend is also the device
that a host program runs on.

Knows: devices and kernel compilers. Must not know: segments, plans, frontends.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from segments import Streams, ThreadStreams
from tracefuse.device import cpu, cublas, cuda, cuda_streams
from tracefuse.dtypes import DType
from tracefuse.errors import DeviceError, UnsupportedError
from tracefuse.kernel.compile_cpu import compile_cpu
from tracefuse.kernel.compile_cuda import CudaCompiler
from tracefuse.kernel.cuda import emit_cuda
from tracefuse.kernel.cuda_graph import CudaGraph
from tracefuse.kernel.disk_cache import DiskCache
from tracefuse.kernel.ir import Kernel
from tracefuse.schedule.lower import Target


class Backend(ABC):
    """A target with its compiler and its memory (segments.Device)."""

    target: Target
    array_type: type
    """What an argument is, exactly; `as_array` makes it so."""
    uses_alignment: bool = False
    """Whether kernels are made for arguments that start at a multiple of 16 bytes (`is_wide`)."""

    @abstractmethod
    def compile(self, kernel: Kernel, disk: DiskCache | None = None) -> Any:
        """The compiled kernel; equal kernels are compiled once, or taken from `disk`. Several threads may call it."""

    @abstractmethod
    def entry(self, function: Any) -> Callable[..., None]:
        """What launches a compiled kernel: called with the stream where there is one (`stream_text`), then tensors as
        `argument_text` writes them and numbers in the order of the kernel's parameters."""

    def require_graphs(self) -> None:
        """Raises UnsupportedError where kernels cannot be launched as a graph."""
        raise UnsupportedError(
            "graph=True launches kernels as one CUDA graph, and these run on the CPU",
            hint="pass CuPy arrays, or leave graph= out",
        )

    def graph(self, functions: Sequence[Any]) -> Callable[..., None]:
        """What launches several kernels at once: called with the stream and the arguments of each."""
        raise NotImplementedError

    def kept_room(self) -> Callable[[int], Any]:
        """What gives one memory at every call, for what graphs keep between their kernels; it grows as it must."""
        raise NotImplementedError

    def product(self, dtype: DType) -> Callable[[Any, Any, bool], Any] | None:
        """A function of two matrices of a type, and whether the second is transposed, that beats NumPy's or CuPy's.

        It gives None where it cannot take them.
        """
        return None

    def as_result(self, array: Any, dtype: DType) -> Any:
        """What a library made as a result: C-contiguous, as aligned as the arrays that `empty` gives."""
        return array if not hasattr(array, "flags") or array.flags.c_contiguous else array.copy(order="C")

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """A fresh array with unspecified content."""

    def over(self, array: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        """A new array in the memory of another, which is contiguous and has as many bytes."""
        return cpu.over(array, shape, dtype)

    def owner_of(self, array: Any) -> Any:
        """What lives as long as the array or any view of it does, and can be referred to weakly."""
        return cpu.owner_of(array)

    @abstractmethod
    def as_array(self, value: Any) -> Any:
        """An argument as an array of `array_type` that shares its memory. Raises DeviceError for what is none."""

    @abstractmethod
    def is_plain(self, array: Any) -> bool:
        """Whether an argument is C-contiguous, with aligned elements."""

    def here_text(self, name: str) -> str | None:
        """Whether the array called `name` is on this device, as a Python expression; None where it must be."""
        return None

    addresses: bool = False
    """Whether kernels are given addresses, not arrays."""

    def argument_text(self, name: str) -> str:
        """What a kernel is given for the array called `name`."""
        return name

    def stream_text(self) -> str | None:
        """The stream of a call, as a Python expression, where there are streams."""
        return None

    def plain_text(self, name: str, address: str, itemsize: int) -> str:
        """`is_plain` of the array called `name` as a Python expression, which calls pay for; it may call `is_plain`.

        address: the name of its address; itemsize: 1 where that is known to be a multiple of all that matters.
        """
        return f"is_plain({name})"

    def wide_text(self, name: str, address: str) -> str:
        """`is_wide` likewise."""
        return f"is_wide({name})"

    def empty_text(self, shape: str, dtype: str, size: str) -> str:
        """A fresh array, from texts of its shape, type and bytes."""
        return f"empty({shape}, {dtype})"

    def elsewhere_text(self) -> str | None:
        """Whether the current device of the thread is another one, as a Python expression; None where there is one."""
        return None

    @abstractmethod
    def is_wide(self, array: Any) -> bool:
        """Whether an argument starts at a multiple of 16 bytes, where that matters to the target."""

    @abstractmethod
    def is_aligned(self, array: Any) -> bool:
        """Whether an argument's elements are at multiples of their size."""

    @abstractmethod
    def is_writable(self, array: Any) -> bool:
        """Whether an array may be written."""

    def may_share(self, one: Any, two: Any) -> bool:
        """Whether two arrays may share bytes; it may say so of some that do not."""
        return np.may_share_memory(one, two)

    @abstractmethod
    def address(self, array: Any) -> int:
        """Where element 0 of an array is."""

    def on_host(self, array: Any) -> Any:
        """The array as a NumPy array, when the work that makes it is done."""
        return np.asarray(array)

    def synchronize(self) -> None:  # noqa: B027  (on the CPU a launch returns when it is done)
        """Waits for all launches. Raises DeviceError where one failed."""

    def copy(self, source: Any, target: Any) -> None:
        """Writes the elements of `source` into `target`, of the same shape and type."""
        target[...] = source

    def select(self, buffer: Any, axis: int, index: int, size: int | None) -> Any:
        """A slice that shares memory: without the axis, or `size` elements of it from index * size on."""
        where = index if size is None else slice(index * size, (index + 1) * size)
        return buffer[(*(slice(None),) * axis, where, ...)]

    def host_op(self, label: Any, inputs: list[Any], output: Any | None) -> Any:
        """The result of an operation of the array library, in `output` or in a new array."""
        written = self.empty(label.shape(inputs), label.dtype) if output is None else output
        label(inputs, written)
        return written

    @abstractmethod
    def open_streams(self) -> Streams:
        """The streams of one run of a host program."""

    def names(self) -> dict[str, Any]:
        """What the texts refer to."""
        return {
            "is_plain": self.is_plain, "is_wide": self.is_wide, "array_type": self.array_type, "empty": self.empty,
            "copy": self.copy,
        }  # fmt: skip

    def on_device(self, call: Callable[[Any], Any], arguments: Any) -> Any:
        """call(arguments) with this backend's device as the current one."""
        return call(arguments)

    def allocate(self, spec: Any, values: Mapping[int, Any]) -> Any:
        return self.empty(spec.shape(values), spec.dtype)

    def launch(self, step: int, label: Any, inputs: list[Any], outputs: list[Any]) -> Sequence[Any] | None:
        return label.run(inputs, outputs)  # type: ignore[no-any-return]

    def release(self, buffer: Any) -> None:  # noqa: B027  (nothing to do is the right thing for both targets)
        """Memory goes back when the last reference does."""


# C-contiguous and aligned: NPY_ARRAY_C_CONTIGUOUS (1) and NPY_ARRAY_ALIGNED (0x100) of NumPy's C interface.
_PLAIN = 0x101


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
        return cpu.product_of(dtype)

    def as_result(self, array: Any, dtype: DType) -> Any:
        return cpu.as_result(array, dtype)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return cpu.empty(shape, dtype)

    def as_array(self, value: Any) -> Any:
        if cuda.is_array(value):
            raise DeviceError(
                f"a CuPy array of device {cuda.device_of(value)} is given to a function for the CPU",
                hint="leave target= out, or pass x.get()",
            )
        if not isinstance(value, np.ndarray):
            raise DeviceError(f"{type(value).__name__} is no NumPy array", hint="pass np.asarray(x)")
        return np.asarray(value)

    def open_streams(self) -> Streams:
        return ThreadStreams()

    def is_plain(self, array: Any) -> bool:
        return array.flags.num & _PLAIN == _PLAIN  # type: ignore[no-any-return]

    def plain_text(self, name: str, address: str, itemsize: int) -> str:
        return f"{name}.flags.num & {_PLAIN} == {_PLAIN}"

    def is_wide(self, array: Any) -> bool:
        return False

    def is_aligned(self, array: Any) -> bool:
        return bool(array.flags.aligned)

    def is_writable(self, array: Any) -> bool:
        return bool(array.flags.writeable)

    def address(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0])


class CudaBackend(Backend):
    """CUDA kernels on CuPy arrays of one device, on the current stream."""

    uses_alignment = True
    addresses = True

    def __init__(self, device: int) -> None:
        architecture = cuda.architecture(device)
        self.device = device
        self.target = Target("cuda", architecture, cuda.multiprocessor_count(device))
        self.compiler = CudaCompiler(architecture)
        self.array_type = cuda.array_type()
        # With one GPU every array is on it, and it is the current one.
        self._several = cuda.device_count() > 1

    def compile(self, kernel: Kernel, disk: DiskCache | None = None) -> Any:
        return self.compiler.compile(kernel, disk)

    def entry(self, function: Any) -> Callable[..., None]:
        with cuda.on_device(self.device):
            return function.launcher(self.device)  # type: ignore[no-any-return]

    def require_graphs(self) -> None:
        """Every GPU has them."""

    def kept_room(self) -> Callable[[int], Any]:
        return cuda.KeptRoom()

    def graph(self, functions: Sequence[Any]) -> Callable[..., None]:
        with cuda.on_device(self.device):
            return CudaGraph(functions, self.device)

    def argument_text(self, name: str) -> str:
        return f"{name}.data.ptr"

    def stream_text(self) -> str | None:
        return "current_stream().ptr"

    def product(self, dtype: DType) -> Callable[[Any, Any, bool], Any] | None:
        return cublas.product_of(dtype)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return cuda.empty(shape, dtype)

    def over(self, array: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        return cuda.over(array, shape, dtype)

    def owner_of(self, array: Any) -> Any:
        return array  # which views refer to

    def as_array(self, value: Any) -> Any:
        if not cuda.is_array(value):
            name = type(value).__name__
            raise DeviceError(
                f"{name} is no CuPy array, and the function is for CUDA device {self.device}",
                hint="pass cupy.asarray(x)",
            )
        if cuda.device_of(value) != self.device:
            raise DeviceError(
                f"an array of device {cuda.device_of(value)} is given to kernels of device {self.device}",
                hint="copy it: with cupy.cuda.Device(k): y = cupy.asarray(x)",
            )
        return value.view(self.array_type)

    def open_streams(self) -> Streams:
        return cuda_streams.CudaStreams(self.device)

    def is_plain(self, array: Any) -> bool:
        return array._c_contiguous and self.is_aligned(array)

    def here_text(self, name: str) -> str | None:
        return f"{name}.data.device_id == {self.device}" if self._several else None

    def plain_text(self, name: str, address: str, itemsize: int) -> str:
        return f"{name}._c_contiguous" + (f" and {address} % {itemsize} == 0" if itemsize > 1 else "")

    def is_wide(self, array: Any) -> bool:
        return array.data.ptr % 16 == 0  # type: ignore[no-any-return]

    def wide_text(self, name: str, address: str) -> str:
        return f"{address} % 16 == 0"

    def empty_text(self, shape: str, dtype: str, size: str) -> str:
        return f"new({shape}, {dtype}, {size})"

    def is_aligned(self, array: Any) -> bool:
        return array.data.ptr % array.dtype.itemsize == 0  # type: ignore[no-any-return]

    def is_writable(self, array: Any) -> bool:
        return True

    def may_share(self, one: Any, two: Any) -> bool:
        if not (one._c_contiguous and two._c_contiguous):
            return True
        first, second = one.data.ptr, two.data.ptr
        return first < second + two.nbytes and second < first + one.nbytes  # type: ignore[no-any-return]

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def on_host(self, array: Any) -> Any:
        return cuda.to_numpy(array)

    def synchronize(self) -> None:
        cuda.synchronize()

    def elsewhere_text(self) -> str | None:
        return f"current_device() != {self.device}" if self._several else None

    def names(self) -> dict[str, Any]:
        return {
            **super().names(), "current_device": cuda.current_device_function(), "room": cuda.room, "new": cuda.new,
            "current_stream": cuda.current_stream_function(),
        }  # fmt: skip

    def on_device(self, call: Callable[[Any], Any], arguments: Any) -> Any:
        with cuda.on_device(self.device):
            return call(arguments)


@dataclass(frozen=True, slots=True)
class EmittedKernel:
    """A CUDA kernel that was written but not compiled."""

    kernel: Kernel
    source: str


class CudaTextBackend(Backend):
    """CUDA kernels written and not compiled, for a machine with no GPU: to be read. Launching raises DeviceError."""

    array_type = np.ndarray
    uses_alignment = True

    def __init__(self, architecture: str, multiprocessors: int) -> None:
        self.target = Target("cuda", architecture, multiprocessors)

    def _refuse(self, *arguments: Any) -> NoReturn:
        raise DeviceError(
            f"CUDA kernels cannot run here: {str(cuda.unavailable()).splitlines()[0]}",
            hint="f.segments(*args) shows them; target='cpu' or 'auto' runs NumPy arrays on the CPU",
        )

    def compile(self, kernel: Kernel, disk: DiskCache | None = None) -> Any:
        return EmittedKernel(kernel, emit_cuda(kernel))

    def entry(self, function: Any) -> Callable[..., None]:
        return self._refuse

    def require_graphs(self) -> None:
        """They are shown as they are without."""

    def graph(self, functions: Sequence[Any]) -> Callable[..., None]:
        return self._refuse

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        self._refuse()

    def as_array(self, value: Any) -> Any:
        self._refuse()

    def open_streams(self) -> Streams:
        self._refuse()

    def is_plain(self, array: Any) -> bool:
        return bool(array.flags.num & _PLAIN == _PLAIN)

    def is_wide(self, array: Any) -> bool:
        return bool(array.ctypes.data % 16 == 0)

    def is_aligned(self, array: Any) -> bool:
        return bool(array.flags.aligned)

    def is_writable(self, array: Any) -> bool:
        return bool(array.flags.writeable)

    def address(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0])


@functools.cache
def cpu_backend() -> CpuBackend:
    """The backend of this machine's processor."""
    return CpuBackend()


@functools.cache
def cuda_backend(device: int) -> CudaBackend:
    """The backend of one GPU. Raises DeviceError where there is none."""
    return CudaBackend(device)


@functools.cache
def cuda_text_backend(architecture: str = "sm_90", multiprocessors: int = 132) -> CudaTextBackend:
    """CUDA kernels as texts; by default for an H100 or H200 (compute capability 9.0, 132 multiprocessors)."""
    return CudaTextBackend(architecture, multiprocessors)


def resolve_target(target: str, device: int | None) -> tuple[str, int | None]:
    """(target, GPU) for the option `target` and the GPU that holds the arrays, None for the host."""
    if target in ("auto", "reference"):
        return ("cpu", None) if device is None else ("cuda", device)
    if target == "cpu":
        return target, None
    return target, (cuda.current_device() if device is None and cuda.unavailable() is None else device)


def backend_for(target: str, device: int = 0) -> Backend:
    """The backend of a target ("cpu" or "cuda"); CUDA kernels are only written where no GPU can be used."""
    if target == "cpu":
        return cpu_backend()
    return cuda_backend(device) if cuda.unavailable() is None else cuda_text_backend()
