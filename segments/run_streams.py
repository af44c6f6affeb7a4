"""The streams of one run: the current stream and the pending waits of each.

A stream issues its pending waits with its next work. A stream without work passes no wait on, so loop iterations on
different streams overlap although each ends with a wait on the caller's stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from segments.instructions import NamedStream, PoolStream, Stream
from segments.lazy_dataclasses import dataclass


class Streams(Protocol):
    """The streams of a device for one run. Streams and events are opaque."""

    def current(self) -> object:
        """Return the caller's stream."""
        ...

    def pool(self, index: int) -> object:
        """Return stream `index` of the pool: the same stream for the same index."""
        ...

    def run(self, stream: object, work: Callable[[], None]) -> None:
        """Submit `work` to a stream: run it now, queue it on the device, or run it later in stream order."""
        ...

    def record(self, stream: object) -> object:
        """Return an event that completes when all work submitted to the stream so far has completed."""
        ...

    def wait(self, stream: object, event: object) -> None:
        """Make the stream's later work wait for an event. The host blocks only if it executes the stream itself."""
        ...

    def finish(self, failed: bool) -> None:
        """End the run and raise the first exception of its work. failed: work that has not begun may be skipped."""
        ...


class StreamsDevice(Protocol):
    """The additional interface of a device that runs programs with streams."""

    def open_streams(self) -> Streams:
        """Return the streams of one run."""
        ...


class FutureValue:
    """A value that work on another stream will produce."""

    __slots__ = ("_wait", "content")

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait
        self.content: object = self

    def result(self) -> object:
        """Return the value, blocking until its work has completed."""
        if self.content is self:
            self._wait()
        return self.content


def resolve(value: object) -> object:
    """Return a value, waiting for it if it is a future."""
    return value.result() if isinstance(value, FutureValue) else value


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """A point in the work of a stream: its event, and a number that grows from each recorded point to the next."""

    stream: object
    event: object
    number: int


class RunStreams:
    """The streams of a run as its instructions see them. awaited: the values that Wait instructions name."""

    def __init__(self, streams: Streams, awaited: frozenset[int]) -> None:
        self._streams = streams
        self._awaited = awaited
        self._caller = self._current = streams.current()
        self._named: dict[int, object] = {}
        self._pending: dict[int, list[_Point]] = {}
        self._events: dict[int, _Point] = {}
        self._recorded = 0

    def stream(self, stream: Stream, values: Mapping[int, object]) -> object:
        """Return the device's stream for a stream of the program."""
        if isinstance(stream, NamedStream):
            return self._named[stream.number]
        return pool_stream(stream, self._streams, values)

    def name(self, number: int) -> None:
        """Give the current stream a number."""
        self._named[number] = self._current

    def set(self, stream: object) -> None:
        """Make a stream the current one."""
        self._current = stream

    @property
    def is_callers(self) -> bool:
        """Whether the current stream is the caller's."""
        return self._current is self._caller

    def synchronize(self, stream: object) -> None:
        """Make the current stream's next work wait for all work submitted to `stream` so far."""
        if stream is not self._current:
            self._after(self._record(stream))

    def wait(self, value: int) -> None:
        """Make the current stream's next work wait for the definition of `value`."""
        definition = self._events.get(value)
        if definition is not None and definition.stream is not self._current:
            self._after(definition)

    def submit(self, work: Callable[[], None], defines: tuple[int, ...] = ()) -> None:
        """Submit work to the current stream, after its pending waits. `defines` lists the values it produces."""
        self.flush()
        self._streams.run(self._current, work)
        awaited = [value for value in defines if value in self._awaited]
        if awaited:
            self._events.update(dict.fromkeys(awaited, self._record(self._current)))

    def promise(self) -> FutureValue:
        """Return a future for a result of the work submitted next to the current stream."""
        stream = self._current
        return FutureValue(lambda: self._streams.wait(self._caller, self._streams.record(stream)))

    def flush(self) -> None:
        """Issue the pending waits of the current stream."""
        for point in self._pending.pop(id(self._current), ()):
            self._streams.wait(self._current, point.event)

    def finish(self) -> None:
        """End a successful run and issue the pending waits of the caller's stream."""
        self._current = self._caller
        self.flush()
        self._streams.finish(False)

    def abandon(self) -> None:
        """End a run that raised. The caller re-raises the exception."""
        self._streams.finish(True)

    def _record(self, stream: object) -> _Point:
        self._recorded += 1
        return _Point(stream, self._streams.record(stream), self._recorded)

    def _after(self, point: _Point) -> None:
        """Add a pending wait. A stream's events are ordered, so the latest one serves for the earlier ones."""
        pending = self._pending.setdefault(id(self._current), [])
        same = [other for other in pending if other.stream is point.stream]
        pending[:] = [other for other in pending if other.stream is not point.stream]
        pending.append(max([*same, point], key=lambda other: other.number))


def pool_stream(stream: PoolStream, streams: Streams, values: Mapping[int, object]) -> object:
    """Return the device's pool stream at the current value of the stream's index."""
    index = stream.index
    return streams.pool(index if isinstance(index, int) else index.compute(values))
