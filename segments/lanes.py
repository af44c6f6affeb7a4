"""The streams of one run: which is current, what each has still to wait for.

A wait goes to a stream with the next work that it gets: one that has nothing to do passes no wait on to others, so that
iterations of a loop that go to different streams overlap although each of them ends with a wait of the caller's stream.

Knows: streams and events as a device gives them. Must not know: instructions, buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from segments.instructions import NamedStream, PoolStream, Stream


class Streams(Protocol):
    """The streams of a device for one run. Streams and events are opaque."""

    def current(self) -> object:
        """Return the stream that the caller's work goes to."""
        ...

    def pool(self, index: int) -> object:
        """Return stream `index` of the pool, the same one every time."""
        ...

    def run(self, stream: object, work: Callable[[], None]) -> None:
        """Do `work` on a stream: at once, by queueing it on the device, or later in the order of the stream's work."""
        ...

    def record(self, stream: object) -> object:
        """Return an event that has passed when all work so far on the stream is done."""
        ...

    def wait(self, stream: object, event: object) -> None:
        """Let the stream's further work start after an event; the host waits only where the stream is its own."""
        ...

    def finish(self, failed: bool) -> None:
        """End the run. failed: work that has not begun need not be done. Raises what work has raised."""
        ...


class StreamsDevice(Protocol):
    """What a program with streams runs on, beside what `Device` says."""

    def open_streams(self) -> Streams:
        """Return the streams of one run."""
        ...


class Later:
    """What work on another stream will have made; `result` is there once that work is done."""

    __slots__ = ("_wait", "held")

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait
        self.held: object = self

    def result(self) -> object:
        """Return what was made, after waiting for it where need be."""
        if self.held is self:
            self._wait()
        return self.held


def resolved(held: object) -> object:
    """Return a value that may still be made."""
    return held.result() if isinstance(held, Later) else held


class Lanes:
    """The streams of a run as its instructions see them. awaited: the values that some Wait names."""

    def __init__(self, streams: Streams, awaited: frozenset[int]) -> None:
        self._streams = streams
        self._awaited = awaited
        self._caller = self._current = streams.current()
        self._named: dict[int, object] = {}
        self._pending: dict[int, list[tuple[object, object]]] = {}
        self._made: dict[int, tuple[object, object]] = {}

    def stream(self, stream: Stream, values: Mapping[int, object]) -> object:
        """Return the device's stream."""
        if isinstance(stream, NamedStream):
            return self._named[stream.number]
        return pool_stream(stream, self._streams, values)

    def name(self, number: int) -> None:
        """Gives the current stream a number."""
        self._named[number] = self._current

    def set(self, stream: object) -> None:
        """Makes a stream the current one."""
        self._current = stream

    @property
    def is_callers(self) -> bool:
        """Whether the current stream is the caller's."""
        return self._current is self._caller

    def synchronize(self, stream: object) -> None:
        """What comes next on the current stream is after what `stream` has been given."""
        if stream is not self._current:
            self._after(stream, self._streams.record(stream))

    def wait(self, value: int) -> None:
        """What comes next on the current stream is after `value` was made."""
        made = self._made.get(value)
        if made is not None and made[0] is not self._current:
            self._after(*made)

    def submit(self, work: Callable[[], None], makes: tuple[int, ...] = ()) -> None:
        """Does work on the current stream, after all that it has to wait for."""
        self.flush()
        self._streams.run(self._current, work)
        awaited = [value for value in makes if value in self._awaited]
        if awaited:
            event = self._streams.record(self._current)
            self._made.update(dict.fromkeys(awaited, (self._current, event)))

    def later(self) -> Later:
        """What the work that is submitted next makes, for the host and for other streams."""
        stream = self._current
        return Later(lambda: self._streams.wait(self._caller, self._streams.record(stream)))

    def flush(self) -> None:
        """Gives the current stream the waits that are pending."""
        for _, event in self._pending.pop(id(self._current), ()):
            self._streams.wait(self._current, event)

    def finish(self) -> None:
        """Ends a run that went well: the caller's stream gets its waits."""
        self._current = self._caller
        self.flush()
        self._streams.finish(False)

    def abandon(self) -> None:
        """Ends a run in which something was raised, which goes on being raised."""
        self._streams.finish(True)

    def _after(self, stream: object, event: object) -> None:
        """A later event of a stream comes after its earlier ones: one wait for each stream is enough."""
        pending = self._pending.setdefault(id(self._current), [])
        pending[:] = [(other, earlier) for other, earlier in pending if other is not stream]
        pending.append((stream, event))


def pool_stream(stream: PoolStream, streams: Streams, values: Mapping[int, object]) -> object:
    """Return a stream of the pool by an index that is known now."""
    index = stream.index
    return streams.pool(index if isinstance(index, int) else index.compute(values))
