"""CuPy's functions in a trace: those that insist on CuPy's arrays record like the function of NumPy of their name.

CuPy's ufuncs call a hook of the traced array, see `cupy_hook`, and their methods record as those of NumPy; its creation
functions have twins of their own, see `creation`. Without traced arguments a function runs as it is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.frontend.numpy_api.protocols import dispatch
from tracefuse.frontend.tracer.array_ops.traced_ops import located
from tracefuse.frontend.tracer.captured import routes
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.record.recorder import current
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced

_MODULES: tuple[tuple[Any, str], ...] = ((np, ""), (np.linalg, ".linalg"), (np.fft, ".fft"))
"""Modules of NumPy, with the name of CuPy's in its package."""


def _recording(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @source.forwards
    def call(*arguments: Any, **keywords: Any) -> Any:
        if not holds_traced((arguments, keywords)):
            return original(*arguments, **keywords)
        return dispatch.call(function, arguments, keywords)

    functools.update_wrapper(call, function, assigned=("__name__", "__doc__"))
    return located(call)


class RecordingUfunc:
    """The twin of a ufunc of CuPy: calls reach its hook, and methods record as those of the ufunc of NumPy."""

    def __init__(self, original: Any, ufunc: np.ufunc) -> None:
        self._original, self._ufunc = original, ufunc
        self.__name__, self.__doc__ = ufunc.__name__, original.__doc__

    @source.forwards
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if hasattr(self._original, "nargs") or not holds_traced((arguments, keywords)):
            return self._original(*arguments, **keywords)
        return self._ufunc(*arguments, **keywords)  # as cupy.matmul, which has no hook

    def __getattr__(self, name: str) -> Any:
        original, method = getattr(self._original, name), getattr(self._ufunc, name, None)
        if not callable(method):
            return original

        @source.forwards
        def call(*arguments: Any, **keywords: Any) -> Any:
            return (method if holds_traced((arguments, keywords)) else original)(*arguments, **keywords)

        return call


@source.forwards
def _scatter(original: Callable[..., Any], ufunc: np.ufunc, a: Any, slices: Any, value: Any) -> None:
    """`cupyx.scatter_add` and functions like it: the ufunc at positions, each as often as it occurs."""
    if not holds_traced((a, slices, value)):
        return original(a, slices, value)  # type: ignore[no-any-return]
    ufunc.at(a, slices, value)
    return None


_SCATTERED = {"scatter_add": np.add, "scatter_max": np.maximum, "scatter_min": np.minimum}


def function_twins(package: str = "cupy") -> Mapping[int, Callable[..., Any]]:
    """Returns twins of the functions of CuPy, or of a package like it, by the id of what each replaces.

    Functions without an implementation on traced arrays raise what the function of NumPy does.
    """
    twins: dict[int, Callable[..., Any]] = {}
    for module, suffix in _MODULES:
        other: ModuleType | None = sys.modules.get(package + suffix)
        for name, function in vars(module).items():
            original = getattr(other, name, None)
            if not callable(original) or original is function or isinstance(function, type):
                continue
            if isinstance(function, np.ufunc):
                twins[id(original)] = RecordingUfunc(original, function)
            elif callable(function) and function in dispatch.FUNCTIONS:
                twins[id(original)] = _recording(original, function)
    for name, ufunc in _SCATTERED.items():
        original = getattr(sys.modules.get(f"{package}x"), name, None)
        if original is not None:
            twins[id(original)] = functools.partial(_scatter, original, ufunc)
    return twins


def module_twins() -> Mapping[int, Callable[..., Any]]:
    """Returns twins of `cupy.get_array_module` and of that of cupyx.scipy, by the id of each.

    They return the modules as the function sees them, so that `xp is np` and `xp is cp` are what they are outside.
    """
    twins: dict[int, Callable[..., Any]] = {}
    for name in ("cupy", "cupyx.scipy"):
        original = getattr(sys.modules.get(name), "get_array_module", None)
        if original is not None:
            twins[id(original)] = functools.partial(_get_array_module, original, name)
    return twins


@source.forwards
def _get_array_module(original: Callable[..., Any], name: str, *arrays: Any) -> Any:
    recorder = next((array.recorder for array in arrays if isinstance(array, Traced)), current.get())
    if recorder is None or recorder.overlays is None:
        return original(*arrays)
    is_traced = any(isinstance(array, Traced) and array.array_class is not np.ndarray for array in arrays)
    module = sys.modules[name] if is_traced else original(*arrays)
    return recorder.overlays.scopes.module(module, Place(module.__name__, routes.to(module), module))


def module_names(package: str = "cupy") -> tuple[str, ...]:
    """Returns the names of the modules of CuPy that have such functions."""
    return (*(package + suffix for _, suffix in _MODULES), f"{package}x", f"{package}x.scipy")
