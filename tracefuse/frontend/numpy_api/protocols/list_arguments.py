"""Functions of arrays with an argument that is a list of traced values, as in `np.max([a, b])` and `np.sqrt([a, b])`.

NumPy looks for traced values among the arguments and not inside of these lists, so its functions and ufuncs are
replaced in the clone that a trace runs; see `creation`.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.frontend.numpy_api.protocols import dispatch
from tracefuse.frontend.numpy_api.registration import shape_numbers
from tracefuse.frontend.tracer.array_ops.array_protocols import array_of_object, has_overrides
from tracefuse.frontend.tracer.array_ops.constant_arrays import recorded_constants, records_constants
from tracefuse.frontend.tracer.array_ops.traced_ops import as_traced
from tracefuse.frontend.tracer.record.recorder import current
from tracefuse.frontend.tracer.values.nested_lists import leaves_of
from tracefuse.frontend.tracer.values.traced import Traced

_OF_LISTS = frozenset({
    np.block, np.select, np.choose, np.einsum, np.linalg.multi_dot, np.histogramdd, np.ravel_multi_index,
    np.apply_along_axis, np.diag_indices_from, np.tril_indices_from, np.triu_indices_from, np.apply_over_axes, np.split,
    np.trim_zeros, np.result_type, np.common_type, np.can_cast, np.min_scalar_type,
})  # fmt: skip
"""Functions that take lists of arrays, in which NumPy looks for traced values itself, or no array first."""

_SEVERAL: Mapping[Any, int] = MappingProxyType({
    **dict.fromkeys((np.interp, np.where, np.clip), 3),
    **dict.fromkeys((
        np.average, np.dot, np.inner, np.outer, np.linalg.outer, np.vdot, np.cross, np.linalg.cross, np.kron,
        np.tensordot, np.matmul, np.linalg.matmul, np.append, np.isin, np.intersect1d, np.union1d, np.setdiff1d,
        np.setxor1d, np.polyval, np.polyfit, np.polyadd, np.polysub, np.polymul, np.polydiv, np.trapezoid,
        np.searchsorted, np.digitize, np.convolve, np.correlate, np.cov, np.corrcoef, np.allclose, np.array_equal,
        np.array_equiv, np.isclose, np.histogram, np.histogram2d, np.linalg.solve, np.linalg.lstsq, np.take,
        np.percentile, np.quantile, np.nanpercentile, np.nanquantile, np.gradient, np.ediff1d, np.repeat,
        np.bincount, np.ix_, np.take_along_axis, np.delete, np.insert, np.put,
    ), 2), np.broadcast_arrays: 64,
})  # fmt: skip
"""How many of the first parameters are arrays, of functions where it is not one."""

_CONVERTING = frozenset({np.insert, np.put})
"""Functions that convert the entries of their last list, one by one, to the type of their first array."""

_OF_SEQUENCES: Mapping[Any, str] = MappingProxyType({
    **dict.fromkeys((np.concatenate, np.stack), "arrays"),
    **dict.fromkeys((np.vstack, np.hstack, np.dstack, np.column_stack), "tup"), np.lexsort: "keys",
})  # fmt: skip
"""Functions whose first parameter is a sequence of arrays of types of their own, and its name."""

_KEYWORDS = frozenset({"weights", "a", "x", "y", "w", "v", "arr", "fweights", "aweights"})
"""Keywords that are arrays."""


def _holds_traced(values: Any) -> bool:
    """Whether nested lists hold traced values; sizes alone are numbers of a shape."""
    values = list(values) if isinstance(values, deque) else values
    return isinstance(values, (list, tuple)) and any(isinstance(value, Traced) for value in leaves_of(values))


def stacked(value: Any) -> Any:
    """Returns a list of traced values, or an object with `__array__`, as an array; any other value as it is."""
    if _holds_traced(value):
        traced = as_traced(list(value) if isinstance(value, deque) else value)
        traced.is_list = True
        return traced
    return value if has_overrides(value) else array_of_object(value)


def _apart(values: Any) -> Any:
    """Returns a list that holds traced values as a tuple of arrays, among which NumPy looks for traced ones."""
    return tuple(map(stacked, values)) if _holds_traced(values) else stacked(values)


def _beside(keywords: Mapping[str, Any], array: Any) -> Any:
    """Returns an array as a traced one if a keyword is traced, among which NumPy looks for none."""
    if isinstance(array, Traced) or not any(isinstance(value, Traced) for value in keywords.values()):
        return array
    return as_traced(np.asarray(array))


def _taking_lists(original: Callable[..., Any]) -> Callable[..., Any]:
    count, is_of_shapes = _SEVERAL.get(original, 1), original in shape_numbers.REDUCTIONS
    converts = original in _CONVERTING
    convert, names = (_apart, {_OF_SEQUENCES[original]}) if original in _OF_SEQUENCES else (stacked, _KEYWORDS)

    @source.forwards
    def call(*arguments: Any, **keywords: Any) -> Any:
        recorder = current.get() if is_of_shapes and len(arguments) == 1 and not keywords else None
        size = None if recorder is None else shape_numbers.of_sizes(original, recorder, arguments[0])
        if size is not None:
            return size
        arguments = (*map(convert, arguments[:count]), *arguments[count:])
        if converts and not any(isinstance(value, Traced) for value in arguments):
            arguments = tuple(map(stacked, arguments))
        keywords = {name: convert(value) if name in names else value for name, value in keywords.items()}
        return recorded_constants(original(*arguments, **keywords), (*arguments, *keywords.values()))

    functools.update_wrapper(call, original, assigned=("__name__", "__doc__", "__module__"))
    return call


TAKING_LISTS: dict[int, Callable[..., Any]] = {
    id(function): _taking_lists(function)
    for function in dispatch.FUNCTIONS
    if function not in _OF_LISTS and not isinstance(function, np.ufunc)
}
"""Functions that stack such lists, by the id of NumPy's function that each replaces."""


