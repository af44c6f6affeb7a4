"""Copies of traced numbers and sizes, which are immutable as Python's numbers are."""

from __future__ import annotations

import operator
from typing import Any


class ImmutableNumber:
    """A number that a copy leaves as it is and that serializes as the number of the current call."""

    __slots__ = ()

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce__(self) -> Any:
        number = self._number_of_call()
        return type(number), (number,)

    def _number_of_call(self) -> Any:
        """Returns the number itself, which the trace then depends on."""
        return operator.index(self)  # type: ignore[arg-type]
