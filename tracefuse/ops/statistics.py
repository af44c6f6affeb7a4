"""Order statistics, and sums over windows of one axis, by NumPy's and CuPy's functions.

NumPy's medians and quantiles select elements in linear time, where a sort takes n log n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse.dtypes import DType
from tracefuse.errors import DtypeError, OutOfRangeError, ScalarError, ShapeError
from tracefuse.ir.axes import normalize_axes
from tracefuse.ir.derivatives import Derivative, Equivalent, Multilinear, Tangent
from tracefuse.ir.extents import Extent, product
from tracefuse.ir.fusion import Attributes, Require, Shape
from tracefuse.ir.library_kinds import ARRAYS, WholeArrayOp
from tracefuse.ops import equivalent_expressions, selection_tangents
from tracefuse.ops.families import register
from tracefuse.ops.result_types import of_sample


def reduced_shape(shape: Shape, attributes: Attributes) -> Shape:
    """The shape without the axes `axis`, or with extent 1 there."""
    axis = attributes["axis"]
    axes = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    dims = normalize_axes(axes, len(shape))
    if attributes["keepdims"]:
        return tuple(1 if k in dims else e for k, e in enumerate(shape))
    return tuple(e for k, e in enumerate(shape) if k not in dims)


def _median_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    return (reduced_shape(shapes[0], attributes),)


def _sample_median(function: Any) -> Any:
    return of_sample(lambda types, _: function(np.ones(2, types[0])))


_MEDIANS: dict[str, Derivative] = {
    "median": Tangent(selection_tangents.median), "nanmedian": Equivalent(equivalent_expressions.known_median),
}  # fmt: skip
for _name, _doc in (("median", "The median along axes"), ("nanmedian", "The median of what is not NaN, along axes")):
    _function = getattr(np, _name)
    register(
        WholeArrayOp(
            name=_name, doc=f"{_doc}.", numpy=_function, function=_function, shape=_median_shape, raises=False,
            dtypes=_sample_median(_function), attributes=(("axis", None), ("keepdims", False)),
            derivative=_MEDIANS[_name], order_statistic="middle" if _name == "median" else "",
        )
    )  # fmt: skip


def _shape_of_q(q: Any) -> tuple[int, ...]:
    return np.shape(q)


def _quantile_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    named = dict(zip(attributes[ARRAYS], shapes, strict=True))
    q = named["q"] if "q" in named else _shape_of_q(attributes["q"])
    if "weights" in named and len(named["weights"]) == len(named["a"]):
        kind = DtypeError if attributes["axis"] is None else ShapeError  # as in NumPy
        for left, right in zip(named["a"], named["weights"], strict=True):
            require(left, "==", right, "{left} elements and {right} weights", "give one weight for each element", kind)
    return ((*q, *reduced_shape(named["a"], attributes)),)


def _shape_of_apply(q: Shape, shape: Shape, attributes: Attributes) -> Shape:
    """The shape of nanquantile where NumPy calls np.apply_along_axis on the last axis, into which it merges others.

    It moves the axes of `q` to the front as if they began at axis -1: the second of two is then the first of all.
    """
    kept = reduced_shape(shape, {**attributes, "keepdims": False})
    axes = list(range(len(kept) + len(q)))
    moved = [(k - 1) % len(axes) for k in range(len(q))]
    order = moved + [axis for axis in axes if axis not in moved]
    merged = (*kept, *q)
    result = tuple(merged[axis] for axis in order)
    if not attributes["keepdims"]:
        return result
    reduced = normalize_axes(attributes["axis"], len(shape))
    rest = iter(result[len(result) - len(kept) :])
    return (*result[: len(q)], *(1 if k in reduced else next(rest) for k in range(len(shape))))


_MOVES_FROM_LAST = np.nanquantile(np.zeros((3, 1, 1)), np.zeros((1, 2)), axis=(1, 2)).shape != (1, 2, 3)
"""Whether NumPy moves axes of `q` from the last axis on."""


def _nan_quantile_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    axis, named = attributes["axis"], dict(zip(attributes[ARRAYS], shapes, strict=True))
    q = named["q"] if "q" in named else _shape_of_q(attributes["q"])
    is_merged = isinstance(axis, tuple) and len(axis) != 1 and len(axis) < len(named["a"])
    if _MOVES_FROM_LAST and is_merged and len(q) > 1 and "weights" not in named:
        return (_shape_of_apply(q, named["a"], attributes),)
    return _quantile_shape(shapes, attributes, require)


def _quantile_of_elements(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    axis, shape = attributes["axis"], shapes[0]
    dims = normalize_axes(
        range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,), len(shape)
    )
    message = "index -1 is out of bounds: {right} elements"
    count = product(shape[dim] for dim in dims)
    require(1, "<=", count, message, "quantiles need one element; np.nanquantile of none is nan", OutOfRangeError)
    return _quantile_shape(shapes, attributes, require)


def _sample_quantile(function: Any) -> Any:
    def sample(types: Sequence[Any], attributes: Attributes) -> Any:
        named = dict(zip(attributes[ARRAYS], types, strict=True))
        q: Any = np.zeros(1, named["q"])[0] if "q" in named else _number_q(attributes["q"])
        weights = np.ones(2, named["weights"]) if "weights" in named else None
        return function(np.ones(2, named["a"]), q, method=attributes["method"], weights=weights)

    return of_sample(sample)


def _in_one_type(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns NumPy's function with results of one type: NaN of all elements would have the type of the elements."""

    def quantiles(a: Any, q: Any, *arguments: Any, **keywords: Any) -> Any:
        result = function(a, q, *arguments, **keywords)
        if result.ndim == 0 and result != result and result.dtype == np.asarray(a).dtype:  # NaN of the elements' type
            method = keywords.get("method", "linear")
            return np.asarray(result, function(np.ones(2, result.dtype), q, method=method).dtype)
        return result

    return quantiles


