"""Objects of the user's classes as operands of arrays: `__array__`, `__array_ufunc__`, `__array_priority__`, as NumPy.

NumPy asks `__array__` of an object for its array, leaves ufuncs to `__array_ufunc__`, and leaves an operator to the
object if `__array_ufunc__` is None or `__array_priority__` is above that of arrays. Of any other object it makes an
array of objects, and calls the operator of the object for each element.

Must not know: overlays of values.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Sequence
from types import BuiltinMethodType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.record.recorder import current
from tracefuse.frontend.tracer.values.traced import Traced

_ABSENT = object()
_NEVER_NUMBERS = (
    *(str, bytes, dict, set, frozenset, slice, type, ModuleType, np.dtype),
    *(MethodType, BuiltinMethodType, MethodWrapperType),
)
"""Types with an `__eq__` of their own by which no number equals them."""
_OF_ARRAYS = ("dtype", "__array__", "__array_interface__", "__array_ufunc__")
_REFLECTED = {"div": "truediv", "floor_divide": "floordiv", "remainder": "mod"}


def is_of_user(value: Any) -> bool:
    """Whether a value is an object of a class of the user, in the trace that is in progress."""
    recorder = current.get()
    return recorder is not None and recorder.overlays is not None and recorder.overlays.objects.is_shadow(type(value))


def array_of_object(value: Any) -> Any:
    """Returns what `__array__` of an object of the user gives, and a range of sizes; any other value as it is."""
    if getattr(value, "has_elements", False):
        return value.elements()
    return value.__array__() if is_of_user(value) and hasattr(type(value), "__array__") else value


def has_overrides(value: Any) -> bool:
    """Whether functions or ufuncs of NumPy are left to the class of an object."""
    names = ("__array_ufunc__", "__array_function__")
    return any(getattr(type(value), name, None) is not None for name in names)


def overrides_ufuncs(inputs: Sequence[Any]) -> bool:
    """Whether a ufunc is left to an object of the user among its operands."""
    return any(getattr(type(value), "__array_ufunc__", None) is not None and is_of_user(value) for value in inputs)


def equals_no_number(array: Traced, value: Any) -> bool:
    """Whether NumPy finds an object, compared with each element of an array, different from every number.

    Raises UnsupportedError for one whose own `__eq__` NumPy would call for each element, and for a container that it
    would read as an array.
    """
    if array.weak is not None:
        return False
    if value is None or isinstance(value, _NEVER_NUMBERS):
        return True
    cls = type(value)
    is_own = cls.__module__.startswith("tracefuse.") and not (is_of_user(value) or isinstance(value, deque))
    if is_own or any(hasattr(cls, name) for name in _OF_ARRAYS):
        return False
    if _inherited(cls, "__eq__") is object.__eq__ and not _has(cls, "__getitem__"):
        return True
    if getattr(value, "__array_priority__", -1.0) > 0:
        return False
    raise UnsupportedError(
        f"an array compared with a {cls.__name__}, which NumPy compares with each element",
        hint="compare the array with a number, or with an array or a list of numbers", where=source.user_line(),
    )  # fmt: skip


def without_equals(name: str, array: Traced, value: Any) -> Any:
    """What `array == value` or `array != value` gives for such an object. name: "eq" or "ne"."""
    if array.extents:
        return np.full_like(array, name == "ne", dtype=bool)
    one = np.zeros((), array.value.dtype.numpy)  # whether NumPy's or Python's truth value depends on the types
    return getattr(operator, name)(one[()] if array.is_immutable else one, value)


def _has(cls: type, name: str) -> bool:
    """Whether a class or its bases define a name, not their metaclass, as that of enumerations does."""
    return any(name in vars(base) for base in cls.__mro__)


def _inherited(cls: type, name: str) -> Any:
    """What a class of the user or its bases define by a name, not what its metaclass or the class of a trace does."""
    bases = (vars(base) for base in cls.__mro__ if "__is_shadow__" not in vars(base))
    return next(names[name] for names in bases if name in names)


def operand_of(name: str, array: Traced, value: Any) -> Any:
    """Returns what an operator of an array computes with in place of an object; NotImplemented leaves it to the object.

    name: of the operator, as in `__mul__`. Raises UnsupportedError for one that NumPy would call for each element.
    """
    cls = type(value)
    override = getattr(cls, "__array_ufunc__", _ABSENT)
    has_priority = override is not _ABSENT or getattr(value, "__array_priority__", -1.0) > 0
    if array.weak is not None or has_priority or not is_of_user(value):
        return NotImplemented
    if hasattr(cls, "__array__"):
        return value.__array__()
    reflected = f"__r{_REFLECTED.get(name, name)}__"
    if array.is_immutable or not hasattr(cls, reflected):  # NumPy's scalars call it once
        return NotImplemented
    raise UnsupportedError(
        f"an array beside a {cls.__name__} makes an array of objects: NumPy calls {reflected} for each element",
        hint=f"write __array_ufunc__ = None in the class {cls.__name__}, so that {reflected} gets the array",
        where=source.user_line(),
    )
