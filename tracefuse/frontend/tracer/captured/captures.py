"""Captured state of a function: closure cells, globals and attributes, found by identity and read at every call.

The bytecode of a function gives the names that it can read. The search follows these names from the function's cells,
globals, defaults and `self` into containers, classes and called functions. It locates every captured array and every
plain value that the trace depends on.

Must not know: fusions.
"""

from __future__ import annotations

import array
import enum
import functools
import itertools
import logging
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse import source
from tracefuse.frontend.tracer.captured import routes
from tracefuse.frontend.tracer.captured.inner_objects import InnerObject, inner_objects, is_table
from tracefuse.frontend.tracer.captured.routes import CHANGED, CallRoots, Route
from tracefuse.frontend.tracer.python_code.code_names import NO_NAMES, CodeNames, Names
from tracefuse.frontend.tracer.python_code.installed_packages import is_of_library

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype, enum.Enum, slice, range)
_COMPARED = (*PLAIN, tuple, frozenset)


class ArgumentTwin:
    """An object in place of an argument in a trace. Each call has another argument there."""


GENERATORS = (np.random.Generator, np.random.RandomState)
WITH_TWINS = (*GENERATORS, np.vectorize, logging.Logger)
"""Types of objects of libraries that have recording twins."""
"""Random generators. A trace depends on which one it draws from, not on its state."""
_DEPTH = 10
_NO_ENTRY = object()
# Methods that neither an operator, a call nor a constructor runs during a trace.
_NEVER_RUN = frozenset(
    ("__init__", "__new__", "__init_subclass__", "__post_init__", "__repr__", "__str__", "__format__", "__eq__",
     "__hash__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__del__", "__class_getitem__")
)  # fmt: skip
_ENTRIES = 256
_CONTAINERS = (dict, list, tuple, deque, set, frozenset, weakref.ref)


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A place of a value: its `path` in Python syntax, the route to read it again, and the line that names it."""

    path: str
    route: Route
    value: Any
    where: str | None = None

    def attribute(self, name: str, value: Any, where: str | None = None) -> Place:
        """Returns the place of an attribute of the object at this place; a later read runs no code of the user."""
        has_code = "__getattribute__" in _names_of_users(type(self.value))
        getter = self.route.then("call", functools.partial(_attribute, name))
        route = getter if has_code else self.route.then("attribute", name)
        return Place(f"{self.path}.{name}", route, value, where or self.where)

    def entry(self, key: Any, value: Any, where: str | None = None) -> Place:
        """Returns the place of an entry of the container at this place; a later read runs no code of the user."""
        cls = type(self.value)
        has_code = hasattr(cls, "__missing__") or "__getitem__" in _names_of_users(cls)
        route = self.route.then("call", functools.partial(entry, key)) if has_code else self.route.then("entry", key)
        return Place(f"{self.path}[{key!r}]", route, value, where or self.where)

    @property
    def is_part(self) -> bool:
        """Whether it is an attribute, an entry or a cell, and not derived from an object."""
        key = self.route.key
        return self.route.kind != "call" or (isinstance(key, functools.partial) and key.func in (_attribute, entry))

    def derived(self, text: str, function: Callable[[Any], Any], value: Any, where: str | None = None) -> Place:
        """Returns the place of `function` of the object here. text: its path, with {} for the path of this place."""
        return Place(text.format(self.path), self.route.then("call", function), value, where or self.where)

    def read(self, roots: CallRoots) -> Any:
        return self.route.follow(roots)

    def unchanged(self, roots: CallRoots) -> bool:
        """Whether the place still holds the same plain value or the same function."""
        try:
            now = self.read(roots)
        except CHANGED:
            return False
        return now is self.value or is_equal(now, self.value)


def _names_of_users(cls: type) -> set[str]:
    """Returns the names that classes of the user define for instances of a class."""
    return {name for owner in cls.__mro__ if not is_of_library(owner.__module__) for name in vars(owner)}


def _attribute(name: str, owner: Any) -> Any:
    return object.__getattribute__(owner, name)


def entry(key: Any, container: Any) -> Any:
    """Returns an entry past the methods of the user's class, and of classes that make entries where there are none."""
    if isinstance(container, dict):
        value = dict.get(container, key, _NO_ENTRY)
        if value is _NO_ENTRY:
            raise KeyError(key)
        return value
    base: Any = next(cls for cls in type(container).__mro__ if is_of_library(cls.__module__))
    return base.__getitem__(container, key)


