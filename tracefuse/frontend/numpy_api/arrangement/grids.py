"""NumPy's grids, blocks, diagonals and index conversions, on traced values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.errors import DtypeError, ScalarError, ShapeError
from tracefuse.frontend.numpy_api.algebra import products
from tracefuse.frontend.numpy_api.arrangement.shapes import require_array
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_array, as_traced, missing
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.extents import terms_of

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


@implements(np.atleast_3d)
def atleast_3d(*arrays: Any) -> Any:
    parts = []
    for a in arrays:
        rank = len(as_array(a).extents)
        places = {0: (0, 1, 2), 1: (0, 2), 2: (2,)}.get(rank)
        parts.append(a if places is None else shaping.expand_dims(a, places))
    return parts[0] if len(parts) == 1 else tuple(parts)


@implements(np.dstack)
def dstack(tup: Any) -> Any:
    return shaping.concatenate([atleast_3d(a) for a in tup], 2)


@implements(np.dsplit)
def dsplit(ary: Any, indices_or_sections: Any) -> Any:
    if len(as_traced(ary).extents) < 3:
        raise ShapeError("dsplit only works on arrays of 3 or more dimensions", hint="use np.split with an axis")
    return np.split(ary, indices_or_sections, 2)


@implements(np.block)
def block(arrays: Any) -> Any:
    """Joins nested lists of blocks: the innermost along the last axis, each outer level along the axis before."""
    depth, rank = _nesting_depth(arrays), _largest_rank(arrays)
    return _join_blocks(arrays, max(depth, rank), 0, depth)


def _nesting_depth(arrays: Any) -> int:
    return 1 + max(map(_nesting_depth, arrays), default=0) if isinstance(arrays, list) else 0


def _largest_rank(arrays: Any) -> int:
    return max(map(_largest_rank, arrays), default=0) if isinstance(arrays, list) else len(as_array(arrays).extents)


def _join_blocks(arrays: Any, rank: int, level: int, depth: int) -> Any:
    if not isinstance(arrays, list):
        if level != depth:
            raise ShapeError(f"np.block: a block at depth {level} beside blocks at depth {depth}", hint="nest all blocks to one depth")  # fmt: skip # noqa: E501
        x = as_array(arrays)
        lead = rank - len(x.extents)
        if level == 0:
            return traced_ops.copy(x, "K")
        return shaping.expand_dims(x, tuple(range(lead))) if lead else x
    return shaping.concatenate([_join_blocks(a, rank, level + 1, depth) for a in arrays], rank - depth + level)


@implements(np.rot90)
def rot90(m: Any, k: Any = 1, axes: Any = (0, 1)) -> Any:
    x = as_array(m)
    first, second = (normalize_axis(operator.index(a), len(x.extents)) for a in axes)
    if first == second:
        raise ShapeError("Axes must be different.", hint="name two axes")
    size = as_size(k)
    turns = (size if isinstance(size, SymbolicSize) else operator.index(size)) % 4
    if turns == 0:
        return shaping.getitem(x, ...)
    if turns == 2:
        return np.flip(x, (first, second))
    if turns == 1:
        return shaping.swapaxes(np.flip(x, second), first, second)
    return np.flip(shaping.swapaxes(x, first, second), second)


@implements(np.diag)
def diag(v: Any, k: Any = 0) -> Any:
    """The diagonal of a matrix, or a matrix with the given vector on its diagonal."""
    x = as_array(v)
    if len(x.extents) == 2:
        return products.diagonal(x, k)
    if len(x.extents) != 1:
        raise ShapeError("Input must be 1- or 2-d.", hint="give a vector or a matrix")
    recorder, (low, high) = x.recorder, products.sides_of(k)
    size = recorder.plain(x.shape[0] + low + high)
    rows = shaping.expand_dims(traced_ops.iota(recorder, 0, 1, size, dtypes.int64), 1)
    columns = shaping.expand_dims(traced_ops.iota(recorder, 0, 1, size, dtypes.int64), 0)
    before, after = (
        recorder.movement("full", [0], shape=(recorder.plain(count),), dtype=x.value.dtype) for count in (high, low)
    )
    padded = shaping.concatenate([before, x, after])
    return np.where(rows + high == columns + low, shaping.expand_dims(padded, 0), False)


@implements(np.diagflat)
def diagflat(v: Any, k: Any = 0) -> Any:
    return diag(shaping.reshape(as_array(v), -1), k)


@implements(np.resize)
def resize(a: Any, new_shape: Any) -> Any:
    """The elements in row-major order, repeated from the first to fill the shape."""
    flat = shaping.reshape(as_array(a), -1)
    recorder = flat.recorder
    shape = [as_size(extent) for extent in (new_shape if isinstance(new_shape, (tuple, list)) else (new_shape,))]
    count: Any = 1
    for extent in shape:
        if extent < 0:
            raise ShapeError("all elements of `new_shape` must be non-negative", hint="give extents of 0 or more")
        count = count * extent
    if not flat.shape[0] > 0:
        return np.zeros_like(flat, shape=tuple(shape))
    length, reason = flat.shape[0], "how often np.resize repeats elements"
    if recorder.decide(recorder.plain(count), "<=", recorder.plain(length), reason):
        filled = traced_ops.copy(flat[:count])
    else:
        if len(terms_of(recorder.plain(length))) > 1:  # no proof divides by a sum
            length = recorder.pin(recorder.plain(length), reason)
        whole = count // length
        filled = np.concatenate([np.tile(flat, whole), flat[: count - whole * length]])
    return shaping.reshape(filled, tuple(shape))


# -- coordinates ------------------------------------------------------------------------------------------------------


@implements(np.meshgrid)
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Any:
    if indexing not in ("xy", "ij"):
        raise ScalarError("Valid values for `indexing` are 'xy' and 'ij'.", hint="use one of them")
    parts = [shaping.reshape(as_array(v), -1) for v in xi]
    order = list(range(len(parts)))
    if indexing == "xy" and len(parts) > 1:
        order[:2] = [1, 0]
    grids = [
        shaping.expand_dims(part, tuple(k for k in range(len(parts)) if k != order[place])) if len(parts) > 1 else part
        for place, part in enumerate(parts)
    ]
    arrays = tuple(grids) if sparse or len(parts) < 2 else tuple(np.broadcast_arrays(*grids))
    return tuple(array.copy() for array in arrays) if copy else arrays


@implements(np.ix_)
def ix_(*args: Any) -> Any:
    vectors = [as_array(v) for v in args]
    for v in vectors:
        if len(v.extents) != 1:
            raise ShapeError("Cross index must be 1 dimensional", hint="give vectors", where=source.user_line())
        if v.value.dtype.kind == "bool":
            raise missing("np.ix_ of a mask: the size of the result depends on the data", "use np.where")
    rank = len(vectors)
    return tuple(
        shaping.expand_dims(v, tuple(k for k in range(rank) if k != place)) if rank > 1 else v
        for place, v in enumerate(vectors)
    )


def _steps(start: Any, stop: Any, num: Any, endpoint: bool, axis: Any) -> tuple[Any, Any, Any, int, Any]:
    """Returns (first, last, step, count, positions) for `num` values between two arrays, on a new first axis."""
    count = as_size(num)
    if not isinstance(count, SymbolicSize):
        count = operator.index(count)
    if count < 0:
        raise ScalarError(f"Number of samples, {count}, must be non-negative.", hint="give num >= 0")
    start, stop = (as_array(list(v)) if isinstance(v, (list, tuple, range)) else v for v in (start, stop))
    dtype = np.result_type(*(0 if isinstance(v, SymbolicSize) else v for v in (start, stop)), 1.0)
    parts: Any = np.broadcast_arrays(as_array(start), as_array(stop))
    first, last = (traced_ops.astype(x, dtype, copy=False) for x in parts)
    places = traced_ops.iota(first.recorder, 0, 1, count, dtypes.dtype_of(np.finfo(dtype).dtype))
    rank = len(first.extents)
    places = shaping.expand_dims(places, tuple(range(1, rank + 1))) if rank else places
    step = (last - first) / max(count - int(endpoint), 1)
    return first, last, step, count, places


def stepped(places: Any, step: Any, first: Any) -> Any:
    """Returns places * step + first with both operations rounded, as NumPy defines the elements of np.linspace."""
    if any(as_traced(x).value.dtype.is_complex for x in (step, first)):
        return places * step + first
    return apply("rounded_product", places, step) + first


@implements(np.linspace)
def linspace(start: Any, stop: Any, num: Any = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None, axis: Any = 0, *, device: Any = None) -> Any:  # fmt: skip # noqa: E501
    first, last, step, count, places = _steps(start, stop, num, endpoint, axis)
    result = stepped(places, step, first)
    if endpoint and count > 1:
        result = np.where(places == count - 1, last, result)
    result = shaping.moveaxis(result, 0, axis) if axis != 0 else result
    if dtype is not None:
        target = dtypes.dtype_of(dtype)
        result = traced_ops.astype(np.floor(result) if target.is_integer else result, target, copy=False)
    if not retstep:
        return result
    return result, step if count > int(endpoint) else step * np.nan


@implements(np.logspace)
def logspace(start: Any, stop: Any, num: Any = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: Any = 0) -> Any:  # fmt: skip # noqa: E501
    result = np.power(base, linspace(start, stop, num, endpoint, axis=axis))
    return result if dtype is None else traced_ops.astype(result, dtype, copy=False)


@implements(np.geomspace)
def geomspace(start: Any, stop: Any, num: Any = 50, endpoint: bool = True, dtype: Any = None, axis: Any = 0) -> Any:
    """Numbers at equal ratios, computed in float64 or complex128 as in NumPy, on a spiral if an end is complex."""
    ends = as_array(start), as_array(stop)
    loop = np.result_type(*(one.value.dtype.numpy for one in ends), np.zeros((), dtype), 1.0)
    start, stop = (traced_ops.astype(one, loop, copy=False) for one in ends)
    first, last, _, count, places = _steps(start, stop, num, endpoint, axis)
    if not traced_ops.holds_everywhere((first != 0) & (last != 0)):
        raise ScalarError("Geometric sequence cannot include zero", hint="give ends other than 0")
    sign = apply("sign", first)
    low, high = np.log10(first / sign), np.log10(last / sign)
    step = (high - low) / max(count - int(endpoint), 1)
    result = np.power(10.0, stepped(places, step, low)) * sign
    if count:  # NaN for an infinite complex number, as its product with a sign is
        result = np.where(places == 0, first / sign * sign, result)
    if endpoint and count > 1:  # NaN where the other end is, by its sign
        result = np.where(places == count - 1, last / sign * sign, result)
    result = shaping.moveaxis(result, 0, axis) if axis != 0 else result
    return result if dtype is None else traced_ops.astype(result, dtype, copy=False)


def _shape_of(shape: Any) -> tuple[Any, ...]:
    axes = shape.extents if isinstance(shape, Traced) else np.shape(shape) if isinstance(shape, np.ndarray) else ()
    return tuple(shape) if axes or isinstance(shape, (tuple, list)) else (shape,)


@implements(np.unravel_index)
def unravel_index(indices: Any, shape: Any, order: str = "C") -> Any:
    """Converts positions to coordinates; a position out of range is an error on the CPU."""
    extents = list(_shape_of(shape))
    positions = as_array(indices)
    if not positions.value.dtype.is_integer:
        raise DtypeError("only int indices permitted", hint="cast them with astype(int)")
    rest = apply("checked_position", traced_ops.astype(positions, np.int64, copy=False), math.prod(extents))
    coordinates: list[Any] = []
    for extent in extents if _is_fortran(order) else reversed(extents):
        coordinates.append(rest % extent)
        rest = rest // extent
    for coordinate in coordinates:
        if len(coordinate.extents) == 1:  # NumPy's are the columns of one array
            coordinate.layout = (len(coordinates),)
    return tuple(coordinates if _is_fortran(order) else reversed(coordinates))


@implements(np.ravel_multi_index)
def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "raise", order: str = "C") -> Any:
    """Converts coordinates to positions; with mode 'raise' a coordinate out of range is an error on the CPU."""
    extents = _shape_of(dims)
    indices = _as_list(multi_index)
    if len(indices) != len(extents):
        raise ShapeError(
            f"np.ravel_multi_index: {len(indices)} coordinates for {len(extents)} axes", hint="give one for each axis"
        )
    modes = mode if isinstance(mode, (tuple, list)) else (mode,) * len(extents)
    each = list(zip(indices, extents, modes, strict=True))
    result: Any = 0
    for index, extent, mode_of_axis in reversed(each) if _is_fortran(order) else each:
        if mode_of_axis not in _COORDINATES:
            raise ScalarError(f"clipmode not understood: {mode_of_axis!r}", hint="use 'raise', 'wrap' or 'clip'")
        if not as_array(index).value.dtype.is_integer:
            raise DtypeError("only int indices permitted", hint="cast them with astype(int)")
        places = traced_ops.astype(as_array(index), np.int64, copy=False)
        result = result * extent + _COORDINATES[mode_of_axis](places, extent)
    return result


_COORDINATES: dict[str, Callable[[Any, Any], Any]] = {
    "raise": lambda places, extent: apply("checked_position", places, extent),
    "wrap": lambda places, extent: places % extent,
    "clip": lambda places, extent: np.clip(places, 0, extent - 1),
}
"""Coordinates inside of an axis, by the mode of np.ravel_multi_index."""


def _as_list(values: Any) -> Sequence[Any]:
    return list(iter(values))


def _is_fortran(order: str) -> bool:
    if order not in ("C", "F"):
        raise ScalarError(f"only 'C' or 'F' order is permitted, not {order!r}", hint="use one of them")
    return order == "F"


def _pin_shape(x: Any, function: str, recorder: Recorder) -> list[int]:
    return [recorder.pin(extent, function) for extent in x.extents]


@implements(np.diag_indices_from)
def diag_indices_from(arr: Any) -> Any:
    require_array(arr, "ndim")
    x = as_array(arr)
    extents, decide = x.extents, x.recorder.decide
    if len(extents) < 2 or not all(decide(extents[0], "==", e, "np.diag_indices_from") for e in extents[1:]):
        raise ShapeError("All dimensions of input must be of equal length", hint="give a square array")
    return (traced_ops.iota(x.recorder, 0, 1, extents[0], dtypes.int64),) * len(extents)


def _shape_of_matrix(arr: Any, function: str) -> list[int]:
    require_array(arr, "ndim")
    x = as_array(arr)
    if len(x.extents) != 2:
        raise ScalarError("input array must be 2-d", hint="give a matrix", where=source.user_line())
    return _pin_shape(x, function, x.recorder)


@implements(np.tril_indices_from)
def tril_indices_from(arr: Any, k: int = 0) -> Any:
    rows, columns = _shape_of_matrix(arr, "np.tril_indices_from")
    return np.tril_indices(rows, k, columns)


@implements(np.triu_indices_from)
def triu_indices_from(arr: Any, k: int = 0) -> Any:
    rows, columns = _shape_of_matrix(arr, "np.triu_indices_from")
    return np.triu_indices(rows, k, columns)


@implements(np.fft.fftshift)
def fftshift(x: Any, axes: Any = None) -> Any:
    return _roll_by_half(x, axes, lambda n: n // 2)


@implements(np.fft.ifftshift)
def ifftshift(x: Any, axes: Any = None) -> Any:
    return _roll_by_half(x, axes, lambda n: -(n // 2))


def _roll_by_half(x: Any, axes: Any, shift: Any) -> Any:
    traced = as_array(x)
    if axes is not None and not isinstance(axes, (tuple, list)):
        return np.roll(traced, shift(traced.shape[axes]), axes)
    dims = tuple(range(len(traced.extents)) if axes is None else axes)  # an axis may occur twice
    return np.roll(traced, tuple(shift(traced.shape[k]) for k in dims), dims)
