"""NumPy's counts, membership, histograms of several coordinates, and functions of slices, on traced values."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse.dtypes import float64, int64
from tracefuse.errors import DtypeError, TraceError, UnsupportedError
from tracefuse.frontend.numpy_api.library_calls.sampled_functions import record_library_call
from tracefuse.frontend.numpy_api.library_calls.whole_array_calls import as_operand, call_whole, op_named
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.numpy_api.selecting.updates_at_positions import update_at
from tracefuse.frontend.tracer.array_ops import recorded_ops, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.traced_ops import as_number, missing
from tracefuse.frontend.tracer.effects.assumed_conditions import is_assumed
from tracefuse.frontend.tracer.libraries.stage_calls import call_between_stages
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced
from tracefuse.ir.extents import product

FUNCTIONS = Functions()
implements = FUNCTIONS.implements

MOST_COMPARED = 8
"""The numbers that `np.isin` compares with each element; more are searched for by NumPy itself."""


@implements(np.bincount)
def bincount(x: Any, /, weights: Any = None, minlength: Any = 0) -> Any:
    if isinstance(minlength, int) and minlength == 0:
        raise missing(
            "np.bincount without minlength: the largest element decides the size of its result",
            "give minlength, larger than every element",
        )
    values = as_operand(x)
    is_empty = values.recorder.decide(product(values.extents), "==", 0, "whether np.bincount has elements")
    if is_empty:
        weights = None  # NumPy counts without looking at the weights
    fits = None if is_empty else _fits(values, minlength)
    if fits is False:
        raise missing(
            "np.bincount of elements beyond minlength: the largest element decides the size of its result",
            "make minlength larger than every element",
        )
    if fits and type(minlength) is int and values.recorder.device is None:
        added: Any = 1 if weights is None else as_operand(weights)
        if weights is None or _are_weights(added, values):
            return _counted(values, added, minlength)
    parameters = {"x": x, "weights": weights, "minlength": minlength}
    return call_whole(op_named("bincount"), "np.bincount", parameters)


def _fits(values: Traced, minlength: Any) -> bool | None:
    """Whether all elements are counts below `minlength`, which is assumed, and checked by the call.

    None where nothing can check it: the library call raises OutOfRangeError for other elements.
    """
    if not values.value.dtype.is_integer or len(values.extents) != 1:
        return None
    try:
        in_range: Any = traced_ops.reduce("max", values) < minlength
        in_range = in_range & (traced_ops.reduce("min", values) >= 0)
        return is_assumed(in_range) or bool(in_range)
    except TraceError:
        return None


def _are_weights(weights: Traced, values: Traced) -> bool:
    """Whether there is a real weight for each element."""
    if weights.value.dtype.is_complex or len(weights.extents) != 1:
        return False
    return values.recorder.decide(weights.extents[0], "==", values.extents[0], "whether each element has a weight")


def _counted(values: Traced, added: Any, minlength: int) -> Traced:
    """Adds ones or weights at positions: a kernel takes less time than the library, and none for a call of it."""
    dtype = float64 if isinstance(added, Traced) else int64
    counts = recorded_ops.zeros(values.recorder, (minlength,), dtype)
    update_at(np.add, counts, values, added)
    return counts  # type: ignore[no-any-return]


def _by_coordinate(bins: Any, coordinates: int) -> Any:
    """`bins` with the numbers of bins as integers, where it has one entry for each coordinate, as NumPy reads it.

    An array of that length holds numbers of bins, not edges.
    """
    array: Any = bins if isinstance(bins, (Traced, np.ndarray)) else None
    if array is not None and array.ndim == 1 and array.shape[0] == coordinates:
        bins = [array[axis] for axis in range(coordinates)]
    if not isinstance(bins, (list, tuple)) or len(bins) != coordinates:
        return bins
    return tuple(entry if np.ndim(entry) else _number_of_bins(entry, axis) for axis, entry in enumerate(bins))


def _number_of_bins(entry: Any, axis: int) -> int:
    try:
        return operator.index(entry)
    except TypeError:
        raise DtypeError(f"`bins[{axis}]` must be an integer, when a scalar", hint="give int(bins)") from None


def _names_edges(bins: Any) -> bool:
    """Whether bins is a list of counts and arrays of edges, one for each coordinate."""
    return isinstance(bins, (list, tuple)) and any(
        isinstance(entry, (Traced, np.ndarray, list, tuple)) for entry in bins
    )


@implements(np.histogram2d)
def histogram2d(x: Any, y: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:
    bins = _by_coordinate(bins, 2)
    parameters = {"bins": bins, "range": range, "density": density, "weights": weights}
    if _names_edges(bins):
        return record_library_call("numpy.histogram2d", (x, y), parameters)
    return call_whole(op_named("histogram2d"), "np.histogram2d", {"x": x, "y": y, **parameters})


@implements(np.histogramdd)
def histogramdd(sample: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:
    points = shaping.transpose(as_operand(sample)) if isinstance(sample, (list, tuple)) else as_operand(sample)
    points = shaping.expand_dims(points, 1) if len(points.extents) == 1 else points
    count = points.recorder.pin(points.extents[1], "the coordinates of np.histogramdd")
    bins = _by_coordinate(bins, count)
    parameters = {"bins": bins, "range": range, "density": density, "weights": weights}
    if _names_edges(bins):
        return record_library_call("numpy.histogramdd", (sample,), parameters)
    named = {"sample": points, **parameters, "coordinates": count}
    counts, *edges = call_whole(op_named("histogramdd"), "np.histogramdd", named)
    return counts, list(edges)


@implements(np.isin)
def isin(element: Any, test_elements: Any, assume_unique: Any = False, invert: Any = False, *, kind: Any = None) -> Any:
    """Whether each element is among others: a few known numbers are compared one by one, as NumPy does."""
    if test_elements is None or isinstance(test_elements, (str, bytes)):  # no number equals them
        return np.full_like(as_operand(element), bool(invert), dtype=bool, order="C")
    numbers = _few_numbers(element, test_elements)
    if not numbers or kind is not None or not isinstance(invert, bool):
        parameters = {"assume_unique": assume_unique, "invert": invert, "kind": kind}
        named = {"element": element, "test_elements": test_elements, **parameters}
        return call_whole(op_named("isin"), "np.isin", named)
    values = as_operand(element)
    if invert:
        return functools.reduce(operator.and_, [values != number for number in numbers])
    return functools.reduce(operator.or_, [values == number for number in numbers])


def _few_numbers(element: Any, test_elements: Any) -> list[Any]:
    """The numbers of a short list as scalars of its common type; none of other lists and for uint64.

    NumPy compares uint64 with signed numbers as float64 or exactly, depending on how many there are.
    """
    if not isinstance(element, Traced) or isinstance(test_elements, Traced) or holds_traced(test_elements):
        return []
    if not isinstance(test_elements, (list, tuple, np.ndarray, np.generic, bool, int, float)):
        return []
    numbers = np.asarray(test_elements).ravel()
    is_exact = np.uint64 not in (element.value.dtype.numpy, numbers.dtype)
    return list(numbers) if numbers.dtype.kind in "biuf" and numbers.size <= MOST_COMPARED and is_exact else []


@implements(np.apply_along_axis)
def apply_along_axis(func1d: Any, axis: Any, arr: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return call_between_stages(
            np.apply_along_axis, "np.apply_along_axis", (func1d, as_number(axis), arr, *args), kwargs
        )
    except UnsupportedError as error:
        hint = "write the function for the whole array, with axis="
        raise UnsupportedError(error.message, hint=hint, where=error.where) from None


def _in_complex_numbers(name: str) -> Callable[..., Any]:
    """A function of np.emath: whether its result is complex depends on the elements."""
    function = getattr(np.emath, name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        return call_between_stages(function, f"np.emath.{name}", arguments, keywords)

    return call


for _name in ("sqrt", "log", "log2", "log10", "logn", "power", "arccos", "arcsin", "arctanh"):
    implements(getattr(np.emath, _name))(_in_complex_numbers(_name))
