"""State that a function closes over: closure cells, globals and attributes, found by identity and read at every call.

From the code of a function follow the names that it can read. Walking from its cells, its globals and `self` along
those names (and into dicts, lists, tuples and the functions that it calls) finds where an array came from and which
plain values the trace depends on.

Knows: functions, code objects, attributes. Must not know: tracing, fusions.
"""

from __future__ import annotations

import builtins
import enum
import io
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from tracefuse.errors import TraceError

Reader = Callable[[Any], Any]
"""The value that a path leads to now, given the object that a method is bound to (or None)."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype, enum.Enum, slice, range, type)
_COMPARED = (*_PLAIN, tuple, frozenset)
_DEPTH = 10
# What no operator and no call of a trace runs.
_NEVER_RUN = frozenset(
    ("__init__", "__new__", "__init_subclass__", "__post_init__", "__repr__", "__str__", "__format__", "__eq__",
     "__hash__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__del__")
)  # fmt: skip
_ENTRIES = 256


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was found: `path` as Python spells it, and how to read it again."""

    path: str
    read: Reader
    value: Any

    def unchanged(self, bound: Any) -> bool:
        """Whether the same plain value (or the same function) is there now."""
        try:
            now = self.read(bound)
        except (AttributeError, KeyError, IndexError, ValueError, TypeError, NameError):
            return False
        if now is self.value:
            return True
        return type(now) is type(self.value) and isinstance(now, _COMPARED) and bool(now == self.value)


