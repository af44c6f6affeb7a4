"""Python's object protocols for fused functions: bound methods, and lookup by name for pickle."""

from __future__ import annotations

import functools
import importlib
import pickle
from typing import TYPE_CHECKING, Any

from tracefuse import source
from tracefuse.config import overrides

if TYPE_CHECKING:
    from tracefuse.frontend.fuse import FusedFunction

_TAKES_CALL_ARGUMENTS = (
    "definition", "segments", "host_program", "explain", "concretization", "indexing", "view", "trace", "lower",
    "eval_shape",
)  # fmt: skip


class BoundFusedFunction:
    """A fused method bound to an object. Arrays among the object's attributes are captured, and read at every call."""

    __slots__ = ("__func__", "__self__")

    def __init__(self, function: FusedFunction[Any, Any], instance: object) -> None:
        self.__func__, self.__self__ = function, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self.__func__
        cache = function._cache
        first = cache.recent_first
        try:
            if first is not None and not kwargs and overrides() is None:
                outputs = first(args, self.__self__)
                if outputs is not None:
                    cache.hits += 1
                    return outputs[0]
            out = kwargs.pop("out", None) if kwargs and function._signature.leaves_out else None
            return function._dispatch(args, kwargs, self.__self__, True, out)
        except Exception as error:
            source.hide_own_frames(error)
            raise

    @source.hides_own_frames
    def into(self, out: Any, /, *args: Any, **kwargs: Any) -> Any:
        """As `FusedFunction.into`."""
        return self.__func__._dispatch(args, kwargs, self.__self__, True, out)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.__func__, name)
        return functools.partial(attribute, self.__self__) if name in _TAKES_CALL_ARGUMENTS else attribute

    def __repr__(self) -> str:
        return f"<bound fused {self.__func__.__qualname__} of {self.__self__!r}>"


def by_name(module: str, name: str) -> Any:
    """Looks up a fused function by module and qualified name, for pickle."""
    attribute: Any = importlib.import_module(module)
    for part in name.split("."):
        attribute = getattr(attribute, part)
    return attribute


def name_of(function: Any) -> str:
    """The qualified name of a fused function, for pickle. Raises PicklingError if the name leads to something else."""
    name: str = function.__qualname__
    try:
        attribute = by_name(function.__module__, name)
    except (ImportError, AttributeError):
        attribute = None
    if attribute is not function:
        raise pickle.PicklingError(
            f"cannot pickle {function!r}: {function.__module__}.{name} is another object; define it at module level"
        )
    return name


def owns(function: FusedFunction[Any, Any], value: Any) -> bool:
    """Whether `value` is the `self` of a method called through its class, or of a property that calls the function."""
    name = getattr(function, "__name__", None)
    entries = [vars(cls)[name] for cls in type(value).__mro__ if name in vars(cls)] if name else []
    return any(
        function
        in ((entry.fget, entry.fset, entry.fdel) if isinstance(entry, property) else (getattr(entry, "func", entry),))
        for entry in entries
    )


class PickledByName:
    """Python's object protocols for a function that is defined once: pickle by name, copies that are itself."""

    __qualname__: str

    def __reduce__(self) -> Any:
        """Pickles by name, as for functions. Raises PicklingError if the name does not lead to this function."""
        return by_name, (self.__module__, name_of(self))

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        """Returns the function itself, as for Python's functions."""
        return self

    def __repr__(self) -> str:
        return f"<fused {self.__qualname__}>"
