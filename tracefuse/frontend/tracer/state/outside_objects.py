"""Objects of the program that a trace sees as they are, and what the traced function changes of them.

Instances of classes that have no shadows (enums, exceptions, numbers with attributes, classes whose metaclass has
methods of Python's protocols), thread locals and weak dictionaries have no overlays: a write to one happens while the
function is traced, and at no later call. Such a write is undone and refused. So is what moves the position in a file.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import io
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from types import WrapperDescriptorType
from typing import Any

from tracefuse.errors import TraceError, UnsupportedError
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.python_code.installed_packages import is_of_library
from tracefuse.frontend.tracer.state.object_layout import ABSENT, native_dict, slot_contents, slots_of

_OF_LIBRARIES = (
    BaseException,
    threading.local,
    weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
    weakref.WeakSet,
)
_CONTAINERS = (dict, list, set, deque)


def refused_iterator(iterator: Any, place: Place) -> TraceError:
    """Returns the error for an iterator of the state: what it gives next is not known before a call."""
    refusal = TraceError(
        f"{place.path} is a {type(iterator).__name__}, whose state cannot be compared from call to call",
        hint=f"advance it outside of the fused function and pass what it gives: f(x, next({place.path}))",
        where=place.where,
    )
    refusal.runs_function = True
    return refusal


class OutsideObjects:
    """The objects of one trace, with their contents before it."""

    def __init__(self) -> None:
        # By its id: an object, its contents and what reads them, and the place of the object that it is a part of.
        self._watched: dict[int, tuple[Any, Any, Callable[[Any], Any], Place]] = {}

    def watch(self, place: Place, parts: Iterable[Any]) -> None:
        """Notes what the object at a place holds. parts: the objects that code reads in it."""
        # (`functools.singledispatch` keeps what it looks up in a weak dict.)
        if _is_of_program(place.value) and not (place.where or "").startswith("functools.py:"):
            self._note(place.value, place)
            for part in parts:
                if isinstance(part, _CONTAINERS) or _is_of_program(part):
                    self._note(part, place)

    def _note(self, value: Any, place: Place) -> None:
        if id(value) in self._watched:
            return
        if isinstance(value, io.IOBase):
            if (position := _position_of(value)) is not None:
                self._watched[id(value)] = value, position, _position_of, place
            return
        reads = _class_attributes if isinstance(value, type) else _attributes_of
        contents = _entries_of if isinstance(value, _CONTAINERS) else reads
        self._watched[id(value)] = value, contents(value), contents, place
        if contents is _attributes_of:
            for part in contents(value).values():
                if isinstance(part, _CONTAINERS):
                    self._note(part, place)

    def check_unchanged(self) -> None:
        """Raises UnsupportedError if the trace changed an object."""
        for value, before, contents, place in self._watched.values():
            if not _is_same(contents(value), before):
                if isinstance(value, io.IOBase):
                    raise UnsupportedError(
                        f"the function reads or writes {place.path}, whose type is {type(value).__name__}; no later "
                        "call would do so", where=place.where,
                        hint="read it outside of the fused function and pass what it holds; return what goes into it",
                    )  # fmt: skip
                raise UnsupportedError(
                    f"the function changes {place.path}, whose type is {type(place.value).__name__}; no later call "
                    "would change it",
                    hint="keep what changes in a dict, a list or an object of an ordinary class", where=place.where,
                )  # fmt: skip

    def restore(self) -> None:
        """Undoes what the trace changed."""
        for value, before, contents, _ in self._watched.values():
            now = contents(value)
            if not _is_same(now, before):
                _restore(value, now, before)

    def forget(self) -> None:
        """Drops the objects."""
        self._watched.clear()


def _is_of_program(value: Any) -> bool:
    """Whether an object is one whose attributes the program itself writes."""
    cls = value if isinstance(value, type) else type(value)
    return isinstance(value, (*_OF_LIBRARIES, io.IOBase)) or not is_of_library(cls.__module__)


def _position_of(file: io.IOBase) -> tuple[int, int] | None:
    """The position in a file and its size; None for streams, which have none, and between two steps of an iteration."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if not isinstance(file, _FILES) or any(file is one for one in streams) or file.closed or not file.seekable():
        return None
    try:
        position = file.tell()
    except OSError:
        return None
    size = file.seek(0, io.SEEK_END)
    file.seek(position)
    return position, size


_FILES = (io.StringIO, io.BytesIO, io.TextIOWrapper, io.BufferedIOBase, io.FileIO)


def _attributes_of(value: Any) -> dict[str, Any]:
    table = dict(vars(value)) if isinstance(value, threading.local) else dict(native_dict(value))
    return table | {name: slot_contents(value, slot) for name, slot in slots_of(type(value))}


def _class_attributes(cls: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if not name.startswith(("__", "_abc_"))}


def _entries_of(container: Any) -> Any:
    """The entries of a container without weak references to objects that are gone."""
    if isinstance(container, dict):
        entries = dict.items(container)
        return {key: value for key, value in list(entries) if not (_is_gone(key) or _is_gone(value))}
    if isinstance(container, set):
        return {one for one in set.copy(container) if not _is_gone(one)}
    base: Any = list if isinstance(container, list) else deque
    return list(base.__iter__(container))


def _is_gone(value: Any) -> bool:
    return isinstance(value, weakref.ref) and value() is None


def _is_same(now: Any, before: Any) -> bool:
    """Whether a container has the very entries that it had, apart from those whose weak references are gone."""
    if isinstance(now, dict):
        alive = {key: value for key, value in before.items() if not (_is_gone(key) or _is_gone(value))}
        return now.keys() == alive.keys() and all(now[key] is value for key, value in alive.items())
    if isinstance(now, set):
        return now == {one for one in before if not _is_gone(one)}
    if isinstance(before, tuple):
        return bool(now == before)
    return len(now) == len(before) and all(one is other for one, other in zip(now, before, strict=True))


def _restore(value: Any, now: Any, before: Any) -> None:
    if isinstance(value, io.IOBase):
        if now is not None and now[1] > before[1]:
            value.truncate(before[1])
        value.seek(before[0])
    elif isinstance(value, dict):
        for key in now.keys() - before.keys():
            dict.pop(value, key, None)
        dict.update(value, {key: one for key, one in before.items() if now.get(key, ABSENT) is not one})
    elif isinstance(value, set):
        set.difference_update(value, now - before)
        set.update(value, before - now)
    elif isinstance(value, (list, deque)):
        base: Any = list if isinstance(value, list) else deque
        base.clear(value)
        base.extend(value, before)
    else:
        store, delete = (_of_python(value, name) for name in ("__setattr__", "__delattr__"))
        for name in now.keys() | before.keys():
            old = before.get(name, ABSENT)
            if now.get(name, ABSENT) is old:
                continue
            if old is not ABSENT:
                store(value, name, old)
            elif now.get(name, ABSENT) is not ABSENT:
                delete(value, name)


def _of_python(value: Any, name: str) -> Any:
    """Returns the method of an object that the nearest class written in C has under a name."""
    kept = (vars(owner).get(name) for owner in type(value).__mro__)
    return next(one for one in kept if type(one) is WrapperDescriptorType)
