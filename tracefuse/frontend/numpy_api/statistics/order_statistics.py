"""NumPy's sorts by several keys and its quantiles, on traced values.

CuPy has only some of the quantiles. On a GPU they sort the axis and interpolate between neighbours.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.errors import DtypeError, ScalarError
from tracefuse.frontend.numpy_api.arrangement.moving_elements import into_selected
from tracefuse.frontend.numpy_api.library_calls.whole_array_calls import as_operand, call_whole, op_named
from tracefuse.frontend.numpy_api.registration.array_memory import ArrayFlags, broadcast_over, into_broadcast
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.numpy_api.statistics import reductions
from tracefuse.frontend.tracer.array_ops import moments, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.traced_ops import as_array, as_traced, missing, recorder_of, refuse
from tracefuse.frontend.tracer.array_ops.whole_arrays import record_whole
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.extents import product
from tracefuse.ops.ordering import MOST_SORTED

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


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
    if not parts:
        raise DtypeError("need sequence of keys with len > 0 in lexsort", hint="give a key", where=source.user_line())
    operands = [as_operand(part) for part in parts]
    return record_whole(recorder_of(operands), op_named("lexsort"), operands, axis=operator.index(axis))[0]


def _register_median(function: Any, name: str) -> None:
    def median(a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: Any = False) -> Any:
        _refuse_scalar(name, out, keepdims)
        x = as_operand(a)
        if function is np.median:
            _check_overwritten(a, axis, overwrite_input)
            _check_holds_nan(a, out)
            x = _in_type_of_mean(x, out)
        elif (out is not None or type(keepdims) is not bool) and x.recorder.decide(
            product(x.extents), "==", 0, "whether an array has elements"
        ):  # np.nanmean writes into arrays of other shapes, and takes no truth value of NumPy
            return np.nanmean(a, axis, out=out, keepdims=keepdims)
        target, keepdims = _without_reduced(out, x, axis, keepdims)
        if function is np.median and type(axis) is int and -len(x.extents) <= axis < len(x.extents):
            dim = normalize_axis(axis, len(x.extents))
            x = reductions.with_known_length(x, dim, MOST_SORTED + 1)
        result = call_whole(op_named(name), f"np.{name}", {"a": x, "axis": axis, "keepdims": keepdims})
        if out is None:
            return result
        (_stored if function is np.nanmedian else moments.stored)(result, target)
        return out

    implements(function)(median)


def _in_type_of_mean(x: Any, out: Any) -> Any:
    """Returns the elements in the type in which NumPy adds the two in the middle: that of `out`, for halves float32."""
    kind, target = x.value.dtype, None if out is None else as_operand(out).value.dtype
    if target is None or target.kind not in ("float", "complex") or kind.kind not in ("float", "complex"):
        return x
    return traced_ops.astype(x, dtypes.float32 if kind.is_half else target, copy=False)


def _check_overwritten(a: Any, axis: Any, overwrite_input: Any) -> None:
    """Raises ScalarError for an array that cannot be changed, which NumPy sorts in place unless it copies it."""
    is_read_only = bool(overwrite_input) and isinstance(a, Traced) and a.read_only is not None
    if is_read_only and (axis is not None or ArrayFlags(a).c_contiguous):
        message = f"partition array is read-only: {a.read_only}"
        raise ScalarError(message, hint="leave overwrite_input out", where=source.user_line())


def _refuse_scalar(name: str, out: Any, keepdims: Any) -> None:
    """Raises for a scalar as output with keepdims, where NumPy loses the result: it writes to a copy of the scalar."""
    is_scalar = out.is_immutable if isinstance(out, Traced) else isinstance(out, np.generic)
    if keepdims and is_scalar:
        raise missing(f"np.{name} with keepdims=True into a NumPy scalar", "give an array as out=")


def _check_holds_nan(a: Any, out: Any) -> None:
    """Raises DtypeError for elements with NaN and an output into which NumPy does not copy it."""
    if out is None:
        return
    x, target = as_operand(a), as_operand(out).value.dtype
    kind = x.value.dtype
    takes = kind.kind not in ("float", "complex") or np.can_cast(kind.numpy, target.numpy, "same_kind")
    if not takes and not traced_ops.holds_everywhere(traced_ops.apply("eq", x, x)):
        message = f"Cannot cast array data from {kind} to {target} according to the rule 'same_kind'"
        raise DtypeError(message, hint="give out= of a float type", where=source.user_line())


def _without_reduced(out: Any, x: Any, axis: Any, keepdims: Any) -> tuple[Any, Any]:
    """The part of `out` that takes a result, and whether the result keeps the axes that are reduced.

    With `keepdims`, NumPy writes to the first elements along these axes, whatever the extents of `out`.
    """
    if out is None or not keepdims:
        return out, keepdims
    rank = len(x.extents)
    reduced = traced_ops.axes_of(axis, rank)
    return out[(..., *(0 if k in reduced else slice(None) for k in range(rank)))], False


def _stored(result: Any, out: Any) -> Any:
    """Writes a result to `out`, to which NumPy broadcasts and casts it without a check."""
    return moments.stored(result if out is None else broadcast_over(result, out), out)


_register_median(np.median, "median")
_register_median(np.nanmedian, "nanmedian")


_PLACES = (int, list, tuple, np.integer)
"""Types of positions that a program names; those of traced arrays are data."""


def _register_partition(function: Any, name: str) -> None:
    def partition(a: Any, kth: Any, axis: Any = -1, kind: str = "introselect", order: Any = None) -> Any:
        refuse(f"np.{name}", order=order)
        if not isinstance(kind, str):
            message = f"select kind must be str, not {type(kind).__name__}"
            raise DtypeError(message, hint="leave kind out", where=source.user_line())
        if kind != "introselect":
            message = f"select kind must be 'introselect' (got {kind!r})"
            raise ScalarError(message, hint="leave kind out", where=source.user_line())
        x = as_operand(a)
        x, axis = (shaping.reshape(x, -1), 0) if axis is None else (x, axis)
        message, hint = "kth is out of bounds: {left} and {right}", "give positions on the axis"
        extent = x.extents[normalize_axis(operator.index(axis), len(x.extents))]
        is_empty = x.recorder.decide(product(x.extents), "==", 0, "whether an array has elements")
        for place in np.ravel(kth).tolist() if isinstance(kth, _PLACES) and not is_empty else ():
            least = place + 1 if place >= 0 else -place
            x.recorder.builder.require(least, "<=", extent, message, hint, source.user_line())
        return call_whole(op_named(name), f"np.{name}", {"a": x, "kth": kth, "axis": axis, "kind": kind})

    implements(function)(partition)


_register_partition(np.partition, "partition")
_register_partition(np.argpartition, "argpartition")


# -- quantiles --------------------------------------------------------------------------------------------------------


def _merge_reduced(x: Any, axis: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Returns x with the reduced axes merged into the last one, and a function that restores them with extent 1."""
    rank = len(x.extents)
    reduced = traced_ops.axes_of(axis, rank)
    outer_axes = [k for k in range(rank) if k not in reduced]
    sizes = x.recorder.sizes(x.extents)
    moved = shaping.transpose(x, (*outer_axes, *reduced))
    if len(reduced) != 1:
        moved = shaping.reshape(moved, (*(sizes[k] for k in outer_axes), -1))
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