def is_equal(now: Any, before: Any) -> bool:
    """Whether two plain values are interchangeable in a trace: equal, of one type, with zeros of the same sign.

    Any NaN equals any other. The elements of tuples and frozen sets are compared in the same manner.
    """
    if type(now) is not type(before) or not isinstance(now, _COMPARED):
        return False
    if isinstance(now, (tuple, frozenset)):
        return _has_equal_elements(now, before)
    if not bool(now == before):
        return isinstance(now, float) and now != now and before != before
    return not isinstance(now, (float, complex, np.inexact)) or bool(now) or str(now) == str(before)


def _has_equal_elements(now: Any, before: Any) -> bool:
    """Whether two tuples have equal elements, or two frozen sets; types of numbers that are equal may differ."""
    if len(now) != len(before) or now != before:
        return now is before
    if isinstance(now, tuple):
        return all(entry is other or is_equal(entry, other) for entry, other in zip(now, before, strict=True))
    by_element = {element: element for element in now}
    return all(entry is by_element[entry] or is_equal(by_element[entry], entry) for entry in before)


@dataclass(frozen=True, slots=True, eq=False)
class _SearchItem:
    """A place to search, with the names that the reading code uses."""

    path: str
    route: Route
    value: Any
    depth: int
    names: Names
    where: str | None = None

    def attribute(self, name: str, value: Any) -> _SearchItem:
        path, line = f"{self.path}.{name}", self.names.line("attributes", name) or self.where
        return _SearchItem(path, self.route.then("attribute", name), value, self.depth + 1, self.names, line)

    def inner(self, inner: InnerObject) -> _SearchItem:
        route = self.route.then(inner.kind, inner.key)
        return _SearchItem(self.path + inner.path, route, inner.value, self.depth + 1, self.names, self.where)


