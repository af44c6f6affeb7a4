"""Ops on sorted arrays and on order: partitions, searches, membership, interpolation, histograms and counts.

NumPy's and CuPy's functions take time n log n, where a kernel would compare all pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse.dtypes import bool_, complex128, float64, int64
from tracefuse.errors import OutOfRangeError, ShapeError, UnsupportedError
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.derivatives import FLAT, Equivalent, Linear, Tangent
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Attributes, Require, Shape
from tracefuse.ir.library_kinds import ARRAYS, WholeArrayOp
from tracefuse.ops import equivalent_expressions, selection_tangents, transposes
from tracefuse.ops.families import register
from tracefuse.ops.result_types import first, fixed, of_sample


def _define(name: str, function: Any, **more: Any) -> WholeArrayOp:
    parameters = more.get("parameters", ("a",))
    more.setdefault("arity", None if more.get("optional") else len(parameters))
    op = WholeArrayOp(name=name, numpy=more.pop("numpy", function), function=function, **more)
    return register(op)  # type: ignore[no-any-return]


def _named(shapes: Sequence[Any], attributes: Attributes, parameters: tuple[str, ...]) -> dict[str, Any]:
    """The shapes, or types, of operands by the names of their parameters."""
    return dict(zip(attributes.get(ARRAYS, parameters), shapes, strict=False))


# ---------------------------------------------------------------------------------------------------------------------
# order


def _same_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    normalize_axis(attributes["axis"], len(shapes[0]))
    return (shapes[0],)


def _selecting(name: str) -> Callable[..., Any]:
    """np.partition or np.argpartition; a `kth` of several entries is a tuple."""
    function = getattr(np, name)

    def call(a: Any, kth: Any, axis: int, kind: str) -> Any:
        return function(a, kth, axis, kind) if isinstance(a, np.ndarray) else function(a, kth, axis)

    return call


_PARTITION = (("kth", 0), ("axis", -1), ("kind", "introselect"))
_define("partition", np.partition, numpy=_selecting("partition"), shape=_same_shape, dtypes=first, attributes=_PARTITION, exact=True, derivative=Equivalent(equivalent_expressions.partition), doc="The elements with the `kth` smallest in their sorted places.")  # fmt: skip
_define("argpartition", np.argpartition, numpy=_selecting("argpartition"), shape=_same_shape, dtypes=fixed(int64), attributes=_PARTITION, exact=True, derivative=FLAT, doc="The positions by which `partition` orders the elements.")  # fmt: skip


def _lexsort_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    axis = normalize_axis(attributes["axis"], len(shapes[0])) if shapes[0] else 0
    for other in shapes[1:]:
        if len(other) != len(shapes[0]):
            raise ShapeError("all keys need to be the same shape", hint="give keys of one shape")
        for left, right in zip(shapes[0], other, strict=True):
            require(left, "==", right, f"keys of {{left}} and {{right}} elements along axis {axis}", "keys have one shape")  # fmt: skip
    return (shapes[0],)


def _lexsort(*keys: Any, axis: int) -> Any:
    if isinstance(keys[0], np.ndarray):
        return np.lexsort(keys, axis)
    result = np.argsort(keys[0], axis, kind="stable")
    for key in keys[1:]:
        order = np.argsort(np.take_along_axis(key, result, axis), axis, kind="stable")
        result = np.take_along_axis(result, order, axis)
    return result


_define(
    "lexsort", None, numpy=_lexsort, shape=_lexsort_shape, dtypes=fixed(int64), arity=None, exact=True,
    attributes=(("axis", -1),), derivative=FLAT, doc="The order of the elements by several keys, the last one first.",
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# positions in sorted arrays


def _like_second(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    sorted_shape = shapes[0]
    if len(sorted_shape) != 1:
        raise ShapeError(f"searchsorted: a has {len(sorted_shape)} axes", hint="give one axis")
    for sorter in shapes[2:]:
        require(sorted_shape[0], "==", sorter[0], "{left} elements, {right} in sorter", "a sorter names each element")
    return (shapes[1],)


def _searchsorted(a: Any, v: Any, side: Any, sorter: Any = None) -> Any:
    return np.searchsorted(a, v, side, sorter)


_define(
    "searchsorted", np.searchsorted, numpy=_searchsorted, parameters=("a", "v", "sorter"), optional=True,
    shape=_like_second, dtypes=fixed(int64), exact=True, attributes=(("side", "left"),),
    doc="The positions before which elements of `v` keep a sorted array `a` sorted.",
    derivative=FLAT,
)  # fmt: skip


def _like_first(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    return (shapes[0],)


_define(
    "digitize", np.digitize, parameters=("x", "bins"), shape=_like_first, dtypes=fixed(int64), exact=True,
    attributes=(("right", False),), derivative=FLAT, doc="The bin of each element, for edges that ascend or descend.",
)  # fmt: skip


def _isin(element: Any, test_elements: Any, assume_unique: bool, invert: bool, kind: Any) -> Any:
    more = {"kind": kind} if isinstance(element, np.ndarray) else {}
    return np.isin(element, test_elements, assume_unique, invert, **more)


_define(
    "isin", np.isin, numpy=_isin, parameters=("element", "test_elements"), shape=_like_first, dtypes=fixed(bool_),
    exact=True, raises=False, attributes=(("assume_unique", False), ("invert", False), ("kind", None)),
    derivative=FLAT, doc="Whether each element is among the second operand's.",
)  # fmt: skip


def _interp_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    named = _named(shapes, attributes, ("x", "xp", "fp"))
    points, values = named["xp"], named["fp"]
    if len(points) != 1 or len(values) != 1:
        raise ShapeError("Data points must be 1-D sequences", hint="reshape them with x.ravel()")
    require(points[0], "==", values[0], "fp and xp are not of the same length: {right} and {left}", "give one for each")
    require(1, "<=", points[0], "array of sample points is empty: {right} elements", "give one")
    return (named["x"],)


_define(
    "interp", np.interp, parameters=("x", "xp", "fp", "left", "right", "period"), optional=True,
    either=("left", "right", "period"), shape=_interp_shape, raises=True,
    dtypes=lambda types, given: (complex128 if _named(types, given, ("x", "xp", "fp"))["fp"].is_complex else float64,),
    attributes=(("left", None), ("right", None), ("period", None)),
    doc="Linear interpolation between points with ascending first coordinates.",
    derivative=Tangent(selection_tangents.interp),
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# histograms and counts


def _bin_counts(bins: Any, shape: Shape | None) -> Extent:
    """The number of bins: `bins` itself, or one less than the edges in it."""
    if isinstance(bins, str) or shape == ():
        raise UnsupportedError(
            f"histogram with {f'bins={bins!r}' if isinstance(bins, str) else 'computed bins'}: the data decide the number of bins",
            hint="give the number of bins or their edges",
        )
    if shape is None:
        return bins if not isinstance(bins, tuple) else len(bins) - 1
    if len(shape) != 1:
        raise ShapeError("`bins` must be 1d, when an array", hint="give the edges of the bins")
    return shape[0] - 1


def _histogram_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    named = _named(shapes, attributes, ("a",))
    count = _bin_counts(attributes["bins"], named.get("bins"))
    if "weights" in named:
        if len(named["weights"]) != len(named["a"]):
            raise ShapeError("weights should have the same shape as a.", hint="give one weight for each element")
        for left, right in zip(named["a"], named["weights"], strict=True):
            require(left, "==", right, "{left} elements and {right} weights", "give one weight for each element")
    return (count,), (count + 1,)


def _histogram(a: Any, **more: Any) -> Any:
    if not isinstance(a, np.ndarray) and more.get("weights") is not None:
        more["weights"] = more["weights"].ravel()
        a = a.ravel()
    return np.histogram(a, **more)


def _histogram_sample(types: Sequence[Any], attributes: Attributes, function: Any = np.histogram) -> Any:
    named = {name: np.arange(1, 4).astype(kind) for name, kind in _named(types, attributes, ("a",)).items()}
    bins = attributes["bins"] if isinstance(attributes["bins"], tuple) else 2
    return function(named.pop("a"), **{**_without_arrays(attributes), "bins": bins, **named})


def _without_arrays(attributes: Attributes) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name != ARRAYS}


_HISTOGRAM = (("bins", 10), ("range", None), ("density", None))


_define(
    "histogram", np.histogram, numpy=_histogram, parameters=("a", "bins", "weights"), optional=True, either=("bins",),
    shape=_histogram_shape, dtypes=of_sample(_histogram_sample), attributes=_HISTOGRAM,
    doc="Counts, or sums of weights, of the elements between bin edges; and the edges.",
)  # fmt: skip
_define(
    "histogram_bin_edges", np.histogram_bin_edges, parameters=("a", "bins", "weights"), optional=True, either=("bins",),
    shape=lambda *given: _histogram_shape(*given)[1:],
    dtypes=of_sample(lambda types, given: _histogram_sample(types, given, np.histogram_bin_edges)),
    attributes=(("bins", 10), ("range", None)), doc="The bin edges of `histogram`.",
)  # fmt: skip


def _several_bins(attributes: Attributes, named: dict[str, Shape], count: int) -> list[Extent]:
    bins = attributes["bins"]
    if "bins" in named:
        return [_bin_counts(None, named["bins"])] * count
    if not isinstance(bins, tuple):
        return [bins] * count
    if count == 2 and len(bins) != 2:
        return [len(bins) - 1] * 2  # edges for both axes
    if len(bins) != count:
        raise ShapeError("The dimension of bins must be equal to the dimension of the sample x.", hint="give as many")
    return [_bin_counts(bins_of_axis, None) for bins_of_axis in bins]


def _histogram2d_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    named = _named(shapes, attributes, ("x", "y"))
    require(named["x"][0], "==", named["y"][0], "x and y must have the same length: {left} and {right}", "give pairs")
    first_count, second_count = _several_bins(attributes, named, 2)
    return (first_count, second_count), (first_count + 1,), (second_count + 1,)


def _histogramdd_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    named = _named(shapes, attributes, ("sample",))
    shape, coordinates = named["sample"], attributes["coordinates"]
    if len(shape) != 2:
        raise ShapeError(f"histogramdd: a sample with {len(shape)} axes", hint="its axes are points and coordinates")
    require(shape[1], "==", coordinates, "{left} coordinates, not {right}", "the last axis holds the coordinates")
    counts = _several_bins(attributes, named, coordinates)
    return (tuple(counts), *((count + 1,) for count in counts))


def _histogram2d_types(types: Sequence[Any], attributes: Attributes) -> Any:
    named = _named(types, attributes, ("x", "y"))
    bins = _sample_bins(attributes, named, 2)
    weights = np.ones(2, named["weights"]) if "weights" in named else None
    x, y = np.arange(2).astype(named["x"]), np.arange(2).astype(named["y"])
    return np.histogram2d(x, y, bins, attributes["range"], attributes["density"], weights)


def _sample_bins(attributes: Attributes, named: dict[str, Any], count: int) -> Any:
    if "bins" in named:
        return [np.arange(3).astype(named["bins"])] * count
    bins = attributes["bins"]
    bins_by_axis = bins if isinstance(bins, tuple) and len(bins) == count else (bins,) * count
    return [list(edges) if isinstance(edges, tuple) else 2 for edges in bins_by_axis]


def _histogramdd_types(types: Sequence[Any], attributes: Attributes) -> Any:
    named = _named(types, attributes, ("sample",))
    count = attributes["coordinates"]
    sample = np.arange(2 * count).reshape(2, count).astype(named["sample"])
    weights = np.ones(2, named["weights"]) if "weights" in named else None
    counts, edges = np.histogramdd(
        sample, _sample_bins(attributes, named, count), attributes["range"], attributes["density"], weights
    )
    return (counts, *edges)


def _histogram2d(x: Any, y: Any, **more: Any) -> Any:
    return np.histogram2d(x, y, **{**more, "bins": _bins_of(more["bins"])})


def _histogramdd(sample: Any, coordinates: int, **more: Any) -> Any:
    counts, edges = np.histogramdd(sample, **{**more, "bins": _bins_of(more["bins"])})
    return (counts, *edges)


def _bins_of(bins: Any) -> Any:
    return [list(edges) if isinstance(edges, tuple) else edges for edges in bins] if isinstance(bins, tuple) else bins


_define(
    "histogram2d", np.histogram2d, numpy=_histogram2d, parameters=("x", "y", "bins", "weights"), optional=True,
    either=("bins",), shape=_histogram2d_shape, dtypes=of_sample(_histogram2d_types), attributes=_HISTOGRAM,
    doc="Counts, or sums of weights, of points between the bin edges of two coordinates; and the edges.",
)  # fmt: skip
_define(
    "histogramdd", None, numpy=_histogramdd, parameters=("sample", "bins", "weights"), optional=True, either=("bins",),
    shape=_histogramdd_shape, dtypes=of_sample(_histogramdd_types), attributes=(*_HISTOGRAM, ("coordinates", 1)),
    doc="Counts, or sums of weights, of points between the bin edges of each coordinate; and the edges.",
)  # fmt: skip


def _bincount_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    if len(shapes[0]) != 1:
        raise ShapeError("object of too small depth for desired array", hint="give one axis")
    for weights in shapes[1:]:
        require(shapes[0][0], "==", weights[0], "{left} elements and {right} weights", "give one for each element")
    return ((attributes["minlength"],),)


def _bincount(x: Any, weights: Any = None, *, minlength: int) -> Any:
    counts = np.bincount(x, weights, minlength)
    if len(counts) > minlength:
        raise OutOfRangeError(
            f"bincount: element {len(counts) - 1} has no place among minlength={minlength} counts",
            hint="make minlength larger than every element; without a bound the elements decide the size of the result",
        )
    return counts


_define(
    "bincount", None, numpy=_bincount, parameters=("x", "weights"), optional=True, shape=_bincount_shape,
    dtypes=lambda types, given: (float64 if len(types) > 1 else int64,), attributes=(("minlength", 0),),
    derivative=Linear(transposes.bincount, operands=(1,)),
    doc="How often 0 to minlength - 1 occur, or the sums of the weights there. Raises for a larger element.",
)  # fmt: skip