class UfuncOfLists:
    """A ufunc, whose calls and methods also take lists of traced values."""

    def __init__(self, ufunc: np.ufunc) -> None:
        self._ufunc = ufunc
        self.__name__, self.__doc__ = ufunc.__name__, ufunc.__doc__

    @records_constants
    @source.forwards
    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        return self._ufunc(*map(stacked, inputs), **keywords)

    @records_constants
    @source.forwards
    def reduce(self, array: Any, *arguments: Any, **keywords: Any) -> Any:
        return self._ufunc.reduce(_beside(keywords, stacked(array)), *arguments, **keywords)

    @records_constants
    @source.forwards
    def accumulate(self, array: Any, *arguments: Any, **keywords: Any) -> Any:
        return self._ufunc.accumulate(stacked(array), *arguments, **keywords)

    @records_constants
    @source.forwards
    def reduceat(self, array: Any, indices: Any, *arguments: Any, **keywords: Any) -> Any:
        return self._ufunc.reduceat(stacked(array), stacked(indices), *arguments, **keywords)

    @records_constants
    @source.forwards
    def outer(self, *inputs: Any, **keywords: Any) -> Any:
        return self._ufunc.outer(*map(stacked, inputs), **keywords)

    @source.forwards
    def at(self, a: Any, indices: Any, *values: Any) -> None:
        places = tuple(map(stacked, indices)) if isinstance(indices, tuple) else stacked(indices)
        self._ufunc.at(a, places, *map(stacked, values))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ufunc, name)


UFUNCS: Mapping[int, UfuncOfLists] = MappingProxyType(
    {id(ufunc): UfuncOfLists(ufunc) for ufunc in vars(np).values() if isinstance(ufunc, np.ufunc)}
)
"""Ufuncs that take lists, where a clone calls one or a method of one, by the id of NumPy's."""
TYPES: Mapping[int, Callable[..., Any]] = MappingProxyType({id(np.poly1d): _taking_lists(np.poly1d)})
"""Types that take such lists, in calls, by the id of each."""
