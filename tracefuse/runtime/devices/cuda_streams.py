"""The streams of a run on a GPU: CuPy's current stream and a pool of non-blocking streams for each device.

All runs of the process share the pool. A pool stream executes the work of two runs one after the other, and each run
first makes it wait for the caller's stream. Memory comes from CuPy's pool of the stream that is current at the
allocation, and returns there.
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
    """Reusable events of one thread, for each device: the begin of a loop, and the end of the work of each stream.

    A wait refers to the last record of an event, so threads must not share events.
    """

    def __init__(self) -> None:
        self.by_device: dict[int, list[Any]] = {}

    def of(self, device: int, count: int) -> list[Any]:
        """Returns at least `count` events of a device."""
        events = self.by_device.setdefault(device, [])
        events += [cuda_arrays.new_event() for _ in range(count - len(events))]
        return events


_events = _Events()


def _pool_stream(device: int, index: int) -> Any:
    with _lock:
        stream = _streams.get((device, index))
        if stream is None:
            stream = _streams[device, index] = cuda_arrays.new_stream()
    return stream


class CudaStreams:
    """The streams of one run on GPU `device`, which is the current device. Implements `segments.Streams`."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._current = cuda_arrays.current_stream()

    def current(self) -> Any:
        """Returns the stream that was current when the run began."""
        return self._current

    def pool(self, index: int) -> Any:
        """Returns stream `index` of the device's pool."""
        return _pool_stream(self._device, index)

    def run(self, stream: Any, work: Callable[[], None]) -> None:
        """Calls `work` with `stream` as the current stream."""
        if stream is self._current:
            work()
        else:
            with stream:
                work()

    def record(self, stream: Any) -> Any:
        """Records an event after all work queued on the stream."""
        return cuda_arrays.record_event(stream)

    def wait(self, stream: Any, event: Any) -> None:
        """Makes the stream wait for the event, without blocking the host."""
        stream.wait_event(event)

    def finish(self, failed: bool) -> None:
        """Ends the run. After a failure, makes the caller's stream wait for the pool, whose work may still run."""
        if failed:
            with _lock:
                used = [stream for (device, _), stream in _streams.items() if device == self._device]
            for stream in used:
                self._current.wait_event(self.record(stream))


def run_stream_workers(
    device: int, caller: int, start_worker: Callable[[Any, int], Callable[[int], None]], total: int, streams: int
) -> None:
    """Runs iterations 0 to total - 1 of a loop on streams of the pool of the current device, without blocking the host.

    start_worker: called with a stream and its index, returns the function of an iteration on that stream. Iteration k
    runs on stream k % streams. caller: the address of the caller's stream. The pool streams first wait for the work on
    it, and at the end it waits for them, also if an iteration raises.
    """
    record, wait = cuda_arrays.stream_functions()
    count = min(total, streams)
    pool = [_pool_stream(device, index) for index in range(count)]
    begin, *ends = _events.of(device, count + 1)
    record(begin.ptr, caller)
    iterate: list[Callable[[int], None]] = []
    try:
        for index, stream in enumerate(pool):
            wait(stream.ptr, begin.ptr)
            iterate.append(start_worker(stream, index))
        if count == 1:
            (only,) = iterate
            for k in range(total):
                only(k)
        else:
            for k in range(total):
                iterate[k % count](k)
    finally:
        for stream, end in zip(pool, ends, strict=False):
            record(end.ptr, stream.ptr)
            wait(caller, end.ptr)