def _known_quantiles(name: str, q: Any) -> Any:
    """Returns the contents of captured quantiles. Raises UnsupportedError for computed ones."""
    if not isinstance(q, Traced) or q.on_host:
        return q
    known = q.recorder.contents.ask(q.number, f"np.{name}()")
    if known is None:
        raise missing(f"np.{name} at a computed q", "give q as a number or an array of numbers")
    return known


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
    q = _known_quantiles(name, q)
    quantiles = np.asarray(traced_ops.as_number(q))
    weak = quantiles.ndim == 0 and x.value.dtype.kind == "float" and isinstance(q, (int, float))
    places = quantiles.astype(x.value.dtype.numpy if weak else np.float64)
    places = places / places.dtype.type(100) if percent else places
    _check_quantiles(quantiles, 100 if percent else 1)
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
    return stacked if out is None else into_broadcast(out, stacked)


def _is_integer(q: Any) -> bool:
    """Whether NumPy keeps a fraction, 0 or 1, as an integer, which is a position of an element."""
    return not isinstance(q, Traced) and np.asarray(q).dtype.kind in "iu"


_SELECTING = (*_NEAREST, "inverted_cdf", "closest_observation")
"""Methods that take an element, as np.take does."""
_PLAIN_QUANTILES = (int, float, list, tuple, np.ndarray, np.generic)


