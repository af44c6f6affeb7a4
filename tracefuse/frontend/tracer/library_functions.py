"""Functions of installed packages, called in a trace with captured state alone: they run as steps of the prologue.

`scipy.linalg.cholesky(K)` asks for the elements of `K`, so that a traced array would be constant in the trace. A twin
of the function records the call instead. With arguments that depend on arguments of the traced function, and for
packages whose functions dispatch on traced arrays, the function runs as it is; those of SciPy run between two stages of
a call.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from tracefuse.frontend.tracer.library_objects import made_between_stages
from tracefuse.frontend.tracer.number_calls import call_with_numbers
from tracefuse.frontend.tracer.passed_functions import holds_variables
from tracefuse.frontend.tracer.state_calls import NOT_OF_STATE, call_on_state, name_of
from tracefuse.frontend.tracer.traced import holds_traced

_DISPATCHING = frozenset({"numpy", "cupy", "cupyx", "jax", "jaxlib", "torch", "tracefuse"})
_COMPUTING = frozenset({"math", "cmath", "statistics", "bisect", "json"})
"""Modules of Python whose functions compute with numbers."""
_OF_ARRAYS = frozenset({"scipy", "skimage", "bottleneck", "pywt"})
"""Packages whose functions have no effects, and do not dispatch on traced arrays."""
_OF_NUMBERS = frozenset({"math", "cmath", "statistics", "json"})
"""Modules of Python whose functions have no effects."""
_FOLDERS = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


class LibraryModule(ModuleType):
    """A module of an installed package, with twins of its functions and submodules."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module.__name__)
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        return twin(getattr(self.__dict__["_module"], name))


def twin(value: Any) -> Any:
    """Returns the twin of a function or a module of an installed package; any other value as it is."""
    if isinstance(value, ModuleType):
        return LibraryModule(value) if _is_installed(value.__name__) else value
    if isinstance(value, (FunctionType, BuiltinFunctionType)) and _is_installed(value.__module__ or ""):
        return _twin_of_function(value)
    return value


def _twin_of_function(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        result = call_on_state(function, arguments, keywords)
        if result is not NOT_OF_STATE:
            return result
        is_traced = holds_traced((arguments, keywords)) or any(map(holds_variables, arguments))
        if is_traced and _computes(function.__module__):
            return made_between_stages(function, name_of(function), arguments, keywords)
        if function.__module__ in _OF_NUMBERS:
            result = call_with_numbers(function, name_of(function), arguments, keywords)
            if result is not NotImplemented:
                return result
        return function(*arguments, **keywords)

    return call


def _computes(module: str | None) -> bool:
    """Whether the functions of a module compute with arrays, and have no other effects."""
    return (module or "").partition(".")[0] in _OF_ARRAYS


def _is_installed(module: str) -> bool:
    """Whether a module computes, or belongs to an installed package, and does not dispatch on traced arrays."""
    if module in _COMPUTING:
        return True
    name = module.partition(".")[0]
    # A module may define `__getattr__`, which must not run.
    file = getattr(sys.modules.get(name), "__dict__", {}).get("__file__")
    return name not in _DISPATCHING and isinstance(file, str) and file.startswith(_FOLDERS)
