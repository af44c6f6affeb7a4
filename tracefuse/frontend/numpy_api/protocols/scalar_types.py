"""Calls of NumPy's scalar types on traced values, as in `np.float32(x.sum())` and `np.int64(x)`.

An array gives an array of the type; what has no axes gives a scalar. Where NumPy raises for some values, as for an
integer of Python out of range, the type itself runs, which asks for the number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import DType, dtype_of
from tracefuse.errors import DtypeError
from tracefuse.frontend.numpy_api.protocols.list_arguments import stacked
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.masked_elements import MaskedElements
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced

_WIDER = {"bool": ("bool",), "int": ("bool", "int"), "float": ("bool", "int", "float"),
          "complex": ("bool", "int", "float", "complex")}  # fmt: skip
"""The kinds of Python's numbers that types of a kind hold."""


def _holds(dtype: DType, kind: str) -> bool:
    """Whether NumPy converts every number of Python of a kind to a type."""
    return dtype.kind == "bool" or (kind in _WIDER.get(dtype.kind, ()) and (dtype.kind != "int" or dtype.itemsize == 8))


def _twin(original: Any) -> Callable[..., Any]:
    dtype = dtype_of(original)

    @source.forwards
    def call(*arguments: Any, **keywords: Any) -> Any:
        if len(arguments) != 1 or keywords:
            return original(*arguments, **keywords)
        value = stacked(arguments[0])
        if isinstance(value, MaskedElements):
            value = value.elements()
        elif isinstance(value, SymbolicSize) and _holds(dtype, "int"):
            value = traced_ops.as_traced(value)
        if not isinstance(value, Traced) or (value.weak is not None and not _holds(dtype, value.weak)):
            return original(value)
        return converted(value, dtype)

    functools.update_wrapper(call, original, assigned=("__name__", "__qualname__", "__doc__", "__module__"))
    return call


def converted(value: Traced, dtype: DType) -> Any:
    """Returns a traced value as an array of a type, or as a scalar of it where it has no axes."""
    result = traced_ops.astype(value, dtype)
    if result.extents:
        result.own_memory()
        return result
    return result.recorder.traced_type(result.recorder, result.number, None, result.read)


def _types() -> dict[int, Callable[..., Any]]:
    twins = {}
    for original in {*np.sctypeDict.values()}:
        try:
            dtype_of(original)
        except DtypeError:
            continue
        twins[id(original)] = _twin(original)
    return twins


CALLED: Mapping[int, Callable[..., Any]] = MappingProxyType(_types())
"""Twins of the types, in calls, by the id of the type."""
