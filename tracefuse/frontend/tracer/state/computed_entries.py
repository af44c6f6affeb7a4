"""Entries of containers of the state under keys that a call computes, as in `visits[k] += 1` of an argument `k`.

Each call finds the entry at its own key. Guards keep whether two keys of the function are one key, and whether there is
an entry. Where the function reads what depends on all keys, such as their order, the trace asks for the keys.

Must not know: overlays of values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.state.computed_keys import (
    ENTRY,
    PRESENCE,
    CannotCompare,
    ComputedKey,
    are_equal,
    computed_key,
    has_sizes,
    sizes_in,
)
from tracefuse.frontend.tracer.values.symbolic_size import plain_key

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.state.container_records import ContainerOverlay

NO_ENTRY = object()
_UNREAD = object()
MOST_SLOTS = 16
"""Computed keys of one container that a trace compares with each other. Where there are more, it asks for the keys."""


class ComputedEntry:
    """An entry at one key. before: what the original has there; now: what the function sees.

    Both are NO_ENTRY where there is no entry. is_present: whether there was one, None before it is read. is_removed:
    whether the function has removed the entry of the original. place: of the entry; None of a key that is a constant.
    """

    def __init__(self, key: Any, computed: ComputedKey | None) -> None:
        self.key, self.computed = key, computed
        self.before: Any = _UNREAD
        self.now: Any = _UNREAD
        self.is_present: bool | None = None
        self.is_removed = self.is_written = False
        self.place: Place | None = None


class ComputedEntries:
    """The entries of one container under computed keys. order: those that were written, in the order of their keys."""

    def __init__(self, record: ContainerOverlay) -> None:
        self._record = record
        self._slots: list[ComputedEntry] = []
        self._order: list[ComputedEntry] = []

    def __bool__(self) -> bool:
        return bool(self._slots)

    # -- finding ------------------------------------------------------------------------------------------------------

    def slot(self, key: Any) -> ComputedEntry | None:
        """The entry at a key; None if the container itself has it, under the value of the key."""
        is_computed = has_sizes(key)
        if not is_computed and not self._slots:
            return None
        if self._record.overlays.recorder.body is not None:  # a loop carries entries under keys that are constants
            self.settle()
            return None
        try:
            for slot in self._slots:
                if are_equal(slot.key, key):
                    return slot
            computed = self._expressed(key) if is_computed else None
            if computed is None:
                if is_computed:
                    self.settle()
                return None
            if any(are_equal(known, key) for known in self._record.known_keys()):
                return None
        except CannotCompare:
            self.settle()
            return None
        self._slots.append(ComputedEntry(key, computed))
        return self._slots[-1]

    def _expressed(self, key: Any) -> ComputedKey | None:
        """A key that this container can have a slot for."""
        record = self._record
        known = record.known_keys()
        is_open = (
            not (record.is_reordered or record.has_read_all or record.removed)
            and len(self._slots) + len(known) < MOST_SLOTS
        )
        is_open = is_open and (record.family is not list or (record.base is list and not record.appended))
        recorder = record.overlays.recorder
        if not is_open or recorder.counts_in(*(size.extent for size in sizes_in(key))):
            return None
        computed = computed_key(key, record.overlays.reads.routes)
        if computed is not None and record.family is list and not self._is_position(computed):
            return None
        return computed

    def _is_position(self, computed: ComputedKey) -> bool:
        return type(computed.now) is int and 0 <= computed.now < len(self._record.before)

    def constant_slot(self, key: Any) -> ComputedEntry | None:
        """A slot for a new key that is a constant, whose place in the order follows earlier computed keys.

        None where the order does not matter: nothing was stored, or the key is not new.
        """
        record = self._record
        if not self._order or record.family is list:
            return None
        if key not in record.loaded and key not in record.stored:
            record.read_presence(key)
        if record.base.__contains__(record.overlay, key):
            return None
        slot = ComputedEntry(key, None)
        slot.before, slot.now, slot.is_present = NO_ENTRY, NO_ENTRY, False
        self._slots.append(slot)
        return slot

    # -- reading ------------------------------------------------------------------------------------------------------

    def contains(self, slot: ComputedEntry) -> bool:
        """Whether there is an entry now."""
        if slot.now is _UNREAD:
            self._read_presence(slot)
            if not slot.is_present:
                slot.before = slot.now = NO_ENTRY
        return slot.now is not NO_ENTRY

    def value(self, slot: ComputedEntry) -> Any:
        """The value now, NO_ENTRY if there is none."""
        if slot.now is _UNREAD and self.contains(slot):
            record = self._record
            assert slot.computed is not None
            value = record.entry_of_original(slot.computed.now)
            slot.before = slot.now = record.overlays.read(value, self.place_of(slot, value))
        return slot.now

    def place_of(self, slot: ComputedEntry, value: Any = None) -> Place:
        """The place of an entry."""
        if slot.place is None:
            record = self._record
            assert slot.computed is not None
            route = slot.computed.route(record.place.route, record.family, ENTRY)
            slot.place = Place(f"{record.place.path}[...]", route, value, record.overlays.line())
        return slot.place

    def _read_presence(self, slot: ComputedEntry) -> None:
        """Records whether the original has an entry."""
        if slot.is_present is not None:
            return
        record, computed = self._record, slot.computed
        assert computed is not None
        slot.is_present = self._is_position(computed) if record.family is list else computed.now in record.before
        route = computed.route(record.place.route, record.family, PRESENCE)
        text = f"a computed key in {record.place.path}"
        record.overlays.reads.add_value(Place(text, route, slot.is_present, record.overlays.line()))

    def added(self) -> int:
        """How many entries the trace added and did not remove, less those of the original that it removed."""
        for slot in self._slots:
            if slot.now is not _UNREAD:
                self._read_presence(slot)
        present = [slot for slot in self._slots if slot.now is not _UNREAD]
        return sum(slot.now is not NO_ENTRY for slot in present) - sum(bool(slot.is_present) for slot in present)

    # -- writing ------------------------------------------------------------------------------------------------------

    def store(self, slot: ComputedEntry, value: Any = None) -> None:
        """Stores an entry."""
        if self._record.family is list:
            self._read_presence(slot)  # an assignment outside of the list raises
        if slot.now is NO_ENTRY or slot.now is _UNREAD or slot not in self._order:
            self._order.append(slot)
        slot.now, slot.is_written = value, True

    def remove(self, slot: ComputedEntry) -> None:
        """Removes an entry that is there."""
        self._read_presence(slot)
        slot.now = NO_ENTRY
        slot.is_removed = slot.is_removed or bool(slot.is_present)
        if slot in self._order:
            self._order.remove(slot)

    def removals(self) -> Iterator[ComputedEntry]:
        """The entries of the original that the trace removed."""
        return (slot for slot in self._slots if slot.is_removed)

    def stores(self) -> Iterator[ComputedEntry]:
        """What the trace stored, in the order of new keys."""
        return (slot for slot in self._order if slot.now is not NO_ENTRY)

    def values(self) -> list[Any]:
        """What the function sees under computed keys."""
        return [slot.now for slot in self._slots]

    def forget(self) -> None:
        """Drops the entries."""
        self._slots.clear()
        self._order.clear()

    def settle(self) -> None:
        """Gives the entries to the container itself, and asks for their keys."""
        slots, order = self._slots, self._order
        self._slots, self._order = [], []
        for slot in slots:
            slot.key = plain_key(slot.key)
            if slot.before is not _UNREAD and slot.before is not NO_ENTRY:
                self._record.load(slot.key, slot.before)
            if slot.is_removed:
                self._record.unload(slot.key)
        for slot in order:
            if slot.now is not NO_ENTRY:
                self._record.store(slot.key, slot.now)
