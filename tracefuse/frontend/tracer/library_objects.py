"""Objects of SciPy that compute with arrays, in a trace: splines, interpolators, frozen distributions, search trees.

`spline(x)` and `distribution.cdf(x)` take no traced arrays. A twin of the object calls it between two stages of a call,
with the elements of the operands. The object itself is the one that the program has, so that its state is read at each
call.

Must not know: overlays of values.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from tracefuse.frontend.tracer.stage_calls import call_between_stages
from tracefuse.frontend.tracer.state_calls import NOT_OF_STATE, call_on_state
from tracefuse.frontend.tracer.traced import holds_traced

_PACKAGES = ("scipy.interpolate.", "scipy.spatial.", "scipy.stats.")
"""Packages whose objects compute without effects."""
_WITH_EFFECTS = frozenset({
    "rvs", "resample", "random", "random_state", "set_yi", "add_xi", "set_bandwidth", "set_smoothing_factor",
    "add_points", "close", "fit",
})  # fmt: skip
"""Methods that draw numbers or change the object."""
_OPERATORS = ("__add__", "__mul__", "__matmul__", "__getitem__", "__iter__", "__len__", "__array__", "__next__")


class LibraryObject:
    """The twin of an object of SciPy; its methods record a call where an argument is traced."""

    def __init__(self, value: Any, name: str) -> None:
        self.__dict__.update({"_value": value, "_name": name})

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__dict__["_value"])

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return _called(self.__dict__["_value"], self.__dict__["_name"], arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["_value"], name)
        path = f"{self.__dict__['_name']}.{name}"
        if isinstance(value, MethodType) and value.__self__ is self.__dict__["_value"] and name not in _WITH_EFFECTS:
            return lambda *arguments, **keywords: _called(value, path, arguments, keywords)
        return object_twin(value, path)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_value"], name, value)


def object_twin(value: Any, name: str) -> Any:
    """Returns the twin of an object of SciPy that has methods on arrays; any other value as it is.

    name: the object as the user writes it.
    """
    cls = type(value)
    is_computing = f"{cls.__module__}.".startswith(_PACKAGES) and not isinstance(value, (type, tuple, Exception))
    if not is_computing or any(hasattr(cls, operator) for operator in _OPERATORS):
        return value
    return LibraryObject(value, name)


def _called(function: Callable[..., Any], name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not holds_traced((arguments, keywords)):
        return object_twin(function(*arguments, **keywords), f"{name}(...)")
    result = call_on_state(function, arguments, keywords, name=name)
    return result if result is not NOT_OF_STATE else call_between_stages(function, name, arguments, keywords)