def _check_quantiles(q: Any, most: int) -> None:
    if not np.all((np.asarray(q) >= 0) & (np.asarray(q) <= most)):
        message = (
            "Percentiles must be in the range [0, 100]" if most == 100 else "Quantiles must be in the range [0, 1]"
        )
        raise ScalarError(message, hint="give numbers in this range")


def _resolved_quantile(name: str, q: Any, x: Traced, *, is_stored: bool, percent: bool) -> Any:
    """Returns the value of a q that the host knows before the kernels run; a computed q as it is.

    is_stored: whether out= is given. Raises UnsupportedError for a computed number that promotes weakly.
    """
    if isinstance(q, Traced) and not q.on_host:
        if q.weak is not None and x.value.dtype.is_floating and not is_stored:
            raise missing(f"np.{name} at a computed q", "give q as a number or an array of numbers")
        return q
    if percent and not is_stored and isinstance(q, SymbolicSize):
        q = q * 1.0  # NumPy divides it by 100.0, and a float of the call is no constant of the trace
    number = traced_ops.as_number(q) if is_stored else traced_ops.number_at_trace(q, f"np.{name}", "q")
    is_scalar = isinstance(q, Traced) and q.weak is None
    return q.value.dtype.numpy.type(number) if is_scalar else number


def _register_quantiles(function: Any, name: str, *, skip: bool, percent: bool) -> None:
    def quantile(
        a: Any, q: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, method: str = "linear",
        keepdims: Any = False, *, weights: Any = None, interpolation: Any = None,
    ) -> Any:  # fmt: skip
        refuse(f"np.{name}", interpolation=interpolation)
        _refuse_scalar(name, out, keepdims)
        if not skip:
            _check_overwritten(a, axis, overwrite_input)
        x = as_operand(a)
        if axis is not None:
            traced_ops.axes_of(axis, len(x.extents))
        if isinstance(q, (Traced, SymbolicSize)):
            q = _resolved_quantile(name, q, x, is_stored=out is not None, percent=percent)
        if skip and x.value.dtype.is_complex:
            raise DtypeError("a must be an array of real numbers", hint="give its real part")
        if skip and isinstance(q, _PLAIN_QUANTILES):
            _check_quantiles(q, 100 if percent else 1)
        if skip and x.recorder.decide(product(x.extents), "==", 0, "whether a quantile has elements"):
            return np.nanmean(x, axis, out=out, keepdims=keepdims)  # as NumPy does
        target, keepdims = _without_reduced(out, x, axis, keepdims)
        if x.recorder.device is None:
            more = {"weights": weights, "method": method, "keepdims": keepdims}
            result = call_whole(op_named(name), f"np.{name}", {"a": x, "q": q, "axis": axis, **more})
            takes_elements = method in _SELECTING or (method == "linear" and not percent and _is_integer(q))
            if out is None:
                return result
            if skip:
                _stored(result, target)  # NumPy casts without a check where it skips NaN
            elif takes_elements and weights is None:
                into_selected(target, broadcast_over(result, target))
            else:
                into_broadcast(target, result)
            return out
        refuse(f"np.{name}", weights=weights)
        result = _quantiles(name, a, q, axis, target, method, keepdims, skip=skip, percent=percent)
        return result if out is None else out

    implements(function)(quantile)


_register_quantiles(np.quantile, "quantile", skip=False, percent=False)
_register_quantiles(np.nanquantile, "nanquantile", skip=True, percent=False)
_register_quantiles(np.percentile, "percentile", skip=False, percent=True)
_register_quantiles(np.nanpercentile, "nanpercentile", skip=True, percent=True)
