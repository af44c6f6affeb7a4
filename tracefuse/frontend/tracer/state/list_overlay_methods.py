"""The methods of overlays of lists and deques that differ from those of the class.

Must not know: overlays of values.
"""

from __future__ import annotations

import operator
from typing import Any

from tracefuse.frontend.tracer.state.computed_entries import ComputedEntry
from tracefuse.frontend.tracer.state.container_records import RECORDS, ContainerOverlay, by_name, record_of
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize


def slot_at(record: ContainerOverlay, key: Any) -> ComputedEntry | None:
    """The entry at a computed position; None if the overlay itself has it, at a position that the trace knows."""
    if type(key) is SymbolicSize or (type(key) is int and key >= 0):
        return record.slot(key)
    record.settle()
    return None


def list_methods(base: Any) -> dict[str, Any]:
    """The methods of overlays of lists and deques that differ from those of the class."""
    return {**_lookups(base), **_sizes(base), **_stores(base), **_growth(base)}


def _lookups(base: Any) -> dict[str, Any]:
    def __getitem__(self: Any, key: Any) -> Any:
        record = RECORDS.get(id(self))
        if record is not None and (record.computed or type(key) is SymbolicSize):
            slot = slot_at(record, key)
            if slot is not None:
                return record.computed.value(slot)
        if record is None or record.is_reordered:
            return base.__getitem__(self, key)
        if isinstance(key, slice) and record.reads_last(key):
            return [self[position] for position in range(key.start, 0)]
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

    def __iter__(self: Any) -> Any:
        record = record_of(self)
        if record is not None:
            record.read_all()
        return base.__iter__(self)

    return by_name(__getitem__, __iter__)


def _sizes(base: Any) -> dict[str, Any]:
    def __len__(self: Any) -> int:
        record = RECORDS.get(id(self))
        if record is not None:
            record.read_length()
        return int(base.__len__(self))

    def __bool__(self: Any) -> bool:
        record = record_of(self)
        if type(self).__len__ is not __len__:
            return len(self) > 0
        if record is not None and not record.appended:
            record.read_emptiness()
        return bool(base.__len__(self))

    return by_name(__len__, __bool__)


def _stores(base: Any) -> dict[str, Any]:
    def __setitem__(self: Any, key: Any, value: Any) -> None:
        record = RECORDS.get(id(self))
        if record is not None and (record.computed or type(key) is SymbolicSize):
            slot = slot_at(record, key)
            if slot is not None:
                record.computed.store(slot, value)
                return
        if record is not None and not record.is_reordered:
            record.read_length()
            if isinstance(key, slice) or record.shift:
                record.read_all()
                record.is_reordered = True
            else:
                record.stored[range(base.__len__(self))[operator.index(key)]] = None
        base.__setitem__(self, key, value)

    def clear(self: Any) -> None:
        record = record_of(self)
        if record is not None:
            record.is_reordered = True
        base.clear(self)

    return by_name(__setitem__, clear)


def _growth(base: Any) -> dict[str, Any]:
    def append(self: Any, value: Any) -> None:
        record = RECORDS.get(id(self))
        base.append(self, value)
        if record is not None and not record.is_reordered:
            record.appended += 1

    def extend(self: Any, values: Any) -> None:
        for value in list(values):
            append(self, value)

    def __iadd__(self: Any, values: Any) -> Any:
        extend(self, values)
        return self

    def __radd__(self: Any, other: Any) -> Any:
        return NotImplemented if not isinstance(other, base) else base.__add__(other, base(self))

    return by_name(append, extend, __iadd__, __radd__)
