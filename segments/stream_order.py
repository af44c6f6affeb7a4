"""Which work on one stream is known to be done before work on another: accesses to memory and waits, on paper.

Each stream counts its work. A wait is pending until the stream that waits has work of its own, which is then after all
that the awaited stream had done, and after what that was after in turn. Bodies of loops are gone through as two
iterations, in which a stream of the pool that depends on the loop's index is two streams.

Knows: streams, counts of work, parts of memory. Must not know: values, instructions' other rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from segments.instructions import Count, Integer, PoolStream, ProgramError, Stream

StreamKey: TypeAlias = tuple[object, ...]
"""What tells two streams apart on paper: ("caller",), or ("pool", index, iterations that the index depends on)."""


@dataclass(frozen=True, slots=True)
class Part:
    """A slice of memory: index `text` of `axis` in some iterations. direct: other iterations have other slices."""

    axis: int
    text: str
    iterations: tuple[tuple[int, int], ...]
    direct: bool


@dataclass(frozen=True, slots=True)
class _Access:
    part: Part | None
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
    """The streams of a program while it is gone through. Raises ProgramError where an access comes too early."""

    def __init__(self) -> None:
        self.current: StreamKey = CALLER
        self.names: dict[int, StreamKey] = {}
        self._states: dict[StreamKey, _State] = {}
        self._accesses: dict[int, list[_Access]] = {}
        self._made: dict[int, tuple[StreamKey, int]] = {}

    def key(self, stream: Stream, iterations: Mapping[int, int], place: str) -> StreamKey:
        """Return the key of a stream; `iterations` says which one each loop index is in."""
        if isinstance(stream, PoolStream):
            return "pool", str(stream.index), *iterations_of(stream.index, iterations)
        if stream.number not in self.names:
            raise ProgramError(f"{place}: {stream} has not been named by any instruction before")
        return self.names[stream.number]

    def name(self, number: int) -> None:
        """Gives the current stream a number."""
        self.names[number] = self.current

    def synchronize(self, stream: StreamKey) -> None:
        """What comes next on the current stream is after what `stream` has done."""
        state = self._state(stream)
        self._after({**state.seen, stream: state.clock})

    def wait(self, value: int) -> None:
        """What comes next on the current stream is after `value` was made."""
        if value in self._made:
            stream, clock = self._made[value]
            self._after({stream: clock})

    def made(self, value: int) -> None:
        """The current stream's last work made `value`."""
        self._made[value] = self.current, self._state(self.current).clock

    def work(self) -> None:
        """The current stream has work, which is after all that it was told to wait for."""
        state = self._state(self.current)
        for stream, clock in state.pending.items():
            state.seen[stream] = max(state.seen.get(stream, 0), clock)
        state.pending.clear()
        state.clock += 1

    def access(self, memory: int, part: Part | None, writes: bool, place: str, what: str) -> None:
        """The current stream's work reads or writes memory. Raises ProgramError where it does not wait for others."""
        state = self._state(self.current)
        for other in self._accesses.setdefault(memory, []):
            if other.stream == self.current or not (writes or other.writes):
                continue
            if state.seen.get(other.stream, 0) < other.clock and self._meet(other, part):
                did = "wrote" if other.writes else "read"
                raise ProgramError(
                    f"{place}: {what} with no wait for another stream, on which {other.place} {did} that memory"
                )
        self._accesses[memory].append(_Access(part, self.current, state.clock, writes, place))

    def forget(self, memory: int) -> None:
        """The memory is gone; another may get its number."""
        self._accesses.pop(memory, None)
        self._made.pop(memory, None)

    def _meet(self, other: _Access, part: Part | None) -> bool:
        """Whether two accesses on different streams can be to one element."""
        if other.part is None or part is None or (other.part.axis, other.part.text) != (part.axis, part.text):
            return True
        if other.part.iterations == part.iterations:
            return True
        # Parts that coincide in two iterations have equal indices: streams of the same index are then one stream.
        one_stream = other.stream[:2] == self.current[:2] == ("pool", part.text)
        return not (part.direct or one_stream)

    def _after(self, clocks: Mapping[StreamKey, int]) -> None:
        pending = self._state(self.current).pending
        for stream, clock in clocks.items():
            if stream != self.current:
                pending[stream] = max(pending.get(stream, 0), clock)

    def _state(self, stream: StreamKey) -> _State:
        return self._states.setdefault(stream, _State())


def iterations_of(count: Count, iterations: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Return which iterations of which loops an integer depends on."""
    reads = count.reads if isinstance(count, Integer) else ()
    return tuple((index, iterations[index]) for index in sorted(set(reads)) if index in iterations)


def part_of(axis: int, index: Count, iterations: Mapping[int, int]) -> Part:
    """Return the part that a Select names."""
    direct = isinstance(index, Integer) and index.value in iterations
    return Part(axis, str(index), iterations_of(index, iterations), direct)
