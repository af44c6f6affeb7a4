"""The streams of one run on a GPU: CuPy's current stream, and a pool of non-blocking streams for each device.

The pool is shared by all runs of the process: a stream of it takes work of two runs one after the other, and each run
starts by letting it wait for its own caller's stream. Memory comes from CuPy's pool of the stream that is current when
it is allocated, and goes back there.

Knows: CuPy's streams and events. Must not know: programs, kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tracefuse.caches import Cache, register
from tracefuse.runtime.devices import cuda_arrays

_streams: dict[tuple[int, int], Any] = {}
register(Cache(
    "runtime.devices.cuda_streams._streams", "CUDA streams of the pool", "device, position",
    "the largest number of streams that ran, for each GPU",
))  # fmt: skip
register(Cache(
    "runtime.devices.cuda_streams._Events.by_device", "CUDA events that are recorded again", "device",
    "one more than the streams, for each GPU", "a thread", "the end of the thread",
))  # fmt: skip
_lock = threading.Lock()


class _Events(threading.local):
    """One thread's events of each device, to be recorded again and again: where a loop begins, and where streams end.

    A wait is for what an event was last recorded after, so that threads must not share them.
    """

    def __init__(self) -> None:
        self.by_device: dict[int, list[Any]] = {}

    def of(self, device: int, count: int) -> list[Any]:
        """The events of a device, at least `count`."""
        found = self.by_device.setdefault(device, [])
        found += [cuda_arrays.new_event() for _ in range(count - len(found))]
        return found


_events = _Events()


def _pool(device: int, index: int) -> Any:
    with _lock:
        found = _streams.get((device, index))
        if found is None:
            found = _streams[device, index] = cuda_arrays.new_stream()
    return found


class CudaStreams:
    """The streams of one run (segments.Streams) on GPU `device`, which is the current one."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._current = cuda_arrays.current_stream()

    def current(self) -> Any:
        """The stream that is current when the run begins."""
        return self._current

    def pool(self, index: int) -> Any:
        """Stream `index` of the device's pool."""
        return _pool(self._device, index)

    def run(self, stream: Any, work: Callable[[], None]) -> None:
        """Queues on `stream` what the work launches."""
        if stream is self._current:
            work()
        else:
            with stream:
                work()

    def record(self, stream: Any) -> Any:
        """An event after all that was queued on the stream."""
        return cuda_arrays.record_event(stream)

    def wait(self, stream: Any, event: Any) -> None:
        """Queues a wait on the stream; the host goes on."""
        stream.wait_event(event)

    def finish(self, failed: bool) -> None:
        """Nothing is held. After a failure the caller's stream waits for the pool, whose work may still run."""
        if failed:
            with _lock:
                used = [stream for (device, _), stream in _streams.items() if device == self._device]
            for stream in used:
                self._current.wait_event(self.record(stream))


def run_lanes(
    device: int, own: int, lane: Callable[[Any, int], Callable[[int], None]], total: int, streams: int
) -> None:
    """Calls lane(stream, k % streams)(k) for each k below `total`, on streams of the pool of the current device.

    own: the address of the caller's stream: each of the streams goes on after what that has been given, and it after
    what they have been given, also where a call raises. The host waits for nothing.
    """
    record, wait = cuda_arrays.stream_functions()
    count = min(total, streams)
    pool = [_pool(device, index) for index in range(count)]
    begin, *ends = _events.of(device, count + 1)
    record(begin.ptr, own)
    lanes: list[Callable[[int], None]] = []
    try:
        for index, stream in enumerate(pool):
            wait(stream.ptr, begin.ptr)
            lanes.append(lane(stream, index))
        if count == 1:
            (only,) = lanes
            for k in range(total):
                only(k)
        else:
            for k in range(total):
                lanes[k % count](k)
    finally:
        for stream, end in zip(pool, ends, strict=False):
            record(end.ptr, stream.ptr)
            wait(own, end.ptr)
