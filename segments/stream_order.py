"""Happens-before order between streams: detects unordered accesses to memory with one vector clock per stream.

Each stream counts its work. A wait stays pending until the waiting stream gets work, which then happens after
everything the awaited stream had done, transitively. Loop bodies are checked as two iterations; a pool stream whose
index depends on the loop's is a different stream in each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from segments.instructions import Count, Integer, PoolStream, ProgramError, Stream
from segments.lazy_dataclasses import dataclass

StreamKey: TypeAlias = tuple[object, ...]
"""Identifies a stream: ("caller",), or ("pool", index, the loop iterations that the index depends on)."""


@dataclass(frozen=True, slots=True)
class StreamPart:
    """A slice of memory: index `text` of `axis` in the given iterations.

    direct: the index is a loop index itself, so no two iterations access the same slice.
    """

    axis: int
    text: str
    iterations: tuple[tuple[int, int], ...]
    direct: bool


@dataclass(frozen=True, slots=True)
class _Access:
    part: StreamPart | None
    stream: StreamKey
    clock: int
    writes: bool
    place: str


@dataclass(slots=True)
class _State:
    clock: int = 0
    seen: dict[StreamKey, int] = field(default_factory=dict)
    pending: dict[StreamKey, int] = field(default_factory=dict)


CALLER: StreamKey = ("caller",)


class StreamOrder:
    """The order of a program's work, up to the current instruction. Raises ProgramError for an unordered access."""

    def __init__(self) -> None:
        self.current: StreamKey = CALLER
        self.names: dict[int, StreamKey] = {}
        self._states: dict[StreamKey, _State] = {}
        self._accesses: dict[int, list[_Access]] = {}
        self._definitions: dict[int, tuple[StreamKey, int]] = {}

    def key(self, stream: Stream, iterations: Mapping[int, int], place: str) -> StreamKey:
        """Return the key of a stream; `iterations` gives the current iteration of each loop index."""
        if isinstance(stream, PoolStream):
            return "pool", str(stream.index), *iterations_of(stream.index, iterations)
        if stream.number not in self.names:
            raise ProgramError(f"{place}: no earlier instruction defines stream {stream}")
        return self.names[stream.number]

    def name(self, number: int) -> None:
        """Give the current stream a number."""
        self.names[number] = self.current

    def synchronize(self, stream: StreamKey) -> None:
        """Order the current stream's next work after all work of `stream` so far."""
        state = self._state(stream)
        self._after({**state.seen, stream: state.clock})

    def wait(self, value: int) -> None:
        """Order the current stream's next work after the definition of `value`."""
        if value in self._definitions:
            stream, clock = self._definitions[value]
            self._after({stream: clock})

    def define(self, value: int) -> None:
        """Record that the current stream's last work defined `value`."""
        self._definitions[value] = self.current, self._state(self.current).clock

    def work(self) -> None:
        """Give the current stream work, ordered after its pending waits."""
        state = self._state(self.current)
        for stream, clock in state.pending.items():
            state.seen[stream] = max(state.seen.get(stream, 0), clock)
        state.pending.clear()
        state.clock += 1

    def access(self, memory: int, part: StreamPart | None, writes: bool, place: str, action: str) -> None:
        """Record a read or write by the current stream. Raises ProgramError for a conflict without a wait."""
        state = self._state(self.current)
        for other in self._accesses.setdefault(memory, []):
            if other.stream == self.current or not (writes or other.writes):
                continue
            if state.seen.get(other.stream, 0) < other.clock and self._overlap(other, part):
                verb = "wrote" if other.writes else "read"
                raise ProgramError(
                    f"{place}: {action} without waiting for another stream, on which {other.place} {verb} that memory"
                )
        self._accesses[memory].append(_Access(part, self.current, state.clock, writes, place))

    def forget(self, memory: int) -> None:
        """Forget a released value's accesses: another value may get its number."""
        self._accesses.pop(memory, None)
        self._definitions.pop(memory, None)

    def _overlap(self, other: _Access, part: StreamPart | None) -> bool:
        """Return whether two accesses on different streams may touch the same element."""
        if other.part is None or part is None or (other.part.axis, other.part.text) != (part.axis, part.text):
            return True
        if other.part.iterations == part.iterations:
            return True
        # Parts of two iterations coincide only where their indices are equal, and pool streams with that index are then
        # the same stream.
        same_stream = other.stream[:2] == self.current[:2] == ("pool", part.text)
        return not (part.direct or same_stream)

    def _after(self, clocks: Mapping[StreamKey, int]) -> None:
        pending = self._state(self.current).pending
        for stream, clock in clocks.items():
            if stream != self.current:
                pending[stream] = max(pending.get(stream, 0), clock)

    def _state(self, stream: StreamKey) -> _State:
        return self._states.setdefault(stream, _State())


def iterations_of(count: Count, iterations: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Return the (loop index, iteration) pairs that an integer depends on."""
    reads = count.reads if isinstance(count, Integer) else ()
    return tuple((index, iterations[index]) for index in sorted(set(reads)) if index in iterations)


def part_of(axis: int, index: Count, iterations: Mapping[int, int]) -> StreamPart:
    """Return the part of memory that a Select covers."""
    direct = isinstance(index, Integer) and index.value in iterations
    return StreamPart(axis, str(index), iterations_of(index, iterations), direct)
