"""Functions and classes of installed packages in a trace.

With captured state alone, as in `scipy.linalg.cholesky(K)`, a call is a step of the prologue. With arguments that
depend on those of the traced function, functions of packages that compute with arrays run between two stages of a
call; those of other packages run as they are, on traced arrays, and between two stages where that raises. Packages
whose functions dispatch on traced arrays have no twins.
"""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from tracefuse import pytrees
from tracefuse.errors import TraceError, UnsupportedError
from tracefuse.frontend.tracer.array_ops.constant_arrays import recorded_constants
from tracefuse.frontend.tracer.array_ops.state_calls import NOT_OF_STATE, call_on_state, name_of
from tracefuse.frontend.tracer.libraries import library_objects
from tracefuse.frontend.tracer.libraries.number_calls import call_with_numbers
from tracefuse.frontend.tracer.libraries.passed_functions import holds_variables
from tracefuse.frontend.tracer.libraries.stage_calls import call_between_stages, call_or_refuse
from tracefuse.frontend.tracer.python_code.installed_packages import is_of_library
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values.symbolic_size import plain_key
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced

_DISPATCHING = frozenset({"numpy", "cupy", "cupyx", "jax", "jaxlib", "torch", "tracefuse"})
_COMPUTING = frozenset({"math", "cmath", "statistics", "bisect"})
"""Modules of Python whose functions compute with numbers."""
_OF_ARRAYS = frozenset({
    "scipy", "skimage", "bottleneck", "pywt", "sklearn", "statsmodels", "hmmlearn", "pandas", "xarray",
})  # fmt: skip
"""Packages whose functions have no effects, and do not dispatch on traced arrays."""
_OF_NUMBERS = frozenset({"math", "cmath", "statistics"})
"""Modules of Python whose functions have no effects."""
_OF_ESTIMATORS = ("sklearn.", "statsmodels.", "hmmlearn.")
"""Packages with objects that are created without arrays and given arrays later."""


class LibraryModule(ModuleType):
    """A module of an installed package, with twins of its functions and submodules."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module.__name__)
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__["_module"]
        value, recorder = getattr(module, name), current.get()
        if recorder is not None and recorder.overlays is not None and isinstance(value, type):
            is_called = recorder.overlays.scopes.is_called(value, sys._getframe(1))
            return called_twin(value) if is_called else twin(value)
        return member_twin(module, name, value)


class LibraryClass:
    """A class of a package that computes with arrays: traced arguments make an object between two stages of a call."""

    def __init__(self, cls: type) -> None:
        self.__dict__["_class"] = cls

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__dict__["_class"])

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        cls, recorder = self.__dict__["_class"], current.get()
        is_estimator = cls.__module__.startswith(_OF_ESTIMATORS) and recorder is not None
        if not is_estimator and not holds_traced((arguments, keywords)) and not any(map(holds_variables, arguments)):
            arguments, keywords = library_objects.originals_of((arguments, keywords))
            return library_objects.sparse_twin(cls(*arguments, **keywords), name_of(cls))
        return call_between_stages(cls, name_of(cls), arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["_class"], name)
        if isinstance(value, type) or not callable(value):
            return value
        return _twin_of_class_method(value, f"{name_of(self.__dict__['_class'])}.{name}")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (self.__dict__["_class"],)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, self.__dict__["_class"])


def _twin_of_class_method(method: Any, name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        if not holds_traced((arguments, keywords)):
            return method(*arguments, **keywords)
        return call_between_stages(method, name, arguments, keywords)

    return call


def has_called_twin(value: Any) -> bool:
    """Whether a class has a twin in calls: an enumeration, or a class of an installed package, which may ask for
    elements."""
    if not isinstance(value, type) or issubclass(value, (BaseException, tuple)):
        return False
    if issubclass(value, enum.Enum):
        return True
    return value.__module__ not in _COMPUTING and _is_installed(value.__module__)


def called_twin(value: Any) -> Any:
    """Returns what calls of a class run in place of the class; any other value as it is."""
    if not has_called_twin(value) or _creates_objects(value):
        return twin(value)
    if issubclass(value, enum.Enum):
        return lambda *arguments, **keywords: value(*map(plain_key, arguments), **keywords)  # it keeps what is passed

    def call(*arguments: Any, **keywords: Any) -> Any:
        if not holds_traced((arguments, keywords)):
            return value(*arguments, **keywords)
        return _traced_or_between_stages(value, arguments, keywords)

    return call


def member_twin(module: ModuleType, name: str, value: Any) -> Any:
    """Returns the twin of an attribute of a module; an attribute without a twin as it is."""
    changed = twin(value)
    return library_objects.object_twin(value, f"{module.__name__}.{name}") if changed is value else changed


def twin(value: Any) -> Any:
    """Returns the twin of a function, class or module of an installed package; any other value as it is."""
    if isinstance(value, ModuleType):
        return LibraryModule(value) if _is_installed(value.__name__) else value
    if isinstance(value, type):
        return LibraryClass(value) if _creates_objects(value) else value
    is_cached = type(value).__module__ == "functools" and hasattr(value, "cache_parameters")
    if is_cached and _is_installed(value.__module__ or ""):
        return _twin_of_cached(value)
    if isinstance(value, (FunctionType, BuiltinFunctionType)) and _is_installed(value.__module__ or ""):
        return _twin_of_function(value)
    return value


def _twin_of_cached(function: Callable[..., Any]) -> Callable[..., Any]:
    """The twin of a function with a cache of `functools`: the keys of its entries outlive the trace."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        return function(*map(plain_key, arguments), **{name: plain_key(value) for name, value in keywords.items()})

    return call


