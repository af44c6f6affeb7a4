"""The calls of the array library in one trace whose results have sizes that the data decide.

Equal calls have one result, so that `x[m] + y[m]` has one symbolic size.

Must not know: recording, ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass

MOST_COMPARED = 16
"""The latest calls that a call is compared with."""


@dataclass(frozen=True, slots=True, eq=False)
class _LibraryCall:
    function: Callable[..., Any]
    keywords: Mapping[str, Any]
    operands: Sequence[int]
    results: Sequence[int]


class EqualCalls:
    """The calls of one trace, by function, keywords and the numbers of the operands."""

    def __init__(self) -> None:
        self._calls: list[_LibraryCall] = []

    def add(
        self, function: Callable[..., Any], keywords: Mapping[str, Any], operands: Sequence[int], results: Sequence[int]
    ) -> None:
        """Adds a call with the numbers of its results."""
        self._calls.append(_LibraryCall(function, keywords, operands, results))

    def find(
        self, function: Callable[..., Any], keywords: Mapping[str, Any], operands: Sequence[int],
        are_same: Callable[[int, int], bool],
    ) -> Sequence[int] | None:  # fmt: skip
        """Returns the numbers of the results of an equal call. are_same: whether two operands are the same value."""
        for call in reversed(self._calls[-MOST_COMPARED:]):
            if call.function is not function or call.keywords != keywords or len(call.operands) != len(operands):
                continue
            if all(map(are_same, call.operands, operands)):
                return call.results
        return None
