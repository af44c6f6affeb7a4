"""The reads of state during one trace: the value that each place held when the traced function read it.

Each read becomes a guard, in the order of the reads: a value that every call compares, two places that must lead to one
object, or the place of a captured array, where every call reads the array.

Must not know: overlays of values, recording.
"""

from __future__ import annotations

from typing import Any

from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.captured.routes import Route


class StateReads:
    """The reads of one trace.

    values: places whose value every call compares. arrays: maps the id of each array to its places, in reading order.
    pairs: two places that must lead to one object. unrecorded: places of arrays that code outside of the trace may have
    read. routes: to the sizes and scalars of the call, by their ids.
    """

    def __init__(self) -> None:
        self.values: list[Place] = []
        self.arrays: dict[int, list[Place]] = {}
        self.pairs: list[tuple[Place, Place]] = []
        self.unrecorded: list[Place] = []
        self.routes: dict[int, Route] = {}
        self._seen: set[Any] = set()

    def add_value(self, place: Place) -> None:
        """Adds a place whose value every call compares, once per place.

        (The object that a route begins at is the same at every call.)
        """
        key = place.route.identity
        if place.route.before is not None and key not in self._seen:
            self._seen.add(key)
            self.values.append(place)

    def add_array(self, place: Place) -> None:
        """Adds a place of an array."""
        self.arrays.setdefault(id(place.value), []).append(place)

    def add_pair(self, first: Place, second: Place) -> None:
        """Adds two places that led to one object, once per pair of places."""
        key = (first.route.identity, second.route.identity)
        if first.route is not second.route and key[0] != key[1] and key not in self._seen:
            self._seen.add(key)
            self.pairs.append((first, second))
