"""GPU arrays, streams and devices: all uses of CuPy except kernel launches.

The first function that needs CuPy imports it. `is_array` does not, because an object can only be a CuPy array if CuPy
is already loaded.

CuPy 14 supports arrays of `ml_dtypes.bfloat16`. Older releases do not, and `empty` raises an error that says so.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tracefuse.caches import BoundedTable, Cache, memoized, register
from tracefuse.dtypes import DType
from tracefuse.errors import DeviceError, DtypeError, OutOfMemoryError

ALIGNMENT = 64  # the guaranteed alignment of every array that tracefuse allocates; CuPy's pool aligns to 512


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(
            f"CuPy cannot be imported: {error}",
            hint="install tracefuse[cuda13] or tracefuse[cuda12], whichever the driver supports",
        ) from None
    return cupy


def unavailable() -> str | None:
    """Returns why no GPU is usable in this process, None if one is."""
    try:
        count = _cupy().cuda.runtime.getDeviceCount()
    except DeviceError as error:
        return str(error)
    except RuntimeError as error:  # from the CUDA runtime: no driver or no device
        return f"CUDA reports: {error}"
    return None if count else "CUDA reports no device"


def namespace() -> Any:
    """Returns the module cupy. Raises DeviceError if it cannot be imported."""
    return _cupy()


def array_type() -> type:
    """Returns cupy.ndarray."""
    array_class: type = _cupy().ndarray
    return array_class


def is_array(value: object) -> bool:
    """Whether `value` is a CuPy array."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(value, cupy.ndarray)


# ---------------------------------------------------------------------------------------------------------------------
# allocation


def empty(shape: tuple[int, ...], dtype: DType) -> Any:
    """Returns a new, uninitialized C-contiguous array from CuPy's memory pool on the current device.

    Raises OutOfMemoryError if the device is out of memory, DtypeError for a dtype that this CuPy does not support.
    """
    array, allocate = _array_and_allocator()
    size = math.prod(shape) * dtype.itemsize
    try:
        return array(shape, dtype.numpy, allocate(size))
    except MemoryError as error:
        raise _out_of_memory(size, f"{dtype.short}{list(shape)}", error) from error
    except (TypeError, ValueError) as error:
        raise DtypeError(f"this CuPy does not support {dtype.name}: {error}") from error


def allocator() -> Callable[[int], Any]:
    """Returns CuPy's function that allocates so many bytes on the current device. It raises MemoryError."""
    allocate: Callable[[int], Any] = _array_and_allocator()[1]
    return allocate


