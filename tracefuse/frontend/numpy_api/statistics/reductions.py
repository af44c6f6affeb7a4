"""NumPy's reductions, scans and sorts on traced values, with NumPy's signatures."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import DtypeError, NoElementsError, ScalarError, ShapeError
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.array_ops import moments, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_tensor, axes_of, located, refuse
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.extents import product
from tracefuse.ops import REGISTRY
from tracefuse.ops.ordering import MOST_SORTED

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


_WITH_IDENTITY = ("sum", "prod", "nansum", "nanprod", "any", "all")
_MEANS = ("mean", "var", "std")


def named_parameters(name: str, keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the keywords of a reduction with what None means in them: no element as `where=`, no identity."""
    if "where" in keywords and keywords["where"] is None:
        if name in _MEANS:
            raise DtypeError(f"{name} with where=None", hint="give a mask", where=source.user_line())
        keywords = {**keywords, "where": False}
    if "initial" in keywords and keywords["initial"] is None and name in _WITH_IDENTITY:
        keywords = {**keywords, "initial": traced_ops.NO_IDENTITY}
    return keywords


def as_result_of_method(result: Any, operand: Any) -> Any:
    """Returns the result of a method: a NumPy scalar's methods return scalars, also where an array takes the result."""
    if not isinstance(result, Traced) or result.extents or result.is_immutable or result.recorder.device is not None:
        return result
    is_traced = isinstance(operand, Traced)
    is_scalar = operand.is_immutable and operand.weak is None if is_traced else isinstance(operand, np.generic)
    return apply("set", result) if is_scalar else result


def _register_reduction(function: Any, name: str, *, with_dtype: bool) -> None:
    if with_dtype:

        def with_type(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None) -> Any:  # fmt: skip # noqa: E501
            return traced_ops.reduce(name, a, axis, dtype, out, keepdims, initial=initial, where=where)

        FUNCTIONS[function] = located(with_type)
    else:

        def without_type(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None) -> Any:  # fmt: skip # noqa: E501
            return traced_ops.reduce(name, a, axis, None, out, keepdims, initial=initial, where=where)

        FUNCTIONS[function] = located(without_type)


for _function, _name, _typed in (
    (np.sum, "sum", True), (np.prod, "prod", True), (np.max, "max", False), (np.min, "min", False),
    (np.amax, "max", False), (np.amin, "min", False), (np.any, "any", False), (np.all, "all", False),
):  # fmt: skip
    _register_reduction(_function, _name, with_dtype=_typed)


FUNCTIONS[np.mean] = moments.mean
FUNCTIONS[np.var] = moments.var
FUNCTIONS[np.std] = moments.std


@implements(np.ptp)
def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    largest = traced_ops.reduce("max", a, axis, None, None, keepdims)
    if out is not None:  # NumPy keeps the maximum there
        largest = traced_ops.astype(largest, as_tensor(out).value.dtype, copy=False)
    result = apply("sub", largest, traced_ops.reduce("min", a, axis, None, None, keepdims))
    return result if out is None else into(out, result)


@implements(np.count_nonzero)
def count_nonzero(a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    keepdims = False if axis is None and not keepdims else keepdims  # any false value, of whatever type
    return traced_ops.reduce("sum", apply("ne", a, 0), axis, None, None, keepdims)


@implements(np.average)
def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: Any = False) -> Any:
    x = as_tensor(a)
    if weights is None:
        result = moments.mean(x, axis, None, None, keepdims)
        if x.recorder.decide(product(result.extents), "==", 0, "whether np.average has results"):
            raise NoElementsError("division by zero: np.average has no results", hint="use np.mean")
        if not returned:
            return result
        each = product(x.extents[k] for k in axes_of(axis, len(x.extents)))
        count = apply("cast", x.recorder.scalar(each), dtype=result.value.dtype)
        return result, traced_ops.copy(shaping.broadcast_to(as_tensor(count), result.shape))
    w = _broadcast_weights(x, axis, as_tensor(weights))
    if _is_empty_sum(x, axes_of(axis, len(x.extents))):
        raise NoElementsError("Weights sum to zero, can't be normalized", hint="give elements along the axis")
    kinds = [x.value.dtype.numpy, as_tensor(weights).value.dtype.numpy]
    kind = np.result_type(*kinds, *([] if kinds[0].kind in "fc" else [np.float64]))
    total = traced_ops.reduce("sum", w, axis, kind, None, keepdims)
    if not traced_ops.holds_everywhere(apply("ne", total, 0)):
        raise NoElementsError("Weights sum to zero, can't be normalized", hint="give weights of another sum")
    products = apply("mul", traced_ops.astype(x, kind, copy=False), traced_ops.astype(w, kind, copy=False))
    result = apply("div", traced_ops.reduce("sum", products, axis, kind, None, keepdims), total)
    return (result, traced_ops.copy(shaping.broadcast_to(total, result.shape))) if returned else result


