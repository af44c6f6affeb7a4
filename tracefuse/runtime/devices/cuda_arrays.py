"""GPU arrays, streams and devices: everything that tracefuse asks of CuPy besides launching kernels.

CuPy is imported when the first function here needs it, and never for asking whether some object is a GPU array: an
object can only be one if CuPy is loaded already.

bfloat16: CuPy 14 holds arrays of `ml_dtypes.bfloat16` as they are where ml_dtypes is installed, which tracefuse needs
anyway; with an older CuPy such an array cannot exist, and `empty` says so.

Knows: CuPy. Must not know: kernels, fusions.
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

from tracefuse.caches import memoized
from tracefuse.dtypes import DType, dtype_of
from tracefuse.errors import DeviceError, DtypeError, OutOfMemoryError

ALIGNMENT = 64  # bytes promised for every array that tracefuse makes; CuPy's pool rounds to 512


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(
            f"CuPy cannot be imported: {error}",
            hint="install tracefuse[cuda13] or tracefuse[cuda12], as the driver has it",
        ) from None
    return cupy


def unavailable() -> str | None:
    """Why no GPU can be used here, or None if one can."""
    try:
        count = _cupy().cuda.runtime.getDeviceCount()
    except DeviceError as error:
        return str(error)
    except RuntimeError as error:  # CuPy's errors of CUDA's runtime: no driver, no device
        return f"CUDA reports: {error}"
    return None if count else "CUDA reports no device"


def namespace() -> Any:
    """The module cupy. Raises DeviceError where it cannot be imported."""
    return _cupy()


def array_type() -> type:
    """cupy.ndarray."""
    found: type = _cupy().ndarray
    return found


def is_array(value: object) -> bool:
    """Whether `value` is a CuPy array."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(value, cupy.ndarray)


def is_foreign_array(value: object) -> bool:
    """Whether `value` is no CuPy array but lies on a CUDA device and can be taken over DLPack."""
    device = getattr(value, "__dlpack_device__", None)
    if device is None or isinstance(value, np.ndarray) or is_array(value):
        return False
    kind = int(device()[0])
    return kind in (2, 13)  # kDLCUDA, kDLCUDAManaged of dlpack.h


def from_foreign(value: object) -> Any:
    """A CuPy array over the memory of a foreign GPU array, ordered after the work queued on it.

    Raises DtypeError for element types that CuPy cannot hold, DeviceError for arrays that do not export DLPack.
    """
    cupy = _cupy()
    try:
        array = cupy.from_dlpack(value)
    except NotImplementedError as error:
        raise DtypeError(f"{type(value).__name__} cannot become a CuPy array: {error}") from error
    except (AttributeError, BufferError, RuntimeError) as error:
        raise DeviceError(f"{type(value).__name__} does not give its memory away: {error}") from error
    dtype_of(array.dtype)
    return array


# ---------------------------------------------------------------------------------------------------------------------
# allocation


def empty(shape: tuple[int, ...], dtype: DType) -> Any:
    """A new C-contiguous array from CuPy's memory pool on the current device; its content is unspecified.

    Raises OutOfMemoryError when the device is out of memory, DtypeError for a type that this CuPy does not have.
    """
    return new(shape, dtype, math.prod(shape) * dtype.itemsize)


def new(shape: tuple[int, ...], dtype: DType, size: int) -> Any:
    """`empty`, where the bytes are known."""
    array, allocate = _makers()
    try:
        return array(shape, dtype.numpy, allocate(size))
    except MemoryError as error:
        raise _out_of_memory(size, f"{dtype.short}{list(shape)}", error) from error
    except (TypeError, ValueError) as error:
        raise DtypeError(f"this CuPy makes no arrays of {dtype.name}: {error}") from error


