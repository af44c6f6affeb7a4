"""CuPy's functions in a trace: those that insist on CuPy's arrays record like the function of NumPy of their name.

CuPy's ufuncs call a hook of the traced array, see `cupy_hook`, and its creation functions have twins of their own, see
`creation`. Without traced arguments a function runs as it is.
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
from tracefuse.frontend.tracer.values.traced import holds_traced

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


def function_twins(package: str = "cupy") -> Mapping[int, Callable[..., Any]]:
    """Returns twins of the functions of CuPy, or of a package like it, by the id of what each replaces.

    Functions without an implementation on traced arrays raise what the function of NumPy does.
    """
    twins: dict[int, Callable[..., Any]] = {}
    for module, suffix in _MODULES:
        other: ModuleType | None = sys.modules.get(package + suffix)
        for name, function in vars(module).items():
            original = getattr(other, name, None)
            is_plain = callable(function) and not isinstance(function, (type, np.ufunc))
            if is_plain and function in dispatch.FUNCTIONS and callable(original) and original is not function:
                twins[id(original)] = _recording(original, function)
    return twins


def modules(package: str = "cupy") -> tuple[ModuleType, ...]:
    """Returns the modules of CuPy that have such functions and are loaded."""
    return tuple(sys.modules[package + suffix] for _, suffix in _MODULES if package + suffix in sys.modules)