_QUANTILES: dict[str, Derivative] = {
    "quantile": Tangent(selection_tangents.quantile(1)), "percentile": Tangent(selection_tangents.quantile(100)),
    "nanquantile": Equivalent(equivalent_expressions.known_quantile(1)),
    "nanpercentile": Equivalent(equivalent_expressions.known_quantile(100)),
}  # fmt: skip


def _number_q(q: Any) -> Any:
    return q if isinstance(q, (int, float)) else np.asarray(q)


for _name, _doc in (
    ("quantile", "Quantiles along axes, for fractions `q`"),
    ("percentile", "Percentiles along axes, for `q` from 0 to 100"),
    ("nanquantile", "Quantiles of what is not NaN, along axes"),
    ("nanpercentile", "Percentiles of what is not NaN, along axes"),
):
    _function = getattr(np, _name)
    register(
        WholeArrayOp(
            name=_name, doc=f"{_doc}.", numpy=_in_one_type(_function), function=_function, arity=None,
            shape=_nan_quantile_shape if _name.startswith("nan") else _quantile_of_elements,
            parameters=("a", "q", "weights"), optional=True, either=("q",), dtypes=_sample_quantile(_function),
            attributes=(("q", 0.5), ("axis", None), ("method", "linear"), ("keepdims", False)),
            derivative=_QUANTILES[_name],
        )
    )  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# sums of products over windows


def _convolved(name: str) -> Any:
    def shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        if any(len(lengths) > 1 for lengths in shapes):
            raise ShapeError("object too deep for desired array", hint="give vectors")
        first, second = (lengths[0] if lengths else 1 for lengths in shapes)
        for extent in (first, second):
            require(1, "<=", extent, f"{name}: {{right}} elements", "give vectors with elements")
        longer, shorter = (first, second) if attributes["first_is_longer"] else (second, first)
        return ((_window_count(attributes["mode"], longer, shorter),),)

    return shape


def _window_count(mode: str, longer: Extent, shorter: Extent) -> Extent:
    if mode not in ("full", "same", "valid"):
        raise ScalarError(f"convolve: mode cannot be {mode!r}", hint="use 'full', 'same' or 'valid'")
    return {"full": longer + shorter - 1, "same": longer, "valid": longer - shorter + 1}[mode]


def _windows(name: str) -> Any:
    function = getattr(np, name)
    return lambda a, v, mode, first_is_longer: function(a, v, mode)


def _window_types(name: str) -> Any:
    sample = of_sample(lambda types, _: getattr(np, name)(*(np.ones(2, kind) for kind in types)))

    def types(operands: Sequence[DType], attributes: Attributes) -> tuple[DType, ...]:
        if any(dtype.name == "bfloat16" for dtype in operands):
            raise DtypeError(f"np.{name} does not take bfloat16", hint="cast it to float32")
        return sample(operands, attributes)

    return types


for _name, _doc in (
    ("convolve", "The convolution of two vectors"), ("correlate", "The cross-correlation of two vectors"),
):  # fmt: skip
    register(
        WholeArrayOp(
            name=_name, doc=f"{_doc}: full, of the same size, or where they overlap.", numpy=_windows(_name),
            parameters=("a", "v"), arity=2, shape=_convolved(_name), dtypes=_window_types(_name), raises=False,
            attributes=(("mode", "full"), ("first_is_longer", True)),
            derivative=Multilinear(getattr(selection_tangents, _name)),
        )
    )  # fmt: skip
