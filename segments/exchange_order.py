"""The exchanges in progress at an instruction: detects accesses to their memory before the wait.

Until its WaitRequest, an exchange reads its sources and writes its targets. Sources may be read meanwhile, and nothing
else. A group of exchanges contains no other work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from segments.instructions import Communicate, ProgramError, name_of
from segments.lazy_dataclasses import dataclass
from segments.stream_order import StreamPart

Memory: TypeAlias = tuple[int, StreamPart | None]
"""The value that owns memory, and the slice of it, None for all of it."""


@dataclass(frozen=True, slots=True)
class _Exchange:
    """sources, targets: the memory of each, with the number of the value. depth: the loops around it."""

    instruction: Communicate
    place: str
    sources: tuple[tuple[int, Memory], ...]
    targets: tuple[tuple[int, Memory], ...]
    depth: int


def _overlap(first: Memory, second: Memory) -> bool:
    return first[0] == second[0] and (first[1] is None or second[1] is None or first[1] == second[1])


class ExchangeOrder:
    """Checks the order of exchanges and of accesses to their memory. Raises ProgramError at a violation."""

    def __init__(self) -> None:
        self._in_progress: dict[int, _Exchange] = {}
        self._group: str | None = None

    def start(
        self, exchange: Communicate, sources: Sequence[Memory], targets: Sequence[Memory], place: str, depth: int
    ) -> None:
        """Begin an exchange. depth: the number of loops around the instruction."""
        if exchange.request in self._in_progress:
            before = self._in_progress[exchange.request].place
            raise ProgramError(f"{place}: r{exchange.request} is still in progress, started by {before}")
        for value, memory in zip(exchange.sources, sources, strict=True):
            self.access(value, memory, False, place)
        for value, memory in zip(exchange.targets, targets, strict=True):
            self.access(value, memory, True, place)
        self._in_progress[exchange.request] = _Exchange(
            exchange, place, tuple(zip(exchange.sources, sources, strict=True)),
            tuple(zip(exchange.targets, targets, strict=True)), depth,
        )  # fmt: skip

    def finish(self, request: int, place: str) -> Communicate:
        """End an exchange and return its instruction."""
        if self._group is not None:
            raise ProgramError(f"{place}: waits within the group that {self._group} began, which has not started yet")
        if request not in self._in_progress:
            raise ProgramError(f"{place}: no exchange r{request} is in progress")
        return self._in_progress.pop(request).instruction

    def access(self, value: int, memory: Memory, writes: bool, place: str, verb: str = "") -> None:
        """Check an access to memory that an exchange in progress may use."""
        verb = verb or ("writes" if writes else "reads")
        for request, exchange in self._in_progress.items():
            for other, used in exchange.targets:
                if _overlap(used, memory):
                    raise ProgramError(
                        f"{place}: {verb} {name_of(value)} before the wait for r{request}, which writes "
                        f"{name_of(other)} ({exchange.place})"
                    )
            for other, used in exchange.sources if writes else ():
                if _overlap(used, memory):
                    raise ProgramError(
                        f"{place}: {verb} {name_of(value)} before the wait for r{request}, which reads "
                        f"{name_of(other)} ({exchange.place})"
                    )

    def open_group(self, place: str) -> None:
        """Begin a group of exchanges."""
        if self._group is not None:
            raise ProgramError(f"{place}: {self._group} already began a group")
        self._group = place

    def close_group(self, place: str) -> None:
        """End a group of exchanges."""
        if self._group is None:
            raise ProgramError(f"{place}: no group has begun")
        self._group = None

    def work(self, place: str) -> None:
        """Check that work is not in a group."""
        if self._group is not None:
            raise ProgramError(f"{place}: a group contains only exchanges and allocations ({self._group} began it)")

    def end(self, depth: int = 0) -> None:
        """Check that no exchange from inside `depth` loops is in progress."""
        for request, exchange in self._in_progress.items():
            if exchange.depth >= depth:
                raise ProgramError(f"{exchange.place}: nothing waits for r{request}")
        if self._group is not None:
            raise ProgramError(f"{self._group}: the group has no end")