def _broadcast_weights(x: Any, axis: Any, weights: Any) -> Any:
    """Broadcasts weights of the averaged axes to the shape of x."""
    rank, weight_rank = len(x.extents), len(weights.extents)
    message, hint = "average: weights of another shape need an axis", "give axis="
    if axis is None and weight_rank != rank:
        raise DtypeError(message, hint=hint)
    if axis is None or (weight_rank == rank and _has_shape(weights, x)):
        for weight_extent, extent in zip(weights.extents, x.extents, strict=True):
            x.recorder.builder.require(weight_extent, "==", extent, message, hint, source.user_line(), DtypeError)
        return weights
    axes = axes_of(axis, rank)
    if weight_rank != len(axes):
        raise ShapeError(
            f"average: weights with {weight_rank} axes along {len(axes)} axes", hint="give one axis for each"
        )
    # The weights' axes follow the order in which `axis` names them.
    named = [normalize_axis(operator.index(k), rank) for k in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    ordered = shaping.transpose(weights, [named.index(k) for k in axes])
    message, hint = (
        "Shape of weights must be consistent with shape of a along specified axis: {left} and {right}",
        ("give a weight for each position on the axis"),
    )
    for weight_extent, k in zip(ordered.extents, axes, strict=True):
        x.recorder.builder.require(weight_extent, "==", x.extents[k], message, hint, source.user_line())
    spread = shaping.expand_dims(ordered, tuple(k for k in range(rank) if k not in axes))
    return shaping.broadcast_to(spread, x.shape)


def _is_empty_sum(x: Any, axes: tuple[int, ...]) -> bool:
    """Whether there are results, of no elements each."""
    reason, count = "whether np.average has elements", product(x.extents[k] for k in axes)
    remaining = product(extent for k, extent in enumerate(x.extents) if k not in axes)
    return x.recorder.decide(count, "==", 0, reason) and not x.recorder.decide(remaining, "==", 0, reason)


def _has_shape(first: Any, second: Any) -> bool:
    reason = "whether weights have the shape of the elements"
    pairs = zip(first.extents, second.extents, strict=True)
    return all(first.recorder.decide(left, "==", right, reason) for left, right in pairs)


def scan(name: str, a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """A running reduction along one axis, or over all elements in row-major order if axis is None."""
    x = as_tensor(a)
    if axis is None or (not x.extents and operator.index(axis) in (0, -1)):
        x, axis = shaping.reshape(x, -1), 0
    dim = normalize_axis(operator.index(axis), len(x.extents))
    chosen = None if dtype is None else dtype_of(dtype)
    if chosen is not None:
        traced_ops.warn_of_lost_parts(x.value.dtype, chosen)
        x = traced_ops.as_elements(x, chosen)
    if out is not None and dtype is None and name in traced_ops.SUM_LOOPS:
        chosen = traced_ops.loop_type_for(name, x, out)
    result = x.recorder.library(REGISTRY[name], [x], dtype=chosen, dim=dim)
    return result if out is None else into(out, traced_ops.astype(result, out.dtype, copy=False))


@implements(np.cumsum)
def cumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    return scan("cumsum", a, axis, dtype, out)


@implements(np.cumprod)
def cumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    return scan("cumprod", a, axis, dtype, out)


def axis_of_scan(axis: Any, rank: int) -> int:
    """Returns the axis of ufunc.accumulate, which may be in a tuple of its own, or None for the only one."""
    axis = tuple(range(rank)) if axis is None else axis
    if isinstance(axis, tuple):
        if len(axis) != 1:
            raise ShapeError("accumulate does not allow multiple axes", hint="name one axis")
        (axis,) = axis
    return normalize_axis(operator.index(axis), rank)


def _make_cumulative(name: str, op: str, first: int) -> Any:
    def cumulative(x: Any, /, *, axis: Any = None, dtype: Any = None, out: Any = None, include_initial: bool = False) -> Any:  # fmt: skip # noqa: E501
        array = as_tensor(x)
        array = array if array.extents else shaping.reshape(array, 1)
        if axis is None and len(array.extents) != 1:
            raise ShapeError(
                f"{name} of an array with {len(array.extents)} axes needs an axis", hint="name one, as axis=0"
            )
        dim = axis_of_scan(0 if axis is None else axis, len(array.extents))
        if not include_initial:
            return scan(op, array, dim, dtype, out)
        before = (slice(None),) * dim
        if out is not None:
            scan(op, array, dim, dtype, out[(*before, slice(1, None))])
            out[(*before, 0)] = first
            return out
        widths = tuple(int(k == 2 * dim) for k in range(2 * len(array.extents)))
        return array.recorder.movement("pad", [scan(op, array, dim, dtype)], pad_widths=widths, value=first)

    return cumulative


for _name, _op_name, _first in (("cumulative_sum", "cumsum", 0), ("cumulative_prod", "cumprod", 1)):
    if hasattr(np, _name):  # since NumPy 2.1
        implements(getattr(np, _name))(_make_cumulative(_name, _op_name, _first))


def _sort_along(name: str, a: Any, axis: Any, order: Any, **attributes: Any) -> Any:
    """Sorts with a library op."""
    refuse(f"np.{name}", order=order)
    x = as_tensor(a)
    if axis is None or (name == "argsort" and not x.extents):
        x, axis = shaping.reshape(x, -1), 0 if axis is None else axis
    dim = normalize_axis(operator.index(axis), len(x.extents))
    if name == "sort":
        x = with_known_length(x, dim, MOST_SORTED)
    return x.recorder.library(REGISTRY[name], [x], dim=dim, **attributes)


def with_known_length(x: Any, dim: int, most: int) -> Any:
    """Returns an array of rows whose axis `dim` has a constant extent if it is at most `most` in this call, guarded.

    Few elements are sorted by comparisons (passes/sorting_networks.py), for each number in another way.
    """
    recorder, extent = x.recorder, x.extents[dim]
    if isinstance(extent, int) or len(x.extents) < 2 or recorder.counters.occur_in(extent):
        return x
    reason = "few elements are sorted by comparisons"
    if not recorder.decide(extent, "<=", most, reason):
        return x
    length = recorder.known(extent)
    recorder.decide(extent, "==", length, reason)
    return x[(*(slice(None),) * dim, slice(length))]


@implements(np.sort)
def sort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
    _is_stable(kind)  # or raises
    return _sort_along("sort", a, axis, order)


def _is_stable(kind: Any) -> bool:
    """Whether a kind of sort, which NumPy knows by its first letter, keeps the order of equal elements."""
    if not isinstance(kind, str | bytes | None):
        message = f"sort kind must be str, not {type(kind).__name__}"
        raise DtypeError(message, hint="give 'stable', or leave kind out", where=source.user_line())
    name = kind.decode() if isinstance(kind, bytes) else kind
    if name is not None and name[:1].lower() not in (*"qhms",):
        message = f"sort kind must be one of 'quick', 'heap', or 'stable' (got {name!r})"
        raise ScalarError(message, hint="give 'stable', or leave kind out", where=source.user_line())
    return name is not None and name[0] in "mMsS"


@implements(np.argsort)
def argsort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
    # Halves are ordered in float32, which NumPy sorts by another algorithm.
    is_stable = bool(stable) or _is_stable(kind) or as_tensor(a).value.dtype.is_half
    return _sort_along("argsort", a, axis, order, kind="stable" if is_stable else None)


def _make_arg_reduction(name: str) -> Any:
    def position(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
        keeps = keepdims is not np._NoValue and bool(keepdims)
        result = traced_ops.reduce(name, a, None if axis is None else operator.index(axis), None, None, keeps)
        if out is None:
            return result
        if not np.can_cast(out.dtype, np.int64):
            raise DtypeError(
                f"Cannot cast from {out.dtype} to int64 according to the rule 'safe'", hint="give an array of int64"
            )
        return into(out, traced_ops.astype(result, out.dtype, copy=False))

    return position


argmax, argmin = located(_make_arg_reduction("argmax")), located(_make_arg_reduction("argmin"))
FUNCTIONS[np.argmax], FUNCTIONS[np.argmin] = argmax, argmin
