"""NumPy's order statistics, on traced values: medians, quantiles, partitions, searches and histograms.

Quantiles sort the axis and interpolate between neighbours; a partition is a sort. The position of a value in a sorted
array is the number of elements before it, a reduction that fuses with its neighbours.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import dtypes
from tracefuse.errors import DtypeError, ScalarError, ShapeError
from tracefuse.frontend.numpy_api import reductions
from tracefuse.frontend.numpy_api.registry import Functions
from tracefuse.frontend.tracer import shaping, traced_ops
from tracefuse.frontend.tracer.in_place import into
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.frontend.tracer.traced_ops import apply, as_array, as_traced, missing, refuse

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


@implements(np.partition)
def partition(a: Any, kth: Any, axis: Any = -1, kind: Any = None, order: Any = None) -> Any:
    return reductions.sort(a, axis, None, order)


@implements(np.argpartition)
def argpartition(a: Any, kth: Any, axis: Any = -1, kind: Any = None, order: Any = None) -> Any:
    return reductions.argsort(a, axis, None, order)


@implements(np.sort_complex)
def sort_complex(a: Any) -> Any:
    x = as_array(a)
    if x.value.dtype.kind == "complex":
        return reductions.sort(x)
    narrow = x.value.dtype.itemsize <= 2 and x.value.dtype.is_integer
    return traced_ops.astype(reductions.sort(x), np.complex64 if narrow else np.complex128)


@implements(np.lexsort)
def lexsort(keys: Any, axis: Any = -1) -> Any:
    """Sorts by each key in turn, the last one last; stable sorts keep the order of earlier keys."""
    parts = list(keys) if not isinstance(keys, Traced) else [keys[k] for k in range(len(keys))]  # type: ignore[arg-type, index]
    order = reductions.argsort(parts[0], axis)
    for key in parts[1:]:
        permuted = np.take_along_axis(as_array(key), order, axis)
        order = np.take_along_axis(order, reductions.argsort(permuted, axis), axis)
    return order


# -- quantiles --------------------------------------------------------------------------------------------------------


def _merge_reduced(x: Any, axis: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Returns x with the reduced axes merged into the last one, and a function that restores them with extent 1."""
    rank = len(x.extents)
    reduced = traced_ops.axes_of(axis, rank)
    kept = [k for k in range(rank) if k not in reduced]
    sizes = x.recorder.sizes(x.extents)
    moved = shaping.transpose(x, (*kept, *reduced))
    if len(reduced) != 1:
        moved = shaping.reshape(moved, (*(sizes[k] for k in kept), -1))
    return moved, lambda result: shaping.expand_dims(result, reduced)


