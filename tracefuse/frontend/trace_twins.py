"""What a trace puts in the place of functions, types and objects of Python and of libraries: their recording twins."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from tracefuse.frontend.control_flow import iterated_entries, nested_ranges
from tracefuse.frontend.control_flow.recorded_ranges import range_twin
from tracefuse.frontend.numpy_api.library_calls import random_calls
from tracefuse.frontend.numpy_api.protocols import list_arguments, python_functions, scalar_types
from tracefuse.frontend.numpy_api.twins import checked_arrays, creation, cupy_functions
from tracefuse.frontend.python_numbers import math_twins, number_twins
from tracefuse.frontend.tracer.effects import changing_calls, logged_calls, numpy_errors
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
    twins, modules = creation.recording_twins(device)
    if device is not None:
        twins = {**cupy_functions.function_twins(), **twins}
    twins = {**twins, **cupy_functions.module_twins()}
    modules = (*modules, *cupy_functions.modules())
    of_python = {
        **number_twins.FUNCTIONS,
        **changing_calls.FUNCTIONS,
        **environment_reads.TWINS,
        **heap_functions.FUNCTIONS,
        **numpy_errors.FUNCTIONS,
    }
    of_calls = {**logged_calls.FUNCTIONS, **python_functions.FUNCTIONS}
    loaded = [sys.modules[name] for name in LATER if name in sys.modules]
    for module in loaded:
        of_calls.update(LATER[module.__name__]())
    of_packages = (
        *math_twins.MODULES,
        *number_twins.MODULES,
        *changing_calls.MODULES,
        *environment_reads.MODULES,
        *heap_functions.MODULES,
        *numpy_errors.MODULES,
        itertools,
        logging,
        *loaded,
    )
    return {**twins, **of_python, **of_calls}, (*modules, *of_packages)


LATER: Mapping[str, Callable[[], Mapping[int, Any]]] = MappingProxyType(
    {"numpy.testing": checked_arrays.recording_functions, "json": serialized_values.json_functions}
)
"""Modules that may be imported when a function reads them first, with what makes the twins of their functions."""


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
