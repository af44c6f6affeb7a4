"""The objects inside of containers, arrays of objects and weak references, and how a later call reads each again.

Must not know: overlays of values.
"""

from __future__ import annotations

import functools
import gc
import itertools
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tracefuse.runtime.devices.arrays import TABLES


class InnerObject(NamedTuple):
    """An object inside of another one. path: text to add to the path of that one. kind, key: a step of a route."""

    path: str
    kind: str
    key: Any
    value: Any


def referent(reference: weakref.ref[Any]) -> Any:
    """Returns the object that a weak reference refers to, None once it has been deleted."""
    return reference()


def _element(position: int, container: Any) -> Any:
    """An element of a set, in the order of its iteration, or of an array of objects."""
    if isinstance(container, np.ndarray):
        return container.flat[position]
    return next(itertools.islice(iter(container), position, None))


def inner_objects(value: Any, most: int | None) -> Iterator[InnerObject]:
    """Yields the objects in a container, at most `most` of them; nothing for any other object."""
    if isinstance(value, dict):
        for key in itertools.islice(list(dict.keys(value)), most):
            yield InnerObject(f"[{key!r}]", "entry", key, dict.__getitem__(value, key))
    elif isinstance(value, (list, tuple, deque)):
        base: Any = next(cls for cls in (list, tuple, deque) if isinstance(value, cls))
        for position in range(len(value))[:most]:
            yield InnerObject(f"[{position}]", "entry", position, base.__getitem__(value, position))
    elif isinstance(value, (set, frozenset)) or (isinstance(value, np.ndarray) and value.dtype == object):
        elements = value.flat if isinstance(value, np.ndarray) else iter(value)
        for position, element in enumerate(itertools.islice(elements, most)):
            yield InnerObject(f".element({position})", "call", functools.partial(_element, position), element)
    elif isinstance(value, weakref.ref):
        yield InnerObject("()", "call", referent, value())


def is_table(value: Any) -> bool:
    """Whether a value is a table of another library, whose contents no call can compare."""
    return type(value).__module__.partition(".")[0] in TABLES and hasattr(type(value), "shape")


def python_function(ufunc: np.ufunc) -> Any:
    """Returns the function of which `np.frompyfunc` made a ufunc, None for a ufunc of NumPy."""
    return next(filter(callable, gc.get_referents(ufunc)), None)