_NEAREST: dict[str, Callable[[Any], Any]] = {
    "lower": np.floor, "higher": np.ceil, "nearest": np.rint,
}  # fmt: skip
_BETWEEN = {
    "linear": (1.0, 1.0), "hazen": (0.5, 0.5), "weibull": (0.0, 0.0), "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}  # fmt: skip


def _quantile_position(method: str, q: Any, count: Any) -> Any:
    """Returns the position of quantile q among `count` sorted elements, from 0 to count - 1, in the dtype of q."""
    count = as_traced(count)
    if method in _NEAREST:
        return _NEAREST[method](q * (count - 1))
    if method == "midpoint":
        place = q * (count - 1)
        return 0.5 * (np.floor(place) + np.ceil(place))
    alpha, beta = _BETWEEN[method]
    place = q * (count - 1) if method == "linear" else count * q + (alpha + q * (1 - alpha - beta)) - 1
    return np.minimum(np.maximum(place, 0), count - 1)


def _interpolate(ordered: Any, place: Any, dtype: Any) -> Any:
    """Interpolates along the last axis at a fractional position, with NumPy's formula."""
    below = np.floor(place)
    share = traced_ops.astype(as_array(place - below), dtype, copy=False)
    low, high = (_take_last(ordered, p) for p in (below, np.ceil(place)))
    if not low.value.dtype.is_floating:
        low, high = traced_ops.astype(low, dtype), traced_ops.astype(high, dtype)
    step = high - low
    return np.where(share >= 0.5, high - step * (1 - share), low + step * share)


def _take_last(ordered: Any, place: Any) -> Any:
    """Takes the element of the last axis at a position that may differ by slice."""
    index = traced_ops.astype(as_array(place), dtypes.int64)
    if not index.extents:
        return shaping.take(ordered, index, -1)
    return shaping.squeeze(np.take_along_axis(ordered, shaping.expand_dims(index, -1), -1), -1)


def _quantiles(
    name: str, a: Any, q: Any, axis: Any, out: Any, method: str, keepdims: Any, *, skip: bool, percent: bool
) -> Any:
    if method not in _NEAREST and method not in _BETWEEN and method != "midpoint":
        raise missing(
            f"np.{name} with method={method!r}", f"use one of {', '.join([*_BETWEEN, *_NEAREST, 'midpoint'])}"
        )
    x = as_array(a)
    if x.value.dtype.kind in ("complex", "bool"):
        raise missing(f"np.{name} of {x.value.dtype}", "cast it to a real type")
    if isinstance(q, Traced) and not q.on_host:
        raise missing(f"np.{name} at a computed q", "give q as a number or an array of numbers")
    quantiles = np.asarray(traced_ops.as_number(q))
    weak = quantiles.ndim == 0 and x.value.dtype.kind == "float" and isinstance(q, (int, float))
    places = quantiles.astype(x.value.dtype.numpy if weak else np.float64)
    places = places / places.dtype.type(100) if percent else places
    if not np.all((places >= 0) & (places <= 1)):
        raise ScalarError("Percentiles must be in the range [0, 100]" if percent else "Quantiles must be in the range [0, 1]")  # fmt: skip # noqa: E501
    moved, widen = _merge_reduced(x, axis)
    ordered = reductions.sort(moved, -1)
    count = moved.shape[-1]
    floating = ordered.value.dtype.kind == "float"
    is_nan = np.isnan(ordered) if floating else None
    if skip and is_nan is not None:
        count = np.sum(~is_nan, -1)
    dtype = np.result_type(places.dtype, x.value.dtype.numpy) if floating else np.dtype(np.float64)
    results = []
    for q_value in places.ravel():  # NumPy computes positions in this dtype
        result = _interpolate(ordered, _quantile_position(method, q_value, count), dtype)
        if method in _NEAREST:
            result = _take_last(ordered, _quantile_position(method, q_value, count))
        if is_nan is not None:
            empty = count == 0 if skip else is_nan[..., -1]
            result = np.where(empty, np.nan, result)
        results.append(widen(result) if keepdims is True else result)
    stacked: Any = results[0] if not places.ndim else np.stack(results)
    if places.ndim > 1:
        stacked = shaping.reshape(stacked, (*places.shape, *stacked.recorder.sizes(stacked.extents)[1:]))
    return stacked if out is None else into(out, stacked)


def _register_quantiles(function: Any, name: str, *, skip: bool, percent: bool) -> None:
    def quantile(
        a: Any, q: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, method: str = "linear",
        keepdims: Any = False, *, weights: Any = None, interpolation: Any = None,
    ) -> Any:  # fmt: skip
        refuse(f"np.{name}", weights=weights, interpolation=interpolation)
        return _quantiles(name, a, q, axis, out, method, keepdims, skip=skip, percent=percent)

    implements(function)(quantile)


_register_quantiles(np.quantile, "quantile", skip=False, percent=False)
_register_quantiles(np.nanquantile, "nanquantile", skip=True, percent=False)
_register_quantiles(np.percentile, "percentile", skip=False, percent=True)
_register_quantiles(np.nanpercentile, "nanpercentile", skip=True, percent=True)


def _median(a: Any, axis: Any, out: Any, keepdims: Any, *, skip: bool) -> Any:
    """The mean of the two middle elements."""
    x = as_array(a)
    moved, widen = _merge_reduced(x, axis)
    if x.recorder.decide(moved.extents[-1], "==", 0, "whether a median has elements"):
        wide = moved if moved.value.dtype.kind in ("float", "complex") else traced_ops.astype(moved, np.float64)
        moved = np.full_like(wide, np.nan, shape=(*moved.shape[:-1], 1))
    ordered = reductions.sort(moved, -1)
    floating = ordered.value.dtype.kind in ("float", "complex")
    is_nan = np.isnan(ordered) if floating else None
    count = np.sum(~is_nan, -1) if skip and is_nan is not None else moved.shape[-1]
    if not floating:
        ordered = traced_ops.astype(ordered, np.float64)
    if skip and is_nan is not None:
        low, high = (_take_last(ordered, np.maximum(p, 0)) for p in ((count - 1) // 2, count // 2))
    else:
        low, high = (shaping.getitem(ordered, (..., p)) for p in ((count - 1) // 2, count // 2))
    result = apply("mul", apply("add", low, high), 0.5)
    if is_nan is not None:
        result = np.where(count == 0 if skip else is_nan[..., -1], np.nan, result)
    result = widen(result) if keepdims is True else result
    return result if out is None else into(out, result)


@implements(np.median)
def median(a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: Any = False) -> Any:
    return _median(a, axis, out, keepdims, skip=False)


@implements(np.nanmedian)
def nanmedian(a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: Any = False) -> Any:
    return _median(a, axis, out, keepdims, skip=True)


# -- positions in sorted arrays ---------------------------------------------------------------------------------------


@implements(np.searchsorted)
def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    """Counts the elements of `a` before each v, by comparing all n * m pairs of n elements and m values."""
    if side not in ("left", "right"):
        raise ScalarError(f"searchsorted: side cannot be {side!r}", hint="use 'left' or 'right'")
    bins, values = as_array(a), as_array(v)
    if len(bins.extents) != 1:
        raise ShapeError(f"searchsorted: a has {len(bins.extents)} axes", hint="give one axis")
    if sorter is not None:
        bins = shaping.take(bins, sorter)
    wide = shaping.expand_dims(values, -1)
    before = apply("lt" if side == "left" else "le", bins, wide)
    # NaN sorts after every number.
    if wide.value.dtype.kind == "float":
        after = apply("isnan", wide)
        if side == "left" and bins.value.dtype.kind == "float":
            after = apply("logical_and", after, apply("logical_not", apply("isnan", bins)))
        before = apply("logical_or", before, after)
    return traced_ops.reduce("sum", before, -1, np.int64)


@implements(np.digitize)
def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    if isinstance(bins, Traced):
        raise missing("np.digitize with traced bins", "use np.searchsorted, which takes ascending bins")
    if as_array(x).value.dtype.is_complex:
        raise DtypeError("np.digitize of complex numbers", hint="pass x.real or abs(x)")
    edges = np.asarray(bins)
    rising = bool(np.all(edges[1:] >= edges[:-1]))
    if not rising and not np.all(edges[1:] <= edges[:-1]):
        raise ScalarError("bins must be monotonically increasing or decreasing", hint="sort them")
    side = "left" if right else "right"
    if rising:
        return searchsorted(edges, x, side)
    return apply("sub", len(edges), searchsorted(edges[::-1].copy(), x, side))


@implements(np.isin)
def isin(element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, kind: Any = None) -> Any:  # fmt: skip # noqa: E501
    tested = shaping.reshape(as_array(test_elements), -1)  # fmt: skip
    present = traced_ops.reduce("any", apply("eq", shaping.expand_dims(as_array(element), -1), tested), -1)
    return apply("logical_not", present) if invert else present


@implements(np.interp)
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """Linear interpolation between points with ascending first coordinates."""
    refuse("np.interp", period=period)
    for points in (x, xp):
        if as_array(points).value.dtype.is_complex:
            raise DtypeError("np.interp at complex numbers", hint="interpolate at x.real or abs(x)")
    x, xp, fp = (traced_ops.astype(as_array(v), np.float64, copy=False) for v in (x, xp, fp))
    last = xp.shape[0] - 1
    place = np.minimum(np.maximum(searchsorted(xp, x, "right") - 1, 0), np.maximum(last - 1, 0))
    following = np.minimum(place + 1, last)
    x0, x1, y0, y1 = (shaping.take(v, p) for v in (xp, fp) for p in (place, following))
    slope = (y1 - y0) / np.where(x1 == x0, 1, x1 - x0)
    result = slope * (x - x0) + y0
    result = np.where(x < xp[0], fp[0] if left is None else left, result)
    result = np.where(x >= xp[-1], np.where(x == xp[-1], fp[-1], fp[-1] if right is None else right), result)
    return np.where(np.isnan(x), x, result)


def _edges(a: Any, bins: Any, span: Any, name: str) -> Any:
    """Returns the bin edges: the given ones, or an even division of the range."""
    if isinstance(bins, str):
        raise missing(f"np.{name} with bins={bins!r}", "give the number of bins or their edges")
    if isinstance(bins, (list, tuple)):
        return traced_ops.copy(as_array(bins))
    if isinstance(bins, np.ndarray) or (isinstance(bins, Traced) and bins.extents):
        return as_array(bins)
    count = operator.index(bins)
    if span is not None:
        low, high = (float(v) for v in span)
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        return traced_ops.copy(as_array(np.linspace(low, high, count + 1)))
    low, high = (traced_ops.astype(traced_ops.reduce(r, a), np.float64) for r in ("min", "max"))
    same = low == high
    low, high = np.where(same, low - 0.5, low), np.where(same, high + 0.5, high)
    places = traced_ops.iota(low.recorder, 0, 1, count + 1, dtypes.float64)
    return np.where(places == count, high, places * ((high - low) / count) + low)


@implements(np.histogram_bin_edges)
def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    return _edges(as_array(a), bins, range, "histogram_bin_edges")


@implements(np.histogram)
def histogram(a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:
    """Counts elements between bin edges, by comparing each element with each edge."""
    refuse("np.histogram", weights=weights)
    x = shaping.reshape(as_array(a), -1)
    edges = _edges(x, bins, range, "histogram")
    below = traced_ops.reduce("sum", apply("lt", x, shaping.expand_dims(edges, -1)), -1, np.int64)
    up_to_last = traced_ops.reduce("sum", apply("le", x, edges[-1]), None, np.int64)
    counts = np.diff(np.concatenate([below[:-1], up_to_last[None]]))
    if density:
        widths = traced_ops.astype(np.diff(edges), np.float64, copy=False)
        return counts / widths / counts.sum(), edges
    return counts, edges
