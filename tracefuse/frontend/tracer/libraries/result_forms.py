"""What a library function returns, taken apart into arrays and a form that puts it together again.

Tuples, named tuples with or without further attributes, lists, dicts, slices and dataclasses hold arrays, numbers,
text, None and objects of libraries. The form of a result holds everything but its arrays, numbers and objects; equal
forms are equal results up to those.

Must not know: recording.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import sys
from collections.abc import Callable, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np

from tracefuse.dtypes import dtype_of
from tracefuse.errors import DtypeError, UnsupportedError
from tracefuse.frontend.tracer.python_code.installed_packages import is_of_library
from tracefuse.runtime.devices.masked_arrays import is_masked_array, is_masked_constant

Form: TypeAlias = tuple[Any, ...]
"""("array" | "scalar" | a type of numbers,), ("object", class), ("value", value) or (kind, class, keys, forms)."""
OBJECT = "object"
"""The kind of an object of a library among the leaves, in an array of one element."""

_CONSTANTS = (str, bytes, type(None), enum.Enum, np.dtype, type, ModuleType, FunctionType, BuiltinFunctionType)


def take_apart(result: Any, leaves: list[Any]) -> Form:
    """Returns the form of a result and appends its arrays, numbers and objects to `leaves`.

    Raises UnsupportedError for objects of Python and of the user, and for arrays of unsupported types.
    """
    if type(result) is np.ndarray:
        return _leaf(result, leaves)
    if is_masked_constant(result):
        raise UnsupportedError("it returns np.ma.masked, since every element is masked")
    if is_masked_array(result):
        return _object(result, leaves)
    if isinstance(result, (np.ndarray, np.generic, bool, int, float, complex)):
        return _leaf(result, leaves)
    if _is_made_function(result):
        return _object(result, leaves)
    if isinstance(result, _CONSTANTS):
        return "value", result
    if isinstance(result, tuple):
        attributes = getattr(result, "__dict__", {})
        forms = tuple(take_apart(part, leaves) for part in (*result, *attributes.values()))
        return "tuple", type(result), tuple(attributes), forms
    if isinstance(result, list):
        return "list", type(result), (), tuple(take_apart(part, leaves) for part in result)
    if isinstance(result, dict):
        return "dict", type(result), tuple(result), tuple(take_apart(part, leaves) for part in result.values())
    if isinstance(result, slice):
        forms = tuple(take_apart(part, leaves) for part in (result.start, result.stop, result.step))
        return "slice", slice, (), forms
    if dataclasses.is_dataclass(result) and not isinstance(result, type) and hasattr(result, "__dict__"):
        names = tuple(vars(result))
        return "instance", type(result), names, tuple(take_apart(part, leaves) for part in vars(result).values())
    package = type(result).__module__.partition(".")[0]
    if package == "builtins" and getattr(builtins, type(result).__name__, None) is not type(result):
        return _object(result, leaves)  # a class that a library defines in C without the name of its module
    if package in sys.stdlib_module_names or hasattr(result, "__next__") or not is_of_library(package):
        raise UnsupportedError(f"it returns a {type(result).__name__}")
    return _object(result, leaves)


def _is_made_function(result: Any) -> bool:
    """Whether a result is a function that its call has made, such as a method of a factorization."""
    if isinstance(result, FunctionType):
        return "<locals>" in result.__qualname__ and is_of_library(result.__module__)
    if not isinstance(result, BuiltinFunctionType):
        return False
    return not isinstance(result.__self__, (ModuleType, type, type(None)))


def _object(result: Any, leaves: list[Any]) -> Form:
    leaves.append(np.empty((), object))
    leaves[-1][()] = result
    return OBJECT, type(result)


def _leaf(result: Any, leaves: list[Any]) -> Form:
    array = np.asarray(result)
    try:
        dtype_of(array.dtype)
    except DtypeError:
        raise UnsupportedError(f"it returns elements of {array.dtype}") from None
    leaves.append(array)
    if isinstance(result, np.ndarray):
        return ("array",)
    return ("scalar",) if isinstance(result, np.generic) else (type(result).__name__,)


def kinds_of(form: Form) -> Iterator[str]:
    """Yields the kind of each leaf of a form: "array", "scalar" of NumPy, a type of Python's numbers, or OBJECT."""
    if len(form) == 1 or form[0] == OBJECT:
        yield form[0]
    elif form[0] != "value":
        for inner in form[3]:
            yield from kinds_of(inner)


def put_together(form: Form, leaves: Iterator[Any]) -> Any:
    """Returns a result of a form, with `leaves` in the places of its arrays, numbers and objects."""
    if len(form) == 1 or form[0] == OBJECT:
        return next(leaves)
    if form[0] == "value":
        return form[1]
    kind, cls, keys, forms = form
    return _BUILDERS[kind](cls, keys, [put_together(inner, leaves) for inner in forms])


def _tuple(cls: type[Any], keys: Sequence[str], parts: list[Any]) -> Any:
    count = len(parts) - len(keys)
    if not keys:
        return tuple(parts) if cls is tuple else tuple.__new__(cls, parts)
    result = tuple.__new__(cls, parts[:count])
    result.__dict__.update(zip(keys, parts[count:], strict=True))
    return result


def _dict(cls: type[Any], keys: Sequence[str], parts: list[Any]) -> Any:
    result: Any = dict.__new__(cls)  # the class may have another __init__
    result.update(zip(keys, parts, strict=True))
    return result


def _instance(cls: type[Any], keys: Sequence[str], parts: list[Any]) -> Any:
    result = object.__new__(cls)
    result.__dict__.update(zip(keys, parts, strict=True))
    return result


_BUILDERS: dict[str, Callable[[Any, Any, list[Any]], Any]] = {
    "tuple": _tuple,
    "list": lambda cls, keys, parts: parts if cls is list else cls(parts),
    "dict": _dict,
    "instance": _instance,
    "slice": lambda cls, keys, parts: slice(*parts),
}