def over(array: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """A new array in the memory of another, which is contiguous and has as many bytes."""
    return _makers()[0](shape, dtype.numpy, array.data)


def owner_of(array: Any) -> Any:
    """The array that views of it refer to, itself if it is no view."""
    while array.base is not None:
        array = array.base
    return array


def standing_for(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> Any:
    """An array with strides in elements that nothing reads or writes: it has one element's memory."""
    array, allocate = _makers()
    return array(shape, dtype.numpy, allocate(dtype.itemsize), tuple(dtype.itemsize * stride for stride in strides))


def room(size: int) -> Any:
    """New memory from CuPy's pool on the current device, with its address as `ptr`; raises as `empty`."""
    try:
        return _makers()[1](size)
    except MemoryError as error:
        raise _out_of_memory(size, "intermediate results", error) from error


class KeptRoom:
    """One memory for every call, which grows to the largest size asked for.

    What it was before is kept, since kernels in flight may use it; each is at least half as large again as the last.
    """

    def __init__(self) -> None:
        self._rooms: list[Any] = []
        self._size = -1
        self._lock = threading.Lock()

    def __call__(self, size: int) -> Any:
        if size > self._size:
            with self._lock:
                if size > self._size:
                    larger = max(size, self._size + self._size // 2)
                    self._rooms.append(room(larger))
                    self._size = larger
        return self._rooms[-1]


def _out_of_memory(size: int, what: str, error: Exception) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"out of memory on device {current_device()}: {size} bytes for {what}: {error}",
        hint="free arrays, or give cached memory back with cupy.get_default_memory_pool().free_all_blocks()",
    )


@memoized("CuPy's array type and allocator", key="none", most=1, clears=False)
def _makers() -> tuple[Any, Any]:
    """CuPy's array type, and its current allocator: its pool, unless the user has set another."""
    cupy = _cupy()
    return cupy.ndarray, cupy.cuda.alloc


def pointer(array: Any) -> int:
    """The device address of the array's first element."""
    return int(array.data.ptr)


def alignment(array: Any) -> int:
    """The largest power of two, up to 64, that divides the array's address; 64 for an empty array."""
    address = int(array.data.ptr)
    return min(address & -address, ALIGNMENT) if address and array.size else ALIGNMENT


def to_numpy(array: Any) -> np.ndarray[Any, Any]:
    """A copy on the host, when the work that makes the array is done."""
    result: np.ndarray[Any, Any] = array.get()
    return result


_held: deque[tuple[Any, list[Any]]] = deque()
"""What is read by work in flight: an event after it, and the arrays."""


def hold_until_done(arrays: list[Any]) -> None:
    """Keeps arrays until the work that is queued on the current stream now has run.

    What was kept before is let go where its work has run by now; nothing is waited for.
    """
    while _held:
        try:
            event, kept = _held.popleft()
        except IndexError:  # another thread was faster
            break
        if not event.done:
            _held.appendleft((event, kept))
            break
    if arrays:
        event = _cupy().cuda.Event(disable_timing=True)
        event.record(current_stream())
        _held.append((event, arrays))


# ---------------------------------------------------------------------------------------------------------------------
# devices and streams


def device_count() -> int:
    """How many GPUs this process sees."""
    return int(_cupy().cuda.runtime.getDeviceCount())


def current_device() -> int:
    """The number of the current device of this thread."""
    return int(_cupy().cuda.runtime.getDevice())


def current_device_function() -> Callable[[], int]:
    """What `current_device` calls: CuPy's own function, for callers that count each call."""
    found: Callable[[], int] = _cupy().cuda.runtime.getDevice
    return found


def current_stream_function() -> Callable[[], Any]:
    """What `current_stream` calls, likewise."""
    found: Callable[[], Any] = _cupy().cuda.get_current_stream
    return found


def device_of(array: Any) -> int:
    """The number of the device that holds a CuPy array."""
    return int(array.device.id)


@contextmanager
def on_device(number: int) -> Iterator[None]:
    """Makes a device the current one; costs next to nothing where it is already."""
    cupy = _cupy()
    if cupy.cuda.runtime.getDevice() == number:
        yield
        return
    with cupy.cuda.Device(number):
        yield


@memoized("the architecture of a GPU", key="device", most=None, bound="GPUs", clears=False)
def architecture(number: int) -> str:
    """The architecture of a device as the compiler names it, such as "sm_90"."""
    return f"sm_{_cupy().cuda.Device(number).compute_capability}"


@memoized("multiprocessors of a GPU", key="device", most=None, bound="GPUs", clears=False)
def multiprocessor_count(number: int) -> int:
    """Streaming multiprocessors of a device."""
    return int(_cupy().cuda.Device(number).attributes["MultiProcessorCount"])


@memoized("the name of a GPU", key="device", most=None, bound="GPUs", clears=False)
def device_name(number: int) -> str:
    """The device's name as CUDA gives it."""
    name: bytes = _cupy().cuda.runtime.getDeviceProperties(number)["name"]
    return name.decode()


def current_stream() -> Any:
    """CuPy's current stream of this thread and device."""
    return _cupy().cuda.get_current_stream()


class _ForeignStream:
    """Another library's stream, as CUDA's stream protocol hands it over: (version, address)."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.address)


def external_stream(address: int) -> Any:
    """CuPy's view of another library's stream, to be used as `with external_stream(address): ...`."""
    stream = _cupy().cuda.Stream
    # CuPy 14 takes any object with the protocol and deprecates the class that earlier releases have.
    if hasattr(stream, "from_external"):
        return stream.from_external(_ForeignStream(address))
    return _cupy().cuda.ExternalStream(address)


def new_stream() -> Any:
    """A stream that does not wait for the default one."""
    return _cupy().cuda.Stream(non_blocking=True)


def record_event(stream: Any) -> Any:
    """An event after the work queued on `stream` so far; it takes no time stamps."""
    return stream.record(_cupy().cuda.Event(disable_timing=True))


def wait(stream: Any, event: Any) -> None:
    """`stream` goes on after `event`; the host does not wait."""
    stream.wait_event(event)


def copier(size: int) -> Callable[[int], Callable[[int, int], None]]:
    """From the address of a stream: a function that copies so many bytes there, from one address to another."""
    copy, kind = _cupy().cuda.runtime.memcpyAsync, _cupy().cuda.runtime.memcpyDeviceToDevice

    def on_stream(stream: int) -> Callable[[int, int], None]:
        def run(source: int, target: int) -> None:
            copy(target, source, size, kind, stream)

        return run

    return on_stream


def stream_functions() -> tuple[Callable[..., None], Callable[..., None]]:
    """(record an event on a stream, let a stream wait for an event), by their addresses: CUDA's own functions."""
    runtime = _cupy().cuda.runtime
    return runtime.eventRecord, runtime.streamWaitEvent


def new_event() -> Any:
    """An event that takes no time stamps."""
    return _cupy().cuda.Event(disable_timing=True)


def synchronize() -> None:
    """Waits on the host for all work on the current stream. Raises DeviceError if it failed."""
    cupy = _cupy()
    try:
        cupy.cuda.get_current_stream().synchronize()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"work on device {current_device()} failed: {error}") from error


def versions() -> dict[str, str]:
    """CUDA's versions: of the runtime that CuPy uses and of the driver."""
    runtime = _cupy().cuda.runtime
    numbers = {"CUDA runtime": runtime.runtimeGetVersion(), "CUDA driver": runtime.driverGetVersion()}
    return {name: f"{number // 1000}.{number % 1000 // 10}" for name, number in numbers.items()}


def described_devices() -> tuple[str, ...]:
    """Name, architecture and memory of each GPU."""
    runtime = _cupy().cuda.runtime
    described = []
    for number in range(runtime.getDeviceCount()):
        facts = runtime.getDeviceProperties(number)
        memory = f"{facts['totalGlobalMem'] / 2**30:.0f} GiB"
        described.append(f"{facts['name'].decode()}, {architecture(number)}, {memory}")
    return tuple(described)
