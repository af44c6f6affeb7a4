"""The state of the overlays of containers: what a trace read of the original, and the stores that wait for their keys.

A store under a key that the call computes, as in `losses[step] = loss`, waits: at every call it follows the other
writes. Code that reads the dict afterwards asks for the key.

Must not know: overlays of values.
"""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tracefuse.frontend.tracer.captured import routes
from tracefuse.frontend.tracer.captured.captures import PLAIN, Place
from tracefuse.frontend.tracer.state.computed_entries import ComputedEntries, ComputedEntry
from tracefuse.frontend.tracer.state.computed_keys import has_sizes
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, plain_key
from tracefuse.frontend.tracer.values.traced import Traced

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.state.overlays import Overlays

CONTAINERS: dict[type, Any] = {
    list: list, deque: list, dict: dict, OrderedDict: dict, defaultdict: dict, Counter: dict, set: set,
}  # fmt: skip
"""The classes of containers that have overlays, with the class whose methods they follow."""
MISSING = object()
MOST_LAST = 64
"""Entries at the end of a list that a slice reads without the length of the list."""
RECORDS: dict[int, ContainerOverlay] = {}
"""The state of each overlay of the traces in progress, by the id of the overlay."""


class ContainerOverlay:
    """The state of the overlay of one container.

    before: the entries when the overlay was made. loaded: overlays of entries at their first read, by key or position.
    appended: the number of entries added at the end while nothing else changed the order. is_reordered: the positions
    changed otherwise; every entry was read before that. removed: keys of entries that were removed. computed: entries
    that were read under keys that the call computes. waiting: stores after which nothing was read, in their order, from
    the first one on whose key, or element, the call computes; of a set the value is None. stored: keys,
    positions or elements that the trace stored; an entry that is stored again may differ at a later call.
    """

    def __init__(self, overlays: Overlays, overlay: Any, original: Any, place: Place, base: Any) -> None:
        self.overlays, self.overlay, self.original, self.place, self.base = overlays, overlay, original, place, base
        self.family = CONTAINERS[base]
        self.before: Any = self.family(original) if self.family is not dict else entries_of(overlays, base, original)
        self.loaded: dict[Any, Any] = {}
        self.appended = 0
        self.is_reordered = self.has_read_all = False
        self.removed: dict[Any, None] = {}
        self.waiting: list[tuple[Any, Any]] = []
        self.stored: dict[Any, None] = {}
        self.computed = ComputedEntries(self)
        self._asked: dict[Any, None] = {}
        self._length: Any = None

    @property
    def shift(self) -> int:
        """The number of entries that a bounded deque dropped at its beginning."""
        return len(self.before) + self.appended - int(self.base.__len__(self.overlay))

    def store(self, key: Any, value: Any = None) -> None:
        """Stores an entry of a dict or an element of a set.

        The store waits if the call computes its key, or if an earlier store waits.
        """
        if not self.waiting:
            slot = self.computed.slot(key) if self.computed else None
            slot = slot or (None if is_computed_key(key) else self.computed.constant_slot(key))
            if slot is not None:
                self.computed.store(slot, value)
                return
        if self.waiting or is_computed_key(key):
            self.computed.settle()
            self.waiting.append((key, value))
            return
        key = plain_key(key)
        self.stored[key] = None
        if self.family is set:
            set.add(self.overlay, key)
        else:
            self.base.__setitem__(self.overlay, key, value)

    def settle(self) -> None:
        """Makes the stores that wait, and asks for their keys."""
        self.computed.settle()
        waiting, self.waiting = self.waiting, []
        for key, value in waiting:
            self.store(plain_key(key), value)

    def slot(self, key: Any) -> ComputedEntry | None:
        """The entry that is read at a computed key; None if the container itself has it, under the value of the key."""
        self._take_waiting()
        return self.computed.slot(key)

    def _take_waiting(self) -> None:
        """Makes the stores that wait entries under computed keys; asks for their keys where that cannot be."""
        waiting, self.waiting = self.waiting, []
        for position, (stored, value) in enumerate(waiting):
            slot = self.computed.slot(stored) or self.computed.constant_slot(plain_key(stored))
            if slot is None:
                self.computed.settle()
                self.waiting = waiting[position:]
                self.settle()
                break
            self.computed.store(slot, value)

    def known_keys(self) -> list[Any]:
        """The keys, positions or elements that are constants of the trace, and that it read or stored."""
        return list(dict.fromkeys((*self.loaded, *self.stored, *self._asked)))

    def entry_of_original(self, key: Any) -> Any:
        """What the original has at a key."""
        return self.before[key]

    def load(self, key: Any, value: Any) -> None:
        """Has the overlay of an entry, which was read under a computed key."""
        if self.family is not set:
            self.loaded[key] = value
            self.base.__setitem__(self.overlay, key, value)

    def unload(self, key: Any) -> None:
        """Drops an entry that was removed under a computed key."""
        if self.family is set:
            set.discard(self.overlay, key)
            self.stored.pop(key, None)
        else:
            self.base.__delitem__(self.overlay, key)

    def read_to_reorder(self) -> None:
        """Records that the trace read every entry, and then moves entries in any manner."""
        self.read_all()
        self.is_reordered = True

    @property
    def is_untouched(self) -> bool:
        """Whether the trace has stored or removed nothing."""
        size: int = self.base.__len__(self.overlay)
        return not self.stored and not self.waiting and size == len(self.before) and not self.is_reordered

    def read_length(self) -> None:
        """Records that the trace read the number of entries."""
        size = len(self.before)
        self.overlays.reads.add_value(self.place.derived("len({})", len, size, self.overlays.line()))

    def read_emptiness(self) -> None:
        """Records that the trace read whether there are entries."""
        if not self.is_reordered:
            self.overlays.reads.add_value(self.place.derived("bool({})", bool, bool(self.before), self.overlays.line()))

    def reads_last(self, key: slice) -> bool:
        """Whether a slice selects the last few entries of a list; records that there are as many."""
        count = -key.start if type(key.start) is int else 0
        size = self.base.__len__(self.overlay)
        if not (0 < count <= min(size, MOST_LAST) and key.stop is None and key.step is None and self.base is list):
            return False
        if count > self.appended:
            least = count - self.appended
            place = self.place.derived(f"len({{}}) >= {least}", functools.partial(has_entries, least), True)
            self.overlays.reads.add_value(place)
        return True

    @property
    def was_changed_in_c(self) -> bool:
        """Whether code in C, such as `heapq.heappush`, has changed a list past the methods of its overlay."""
        if self.is_reordered or getattr(self.overlay, "maxlen", None) is not None:
            return False
        now = list(self.base.__iter__(self.overlay))
        is_unchanged = (
            now[k] is self.loaded.get(k, element) or k in self.stored
            for k, element in enumerate(self.before[: len(now)])
        )
        return len(now) != len(self.before) + self.appended or not all(is_unchanged)

    def read_as_before(self) -> None:
        """Records that the trace read every entry of a list as it was."""
        self.read_length()
        for position, value in enumerate(self.before):
            self.overlays.reads.add_value(self.place.entry(position, value))

    def length(self) -> Any:
        """Returns the number of entries: an input of the trace for a container that the function adds to.

        NotImplemented for a bounded deque, once positions of a list have changed in another manner, and once the trace
        has changed a dict or a set.
        """
        if self.is_reordered or getattr(self.overlay, "maxlen", None) is not None:
            return NotImplemented
        if self.family is not list:
            self._take_waiting()
            if not self.is_untouched:
                return NotImplemented
        added = self.appended if self.family is list else self.computed.added()
        if self._length is None:
            size = len(self.before)
            place = self.place.derived("len({})", len, size, self.overlays.line())
            self._length = self.overlays.read(size, place)
        return self._length + added

    def read_keys(self) -> None:
        """Records that the trace read which keys, or elements, there are."""
        if self.base is set:
            place = self.place.derived("frozenset({})", frozenset, frozenset(self.before))
        else:
            keys = tuple(map(self.original_key, self.before))
            place = self.place.derived("tuple({})", tuple, keys, self.overlays.line())
        self.overlays.reads.add_value(place)

    def read_presence(self, key: Any) -> None:
        """Records that the trace asked whether a key is there."""
        self._asked[key] = None
        key = self._original(key)
        function = functools.partial(has, key)
        route = self.place.route.then("call", function)
        where = self.overlays.line()
        self.overlays.reads.add_value(Place(f"{key!r} in {self.place.path}", route, key in self.before, where))

    def original_key(self, key: Any) -> Any:
        """Returns a key as the original has it: of an overlay the object."""
        known = self.overlays.original(key)
        return key if known is None else known[0]

    def _original(self, key: Any) -> Any:
        """A key as the original has it. Every call finds the object of an overlay at the same place."""
        known = self.overlays.original(key)
        if known is None:
            return key
        original, place = known
        self.overlays.reads.add_pair(place, Place(place.path, routes.to(original), original, place.where))
        return original

    def elements(self) -> Iterator[Any]:
        """The elements of a set, in the order of the original while the trace has changed nothing."""
        if not self.is_untouched:
            return set.__iter__(self.overlay)
        known = (self.overlays.original_overlay(element) for element in self.original)
        return iter([a if b is None else b for a, b in zip(list(self.original), known, strict=True)])

    def entry(self, key: Any, position: Any) -> Any:
        """Returns the overlay of an entry of the original. key: in the route; position: in the overlay."""
        if self.family is list and position < 0:  # a deque would ask the overlay for its length
            position += self.base.__len__(self.overlay)
        value = self.base.__getitem__(self.overlay, position)
        index = key if self.family is dict or key >= 0 else len(self.before) + key
        if index in self.loaded or value is not self.before[index]:
            return value
        self.loaded[index] = self.overlays.read(
            value, self.place.entry(self._original(key), value, self.overlays.line())
        )
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


