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

from tracefuse.device import cuda

_streams: dict[tuple[int, int], Any] = {}
_lock = threading.Lock()


class CudaStreams:
    """The streams of one run (segments.Streams) on GPU `device`, which is the current one."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._current = cuda.current_stream()

    def current(self) -> Any:
        """The stream that is current when the run begins."""
        return self._current

    def pool(self, index: int) -> Any:
        """Stream `index` of the device's pool."""
        with _lock:
            found = _streams.get((self._device, index))
            if found is None:
                found = _streams[self._device, index] = cuda.new_stream()
        return found

    def run(self, stream: Any, work: Callable[[], None]) -> None:
        """Queues on `stream` what the work launches."""
        if stream is self._current:
            work()
        else:
            with stream:
                work()

    def record(self, stream: Any) -> Any:
        """An event after all that was queued on the stream."""
        return cuda.record_event(stream)

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
