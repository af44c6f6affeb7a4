"""Fused methods, and fused functions by name: what stands between a fused function and Python's objects.

Knows: fused functions as objects that are called and asked. Must not know: traces, keys, executables.
"""

from __future__ import annotations

import functools
import importlib
import pickle
from typing import TYPE_CHECKING, Any

from tracefuse import source

if TYPE_CHECKING:
    from tracefuse.frontend.fuse import FusedFunction

_ASKED_OF_A_CALL = ("definition", "segments", "host_program", "explain", "concretization", "indexing")


class BoundFusedFunction:
    """A fused method of one object. Arrays among the object's attributes are captured, read at every call."""

    __slots__ = ("__func__", "__self__")

    def __init__(self, function: FusedFunction[Any, Any], instance: object) -> None:
        self.__func__, self.__self__ = function, instance

    @source.hides_own_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self.__func__
        out = kwargs.pop("out", None) if kwargs and function._signature.leaves_out else None
        return function._called(args, kwargs, self.__self__, True, out)

    @source.hides_own_frames
    def into(self, out: Any, /, *args: Any, **kwargs: Any) -> Any:
        """As `FusedFunction.into`."""
        return self.__func__._called(args, kwargs, self.__self__, True, out)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__func__, name)
        return functools.partial(found, self.__self__) if name in _ASKED_OF_A_CALL else found

    def __repr__(self) -> str:
        return f"<bound fused {self.__func__.__qualname__} of {self.__self__!r}>"


def by_name(module: str, name: str) -> Any:
    """A fused function from its module, for pickle."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def name_of(function: FusedFunction[Any, Any]) -> str:
    """The name in its module by which pickle finds a fused function again."""
    name = function.__qualname__
    try:
        found = by_name(function.__module__, name)
    except (ImportError, AttributeError):
        found = None
    if found is not function:
        raise pickle.PicklingError(
            f"cannot pickle {function!r}: {function.__module__}.{name} is not it; give it a name at module level"
        )
    return name


def owns(function: FusedFunction[Any, Any], value: Any) -> bool:
    """Whether `value` is the `self` of a method called through its class."""
    name = getattr(function, "__name__", None)
    return name is not None and vars(type(value)).get(name) is function