def names_of(code: CodeType) -> set[str]:
    """Every name that the code or a function inside it reads as a global or an attribute."""
    names = {*code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_of(constant)
    return names


def places(function: Any, bound: Any = None) -> Iterator[Place]:
    """Every place that `function` can read by name, arrays and plain values and functions; nearest first."""
    queue: deque[tuple[str, Reader, Any, int, frozenset[str]]] = deque()
    seen: set[tuple[int, frozenset[str]]] = set()
    own = frozenset(names_of(function.__code__)) if hasattr(function, "__code__") else frozenset()
    queue.append((function.__name__, lambda _: function, function, 0, own))
    if bound is not None:
        queue.append(("self", lambda current: current, bound, 0, own))
    while queue:
        path, read, value, depth, names = queue.popleft()
        if isinstance(value, _PLAIN):
            yield Place(path, read, value)
            continue
        if (id(value), names) in seen:
            continue
        seen.add((id(value), names))
        yield Place(path, read, value)
        if depth < _DEPTH:
            queue.extend(_inside(path, read, value, depth + 1, names))


def _inside(
    path: str, read: Reader, value: Any, depth: int, names: frozenset[str]
) -> Iterator[tuple[str, Reader, Any, int, frozenset[str]]]:
    value = value.__func__ if isinstance(value, MethodType) else value
    wrapped = getattr(value, "__wrapped__", None) if not isinstance(value, (ModuleType, type)) else None
    if isinstance(wrapped, FunctionType):
        value = wrapped
    if isinstance(value, FunctionType):
        if not value.__module__ or not value.__module__.startswith(("numpy", "tracefuse.", "cupy", "jax", "torch")):
            yield from _of_function(value, depth)
    elif isinstance(value, ModuleType):
        if value.__name__.partition(".")[0] not in ("numpy", "cupy", "math", "jax", "torch", "tracefuse", "scipy"):
            yield from _attributes(path, read, vars(value), depth, names)
    elif isinstance(value, dict):
        for key in list(value)[:_ENTRIES]:
            yield f"{path}[{key!r}]", _item(read, key), value[key], depth, names
    elif isinstance(value, (list, tuple, deque)):
        for k in range(min(len(value), _ENTRIES)):
            yield f"{path}[{k}]", _item(read, k), value[k], depth, names
    elif not isinstance(value, (type, BuiltinFunctionType)) and _has_attributes(value) and not _is_array(value):
        yield from _of_object(path, read, value, depth, names)


def _has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") or any("__slots__" in vars(cls) for cls in type(value).__mro__)


# What of a container is compared beside its entries: how many there are, which keys, which elements.
_SNAPSHOTS: tuple[tuple[tuple[type, ...], str, Reader], ...] = (
    ((list, deque), "len({})", len), ((dict,), "tuple({})", tuple), ((set,), "frozenset({})", frozenset),
    ((bytearray,), "bytes({})", bytes),
)  # fmt: skip


def _snapshot(place: Place) -> Place | None:
    """The part of a container that its entries do not show; None for what is no container."""
    for kinds, path, taken in _SNAPSHOTS:
        if isinstance(place.value, kinds):
            return Place(path.format(place.path), _taken(place.read, taken), taken(place.value))
    return None


def _taken(read: Reader, taken: Reader) -> Reader:
    return lambda bound: taken(read(bound))


def _is_array(value: Any) -> bool:
    return hasattr(type(value), "shape") and hasattr(type(value), "dtype")


def _item(read: Reader, key: Any) -> Reader:
    return lambda bound: read(bound)[key]


def _constant(value: Any) -> Reader:
    return lambda bound: value


def _contents(cell: CellType) -> Reader:
    return lambda bound: cell.cell_contents


def _attribute(read: Reader, name: str) -> Reader:
    return lambda bound: getattr(read(bound), name)


def _attributes(
    path: str, read: Reader, found: Any, depth: int, names: frozenset[str]
) -> Iterator[tuple[str, Reader, Any, int, frozenset[str]]]:
    for name in sorted(names.intersection(found)):
        yield f"{path}.{name}", _attribute(read, name), found[name], depth, names


def _of_function(function: FunctionType, depth: int) -> Iterator[tuple[str, Reader, Any, int, frozenset[str]]]:
    names = frozenset(names_of(function.__code__))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            contents = cell.cell_contents
        except ValueError:
            continue  # a cell that is not filled yet
        yield name, _contents(cell), contents, depth, names
    table = function.__globals__
    for name in sorted(names):
        if name in table and not hasattr(builtins, name):
            yield name, _item(_constant(table), name), table[name], depth, names


def _of_object(
    path: str, read: Reader, value: Any, depth: int, names: frozenset[str]
) -> Iterator[tuple[str, Reader, Any, int, frozenset[str]]]:
    own = getattr(value, "__dict__", {})
    yield from _attributes(path, read, own, depth, names)
    implicit = _special_methods(type(value))
    for name in sorted((names | implicit).difference(own)):
        for cls in type(value).__mro__[:-1]:
            if name in vars(cls):
                yield from _class_attribute(path, read, value, vars(cls)[name], name, depth, names)
                break


def _special_methods(cls: type) -> set[str]:
    """Methods that operators and calls run without naming them, such as `__call__`."""
    found = ((name, kept) for base in cls.__mro__[:-1] for name, kept in vars(base).items())
    return {
        name for name, kept in found
        if name.startswith("__") and name not in _NEVER_RUN
        and (isinstance(kept, FunctionType) or hasattr(kept, "__wrapped__"))
    }  # fmt: skip


def _class_attribute(
    path: str, read: Reader, owner: Any, found: Any, name: str, depth: int, names: frozenset[str]
) -> Iterator[tuple[str, Reader, Any, int, frozenset[str]]]:
    """A slot, a constant of the class, or a method or property, whose own names are then read from the same object."""
    if isinstance(found, MemberDescriptorType):
        if hasattr(owner, name):
            yield f"{path}.{name}", _attribute(read, name), getattr(owner, name), depth, names
        return
    found = found.fget if isinstance(found, property) else getattr(found, "__wrapped__", found)
    found = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
    if isinstance(found, FunctionType):
        more = frozenset(names_of(found.__code__)) - names
        if more:
            # The object once more, under the names that the method reads.
            yield f"{path}.{name}", lambda _: found, found, depth, names
            yield path, read, owner, depth, more
    elif isinstance(found, _PLAIN) or _is_array(found):
        yield f"{path}.{name}", _attribute(read, name), found, depth, names


def place_of(array: Any, function: Any, bound: Any = None) -> Place | None:
    """Where the function got this very object from."""
    return next((place for place in places(function, bound) if place.value is array), None)


def read_places(function: Any, bound: Any, captured: Sequence[Any]) -> list[Place]:
    """The plain values, functions and arrays that a trace of `function` may have read.

    Arrays are compared by identity: one that met no tracer may have been computed with by NumPy itself, so another
    object in its place is another trace. Those that were captured as inputs are left out. Of containers the length, the
    keys or the elements are compared as well. Raises TraceError for an iterator, which changes when it is read.
    """
    inputs = {id(array) for array in captured}
    found: list[Place] = []
    for place in list(places(function, bound))[1:]:
        snapshot = _snapshot(place)
        if snapshot is not None:
            found.append(snapshot)
        elif _matters(place.value) and id(place.value) not in inputs:
            found.append(place)
        elif hasattr(type(place.value), "__next__") and not isinstance(place.value, io.IOBase):
            raise TraceError(
                f"{place.path} is a {type(place.value).__name__}, whose state cannot be compared from call to call",
                hint="pass what it gives as an argument",
            )
    return found


def _matters(value: Any) -> bool:
    if isinstance(value, FunctionType) or _is_array(value):
        return True
    return isinstance(value, _PLAIN) and not isinstance(value, type)
