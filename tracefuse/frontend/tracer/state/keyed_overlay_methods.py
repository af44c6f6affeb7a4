"""The methods of overlays of dicts and sets that differ from those of the class.

Must not know: overlays of values.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from tracefuse.frontend.tracer.state.computed_entries import NO_ENTRY, ComputedEntry
from tracefuse.frontend.tracer.state.container_records import MISSING, RECORDS, ContainerOverlay, by_name, record_of
from tracefuse.frontend.tracer.values.symbolic_size import plain_key


def slot_at(overlay: Any, key: Any) -> ComputedEntry | None:
    """The entry at a computed key; None if the overlay itself has it."""
    record = RECORDS.get(id(overlay))
    return None if record is None else record.slot(key)


def value_at(overlay: Any, key: Any) -> tuple[Any] | None:
    """The value at a computed key, NO_ENTRY if there is none; None if the overlay itself has it."""
    slot = slot_at(overlay, key)
    return None if slot is None else (RECORDS[id(overlay)].computed.value(slot),)


def _load(base: Any, overlay: Any, key: Any) -> ContainerOverlay | None:
    """Reads an entry of a dict, or that there is none, unless the trace wrote it."""
    record = RECORDS.get(id(overlay))
    if record is None:
        return None
    if record.waiting:
        record.settle()
    if base.__contains__(overlay, key):
        if key in record.before:
            record.entry(key, key)
    elif key not in record.loaded:
        record.read_presence(key)
    return record


def dict_methods(base: Any) -> dict[str, Any]:
    """The methods of overlays of dicts that differ from those of the class."""
    methods = {**_dict_lookups(base), **_dict_keys(base), **_dict_stores(base), **_dict_removals(base)}
    if base is Counter:
        del methods["__ior__"]
        methods["update"] = _update_counter
    if base in (defaultdict, Counter):
        # The class looks the key up past the methods of an overlay.
        def __missing__(self: Any, key: Any) -> Any:
            return base.__missing__(self, key)

        methods["__missing__"] = __missing__
    return methods


def _dict_lookups(base: Any) -> dict[str, Any]:
    def __getitem__(self: Any, key: Any) -> Any:
        record = RECORDS.get(id(self))
        if record is not None and record.waiting and record.waiting[-1][0] is key:
            return record.waiting[-1][1]
        value = value_at(self, key)
        if value is not None:
            if value[0] is not NO_ENTRY:
                return value[0]
            if hasattr(type(self), "__missing__"):
                return type(self).__missing__(self, key)
            RECORDS[id(self)].settle()
        key = plain_key(key)
        _load(base, self, key)
        return base.__getitem__(self, key)

    def get(self: Any, key: Any, default: Any = None) -> Any:
        value = value_at(self, key)
        if value is not None:
            return default if value[0] is NO_ENTRY else value[0]
        key = plain_key(key)
        _load(base, self, key)
        return base.get(self, key, default)

    return by_name(__getitem__, get)


def _dict_keys(base: Any) -> dict[str, Any]:
    def __contains__(self: Any, key: Any) -> bool:
        slot = slot_at(self, key)
        if slot is not None:
            return RECORDS[id(self)].computed.contains(slot)
        record, key = RECORDS.get(id(self)), plain_key(key)
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

    return by_name(__contains__, __len__)


def _dict_stores(base: Any) -> dict[str, Any]:
    def __setitem__(self: Any, key: Any, value: Any) -> None:
        record = RECORDS.get(id(self))
        if record is None:
            base.__setitem__(self, plain_key(key), value)
        else:
            record.store(key, value)

    def setdefault(self: Any, key: Any, default: Any = None) -> Any:
        value = value_at(self, key)
        if value is not None:
            if value[0] is NO_ENTRY:
                __setitem__(self, key, default)
            return default if value[0] is NO_ENTRY else value[0]
        key = plain_key(key)
        _load(base, self, key)
        if not base.__contains__(self, key):
            __setitem__(self, key, default)
            return default
        return base.__getitem__(self, key)

    def update(self: Any, *sources: Any, **more: Any) -> None:
        for other in (*sources, more):
            pairs = [(key, other[key]) for key in list(other.keys())] if hasattr(other, "keys") else other
            for key, value in pairs:
                self[key] = value

    def __ior__(self: Any, other: Any) -> Any:
        update(self, other)
        return self

    return by_name(__setitem__, setdefault, update, __ior__)


def _dict_removals(base: Any) -> dict[str, Any]:
    def remove_computed(self: Any, key: Any) -> None:
        """Removes an entry at a computed key."""
        slot = slot_at(self, key)
        if slot is not None:
            RECORDS[id(self)].computed.remove(slot)

    def before_removal(self: Any, key: Any) -> None:
        """Reads an entry that is removed from the overlay itself."""
        record = record_of(self)
        if record is not None:
            _load(base, self, key)
            record.removed[key] = None
            record.stored.pop(key, None)

    def pop(self: Any, key: Any, *default: Any) -> Any:
        value = value_at(self, key)
        if value is not None and (value[0] is not NO_ENTRY or len(default) == 1):
            if value[0] is NO_ENTRY:
                return default[0]
            remove_computed(self, key)
            return value[0]
        key = plain_key(key)
        before_removal(self, key)
        return base.pop(self, key, *default)

    def __delitem__(self: Any, key: Any) -> None:
        value = value_at(self, key)
        if value is not None and value[0] is not NO_ENTRY:
            remove_computed(self, key)
            return
        key = plain_key(key)
        before_removal(self, key)
        base.__delitem__(self, key)

    return by_name(pop, __delitem__)


def _update_counter(self: Any, iterable: Any = None, /, **more: Any) -> None:
    """Adds counts, as `Counter.update` does past the methods of overlays."""
    is_empty = not self
    if isinstance(iterable, Mapping):
        for element, count in iterable.items():
            self[element] = count if is_empty else count + self.get(element, 0)
    elif iterable is not None:
        for element in iterable:
            self[element] = self.get(element, 0) + 1
    if more:
        _update_counter(self, more)


def set_methods(base: Any) -> dict[str, Any]:
    """The methods of overlays of sets that differ from those of the class."""
    return {**_set_lookups(base), **_set_changes(base)}


def _load_element(overlay: Any, element: Any) -> ContainerOverlay | None:
    """Reads whether a set has an element, unless the trace added it."""
    record = RECORDS.get(id(overlay))
    if record is not None and element not in record.stored:
        record.read_presence(element)
    return record


def _set_lookups(base: Any) -> dict[str, Any]:
    def __contains__(self: Any, element: Any) -> bool:
        slot = slot_at(self, element)
        if slot is not None:
            return RECORDS[id(self)].computed.contains(slot)
        element = plain_key(element)
        _load_element(self, element)
        return bool(base.__contains__(self, element))

    def __iter__(self: Any) -> Any:
        record = record_of(self)
        if record is None:
            return base.__iter__(self)
        record.read_all()
        return record.elements()

    return by_name(__contains__, __iter__)


def _set_changes(base: Any) -> dict[str, Any]:
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
        slot = slot_at(self, element)
        if slot is not None:
            if RECORDS[id(self)].computed.contains(slot):
                RECORDS[id(self)].computed.remove(slot)
            return
        element = plain_key(element)
        record = _load_element(self, element)
        if record is not None:
            record.stored.pop(element, None)
        base.discard(self, element)

    return by_name(add, update, __ior__, discard)
