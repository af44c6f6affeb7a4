"""Compares the exchanges that ranks start: they must be the same, in the same order.

Each rank reports the text of every exchange in order. The first difference, and a rank that ends before the others, is
the failure of the job. A text is kept until every rank has reported it.

Must not know: fusions, devices.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

END = "the end of the program"
"""The text that a rank reports after its last exchange."""


class Agreement:
    """The exchanges of all ranks. failure: the first difference between ranks, None while they agree."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.failure: str | None = None
        self._lock = threading.Lock()
        self._counts = [0] * size
        self._last = ["nothing"] * size
        self._expected: dict[int, tuple[int, str, int]] = {}

    def report(self, rank: int, texts: Iterable[str]) -> str | None:
        """Adds the next exchanges of a rank and returns the failure."""
        with self._lock:
            for text in texts:
                self._add(rank, text)
            return self.failure

    def _add(self, rank: int, text: str) -> None:
        position = self._counts[rank]
        self._counts[rank] += 1
        self._last[rank] = text
        first, expected, count = self._expected.get(position, (rank, text, 0))
        if expected != text:
            (low, one), (high, other) = sorted([(first, expected), (rank, text)])
            self.fail(f"ranks differ at exchange {position}: rank {low} starts {one}, rank {high} {other}")
        elif count + 1 < self.size:
            self._expected[position] = first, expected, count + 1
        else:
            self._expected.pop(position, None)

    def lose(self, rank: int, cause: str) -> str:
        """Records that a rank ended and returns the failure."""
        with self._lock:
            return self.fail(f"rank {rank} {cause}; its last exchange was {self._last[rank]}")

    def fail(self, text: str) -> str:
        """Records a failure unless there is one, and returns the first."""
        if self.failure is None:
            self.failure = text
        return self.failure
