"""What an iteration of a loop can reach in containers, objects and functions, to notice what it changes.

It reaches the variables of its function, and the captured state of the trace. An overlay that reads an entry of its
original changes nothing.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.frontend.tracer.python_code.frame_locals import UNBOUND
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.state.container_records import RECORDS
from tracefuse.frontend.tracer.state.function_clones import EMPTY, contents_of
from tracefuse.frontend.tracer.state.object_layout import is_special, native_dict, own_attributes
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.state.overlays import Overlays

MOST_OBJECTS = 4096
"""A loop of a function whose variables reach more objects is not recorded."""

MOST_BYTES = 1 << 20
"""The size of the largest NumPy array among them."""

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Slot:
    """An attribute of an object, or an entry of a container. text: names it, in every attempt of a trace."""

    owner: Any
    key: Any
    text: str

    def get(self) -> Any:
        """Returns the value; UNBOUND if there is none."""
        return _entries_of(self.owner).get(self.key, UNBOUND)

    def set(self, value: Any) -> None:
        """Stores a value."""
        if isinstance(self.owner, (dict, list)):
            self.owner[self.key] = value
        else:
            native_dict(self.owner)[self.key] = value


@dataclass(slots=True)
class _EntriesBefore:
    """The entries of one object before an iteration.

    text: names the object; empty if its entries cannot be carried. read: the keys that an overlay had read.
    """

    owner: Any
    text: str
    entries: dict[Any, Any]
    read: frozenset[Any]

    def changed(self, now: Mapping[Any, Any], read: Mapping[Any, Any]) -> list[Any]:
        """Returns the keys whose values differ. Raises NotInEveryIteration for fewer entries, or another order.

        now: the entries. read: what an overlay has read of its original.
        """
        kept = [key for key in now if key in self.entries]
        if len(kept) < len(self.entries) or (isinstance(self.owner, dict) and kept != [*self.entries]):
            raise self.refusal()
        return [
            key for key, value in now.items()
            if value is not self.entries.get(key, _MISSING)
            and (key in self.read or value is not read.get(key, _MISSING))
        ]  # fmt: skip

    def refusal(self) -> NotInEveryIteration:
        return NotInEveryIteration(f"an iteration changes a {type(self.owner).__name__}")


class ReachableContents:
    """The entries of every container and object that variables and the captured state reach."""

    def __init__(self, variables: Mapping[str, Any], overlays: Overlays | None) -> None:
        self._overlays = overlays
        tables: dict[int, _EntriesBefore] = {}
        self._names = {
            id(owner): _EntriesBefore(owner, "", now, frozenset(read)) for owner, now, read in _names(overlays)
        }
        waiting = deque(itertools.chain(((value, name) for name, value in variables.items()), _objects(overlays)))
        while waiting:
            value, text = waiting.popleft()
            if id(value) in tables or isinstance(value, _LEAVES):
                continue
            entries = _entries_of(value)
            tables[id(value)] = _EntriesBefore(value, text, entries, frozenset(self._read_by(value)))
            if len(tables) > MOST_OBJECTS:
                raise NotInEveryIteration(f"the variables reach more than {MOST_OBJECTS} objects")
            record = RECORDS.get(id(value))
            for key, entry in entries.items():
                if record is None or key in record.loaded or key in record.stored or key not in _keys(record.before):
                    waiting.append((entry, text_of_entry(value, text, key)))
        self._tables = tables

    def _read_by(self, value: Any) -> dict[Any, Any]:
        """Returns what an overlay has read of its original."""
        record = RECORDS.get(id(value))
        read = {} if record is None else dict(record.loaded)
        instance = None if self._overlays is None else self._overlays.objects.instances.get(id(value))
        if instance is not None:
            read |= {_attribute(value, name): one for name, one in instance.loaded.items()}
        return read

    @property
    def objects(self) -> set[int]:
        """The ids of the containers and objects."""
        return {*self._tables}

    @property
    def records(self) -> set[int]:
        """The ids of the objects in which the entries are kept."""
        tables = self._tables.values()
        return {id(self._tables), *map(id, tables), *(id(table.entries) for table in tables)}

    def forget(self) -> None:
        """Drops the objects and their entries."""
        self._tables.clear()
        self._names.clear()

    def slots(self, texts: Iterable[str]) -> dict[str, Slot]:
        """Returns the slots with these texts; also those that do not exist yet."""
        found = {}
        for text, table in itertools.product(texts, [one for one in self._tables.values() if one.text]):
            key = _key_of(table, text) if text.startswith(table.text) else _MISSING
            if key is not _MISSING:
                found[text] = Slot(table.owner, key, text)
        return found

    def text_of(self, slot: Slot) -> str:
        """Returns how a slot is named from here; empty if it is not reached."""
        table = self._tables.get(id(slot.owner))
        return "" if table is None else text_of_entry(table.owner, table.text, slot.key)

    def changes(self) -> tuple[list[tuple[list[Any], int]], list[Slot]]:
        """Returns the lists that have more entries now, with the number that they had, and the slots that changed.

        Raises NotInEveryIteration if anything else has other entries.
        """
        for owner, now, read in _names(self._overlays):
            table = self._names.get(id(owner)) or _EntriesBefore(owner, "", {}, frozenset())
            if table.changed(now, read):
                raise NotInEveryIteration("an iteration changes a global variable, a closure or a class")
        grown, slots = list[tuple[list[Any], int]](), list[Slot]()
        for table in [*self._tables.values(), *self._new_tables()]:
            now = _entries_of(table.owner)
            if isinstance(table.owner, np.ndarray):
                if now != table.entries:
                    raise table.refusal()
                continue
            keys, size = table.changed(now, self._read_by(table.owner)), len(table.entries)
            if isinstance(table.owner, list) and len(now) > size:
                grown.append((table.owner, size))
                keys = [key for key in keys if key not in range(size, len(now))]
            names_all = all(text_of_entry(table.owner, table.text, key) for key in keys)
            if keys and not (names_all and _holds_slots(table, keys)):
                raise table.refusal()
            slots += [Slot(table.owner, key, text_of_entry(table.owner, table.text, key)) for key in keys]
        return grown, slots

    def _new_tables(self) -> Iterator[_EntriesBefore]:
        """Yields tables of the overlays that the iteration has made: what their originals hold, which they read."""
        for value, text in _objects(self._overlays):
            if id(value) not in self._tables:
                record = RECORDS.get(id(value))
                before = {} if record is None else {key: _before(record.before, key) for key in _keys(record.before)}
                yield _EntriesBefore(value, text, before, frozenset())


def read_slot(text: str, variables: Mapping[str, Any], table: Mapping[str, Any]) -> None:
    """Lets overlays read what a slot holds, so that it is reached. table: the globals of the function."""
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        return
    steps: list[ast.expr] = []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        steps.insert(0, node)
        node = node.value
    if not isinstance(node, ast.Name) or (node.id not in variables and node.id not in table):
        return
    value = variables[node.id] if node.id in variables else table[node.id]
    for step in steps:
        if isinstance(step, ast.Attribute) and hasattr(value, step.attr):
            value = getattr(value, step.attr)
        elif isinstance(step, ast.Subscript) and isinstance(value, (dict, list, tuple, deque)):
            key = ast.literal_eval(step.slice)
            if key not in (value if isinstance(value, dict) else range(len(value))):
                return
            value = value[key]
        else:
            return


_LEAVES = (Traced, SymbolicSize, bool, int, float, complex, str, bytes, type(None), type, ModuleType, np.generic)
_CONTAINERS = (list, tuple, deque, dict, set, frozenset)


def _keys(before: Any) -> Any:
    """Returns the keys of a container as it was: positions of a list, elements of a set."""
    return range(len(before)) if isinstance(before, (list, deque)) else before


def _before(before: Any, key: Any) -> Any:
    return key if isinstance(before, (set, frozenset)) else before[key]


def _attribute(owner: Any, name: str) -> Any:
    """Returns the key of an attribute: of a container it is no entry."""
    return ("attribute", name) if isinstance(owner, _CONTAINERS) else name


def text_of_entry(owner: Any, text: str, key: Any) -> str:
    """Returns how an entry is named; empty for one that cannot be."""
    if not text or type(key) not in (str, int):
        return ""
    return f"{text}[{key!r}]" if isinstance(owner, _CONTAINERS) else f"{text}.{key}"


def _key_of(table: _EntriesBefore, text: str) -> Any:
    """Returns the key of the entry of a table that is named by a text."""
    rest = text[len(table.text) :]
    if not isinstance(table.owner, _CONTAINERS):
        return rest[1:] if rest[:1] == "." and rest[1:].isidentifier() else _MISSING
    for key in table.entries:
        if text_of_entry(table.owner, table.text, key) == text:
            return key
    is_new = isinstance(table.owner, dict) and rest == f"[{rest[2:-2]!r}]"
    return rest[2:-2] if is_new else _MISSING


def _holds_slots(table: _EntriesBefore, keys: Iterable[Any]) -> bool:
    """Whether entries of an object are values that a loop can carry."""
    owner = table.owner
    if isinstance(owner, (dict, list)):
        return type(owner) in (dict, list) or id(owner) in RECORDS
    return all(key in native_dict(owner) for key in keys) and not isinstance(owner, (*_CONTAINERS, FunctionType))


def _entries_of(value: Any) -> dict[Any, Any]:
    """Returns what a container or an object holds, past the methods of overlays; the bytes of an array."""
    if isinstance(value, np.ndarray):
        if value.nbytes > MOST_BYTES and value.flags.writeable:
            raise NotInEveryIteration("a variable is a large array of NumPy")
        return {"bytes": value.tobytes()} if value.flags.writeable else {}
    if isinstance(value, FunctionType):
        cells = [contents_of(cell) for cell in value.__closure__ or ()]
        parts = [content for content in cells if content is not EMPTY] + list(value.__defaults__ or ())
        return {**dict(enumerate(parts)), **(value.__kwdefaults__ or {})}
    if isinstance(value, MethodType):
        return {0: value.__self__, 1: value.__func__}
    if getattr(type(value), "is_of_loop", False):
        return {0: getattr(value, "iterator", None)}
    if hasattr(type(value), "__next__"):
        raise NotInEveryIteration(f"a variable is a {type(value).__name__}")
    if type(value).__module__.startswith(("tracefuse.", "numpy.")) and id(value) not in RECORDS:
        return {}
    if not isinstance(value, _CONTAINERS):
        return own_attributes(value)
    attributes = {("attribute", name): content for name, content in own_attributes(value).items()}
    if isinstance(value, dict):
        return {**dict(dict.items(value)), **attributes}
    if isinstance(value, (set, frozenset)):
        base: Any = set if isinstance(value, set) else frozenset
        return {**{content: content for content in base.__iter__(value)}, **attributes}
    base = next(base for base in (list, tuple, deque) if isinstance(value, base))
    return {**dict(enumerate(base.__iter__(value))), **attributes}


def _objects(overlays: Overlays | None) -> Iterator[tuple[Any, str]]:
    """Yields the overlays of objects and containers of the captured state, with their texts."""
    if overlays is not None:
        yield from ((one.overlay, one.place.path) for one in overlays.objects.instances.values())
        yield from ((one.overlay, one.place.path) for one in overlays.containers.records)


def _names(overlays: Overlays | None) -> Iterator[tuple[Any, dict[Any, Any], Mapping[Any, Any]]]:
    """Yields what else of the state can change: each owner of names with its values, and those that the trace read."""
    if overlays is None:
        return
    for view in overlays.scopes.views.values():
        yield view, {name: one for name, one in dict.items(view) if not is_special(name)}, view.loaded
    for cell in overlays.functions.cells.values():
        yield cell, {0: cell.contents}, {0: cell.loaded}
    for function, twin, loaded in overlays.functions.attributes():
        yield function, dict(twin.__dict__), loaded
    for cls, shadow in overlays.objects.classes.items():
        own = {name: one for name, one in vars(shadow).items() if not is_special(name)}
        yield shadow, own, {**overlays.objects.initial.get(cls, {}), **overlays.objects.loaded[cls]}
    for record in overlays.containers.records:
        yield record, dict(enumerate((*record.waiting, *record.computed.values()))), {}
