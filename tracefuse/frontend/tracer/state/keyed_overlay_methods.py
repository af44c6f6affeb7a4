"""The methods of overlays of dicts and sets that differ from those of the class.

Must not know: overlays of values.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from tracefuse.frontend.tracer.state.container_records import MISSING, RECORDS, ContainerOverlay, record_of
from tracefuse.frontend.tracer.values.symbolic_size import plain_key


def dict_methods(base: Any) -> dict[str, Any]:
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
        record = RECORDS.get(id(self))
        if record is not None and record.waiting and record.waiting[-1][0] is key:
            return record.waiting[-1][1]
        key = plain_key(key)
        load(self, key)
        return base.__getitem__(self, key)

    def __setitem__(self: Any, key: Any, value: Any) -> None:
        record = RECORDS.get(id(self))
        if record is None:
            base.__setitem__(self, plain_key(key), value)
        else:
            record.store(key, value)

    def update(self: Any, *sources: Any, **more: Any) -> None:
        for other in (*sources, more):
            pairs = [(key, other[key]) for key in list(other.keys())] if hasattr(other, "keys") else other
            for key, value in pairs:
                self[key] = value

    def __ior__(self: Any, other: Any) -> Any:
        update(self, other)
        return self

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
            and (not present or base.__getitem__(self, key) is record.before.get(key, MISSING))
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
    if base is not Counter:  # its `update` adds numbers
        methods |= {"update": update, "__ior__": __ior__}
    if base in (defaultdict, Counter):
        # The class looks the key up past the methods of an overlay.
        def __missing__(self: Any, key: Any) -> Any:
            return base.__missing__(self, key)

        methods["__missing__"] = __missing__
    return methods


def set_methods(base: Any) -> dict[str, Any]:
    """The methods of overlays of sets that differ from those of the class."""

    def load(self: Any, element: Any) -> ContainerOverlay | None:
        """Reads whether there is an element, unless the trace added it."""
        record = record_of(self)
        if record is not None and element not in record.stored:
            record.read_presence(element)
        return record

    def __contains__(self: Any, element: Any) -> bool:
        element = plain_key(element)
        load(self, element)
        return bool(base.__contains__(self, element))

    def __iter__(self: Any) -> Any:
        record = record_of(self)
        if record is None:
            return base.__iter__(self)
        record.read_all()
        return record.elements()

    def add(self: Any, element: Any) -> None:
        record = RECORDS.get(id(self))
        if record is None:
            base.add(self, plain_key(element))
        else:
            record.store(element)

    def update(self: Any, *sources: Any) -> None:
        for other in sources:
            for element in list(other):
                add(self, element)

    def __ior__(self: Any, other: Any) -> Any:
        update(self, other)
        return self

    def discard(self: Any, element: Any) -> None:
        element = plain_key(element)
        record = load(self, element)
        if record is not None:
            record.stored.pop(element, None)
        base.discard(self, element)

    return {method.__name__: method for method in (__contains__, __iter__, add, update, __ior__, discard)}