class _CaptureSearch:
    """One search. first: maps each object to the place where the search found it first.

    most_entries: of a container; None for all.
    """

    most_entries: int | None = _ENTRIES

    def __init__(self, function: Any, bound: Any, names: CodeNames) -> None:
        name, code = getattr(function, "__name__", type(function).__name__), getattr(function, "__code__", None)
        self.known_names, self.names_of = names, names.of
        names_of_code = NO_NAMES if code is None else self.names_of(code)
        self.queue: deque[_SearchItem] = deque([_SearchItem(name, routes.to(function), function, 0, names_of_code)])
        if bound is not None:
            self.queue.append(_SearchItem("self", routes.SELF, bound, 0, names_of_code))
        self.first: dict[int, Place] = {}
        self.pairs: list[tuple[Place, Place]] = []

    def places_from(self, place: Place) -> Iterator[Place]:
        """Yields the places in the object at a place that its code, or any code looked at so far, reads by name."""
        names, self.most_entries = self.known_names.every_attribute(), None
        self.queue = deque([_SearchItem(place.path, place.route, place.value, 0, names, place.where)])
        return self.places()

    def places(self) -> Iterator[Place]:
        """Yields every place that the function can read by name, nearest first, once per path."""
        walked: set[tuple[int, frozenset[str]]] = set()
        paths: set[tuple[str, int]] = set()
        while self.queue:
            item = self.queue.popleft()
            place, value = Place(item.path, item.route, item.value, item.where), item.value
            path, key = (item.path, id(item.route.beginning.key)), (id(value), item.names.attributes)
            is_new = path not in paths
            paths.add(path)
            if isinstance(value, PLAIN):
                if is_new:
                    yield place
                continue
            first = self.first.setdefault(id(value), place)
            if is_new:
                if first is not place and not isinstance(value, (ModuleType, type)):
                    self.pairs.append((first, place))
                yield place
            if key not in walked and item.depth < _DEPTH:
                walked.add(key)
                self.queue.extend(self._inside(item))

    def _inside(self, item: _SearchItem) -> Iterator[_SearchItem]:
        value = item.value
        wrapped = _wrapped(value) if not isinstance(value, (ModuleType, type)) else None
        is_fused_method = isinstance(wrapped, FunctionType) and hasattr(type(value), "__self__")
        if isinstance(value, MethodType) or is_fused_method:
            yield from self._of_method(item, value)
        elif isinstance(value, functools.partial):
            for name in ("func", "args", "keywords"):
                yield item.attribute(name, getattr(value, name))
        elif isinstance(value, FunctionType) or isinstance(wrapped, FunctionType):
            yield from self._of_function(wrapped if isinstance(wrapped, FunctionType) else value, item.depth + 1)
        elif isinstance(value, ModuleType):
            if not is_of_library(value.__name__):
                yield from _attributes(item, vars(value))
        elif isinstance(value, type):
            if not is_of_library(value.__module__):
                yield from self._of_class(item, value)
        elif isinstance(value, BuiltinFunctionType) or is_table(value):
            return
        elif not isinstance(value, _CONTAINERS) and _has_attributes(value) and not is_array(value):
            yield from self._of_object(item)
        else:
            yield from map(item.inner, inner_objects(value, self.most_entries))

    def _of_function(self, function: FunctionType, depth: int) -> Iterator[_SearchItem]:
        if is_of_library(function.__module__ or ""):
            return
        names = self.names_of(function.__code__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                contents = cell.cell_contents
            except ValueError:
                continue  # the cell is still empty
            yield _SearchItem(name, routes.to(cell).then("cell"), contents, depth, names, names.line("cells", name))
        table = function.__globals__
        for name in sorted(names.globals.intersection(table)):
            route = routes.to(table).then("entry", name)
            yield _SearchItem(name, route, table[name], depth, names, names.line("globals", name))
        for name in sorted({part for module in names.modules for part in (module, module.partition(".")[0])}):
            if name in sys.modules:
                route = routes.to(sys.modules).then("entry", name)
                yield _SearchItem(name, route, sys.modules[name], depth, names, names.line("modules", name))
        yield from _defaults(function, depth, names)

    def _of_method(self, item: _SearchItem, method: Any) -> Iterator[_SearchItem]:
        """Yields the function of a bound method, and its object with the names that the function reads."""
        function: Any = getattr(method.__func__, "__wrapped__", method.__func__)
        if isinstance(function, FunctionType):
            yield from self._of_function(function, item.depth + 1)
            names, route = self.names_of(function.__code__), item.route.then("attribute", "__self__")
            yield _SearchItem(f"{item.path}.__self__", route, method.__self__, item.depth + 1, names, item.where)

    def _of_class(self, item: _SearchItem, cls: type) -> Iterator[_SearchItem]:
        """Yields the attributes of a class itself: constants, and the methods that calling the class runs."""
        run = item.names.attributes | _special_methods(cls) | {"__init__", "__post_init__"}
        for name in sorted(run):
            owner = next((base for base in (*cls.__mro__, *type.mro(type(cls))) if name in vars(base)), None)
            if owner is None or is_of_library(owner.__module__):
                continue
            entry = vars(owner)[name]
            value = entry.__func__ if isinstance(entry, (staticmethod, classmethod)) else entry
            if isinstance(value, FunctionType):
                yield _SearchItem(
                    f"{item.path}.{name}", routes.to(value), value, item.depth + 1, item.names, item.where
                )
                yield from self._again(item, value)
            elif not hasattr(type(value), "__get__"):
                yield item.attribute(name, value)

    def _of_object(self, item: _SearchItem) -> Iterator[_SearchItem]:
        instance_dict = getattr(item.value, "__dict__", {})
        yield from _attributes(item, instance_dict)
        cls = type(item.value)
        for name in sorted((item.names.attributes | _special_methods(cls)).difference(instance_dict)):
            for base in cls.__mro__[:-1]:
                if name in vars(base):
                    inner = list(self._class_attribute(item, vars(base)[name], name))
                    yield from inner
                    if not any(isinstance(candidate.value, FunctionType) for candidate in inner):
                        break  # a method may call the overridden method of a base class

    def _class_attribute(self, item: _SearchItem, entry: Any, name: str) -> Iterator[_SearchItem]:
        """Yields a slot, a class constant, or a method or property together with the object that its code reads."""
        owner = item.value
        if isinstance(entry, MemberDescriptorType):
            if hasattr(owner, name):
                yield item.attribute(name, getattr(owner, name))
            return
        is_bound_at_reading = isinstance(entry, classmethod)
        entry = entry.fget if isinstance(entry, property) else getattr(entry, "__wrapped__", entry)
        entry = entry.__func__ if isinstance(entry, (staticmethod, classmethod)) else entry
        entry = entry.func if isinstance(entry, functools.cached_property) else entry
        if isinstance(entry, FunctionType):
            yield _SearchItem(f"{item.path}.{name}", routes.to(entry), entry, item.depth + 1, item.names, item.where)
            yield from self._again(item, entry)
        elif not is_bound_at_reading and not hasattr(type(entry), "__get__"):
            yield item.attribute(name, entry)

    def _again(self, item: _SearchItem, method: FunctionType) -> Iterator[_SearchItem]:
        """Yields an object or a class again, with the names that one of its methods reads."""
        more = self.names_of(method.__code__).without(item.names.attributes)
        if more.attributes:
            yield _SearchItem(item.path, item.route, item.value, item.depth + 1, more, item.where)


def places(function: Any, bound: Any, names: CodeNames) -> Iterator[Place]:
    """Yields every place that `function` can read by name (arrays, plain values, functions), nearest first."""
    return _CaptureSearch(function, bound, names).places()


def places_within(place: Place, names: CodeNames) -> Iterator[Place]:
    """Yields every place in the object at `place` that its code, or code looked at before, reads, nearest first."""
    search = _CaptureSearch(place.value, None, names)
    return itertools.islice(search.places_from(place), 1, None)


def _defaults(function: FunctionType, depth: int, names: Names) -> Iterator[_SearchItem]:
    """Yields the default values of parameters."""
    start, line, code = routes.to(function), source.line_of(function.__code__), function.__code__
    last = code.co_varnames[: code.co_argcount][-len(function.__defaults__ or ()) :]
    for k, (name, value) in enumerate(zip(last, function.__defaults__ or (), strict=False)):
        yield _SearchItem(name, start.then("attribute", "__defaults__").then("entry", k), value, depth, names, line)
    for name, value in (function.__kwdefaults__ or {}).items():
        yield _SearchItem(
            name, start.then("attribute", "__kwdefaults__").then("entry", name), value, depth, names, line
        )


def _attributes(item: _SearchItem, table: Any) -> Iterator[_SearchItem]:
    for name in sorted(item.names.attributes.intersection(table)):
        yield item.attribute(name, table[name])


def _wrapped(value: Any) -> Any:
    """Returns the function that a wrapper wraps; None where there is none, and where code of the user gives none."""
    try:
        return getattr(value, "__wrapped__", None)
    except Exception:  # a `__getattr__` of the user may raise anything
        return None


def _has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") or any("__slots__" in vars(cls) for cls in type(value).__mro__)


def _special_methods(cls: type) -> frozenset[str]:
    """Returns the methods that operators and calls run implicitly, such as `__call__`."""
    entries = ((name, entry) for base in cls.__mro__[:-1] for name, entry in vars(base).items())
    return frozenset(
        name for name, entry in entries
        if name.startswith("__") and name not in _NEVER_RUN
        and (isinstance(entry, FunctionType) or hasattr(entry, "__wrapped__"))
    )  # fmt: skip


def is_array(value: Any) -> bool:
    """Whether a value has the attributes of an array: a shape and a dtype."""
    return hasattr(type(value), "shape") and hasattr(type(value), "dtype")


# Properties of a container that are compared in addition to its entries: length, keys or elements.
_SNAPSHOTS: tuple[tuple[tuple[type, ...], str, Callable[[Any], Any]], ...] = (
    ((list, deque), "len({})", len), ((dict,), "tuple({})", tuple), ((set,), "frozenset({})", frozenset),
    ((bytearray, array.array, memoryview), "bytes({})", bytes),
)  # fmt: skip


def snapshot(place: Place) -> Place | None:
    """Returns the place of the container properties that its entries do not show; None for any other value."""
    for kinds, path, copy in _SNAPSHOTS:
        if isinstance(place.value, kinds):
            route = place.route.then("call", copy)
            return Place(path.format(place.path), route, copy(place.value), place.where)
    return None