def _twin_of_function(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        result = call_on_state(function, arguments, keywords)
        if result is not NOT_OF_STATE:
            return result
        is_traced = holds_traced((arguments, keywords)) or any(map(holds_variables, arguments))
        if is_traced and _computes(function.__module__):
            return call_between_stages(function, name_of(function), arguments, keywords)
        if function.__module__ in _OF_NUMBERS:
            result = call_with_numbers(function, name_of(function), arguments, keywords)
            return function(*arguments, **keywords) if result is NotImplemented else result
        if is_traced and function.__module__ not in _COMPUTING:
            return _traced_or_between_stages(function, arguments, keywords)
        arguments, keywords = library_objects.originals_of((arguments, keywords))
        result = library_objects.sparse_twin(function(*arguments, **keywords), name_of(function))
        return recorded_constants(result, (*arguments, *keywords.values()))

    return call


def _traced_or_between_stages(function: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
    """Calls a function as it is; between two stages of the call if it raises, as one that asks for elements does.

    A function that has changed what it was given, or drawn numbers, cannot begin again.
    """
    recorder = current.get()
    before = _effects(recorder, arguments, keywords)
    try:
        return function(*arguments, **keywords)
    except Exception as error:
        if _effects(recorder, arguments, keywords) != before:
            raise
        refusal = _refusal_behind(error)
        return call_or_refuse(function, name_of(function), arguments, keywords, refusal)


def _refusal_behind(error: Exception) -> Exception:
    """Returns the refusal that an exception was raised after, if any; else the exception."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, (TraceError, UnsupportedError)):
        cause = cause.__context__
    return error if cause is None else cause


def _effects(recorder: Recorder | None, arguments: Any, keywords: Any) -> tuple[Any, ...]:
    """A key that differs after a call that changed its arguments, or had another recorded effect."""
    traced = [leaf for leaf in pytrees.flatten((arguments, keywords))[0] if isinstance(leaf, Traced)]
    memories = (0 if leaf.memory is None else leaf.memory.version for leaf in traced)
    last = None if recorder is None else recorder.last_effect
    return (*memories, *(leaf.number for leaf in traced), id(last))


def _creates_objects(cls: type) -> bool:
    """Whether the instances of a class are computed from arrays."""
    return _computes(cls.__module__) and not issubclass(cls, (BaseException, enum.Enum, tuple))


def _computes(module: str | None) -> bool:
    """Whether the functions of a module compute with arrays, and have no other effects."""
    return (module or "").partition(".")[0] in _OF_ARRAYS or _is_of_masked_arrays(module)


def _is_of_masked_arrays(module: str | None) -> bool:
    return f"{module}.".startswith("numpy.ma.")


def _is_installed(module: str) -> bool:
    """Whether a module computes, or belongs to an installed package, and does not dispatch on traced arrays."""
    if module in _COMPUTING or _is_of_masked_arrays(module):
        return True
    package = module.partition(".")[0]
    return package not in _DISPATCHING and package not in sys.stdlib_module_names and is_of_library(package)
