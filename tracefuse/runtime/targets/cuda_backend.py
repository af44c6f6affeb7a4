"""The backends of GPUs: CUDA kernels on CuPy arrays of one device, and CUDA kernels that are only written.

Knows: CuPy arrays, the compiler for CUDA. Must not know: segments, plans, frontends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from segments import Streams
from tracefuse.dtypes import DType
from tracefuse.dynamic.layouts import known_bounds
from tracefuse.errors import DeviceError
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.cuda.cuda_functions import CudaCompiler
from tracefuse.kernel.cuda.cuda_graph import CudaGraph
from tracefuse.kernel.cuda.emit_cuda import emit_cuda
from tracefuse.kernel.kernel_ir import Kernel
from tracefuse.runtime.devices import cublas, cuda_arrays, cuda_streams
from tracefuse.runtime.targets.backend import Backend
from tracefuse.runtime.targets.cpu_backend import PLAIN
from tracefuse.schedule.choose import Target


class CudaBackend(Backend):
    """CUDA kernels on CuPy arrays of one device, on the current stream."""

    uses_alignment = True
    addresses = True

    def __init__(self, device: int) -> None:
        architecture = cuda_arrays.architecture(device)
        self.device = device
        self.target = Target("cuda", architecture, cuda_arrays.multiprocessor_count(device))
        self.compiler = CudaCompiler(architecture)
        self.array_type = cuda_arrays.array_type()
        # With one GPU every array is on it, and it is the current one.
        self._several = cuda_arrays.device_count() > 1

    def compile(self, kernel: Kernel, disk: DiskCache | None = None) -> Any:
        return self.compiler.compile(kernel, disk)

    def entry(self, function: Any) -> Callable[..., None]:
        with cuda_arrays.on_device(self.device):
            return function.launcher(self.device)  # type: ignore[no-any-return]

    def require_graphs(self) -> None:
        """Every GPU has them."""

    def kept_room(self) -> Callable[[int], Any]:
        return cuda_arrays.PersistentArena()

    def graph(self, functions: Sequence[Any]) -> Callable[..., None]:
        with cuda_arrays.on_device(self.device):
            return CudaGraph(functions, self.device)

    def argument_text(self, name: str) -> str:
        return f"{name}.data.ptr"

    def stream_text(self) -> str | None:
        return "current_stream().ptr"

    def product(self, dtype: DType) -> Callable[[Any, Any, bool], Any] | None:
        return cublas.product_of(dtype)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return cuda_arrays.empty(shape, dtype)

    def standing_for(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> Any:
        with cuda_arrays.on_device(self.device):
            return cuda_arrays.standing_for(shape, strides, dtype)

    def over(self, array: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        return cuda_arrays.over(array, shape, dtype)

    def owner_of(self, array: Any) -> Any:
        return cuda_arrays.owner_of(array)

    def as_array(self, value: Any) -> Any:
        if not cuda_arrays.is_array(value):
            name = type(value).__name__
            raise DeviceError(
                f"{name} is no CuPy array, and the function is for CUDA device {self.device}",
                hint="pass cupy.asarray(x)",
            )
        if cuda_arrays.device_of(value) != self.device:
            raise DeviceError(
                f"an array of device {cuda_arrays.device_of(value)} is given to kernels of device {self.device}",
                hint="copy it: with cupy.cuda.Device(k): y = cupy.asarray(x)",
            )
        return value if type(value) is self.array_type else value.view(self.array_type)

    def open_streams(self) -> Streams:
        return cuda_streams.CudaStreams(self.device)

    def lanes_of(self, size: int, streams: int) -> int:
        return streams

    def run_lanes(self, own: Any, lane: Callable[[Any, int], Callable[[int], None]], total: int, streams: int) -> None:
        cuda_streams.run_stream_workers(self.device, own, lane, total, streams)

    def copier(self, source: Any, target: Any) -> Callable[[Any], Callable[..., None]] | None:
        return cuda_arrays.copier(source.nbytes) if source._c_contiguous and target._c_contiguous else None

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

    def writable_text(self, name: str) -> str | None:
        return None

    def empty_text(self, shape: str, dtype: str, size: str) -> str:
        return f"new({shape}, {dtype}, {size})"

    def is_aligned(self, array: Any) -> bool:
        return array.data.ptr % array.dtype.itemsize == 0  # type: ignore[no-any-return]

    def is_writable(self, array: Any) -> bool:
        return True

    def may_share(self, one: Any, two: Any) -> bool:
        low, high = known_bounds(one.shape, one.strides, one.itemsize)
        other_low, other_high = known_bounds(two.shape, two.strides, two.itemsize)
        distance = two.data.ptr - one.data.ptr
        return low < distance + other_high and distance + other_low < high  # type: ignore[no-any-return]

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def on_host(self, array: Any) -> Any:
        return cuda_arrays.to_numpy(array)

    def synchronize(self) -> None:
        cuda_arrays.synchronize()

    def elsewhere_text(self) -> str | None:
        return f"current_device() != {self.device}" if self._several else None

    def names(self) -> dict[str, Any]:
        return {
            **super().names(),
            "current_device": cuda_arrays.current_device_function(),
            "allocate": cuda_arrays.allocate_bytes,
            "new": cuda_arrays.new,
            "current_stream": cuda_arrays.current_stream_function(),
        }

    def on_device(self, call: Callable[[Any], Any], arguments: Any) -> Any:
        with cuda_arrays.on_device(self.device):
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
            f"CUDA kernels cannot run here: {str(cuda_arrays.unavailable()).splitlines()[0]}",
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
        return bool(array.flags.num & PLAIN == PLAIN)

    def is_wide(self, array: Any) -> bool:
        return bool(array.ctypes.data % 16 == 0)

    def is_aligned(self, array: Any) -> bool:
        return bool(array.flags.aligned)

    def is_writable(self, array: Any) -> bool:
        return bool(array.flags.writeable)

    def address(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0])
