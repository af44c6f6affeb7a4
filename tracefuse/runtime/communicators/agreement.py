"""Compares the exchanges that ranks start: they must be the same, in the same order.

Each rank reports the text of every exchange in order. The first difference, and a rank that ends before the others, is
the failure of the job. A text is kept until every rank has reported it. Ranks that exchange with each other compare all
of it, others without the shape.

Must not know: fusions, devices.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import field

from segments.lazy_dataclasses import dataclass
from tracefuse.runtime.communicators.record_texts import RecordText

END = "the end of the program"
"""The text that a rank reports after its last exchange."""


@dataclass(slots=True)
class _Expected:
    """The first report of an exchange. groups: the first rank and text of each group of ranks."""

    rank: int
    text: str
    common: str
    count: int = 0
    groups: dict[str, tuple[int, str]] = field(default_factory=dict)


class Agreement:
    """The exchanges of all ranks. failure: the first difference between ranks, None while they agree."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.failure: str | None = None
        self._lock = threading.Lock()
        self._counts = [0] * size
        self._last = ["nothing"] * size
        self._expected: dict[int, _Expected] = {}

    def report(self, rank: int, texts: Iterable[RecordText]) -> str | None:
        """Adds the next exchanges of a rank and returns the failure."""
        with self._lock:
            for text, common, group in texts:
                self._add(rank, text, common, group)
            return self.failure

    def _add(self, rank: int, text: str, common: str, group: str) -> None:
        position = self._counts[rank]
        self._counts[rank] += 1
        self._last[rank] = text
        expected = self._expected.setdefault(position, _Expected(rank, text, common))
        first, known = expected.groups.setdefault(group, (rank, text))
        if expected.common != common:
            first, known = expected.rank, expected.text
        if expected.common != common or known != text:
            (low, low_text), (high, high_text) = sorted([(first, known), (rank, text)])
            self.fail(f"ranks differ at exchange {position}: rank {low} starts {low_text}, rank {high} {high_text}")
        expected.count += 1
        if expected.count == self.size:
            del self._expected[position]

    def lose(self, rank: int, cause: str) -> str:
        """Records that a rank ended and returns the failure."""
        with self._lock:
            return self.fail(f"rank {rank} {cause}; its last exchange was {self._last[rank]}")

    def fail(self, text: str) -> str:
        """Records a failure unless there is one, and returns the first."""
        if self.failure is None:
            self.failure = text
        return self.failure
