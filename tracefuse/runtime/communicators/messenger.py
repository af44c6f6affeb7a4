"""Point-to-point messages between the ranks of a group: what exchanges on host memory are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol


class Pending(Protocol):
    """Messages in progress."""

    def is_done(self) -> bool:
        """Returns whether all messages are complete, after advancing them. Does not block."""
        ...


class Messenger(ABC):
    """The messages of one rank of a group. rank: its place in the group. size: the number of ranks."""

    rank: int
    size: int

    @abstractmethod
    def post(self, sends: Mapping[int, Any], receives: Mapping[int, Any]) -> Pending:
        """Starts to send and to receive contiguous NumPy arrays, by rank of the group.

        Messages between two ranks arrive in the order in which they were posted. Arrays that are sent must not change,
        and arrays that are received must not be used, until the messages are complete.
        """
