"""What a trace puts in the place of functions, types and objects of Python and of libraries: their recording twins."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from tracefuse.caches import memoized
from tracefuse.frontend.control_flow import iterated_entries, nested_ranges
from tracefuse.frontend.control_flow.recorded_ranges import range_twin
from tracefuse.frontend.numpy_api.library_calls import random_calls
from tracefuse.frontend.numpy_api.protocols import list_arguments, python_functions, scalar_types
from tracefuse.frontend.numpy_api.twins import checked_arrays, creation, cupy_functions
from tracefuse.frontend.python_numbers import math_twins, number_twins
from tracefuse.frontend.tracer.effects import changing_calls, file_calls, logged_calls, numpy_errors
from tracefuse.frontend.tracer.libraries import serialized_values
from tracefuse.frontend.tracer.state import environment_reads, heap_functions

CALLED: Mapping[int, Any] = MappingProxyType({
    **scalar_types.CALLED, **number_twins.CALLED, **creation.CALLED, **list_arguments.UFUNCS, **list_arguments.TYPES,
    **python_functions.CALLED, **random_calls.CALLED, **iterated_entries.CALLED, **nested_ranges.CALLED,
    id(range): range_twin,
})  # fmt: skip
"""Twins of types and ufuncs, in calls, by the id of each."""


def replacements(device: int | None) -> tuple[Mapping[int, Any], tuple[ModuleType, ...]]:
    """Returns the twins for a trace on a device, by the id of what each replaces, and the modules that hold these."""
    on_host = device is None
    loaded = tuple(module for name in _module_names(on_host) if (module := sys.modules.get(name)) is not None)
    # Of a module that is being imported, functions may be missing.
    return _twins(on_host, loaded, tuple(len(vars(module)) for module in loaded)), (*_ALWAYS_LOADED, *loaded)


@memoized("the recording twins of functions", key="host or GPU, loaded modules", most=8)
def _twins(on_host: bool, loaded: tuple[ModuleType, ...], sizes: tuple[int, ...]) -> Mapping[int, Any]:
    """Returns the twins by the id of what each replaces; those of loaded modules, which have so many names."""
    twins = {**({} if on_host else cupy_functions.function_twins()), **creation.recording_twins(on_host)}
    for part in (
        *(cupy_functions.module_twins(), number_twins.FUNCTIONS, changing_calls.FUNCTIONS, environment_reads.TWINS),
        *(heap_functions.FUNCTIONS, numpy_errors.FUNCTIONS, logged_calls.FUNCTIONS, python_functions.FUNCTIONS),
        file_calls.FUNCTIONS,
        *(LATER[module.__name__]() for module in loaded if module.__name__ in LATER),
    ):
        twins.update(part)
    return MappingProxyType(twins)


LATER: Mapping[str, Callable[[], Mapping[int, Any]]] = MappingProxyType(
    {"numpy.testing": checked_arrays.recording_functions, "json": serialized_values.json_functions}
)
"""Modules that may be imported when a function reads them first, with what makes the twins of their functions."""

_ALWAYS_LOADED = (
    *math_twins.MODULES, *number_twins.MODULES, *changing_calls.MODULES, *environment_reads.MODULES,
    *heap_functions.MODULES, *numpy_errors.MODULES, *file_calls.MODULES, itertools, logging,
)  # fmt: skip
"""Modules whose functions have twins in every trace."""


@memoized("the modules whose functions have twins", key="host or GPU", most=2, clears=False)
def _module_names(on_host: bool) -> tuple[str, ...]:
    """Returns the names of modules whose functions have twins if they are loaded."""
    return tuple(dict.fromkeys((*creation.module_names(on_host), *cupy_functions.module_names(), *LATER)))


def twin_of(value: Any) -> Any:
    """Returns the twin of an object of a library that exists outside of the function, see `captures.WITH_TWINS`."""
    if isinstance(value, logging.Logger):
        return logged_calls.LoggerTwin(value)
    if isinstance(value, np.vectorize):
        return python_functions.VectorizedFunction(value)
    return random_calls.twin_of(value)


def shows_texts(function: Any) -> bool:
    """Whether a function, or the methods of an object, only show the texts that they get."""
    return function is number_twins.FUNCTIONS[id(print)] or type(function) in logged_calls.SHOWING
