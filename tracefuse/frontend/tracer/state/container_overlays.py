"""Overlays of lists, dicts, sets and deques: copies that know what the trace read of the original.

An overlay begins with the entries of its original. An entry is replaced by its overlay when the trace reads it first.
The length, or the keys, are a read of their own, so that `losses.append(x)` reads nothing of the list.

Must not know: overlays of values.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracefuse.frontend.tracer.captured import routes
from tracefuse.frontend.tracer.captured.captures import PLAIN, Place
from tracefuse.frontend.tracer.state.container_records import (
    CONTAINERS,
    RECORDS,
    ContainerOverlay,
    entries_of,
    is_plain_key,
    record_of,
)
from tracefuse.frontend.tracer.state.keyed_overlay_methods import dict_methods, set_methods
from tracefuse.frontend.tracer.state.list_overlay_methods import list_methods

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.state.overlays import Overlays


def _reading(base: Any, name: str) -> Callable[..., Any]:
    """Returns a method that reads every entry first, of the operands too."""
    native = getattr(base, name)

    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        for operand in (self, *arguments):
            record = record_of(operand)
            if record is not None:
                record.read_all()
        return native(self, *arguments, **keywords)

    return method


def _reordering(base: Any, name: str) -> Callable[..., Any]:
    """Returns a method that changes the positions of entries: it reads every entry first."""
    native = getattr(base, name)

    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        record = record_of(self)
        if record is not None:
            record.read_to_reorder()
        return native(self, *arguments, **keywords)

    return method


_READING: dict[Any, tuple[str, ...]] = {
    list: (
        "__contains__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__add__", "__mul__", "__rmul__",
        "__repr__", "__reversed__", "count", "index", "copy", "__copy__", "__reduce_ex__",
    ),
    dict: (
        "__iter__", "keys", "values", "items", "__eq__", "__ne__", "__or__", "__ror__", "__repr__", "__reversed__",
        "copy", "__copy__", "most_common", "elements", "total", "__reduce_ex__", "__add__", "__sub__", "__and__",
    ),
    set: (
        "__iter__", "__len__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__and__", "__or__",
        "__sub__", "__xor__", "__rand__", "__ror__", "__rsub__", "__rxor__", "__repr__", "copy", "union",
        "intersection", "difference", "symmetric_difference", "isdisjoint", "issubset", "issuperset", "__reduce_ex__",
    ),
}  # fmt: skip
_REORDERING: dict[Any, tuple[str, ...]] = {
    list: ("__delitem__", "__imul__", "insert", "pop", "remove", "reverse", "sort", "appendleft", "popleft", "rotate",
           "extendleft"),
    dict: ("popitem", "move_to_end", "clear"),
    set: ("pop", "remove", "clear", "__iand__", "__ixor__", "__isub__", "intersection_update", "difference_update",
          "symmetric_difference_update"),
}  # fmt: skip


def _methods_of(base: Any) -> dict[str, Any]:
    """Returns the methods of the overlays of a class of containers that differ from those of the class."""
    family = CONTAINERS[base]
    methods: dict[str, Any] = {"__copy__": lambda self: base.copy(self)}
    methods |= {name: _reading(base, name) for name in _READING[family] if hasattr(base, name)}
    methods |= {name: _reordering(base, name) for name in _REORDERING[family] if hasattr(base, name)}
    if family is list:
        methods |= list_methods(base)
    elif family is dict:
        methods |= dict_methods(base)
    else:
        methods |= set_methods(base)
    return methods


OVERLAY_METHODS = {base: _methods_of(base) for base in CONTAINERS}
"""The methods of overlays by class of containers."""
OVERLAY_CLASSES: dict[type, Any] = {
    base: type(base.__name__, (base,), {"__slots__": (), **OVERLAY_METHODS[base]}) for base in CONTAINERS
}
"""The classes of overlays by class of containers."""
OVERLAY_BASES = {overlay: base for base, overlay in OVERLAY_CLASSES.items()}
"""The class of containers by class of overlays."""


class ContainerOverlays:
    """The overlays of containers of one trace."""

    def __init__(self, overlays: Overlays) -> None:
        self._overlays = overlays
        self.records: list[ContainerOverlay] = []
        self._may_bypass = False

    def overlay(self, original: Any, place: Place) -> Any:
        """Returns the overlay of a list, a dict, a set or a deque."""
        base: Any = type(original)
        overlay: Any = base.__new__(OVERLAY_CLASSES[base])
        if place.route.before is not None:
            self._overlays.reads.add_value(place.derived("type({})", type, base))
        self._overlays.remember(original, overlay, place)
        self.fill(overlay, original, place)
        return overlay

    def fill(self, overlay: Any, original: Any, place: Place, *, is_last: bool = False) -> None:
        """Gives an overlay the entries of its original, and follows it from then on.

        is_last: the overlays that are being made are complete.
        """
        base: Any = next(cls for cls in type(original).__mro__ if cls in CONTAINERS)
        is_keyed_by_objects = CONTAINERS[base] is dict and not all(map(is_plain_key, base.__iter__(original)))
        if is_keyed_by_objects and not is_last:  # the keys have overlays, too
            self._overlays.later(lambda: self.fill(overlay, original, place, is_last=True))
            return
        if base is deque:
            deque.__init__(overlay, original, original.maxlen)
        elif base is defaultdict:
            at = place.attribute("default_factory", original.default_factory)
            defaultdict.__init__(overlay, self._overlays.read(original.default_factory, at))
            dict.update(overlay, entries_of(self._overlays, base, original))
        elif CONTAINERS[base] is dict:
            for key, value in entries_of(self._overlays, base, original).items():
                base.__setitem__(overlay, key, value)
        elif base is set:
            set.update(overlay, (element for element in original if isinstance(element, PLAIN)))
            self._overlays.later(lambda: self._fill_objects(overlay, original, place))
        else:
            base.extend(overlay, original)
        record = ContainerOverlay(self._overlays, overlay, original, place, base)
        self.records.append(record)
        if base is set and self._may_bypass:
            record.read_all()
        RECORDS[id(overlay)] = record

    def _fill_objects(self, overlay: Any, original: Any, place: Place) -> None:
        """Adds the overlays of the elements of a set that are no plain values.

        (A trace that sees elements compares which objects they are.)
        """
        for element in list(original):
            if not isinstance(element, PLAIN):
                at = Place(f"an element of {place.path}", routes.to(element), element, place.where)
                set.add(overlay, self._overlays.read(element, at))

    def read_sets(self) -> None:
        """Records that the trace read every set: some code reads a set past the methods of its class."""
        if not self._may_bypass:
            self._may_bypass = True
            for record in self.records:
                if record.family is set:
                    record.read_all()

    def end(self) -> None:
        """Ends the overlays: from now on they are ordinary containers."""
        for record in self.records:
            RECORDS.pop(id(record.overlay), None)

    def forget(self) -> None:
        """Empties the overlays."""
        for record in self.records:
            record.base.clear(record.overlay)
            record.loaded.clear()
            record.computed.forget()
        self.records.clear()
