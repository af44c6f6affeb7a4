"""Objects of SciPy that compute with arrays, in a trace: splines, interpolators, frozen distributions, search trees.

`spline(x)` and `distribution.cdf(x)` take no traced arrays. A twin of the object calls it between two stages of a call,
with the elements of the operands. The object itself is the one that the program has, so that its state is read at each
call. An object that is made of computed arrays, as by `CubicSpline(t, y)`, is made again in each of its calls.

Must not know: overlays of values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import MethodType, ModuleType
from typing import Any

from tracefuse import pytrees, source
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.stage_calls import OUTSIDE, call_between_stages
from tracefuse.frontend.tracer.state_calls import NOT_OF_STATE, call_on_state
from tracefuse.frontend.tracer.traced import Traced, holds_traced

_PACKAGES = ("scipy.interpolate.", "scipy.spatial.", "scipy.stats.")
"""Packages whose objects compute without effects."""
_WITH_EFFECTS = frozenset({
    "rvs", "resample", "random", "random_state", "set_yi", "add_xi", "set_bandwidth", "set_smoothing_factor",
    "add_points", "close", "fit",
})  # fmt: skip
"""Methods that draw numbers or change the object."""
_OPERATORS = ("__add__", "__mul__", "__matmul__", "__getitem__", "__iter__", "__len__", "__array__", "__next__")
_MADE_OF_ARRAYS: Mapping[str, str] = {
    "scipy.interpolate": """BSpline CubicSpline CubicHermiteSpline PchipInterpolator Akima1DInterpolator PPoly BPoly
        interp1d UnivariateSpline InterpolatedUnivariateSpline LSQUnivariateSpline RectBivariateSpline
        SmoothBivariateSpline RegularGridInterpolator LinearNDInterpolator NearestNDInterpolator RBFInterpolator
        CloughTocher2DInterpolator BarycentricInterpolator KroghInterpolator""",
    "scipy.spatial": "cKDTree KDTree ConvexHull Delaunay Voronoi",
    "scipy.stats": "gaussian_kde",
}
"""Classes of such objects that take arrays, by module."""


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


class ObjectOfArrays:
    """Stands for an object that SciPy makes of computed arrays: `make(*arguments, **keywords)`, as they were then."""

    def __init__(
        self, make: Callable[..., Any], cls: type, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        leaves, structure = pytrees.flatten((arguments, keywords))
        kept = pytrees.unflatten(structure, [_as_it_is(leaf) for leaf in leaves])
        self.__dict__.update({"_make": make, "_class": cls, "_name": name, "_given": kept})

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        is_own = source.is_internal(sys._getframe(1).f_code.co_filename)
        return type(self) if is_own else self.__dict__["_class"]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._call("__call__", self.__dict__["_name"], arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__dict__['_name']}.{name}"
        if name in _WITH_EFFECTS:
            raise UnsupportedError(
                f"{path} of an object of computed arrays cannot be fused: it draws numbers or changes the object",
                hint=OUTSIDE, where=source.user_line(),
            )  # fmt: skip
        if callable(getattr(self.__dict__["_class"], name, None)):
            return lambda *arguments, **keywords: self._call(name, path, arguments, keywords)
        return self._call(name, path, None, {})

    def __setattr__(self, name: str, value: Any) -> None:
        raise UnsupportedError(
            f"{self.__dict__['_name']}.{name} of an object of computed arrays cannot be set", hint=OUTSIDE,
            where=source.user_line(),
        )  # fmt: skip

    def _call(self, method: str, path: str, arguments: tuple[Any, ...] | None, keywords: dict[str, Any]) -> Any:
        """Calls a method; reads an attribute, if `arguments` is None."""
        make = self.__dict__["_make"]

        def call(given: tuple[Any, ...], more: dict[str, Any], *arguments: Any, **keywords: Any) -> Any:
            attribute = getattr(make(*given, **more), method)
            return attribute if is_read else attribute(*arguments, **keywords)

        is_read = arguments is None
        return made_between_stages(call, path, (*self.__dict__["_given"], *(arguments or ())), keywords)


def _as_it_is(value: Any) -> Any:
    """An array that later writes do not change; any other value as it is."""
    if not isinstance(value, Traced):
        return value
    value.recorder.resolve(value)
    return type(value)(value.recorder, value.number, value.weak, value.read, value.sized)


def modules() -> list[ModuleType]:
    """Returns the imported modules that have such classes."""
    return [sys.modules[name] for name in _MADE_OF_ARRAYS if name in sys.modules]


def type_twins() -> dict[int, Callable[..., Any]]:
    """Returns the twins of the classes of imported modules, in calls, by the id of the class."""
    twins = {}
    for module_name, names in _MADE_OF_ARRAYS.items():
        module = sys.modules.get(module_name)
        for name in names.split() if module is not None else ():
            cls = getattr(module, name, None)
            if cls is not None:
                twins[id(cls)] = _type_twin(cls, f"{module_name}.{name}")
    return twins


def _type_twin(cls: type, name: str) -> Callable[..., Any]:
    def make(*arguments: Any, **keywords: Any) -> Any:
        if not holds_traced((arguments, keywords)):
            return object_twin(cls(*arguments, **keywords), f"{name}(...)")
        return made_between_stages(cls, name, arguments, keywords)

    return make


def object_twin(value: Any, name: str) -> Any:
    """Returns the twin of an object of SciPy that has methods on arrays; any other value as it is.

    name: the object as the user writes it.
    """
    cls = type(value)
    if not _computes(cls) or any(hasattr(cls, operator) for operator in _OPERATORS):
        return value
    return LibraryObject(value, name)


def _computes(cls: type) -> bool:
    return f"{cls.__module__}.".startswith(_PACKAGES) and not issubclass(cls, (type, tuple, Exception))


def _called(function: Callable[..., Any], name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not holds_traced((arguments, keywords)):
        return object_twin(function(*arguments, **keywords), f"{name}(...)")
    result = call_on_state(function, arguments, keywords, name=name)
    return result if result is not NOT_OF_STATE else made_between_stages(function, name, arguments, keywords)


def made_between_stages(
    function: Callable[..., Any], name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """Returns what a call between two stages returns, with a stand-in for an object of SciPy."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        result = function(*arguments, **keywords)
        return type(result) if _computes(type(result)) else result

    result = call_between_stages(call, name, arguments, keywords)
    is_object = isinstance(result, type) and _computes(result)
    return ObjectOfArrays(function, result, f"{name}(...)", arguments, keywords) if is_object else result
