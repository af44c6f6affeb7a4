"""Arrays that bypassed recording: the function may reach them by name, and they are no inputs of the trace.

C code or a library may have read such an array while the function was traced, so that its contents are part of the
trace. Every call compares them, by all bytes. Checksums from before the trace tell whether another thread wrote to the
array meanwhile: then the contents afterwards are not what the trace read, and the trace serves no call.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from types import CodeType
from typing import Any

import numpy as np

from tracefuse.frontend.tracer.captured.captures import Place, is_array
from tracefuse.frontend.tracer.captured.routes import CHANGED, CallRoots
from tracefuse.frontend.tracer.captured.snapshots import Snapshot, as_own, checksum
from tracefuse.runtime.devices import arrays

MOST_UNMENTIONED = 1_000_000
"""Most bytes that a call compares without a warning."""

_COMPARED = ("numpy", "cupy", "torch")


class BypassedArray:
    """An array that every call compares by contents; by identity where the elements cannot be read.

    place: where calls read it. snapshot: its contents, None for an array that is compared by identity. is_stale: its
    contents changed during the trace.
    """

    def __init__(self, place: Place) -> None:
        self.place, self.is_stale = place, False
        self.snapshot = Snapshot(place.value) if _is_compared(place.value) else None
        self._type = type(place.value)

    def holds(self, array: Any) -> bool:
        """Whether an array has the type, the layout and the contents that the trace may have read."""
        if self.snapshot is None:
            return array is self.place.value
        return type(array) is self._type and not self.is_stale and self.snapshot.holds(array)

    def unchanged(self, roots: CallRoots) -> bool:
        """As `holds`, for the array that is now in the place."""
        try:
            return self.holds(self.place.read(roots))
        except CHANGED:
            return False

    @property
    def nbytes(self) -> int:
        """The bytes that a call compares."""
        return 0 if self.snapshot is None else self.snapshot.nbytes


class ContentsBefore:
    """The contents of the arrays that a function can reach by name, before its trace, as checksums."""

    def __init__(self, places: Iterable[Place]) -> None:
        reached = {id(place.value): place.value for place in places if is_array(place.value)}
        compared = {key: as_own(array) for key, array in reached.items() if _is_compared(array)}
        self._checksums = {key: checksum(array) for key, array in compared.items() if isinstance(array, np.ndarray)}

    def compared(self, places: Iterable[Place]) -> tuple[BypassedArray, ...]:
        """The arrays at these places, to be compared by every call, each with its contents now."""
        result = tuple(map(BypassedArray, places))
        for array in result:
            before = self._checksums.get(id(array.place.value))
            if array.snapshot is not None and before is not None:
                array.is_stale = before != checksum(array.snapshot.array)
        return result


def _is_compared(array: Any) -> bool:
    """Whether the elements of an array can be read and can change."""
    if arrays.is_of_subclass(array):
        return True
    return arrays.kind_of(array) in _COMPARED and not getattr(array, "requires_grad", False)


def warn_of_cost(function: str, code: CodeType | None, bypassed: Iterable[BypassedArray]) -> None:
    """Issues a UserWarning, located at the function, if each call compares more than 1 MB."""
    largest = sorted(bypassed, key=lambda array: -array.nbytes)
    total = sum(array.nbytes for array in largest)
    if total <= MOST_UNMENTIONED:
        return
    path = largest[0].place.path
    message = (
        f"each call of {function} compares {total / 1e6:.1f} MB, most of them of {path}: code that is not traced may "
        f"have read the array, so that its contents are part of the trace; pass {path} as an argument"
    )
    if code is None:
        warnings.warn(message, UserWarning, stacklevel=2)
    else:
        warnings.warn_explicit(message, UserWarning, code.co_filename, code.co_firstlineno)
