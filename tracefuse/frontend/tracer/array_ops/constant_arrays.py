"""Arrays that NumPy makes of constants while a function is traced, as in `np.hanning(5)` and `np.sqrt([1, 2])`.

NumPy computes them at the trace. The function may change them, by traced values too, so that they become traced arrays
whose elements are known where Python asks for them. Arrays that share memory with an argument or with an object that
is no array, and types that are not traced, stay NumPy's.

"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import TracefuseError
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.frontend.tracer.values.views import alias


def recorded_constant(recorder: Recorder, array: Any) -> Any:
    """Returns a new array of NumPy as a traced one that can be written; itself where its type is not traced."""
    if not isinstance(array, np.ndarray) or recorder.device is not None:
        return array
    try:
        dtype_of(array.dtype)
    except TracefuseError:
        return array
    if not array.shape:
        return recorder.movement("full", [array[()]], shape=())
    result = traced_ops.copy(recorder.capture(np.ascontiguousarray(array)))
    if not array.flags.writeable:
        result.read_only = "a view that NumPy made of constants"
    if array.flags.c_contiguous:
        return result
    # NumPy made a view, as in np.flipud([1, 2]); its strides decide where later functions copy.
    result.layout = tuple(stride // array.itemsize for stride in array.strides)
    return result if array.base is None else alias(result)


def recorded_constants(result: Any, arguments: Sequence[Any]) -> Any:
    """Returns the result of a call with its new arrays traced; `arguments`: of the call, whose memory it may share."""
    recorder = current.get()
    if recorder is None or isinstance(result, Traced):
        return result
    if type(result) in (tuple, list):
        return type(result)(recorded_constants(entry, arguments) for entry in result)
    if type(result) is not np.ndarray or not _is_new(result, arguments):
        return result
    constant = recorded_constant(recorder, result)
    if isinstance(constant, Traced):
        constant.own_memory()
    return constant


def _is_new(array: np.ndarray[Any, Any], arguments: Sequence[Any]) -> bool:
    """Whether nothing else that the function can name has the memory of an array."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    given = (value for value in arguments if isinstance(value, np.ndarray) and not isinstance(value, Traced))
    return isinstance(owner, np.ndarray) and not any(np.may_share_memory(array, value) for value in given)


def records_constants(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `function`, and records the new arrays that it makes of constants."""

    @source.forwards
    def call(*arguments: Any, **keywords: Any) -> Any:
        return recorded_constants(function(*arguments, **keywords), (*arguments, *keywords.values()))

    functools.update_wrapper(call, function, assigned=("__name__", "__doc__", "__module__"))
    return call


def constant_calls(modules: Iterable[ModuleType], without: Iterable[int]) -> dict[int, Callable[..., Any]]:
    """Returns what calls the functions of these modules, and records the arrays that they make, by the id of each.

    without: the ids of functions that have other twins.
    """
    names = {id(value): value for module in modules for key, value in vars(module).items() if not key.startswith("_")}
    return {
        key: records_constants(value) for key, value in names.items()
        if key not in without and callable(value) and not isinstance(value, (type, np.ufunc))
        and str(getattr(value, "__module__", "")).startswith("numpy")
    }  # fmt: skip
