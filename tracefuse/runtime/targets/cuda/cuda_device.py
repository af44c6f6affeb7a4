"""One GPU: CuPy arrays in its memory, on the current stream.

Allocations, copies and streams are those of CuPy (runtime/devices/).

Must not know: kernels, plans.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segments import Streams
from tracefuse.dtypes import DType
from tracefuse.dynamic.layouts import known_bounds
from tracefuse.errors import DeviceError
from tracefuse.runtime.devices import cuda_arrays, cuda_streams
from tracefuse.runtime.targets.array_device import ArrayDevice


class CudaDevice(ArrayDevice):
    """The memory of one GPU, with CuPy arrays."""

    uses_alignment = True

    def __init__(self, number: int) -> None:
        self.number = number
        self.array_type = cuda_arrays.array_type()

    def as_array(self, value: Any) -> Any:
        if not cuda_arrays.is_array(value):
            name = type(value).__name__
            raise DeviceError(
                f"{name} is no CuPy array, and the function is for CUDA device {self.number}",
                hint="pass cupy.asarray(x)",
            )
        if cuda_arrays.device_of(value) != self.number:
            raise DeviceError(
                f"an array of device {cuda_arrays.device_of(value)} is given to kernels of device {self.number}",
                hint="copy it: with cupy.cuda.Device(k): y = cupy.asarray(x)",
            )
        return value if type(value) is self.array_type else value.view(self.array_type)

    def is_plain(self, array: Any) -> bool:
        return array._c_contiguous and self.is_aligned(array)

    def is_wide(self, array: Any) -> bool:
        return array.data.ptr % 16 == 0  # type: ignore[no-any-return]

    def is_aligned(self, array: Any) -> bool:
        return array.data.ptr % array.dtype.itemsize == 0  # type: ignore[no-any-return]

    def is_writable(self, array: Any) -> bool:
        return True

    def may_share(self, first: Any, second: Any) -> bool:
        low, high = known_bounds(first.shape, first.strides, first.itemsize)
        other_low, other_high = known_bounds(second.shape, second.strides, second.itemsize)
        distance = second.data.ptr - first.data.ptr
        return low < distance + other_high and distance + other_low < high  # type: ignore[no-any-return]

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def owner_of(self, array: Any) -> Any:
        return cuda_arrays.owner_of(array)

    def reuse_buffer(self, array: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        return cuda_arrays.reuse_buffer(array, shape, dtype)

    def standing_for(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> Any:
        with cuda_arrays.on_device(self.number):
            return cuda_arrays.standing_for(shape, strides, dtype)

    def on_host(self, array: Any) -> Any:
        return cuda_arrays.to_numpy(array)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return cuda_arrays.empty(shape, dtype)

    def open_streams(self) -> Streams:
        return cuda_streams.CudaStreams(self.number)

    def synchronize(self) -> None:
        cuda_arrays.synchronize()

    def on_device(self, call: Callable[[Any], Any], arguments: Any) -> Any:
        with cuda_arrays.on_device(self.number):
            return call(arguments)

    def stream_worker_count(self, size: int, streams: int) -> int:
        return streams

    def run_stream_workers(
        self, caller: Any, start_worker: Callable[[Any, int], Callable[[int], None]], total: int, streams: int
    ) -> None:
        cuda_streams.run_stream_workers(self.number, caller, start_worker, total, streams)

    def integers(self, start: int, count: int) -> Any:
        return cuda_arrays.namespace().arange(start, start + count, dtype="int64")

    def copier(self, source: Any, target: Any) -> Callable[[Any], Callable[..., None]] | None:
        return cuda_arrays.copier(source.nbytes) if source._c_contiguous and target._c_contiguous else None

    def is_recording(self) -> bool:
        return cuda_arrays.is_recording()

    def persistent_arena(self) -> Callable[[int, int], Any]:
        return cuda_arrays.PersistentArena()