def reuse_buffer(array: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """Returns a new array in the memory of `array`, which is contiguous and has the same number of bytes."""
    return _array_and_allocator()[0](shape, dtype.numpy, array.data)


def owner_of(array: Any) -> Any:
    """Returns the base array of a view, or the array itself."""
    while array.base is not None:
        array = array.base
    return array


def standing_for(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> Any:
    """Returns a placeholder array with the given shape and strides in elements. It has the memory of one element."""
    array, allocate = _array_and_allocator()
    return array(shape, dtype.numpy, allocate(dtype.itemsize), tuple(dtype.itemsize * stride for stride in strides))


def allocate_bytes(size: int) -> Any:
    """Allocates memory from CuPy's pool on the current device. `ptr` is its address. Raises the errors of `empty`."""
    try:
        return _array_and_allocator()[1](size)
    except MemoryError as error:
        raise _out_of_memory(size, "intermediate results", error) from error


def own_memory(size: int) -> Any:
    """Allocates memory outside of CuPy's pool on the current device, until the returned object is dropped."""
    try:
        return _cupy().cuda.Memory(size)
    except MemoryError as error:
        raise _out_of_memory(size, "the workspace of a library", error) from error


PER_THREAD_STREAM = 2
"""The address that CUDA gives for the default stream of each thread where threads have one of their own."""
MOST_ARENAS = 4


def stream_key(stream: int) -> tuple[int, int]:
    """Returns what distinguishes a stream, given its address, from the other streams of the process."""
    return stream, threading.get_ident() if stream == PER_THREAD_STREAM else 0


class PersistentArena:
    """An arena for all calls on a stream, which grows to the largest requested size, at least by half each time.

    It must be called with the current stream. Memory that it drops returns to the pool in the order of that stream, so
    that work in flight can still use it.
    """

    def __init__(self) -> None:
        self._arenas: BoundedTable[tuple[int, int], tuple[int, Any]] = BoundedTable(MOST_ARENAS)

    def __call__(self, stream: int, size: int) -> Any:
        key = stream_key(stream)
        most, memory = self._arenas.get(key, (-1, None))
        if size > most:
            most = max(size, most + most // 2)
            memory = allocate_bytes(most)
            self._arenas[key] = most, memory
        return memory


register(Cache(
    "runtime.devices.cuda_arrays.PersistentArena._arenas", "the intermediates of a CUDA graph", "stream, thread",
    f"{MOST_ARENAS}, oldest first", "a compiled call",
))  # fmt: skip


def _out_of_memory(size: int, purpose: str, error: Exception) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"out of memory on device {current_device()}: {size} bytes for {purpose}: {error}",
        hint="free arrays, or release cached memory with cupy.get_default_memory_pool().free_all_blocks()",
    )


@memoized("CuPy's array type and allocator", key="none", most=1, clears=False)
def _array_and_allocator() -> tuple[Any, Any]:
    """Returns CuPy's array type and its current allocator, which is its pool unless the user has set another."""
    cupy = _cupy()
    return cupy.ndarray, cupy.cuda.alloc


def pointer(array: Any) -> int:
    """Returns the device address of the array's first element."""
    return int(array.data.ptr)


def alignment(array: Any) -> int:
    """Returns the largest power of two, up to 64, that divides the array's address; 64 for an empty array."""
    address = int(array.data.ptr)
    return min(address & -address, ALIGNMENT) if address and array.size else ALIGNMENT


def to_device(array: Any, number: int) -> Any:
    """Returns a copy of a NumPy array on a device."""
    with on_device(number):
        return namespace().asarray(array)


def to_numpy(array: Any) -> np.ndarray[Any, Any]:
    """Copies an array to the host, after the work queued on the current stream."""
    result: np.ndarray[Any, Any] = array.get()
    return result


_in_flight: deque[tuple[Any, list[Any]]] = deque()
"""The arrays that queued work reads, each list with an event after that work."""


def hold_until_done(arrays: list[Any]) -> None:
    """Keeps arrays alive until the work that is now queued on the current stream has run.

    It also drops the arrays of earlier calls whose work is done, without waiting.
    """
    while _in_flight:
        try:
            event, earlier = _in_flight.popleft()
        except IndexError:  # another thread emptied it
            break
        if not event.done:
            _in_flight.appendleft((event, earlier))
            break
    if arrays:
        event = _cupy().cuda.Event(disable_timing=True)
        event.record(current_stream())
        _in_flight.append((event, arrays))


# ---------------------------------------------------------------------------------------------------------------------
# devices and streams


def device_count() -> int:
    """Returns the number of GPUs that this process sees."""
    return int(_cupy().cuda.runtime.getDeviceCount())


def current_device() -> int:
    """Returns the number of the current device of this thread."""
    return int(_cupy().cuda.runtime.getDevice())


def current_device_function() -> Callable[[], int]:
    """Returns the function that `current_device` calls, for callers on the fast path."""
    function: Callable[[], int] = _cupy().cuda.runtime.getDevice
    return function


def current_stream_function() -> Callable[[], Any]:
    """Returns the function that `current_stream` calls, for callers on the fast path."""
    function: Callable[[], Any] = _cupy().cuda.get_current_stream
    return function


def device_of(array: Any) -> int:
    """Returns the number of the device that holds a CuPy array."""
    return int(array.device.id)


@contextmanager
def on_device(number: int) -> Iterator[None]:
    """Makes a device the current one. Costs almost nothing if it already is."""
    cupy = _cupy()
    if cupy.cuda.runtime.getDevice() == number:
        yield
        return
    with cupy.cuda.Device(number):
        yield


@memoized("the architecture of a GPU", key="device", most=None, bound="GPUs", clears=False)
def architecture(number: int) -> str:
    """Returns the architecture of a device as the compiler names it, such as "sm_90"."""
    return f"sm_{_cupy().cuda.Device(number).compute_capability}"


@memoized("multiprocessors of a GPU", key="device", most=None, bound="GPUs", clears=False)
def multiprocessor_count(number: int) -> int:
    """Returns the number of streaming multiprocessors of a device."""
    return int(_cupy().cuda.Device(number).attributes["MultiProcessorCount"])


@memoized("shared memory of a GPU", key="device", most=None, bound="GPUs", clears=False)
def most_shared_bytes(number: int) -> int:
    """Returns the most shared memory of a block, in bytes."""
    return int(_cupy().cuda.Device(number).attributes["MaxSharedMemoryPerBlockOptin"])


@memoized("the name of a GPU", key="device", most=None, bound="GPUs", clears=False)
def device_name(number: int) -> str:
    """Returns the name of a device, as CUDA reports it."""
    name: bytes = _cupy().cuda.runtime.getDeviceProperties(number)["name"]
    return name.decode()


def current_stream() -> Any:
    """Returns CuPy's current stream of this thread and device."""
    return _cupy().cuda.get_current_stream()


def is_recording() -> bool:
    """Whether the work on the current stream is being recorded into a CUDA graph; the default stream's cannot be."""
    stream: int = current_stream().ptr
    return stream > PER_THREAD_STREAM and recording_function()(stream)


def recording_function() -> Callable[[int], bool]:
    """Returns the function that tells whether the work on a stream, given by its address, is being recorded."""
    function: Callable[[int], bool] = _cupy().cuda.runtime.streamIsCapturing
    return function


class _ForeignStream:
    """Another library's stream with CUDA's stream protocol, which returns (version, address)."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.address)


def external_stream(address: int) -> Any:
    """Returns another library's stream as a CuPy stream, for `with external_stream(address): ...`."""
    stream = _cupy().cuda.Stream
    # CuPy 14 accepts any object with the protocol and deprecates ExternalStream.
    if hasattr(stream, "from_external"):
        return stream.from_external(_ForeignStream(address))
    return _cupy().cuda.ExternalStream(address)


def new_stream() -> Any:
    """Creates a stream that does not synchronize with the default stream."""
    return _cupy().cuda.Stream(non_blocking=True)


def record_event(stream: Any) -> Any:
    """Records an event, without timing, after the work queued on `stream`."""
    return stream.record(_cupy().cuda.Event(disable_timing=True))


def wait(stream: Any, event: Any) -> None:
    """Makes `stream` wait for `event`, without blocking the host."""
    stream.wait_event(event)


def copier(size: int) -> Callable[[int], Callable[[int, int], None]]:
    """Returns a function from the address of a stream to a function that copies `size` bytes on it.

    The copy function takes the addresses of the source and the target.
    """
    copy, kind = _cupy().cuda.runtime.memcpyAsync, _cupy().cuda.runtime.memcpyDeviceToDevice

    def on_stream(stream: int) -> Callable[[int, int], None]:
        def run(source: int, target: int) -> None:
            copy(target, source, size, kind, stream)

        return run

    return on_stream


def stream_functions() -> tuple[Callable[..., None], Callable[..., None]]:
    """Returns CUDA's functions eventRecord(event, stream) and streamWaitEvent(stream, event), which take addresses."""
    runtime = _cupy().cuda.runtime
    return runtime.eventRecord, runtime.streamWaitEvent


def new_event() -> Any:
    """Creates an event without timing."""
    return _cupy().cuda.Event(disable_timing=True)


def synchronize() -> None:
    """Blocks the host until all work on the current stream is done. Raises DeviceError if the work failed."""
    cupy = _cupy()
    try:
        cupy.cuda.get_current_stream().synchronize()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"work on device {current_device()} failed: {error}") from error


def versions() -> dict[str, str]:
    """Returns the versions of CUDA: of the runtime that CuPy uses and of the driver."""
    runtime = _cupy().cuda.runtime
    numbers = {"CUDA runtime": runtime.runtimeGetVersion(), "CUDA driver": runtime.driverGetVersion()}
    return {name: f"{number // 1000}.{number % 1000 // 10}" for name, number in numbers.items()}


def described_devices() -> tuple[str, ...]:
    """Describes each GPU by name, architecture and memory."""
    runtime = _cupy().cuda.runtime
    described = []
    for number in range(runtime.getDeviceCount()):
        facts = runtime.getDeviceProperties(number)
        memory = f"{facts['totalGlobalMem'] / 2**30:.0f} GiB"
        described.append(f"{facts['name'].decode()}, {architecture(number)}, {memory}")
    return tuple(described)
