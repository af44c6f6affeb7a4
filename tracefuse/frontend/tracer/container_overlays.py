"""Overlays of lists, dicts, sets and deques: copies that know what the trace read of the original.

An overlay begins with the entries of its original. An entry is replaced by its overlay when the trace reads it first.
The length, or the keys, are a read of their own, so that `losses.append(x)` reads nothing of the list.

Must not know: overlays of values.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracefuse.frontend.tracer.captures import Place
from tracefuse.frontend.tracer.symbolic_size import plain_key

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.overlays import Overlays

CONTAINERS: dict[type, Any] = {
    list: list, deque: list, dict: dict, OrderedDict: dict, defaultdict: dict, Counter: dict, set: set,
}  # fmt: skip
"""The classes of containers that have overlays, with the class whose methods they follow."""
_MISSING = object()
_RECORDS: dict[int, ContainerOverlay] = {}
"""The state of each overlay of the traces in progress, by the id of the overlay."""


class ContainerOverlay:
    """The state of the overlay of one container.

    before: the entries when the overlay was made. loaded: overlays of entries at their first read, by key or position.
    appended: the number of entries added at the end while nothing else changed the order. is_reordered: the positions
    changed in another way; every entry was read before that.
    """

    def __init__(self, overlays: Overlays, overlay: Any, original: Any, place: Place, base: Any) -> None:
        self.overlays, self.overlay, self.original, self.place, self.base = overlays, overlay, original, place, base
        self.family = CONTAINERS[base]
        self.before: Any = self.family(original) if self.family is not dict else _entries_of(base, original)
        self.loaded: dict[Any, Any] = {}
        self.appended = 0
        self.is_reordered = self.has_read_all = False
        self._length: Any = None

    @property
    def shift(self) -> int:
        """The number of entries that a bounded deque dropped at its beginning."""
        return len(self.before) + self.appended - int(self.base.__len__(self.overlay))

    def read_length(self) -> None:
        """Records that the trace read the number of entries."""
        size = len(self.before)
        self.overlays.reads.add_value(self.place.derived("len({})", len, size, self.overlays.line()))

    def length(self) -> Any:
        """Returns the number of entries: an input of the trace for a list that the function appends to.

        NotImplemented for other containers, and once positions have changed in another manner.
        """
        if self.family is not list or self.is_reordered or getattr(self.overlay, "maxlen", None) is not None:
            return NotImplemented
        if self._length is None:
            size = len(self.before)
            place = self.place.derived("len({})", len, size, self.overlays.line())
            self._length = self.overlays.read(size, place)
        return self._length + self.appended

    def read_keys(self) -> None:
        """Records that the trace read which keys, or elements, there are."""
        if self.base is set:
            place = self.place.derived("frozenset({})", frozenset, frozenset(self.before))
        else:
            place = self.place.derived("tuple({})", tuple, tuple(self.before), self.overlays.line())
        self.overlays.reads.add_value(place)

    def read_presence(self, key: Any) -> None:
        """Records that the trace asked whether a key is there."""
        function = functools.partial(_has, key)
        route = self.place.route.then("call", function)
        where = self.overlays.line()
        self.overlays.reads.add_value(Place(f"{key!r} in {self.place.path}", route, key in self.before, where))

    def entry(self, key: Any, position: Any) -> Any:
        """Returns the overlay of an entry of the original. key: in the route; position: in the overlay."""
        if self.family is list and position < 0:  # a deque would ask the overlay for its length
            position += self.base.__len__(self.overlay)
        value = self.base.__getitem__(self.overlay, position)
        index = key if self.family is dict or key >= 0 else len(self.before) + key
        if index in self.loaded or value is not self.before[index]:
            return value
        self.loaded[index] = self.overlays.read(value, self.place.entry(key, value, self.overlays.line()))
        self.base.__setitem__(self.overlay, position, self.loaded[index])
        return self.loaded[index]

    def read_all(self) -> None:
        """Records that the trace read every entry, in its order."""
        if self.has_read_all or self.is_reordered:
            return
        self.has_read_all = True
        if self.family is list:
            self.read_length()
            shift = self.shift
            for position in range(self.base.__len__(self.overlay) - self.appended):
                self.entry(position + shift, position)
            return
        self.read_keys()
        if self.family is dict:
            for key in self.before:
                if self.base.__contains__(self.overlay, key):
                    self.entry(key, key)


def _entries_of(base: Any, original: Any) -> dict[Any, Any]:
    """The entries of a dict, in its order."""
    return {key: dict.__getitem__(original, key) for key in base.__iter__(original)}


def _has(key: Any, container: Any) -> bool:
    return key in container


def record_of(overlay: Any) -> ContainerOverlay | None:
    """Returns the state of an overlay; None for a container that the trace created."""
    return _RECORDS.get(id(overlay))


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
            record.read_all()
            record.is_reordered = True
        return native(self, *arguments, **keywords)

    return method


def _list_methods(base: Any) -> dict[str, Any]:
    """The methods of overlays of lists and deques that differ from those of the class."""

    def __getitem__(self: Any, key: Any) -> Any:
        record = record_of(self)
        if record is None or record.is_reordered:
            return base.__getitem__(self, key)
        if isinstance(key, slice) or record.shift:
            record.read_all()
            return base.__getitem__(self, key)
        index, before = operator.index(key), len(record.before)
        size = before + record.appended
        if not -size <= index < size:
            record.read_length()
        elif 0 <= index < before:
            return record.entry(index, index)
        elif index >= before:
            record.read_length()
        elif index + size < before:
            return record.entry(index + record.appended, index)
        return base.__getitem__(self, index + size if -size <= index < 0 else index)

    def __setitem__(self: Any, key: Any, value: Any) -> None:
        record = record_of(self)
        if record is not None and not record.is_reordered:
            record.read_length()
            if isinstance(key, slice) or record.shift:
                record.read_all()
                record.is_reordered = True
        base.__setitem__(self, key, value)

    def __len__(self: Any) -> int:
        record = record_of(self)
        if record is not None:
            record.read_length()
        return int(base.__len__(self))

    def append(self: Any, value: Any) -> None:
        record = record_of(self)
        base.append(self, value)
        if record is not None and not record.is_reordered:
            record.appended += 1

    def extend(self: Any, values: Any) -> None:
        for value in list(values):
            append(self, value)

    def __iadd__(self: Any, values: Any) -> Any:
        extend(self, values)
        return self

    def __iter__(self: Any) -> Any:
        record = record_of(self)
        if record is not None:
            record.read_all()
        return base.__iter__(self)

    def __radd__(self: Any, other: Any) -> Any:
        return NotImplemented if not isinstance(other, base) else base.__add__(other, base(self))

    def clear(self: Any) -> None:
        record = record_of(self)
        if record is not None:
            record.is_reordered = True
        base.clear(self)

    return {
        method.__name__: method
        for method in (__getitem__, __setitem__, __len__, append, extend, __iadd__, __iter__, __radd__, clear)
    }


def _dict_methods(base: Any) -> dict[str, Any]:
    """The methods of overlays of dicts that differ from those of the class."""

    def load(self: Any, key: Any) -> ContainerOverlay | None:
        """Reads an entry, or that there is none, unless the trace wrote it."""
        record = record_of(self)
        if record is None:
            return None
        if base.__contains__(self, key):
            if key in record.before:
                record.entry(key, key)
        elif key not in record.loaded:
            record.read_presence(key)
        return record

    def __getitem__(self: Any, key: Any) -> Any:
        key = plain_key(key)
        load(self, key)
        return base.__getitem__(self, key)

    def __setitem__(self: Any, key: Any, value: Any) -> None:
        base.__setitem__(self, plain_key(key), value)

    def get(self: Any, key: Any, default: Any = None) -> Any:
        key = plain_key(key)
        load(self, key)
        return base.get(self, key, default)

    def setdefault(self: Any, key: Any, default: Any = None) -> Any:
        key = plain_key(key)
        load(self, key)
        return base.setdefault(self, key, default)

    def pop(self: Any, key: Any, *default: Any) -> Any:
        key = plain_key(key)
        load(self, key)
        return base.pop(self, key, *default)

    def __delitem__(self: Any, key: Any) -> None:
        key = plain_key(key)
        load(self, key)
        base.__delitem__(self, key)

    def __contains__(self: Any, key: Any) -> bool:
        record, key = record_of(self), plain_key(key)
        present = base.__contains__(self, key)
        if (
            record is not None
            and key not in record.loaded
            and (not present or base.__getitem__(self, key) is record.before.get(key, _MISSING))
        ):
            record.read_presence(key)
        return bool(present)

    def __len__(self: Any) -> int:
        record = record_of(self)
        if record is not None:
            record.read_keys()
        return int(base.__len__(self))

    methods = {
        method.__name__: method
        for method in (__getitem__, __setitem__, get, setdefault, pop, __delitem__, __contains__, __len__)
    }
    if base in (defaultdict, Counter):
        # The class looks the key up past the methods of an overlay.
        def __missing__(self: Any, key: Any) -> Any:
            return base.__missing__(self, key)

        methods["__missing__"] = __missing__
    return methods


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
        methods |= _list_methods(base)
    elif family is dict:
        methods |= _dict_methods(base)
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

    def overlay(self, original: Any, place: Place) -> Any:
        """Returns the overlay of a list, a dict, a set or a deque."""
        base: Any = type(original)
        overlay: Any = base.__new__(OVERLAY_CLASSES[base])
        if place.route.before is not None:
            self._overlays.reads.add_value(place.derived("type({})", type, base))
        self._overlays.remember(original, overlay, place)
        self.fill(overlay, original, place)
        return overlay

    def fill(self, overlay: Any, original: Any, place: Place) -> None:
        """Gives an overlay the entries of its original, and follows it from then on."""
        base: Any = next(one for one in type(original).__mro__ if one in CONTAINERS)
        if base is deque:
            deque.__init__(overlay, original, original.maxlen)
        elif base is defaultdict:
            at = place.attribute("default_factory", original.default_factory)
            defaultdict.__init__(overlay, self._overlays.read(original.default_factory, at))
            dict.update(overlay, original)
        elif CONTAINERS[base] is dict:
            for key, value in _entries_of(base, original).items():
                base.__setitem__(overlay, key, value)
        else:
            getattr(base, "update" if base is set else "extend")(overlay, original)
        record = ContainerOverlay(self._overlays, overlay, original, place, base)
        self.records.append(record)
        if base is set:  # Python reads a set past the methods of its class
            record.read_keys()
        _RECORDS[id(overlay)] = record

    def end(self) -> None:
        """Ends the overlays: from now on they are ordinary containers."""
        for record in self.records:
            _RECORDS.pop(id(record.overlay), None)

    def forget(self) -> None:
        """Empties the overlays."""
        for record in self.records:
            record.base.clear(record.overlay)
            record.loaded.clear()
        self.records.clear()