def entries_of(overlays: Overlays, base: Any, original: Any) -> dict[Any, Any]:
    """The entries of a dict, in its order, under the keys that its overlay has: overlays of functions and objects."""
    entries = {}
    for key in base.__iter__(original):
        value = dict.__getitem__(original, key)
        if not is_plain_key(key):
            key = overlays.read(key, Place(repr(key), routes.to(key), key))
        entries[key] = value
    return entries


def is_plain_key(key: Any) -> bool:
    """Whether a key of a dict needs no overlay: it is no function or object of the user."""
    return isinstance(key, (*PLAIN, tuple, frozenset))


def has_entries(least: int, container: Any) -> bool:
    return list.__len__(container) >= least


def has(key: Any, container: Any) -> bool:
    return key in container


def by_name(*methods: Callable[..., Any]) -> dict[str, Any]:
    """The methods of an overlay class, by name."""
    return {method.__name__: method for method in methods}


def record_of(overlay: Any) -> ContainerOverlay | None:
    """Returns the state of an overlay that is read; None for a container that the trace created."""
    record = RECORDS.get(id(overlay))
    if record is not None and (record.waiting or record.computed):
        record.settle()
    return record


def read_shared(attributes: dict[str, Any]) -> None:
    """Reads the dict of the state that an instance has as its attributes, as after `self.__dict__ = shared`."""
    record = RECORDS.get(id(attributes))
    if record is not None:
        record.read_all()


def is_computed_key(key: Any) -> bool:
    """Whether a key or an element is a number that each call computes, or a tuple with sizes and integers of it."""
    if type(key) is tuple:
        return has_sizes(key)
    return isinstance(key, SymbolicSize) or (isinstance(key, Traced) and (key.is_python or key.is_immutable))
