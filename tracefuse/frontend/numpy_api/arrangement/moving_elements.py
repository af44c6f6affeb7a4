"""NumPy's functions that move elements, on traced values: flip, roll, pad, take, repeat, tile, diff, tril and triu."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.errors import DtypeError, IndexTypeError, NoAttributeError, ScalarError, ShapeError
from tracefuse.frontend.numpy_api.arrangement.shapes import require_array
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_count, as_size, cut_off
from tracefuse.frontend.tracer.array_ops.selections import decided_by_data
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_tensor, iota
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.frontend.tracer.values.views import take_view
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.extents import Extent, product

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


_TAKES_ANY_OUTPUT = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 5)
"""Whether selected elements are written to `out=` of any type, as from NumPy 2.5 on."""


def into_selected(target: Any, selected: Any) -> Any:
    """Stores elements that were selected of an array into `out=`, which NumPy casts without a check.

    Before NumPy 2.5 the type of `out` has to go safely into that of the array: NumPy copies `out` to an array of that
    type, and casts it back.
    """
    if not isinstance(target, Traced):
        return into(target, selected)
    own, given = target.value.dtype, selected.value.dtype
    if not _TAKES_ANY_OUTPUT and not np.can_cast(own.numpy, given.numpy, "safe"):
        message = f"Cannot cast array data from {own} to {given} according to the rule 'safe'"
        raise DtypeError(message, hint=f"give an array of {given}", where=source.user_line())
    return into(target, traced_ops.astype(selected, own, copy=False))


@implements(np.flip)
def flip(m: Any, axis: Any = None) -> Any:
    traced = as_tensor(m)
    dims = traced_ops.axes_of(axis, len(traced.extents))
    return take_view("flip", traced, dims=dims) if traced.extents else shaping.getitem(traced, ())


@implements(np.flipud)
def flipud(m: Any) -> Any:
    return flip(m, 0)


@implements(np.fliplr)
def fliplr(m: Any) -> Any:
    return flip(m, 1)


@implements(np.roll)
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    traced = as_tensor(a)
    recorder = traced.recorder
    if axis is None:
        shape = recorder.sizes(traced.extents)
        return shaping.reshape(roll(shaping.reshape(traced, -1), shift, 0), shape)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    if not traced.extents and not axes:
        raise ShapeError("np.roll of an array without axes along axis=()", hint="give an array with axes")
    shift = shift.tolist() if isinstance(shift, np.ndarray) else shift
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    axes = axes * len(shifts) if len(axes) == 1 else axes
    result = traced if axes else traced_ops.copy(traced)
    for amount, position in zip(shifts, axes, strict=True):
        dim = normalize_axis(operator.index(position), len(traced.extents))
        (extent,) = shaping.new_shape_entries((cut_off(amount),), recorder)
        result = recorder.movement("roll", [result], shift=extent, dim=dim)
    if len(result.extents) > 1:
        views.of_new_array(result, [traced], copies=True)
    return result


def check_is_array(indices: Any) -> None:
    """Raises for positions that NumPy makes no array of."""
    if not hasattr(indices, "dtype"):
        message = f"{type(indices).__name__!r} object has no attribute 'dtype'"
        raise NoAttributeError(message, hint="give an array: np.array(indices)", where=source.user_line())


@implements(np.take_along_axis)
def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Any:
    if axis is not None:
        operator.index(axis)
    require_array(arr, "flat" if axis is None else "ndim")
    check_is_array(indices)
    traced, index = as_tensor(arr), as_tensor(indices)
    if axis is None:
        traced, axis = shaping.reshape(traced, -1), 0
    if not index.value.dtype.is_integer:
        raise IndexTypeError(f"`indices` must be an integer array, not {index.value.dtype}", hint="cast them")
    index = traced_ops.astype(index, dtypes.int64, copy=False)
    dim = normalize_axis(operator.index(axis), len(traced.extents))
    index = checked_unless_empty(index, (*index.extents, *traced.extents[:dim], *traced.extents[dim + 1 :]))
    return traced.recorder.movement("take_along_axis", [_along_positions(traced, index, dim), index], dim=dim)


def checked_unless_empty(positions: Any, extents: Sequence[Extent]) -> Any:
    """Returns positions, or zeros in their place where one of some extents is 0: NumPy checks none of them then."""
    traced, count = as_tensor(positions), product(extents)
    recorder = traced.recorder
    if recorder.known(count) == 0 and recorder.decide(count, "==", 0, "whether elements are taken"):
        return np.zeros_like(traced)
    return positions


def _along_positions(x: Any, index: Any, dim: int) -> Any:
    """Returns an array whose other axes of extent 1 repeat as often as an array of positions has entries there."""
    if len(index.extents) != len(x.extents):
        return x
    shape = list(x.recorder.sizes(x.extents))
    for axis, extent in enumerate(index.extents):
        is_other = axis != dim and extent != x.extents[axis]
        if is_other and x.recorder.decide(x.extents[axis], "==", 1, "whether an axis repeats along positions"):
            shape[axis] = x.recorder.plain(extent)
    return shaping.broadcast_to(x, tuple(shape))


@implements(np.take)
def take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Any:
    """Mode 'clip' clamps positions to the axis, 'wrap' takes them modulo its extent."""
    a = a if axis is None else shaping.with_axis(a, axis)
    if mode in ("clip", "wrap"):
        traced: Any = as_tensor(a)
        size = traced.size if axis is None else traced.shape[normalize_axis(operator.index(axis), len(traced.extents))]
        places: Any = shaping.cast_positions(indices)
        indices = places % size if mode == "wrap" else np.minimum(np.maximum(places, 0), size - 1)
    elif mode != "raise":
        raise ScalarError(f"np.take: mode cannot be {mode!r}", hint="use 'raise', 'wrap' or 'clip'")
    else:
        indices = shaping.cast_positions(indices)
    if mode == "raise" and axis is not None:
        traced, dim = as_tensor(a), normalize_axis(operator.index(axis), len(as_tensor(a).extents))
        shaping.require_positions(traced, dim, [indices], product(traced.extents[:dim]))
        indices = checked_unless_empty(indices, traced.extents[:dim])
    result = shaping.take(a, indices, axis)
    return result if out is None else into_selected(out, result)


@implements(np.repeat)
def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    """Repeats each element: expands a new axis and merges it with the one before."""
    if isinstance(repeats, range):
        repeats = list(repeats)
    if isinstance(repeats, (list, tuple, np.ndarray)) and not isinstance(repeats, Traced) and np.size(repeats) == 1:
        repeats = np.asarray(repeats).item()
    repeats = int(repeats) if isinstance(repeats, np.integer) else as_count(cut_off(repeats))
    traced = as_tensor(shaping.with_axis(a, axis)) if axis is not None else shaping.reshape(as_tensor(a), -1)
    recorder = traced.recorder
    dim = normalize_axis(0 if axis is None else operator.index(axis), len(traced.extents))
    if isinstance(repeats, Traced) and not repeats.on_host:
        return _repeated_as_often(traced, repeats, dim)
    if isinstance(repeats, (list, tuple, np.ndarray)):
        message = f"repeat: {len(repeats)} counts for {{left}} elements"
        hint = "give one count for each element"
        recorder.builder.require(traced.extents[dim], "==", len(repeats), message, hint, source.user_line())
        return shaping.take(traced, np.repeat(np.arange(len(repeats)), repeats), dim)
    sizes = recorder.sizes(traced.extents)
    wide = shaping.broadcast_to(shaping.expand_dims(traced, dim + 1), (*sizes[: dim + 1], repeats, *sizes[dim + 1 :]))
    return traced_ops.copy(shaping.reshape(wide, (*sizes[:dim], sizes[dim] * repeats, *sizes[dim + 1 :])))


def _repeated_as_often(x: Traced, counts: Traced, dim: int) -> Any:
    """Repeats each entry of an axis by counts that are computed values."""
    size = (x.extents[dim],)
    if not counts.extents:
        counts = shaping.reshape(counts, 1)
    wide = shaping.broadcast_to(counts, x.recorder.sizes(size))
    name, hint = "np.repeat with traced counts", "give counts that are known"
    (order,) = decided_by_data(name, _repeated_positions, [wide], [("n",)], hint)
    return shaping.take(x, order, dim)


def _repeated_positions(library: Any, counts: Any) -> Any:
    if library is np:
        return np.repeat(np.arange(counts.size), counts)
    ends = library.cumsum(counts)  # CuPy repeats by counts of the host only
    return library.searchsorted(ends, library.arange(int(ends[-1]) if counts.size else 0), side="right")


@implements(np.tile)
def tile(A: Any, reps: Any) -> Any:
    traced = as_tensor(A)
    recorder = traced.recorder
    reps = reps.tolist() if isinstance(reps, np.ndarray) else reps
    counts = [as_size(as_count(one)) for one in (reps if isinstance(reps, (tuple, list)) else (reps,))]
    rank = max(len(counts), len(traced.extents))
    traced = shaping.expand_dims(traced, tuple(range(rank - len(traced.extents)))) if rank > len(traced.extents) else traced  # fmt: skip # noqa: E501
    counts = [1] * (rank - len(counts)) + counts
    sizes = recorder.sizes(traced.extents)
    # A negative count of no elements is no error in NumPy.
    counts = [0 if isinstance(c, int) and c < 0 and n == 0 else c for c, n in zip(counts, sizes, strict=True)]
    between = shaping.expand_dims(traced, tuple(range(0, 2 * rank, 2)))
    wide = shaping.broadcast_to(between, [e for c, n in zip(counts, sizes, strict=True) for e in (c, n)])
    return traced_ops.copy(shaping.reshape(wide, tuple(c * n for c, n in zip(counts, sizes, strict=True))))


@implements(np.diff)
def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = np._NoValue, append: Any = np._NoValue) -> Any:
    result = as_tensor(a)
    if n < 0:
        raise ScalarError(f"order must be non-negative but got {n}", hint="give n >= 0")
    if n == 0:
        return a
    dim = normalize_axis(axis, len(result.extents))
    if prepend is None or append is None:
        raise DtypeError("np.diff: None is no number", hint="leave prepend= and append= out", where=source.user_line())
    parts = [_broadcast_end(prepend, result, dim), result, _broadcast_end(append, result, dim)]
    present = [part for part in parts if part is not None]
    result = shaping.concatenate(present, dim) if len(present) > 1 else result
    before = (slice(None),) * dim
    for _ in range(n):
        later = shaping.getitem(result, (*before, slice(1, None)))
        earlier = shaping.getitem(result, (*before, slice(None, -1)))
        result = apply("ne" if result.value.dtype.kind == "bool" else "sub", later, earlier)
    return result


def _broadcast_end(values: Any, x: Any, dim: int) -> Any:
    """Broadcasts the `prepend` or `append` of np.diff along the other axes."""
    if values is np._NoValue:
        return None
    end = as_tensor(values)
    if end.extents:
        return end
    sizes = list(x.recorder.sizes(x.extents))
    sizes[dim] = 1
    return shaping.broadcast_to(end, tuple(sizes))


@implements(np.tril)
def tril(m: Any, k: Any = 0) -> Any:
    return _triangle(m, k, lower=True)


@implements(np.triu)
def triu(m: Any, k: Any = 0) -> Any:
    return _triangle(m, k, lower=False)


def _triangle(m: Any, k: Any, *, lower: bool) -> Any:
    """Zeroes the elements above or below the k-th diagonal, by comparing row and column numbers."""
    traced = as_tensor(m)
    rank = len(traced.extents)
    if not rank:
        raise DtypeError(f"{'tril' if lower else 'triu'} of an array without axes", hint="give a matrix")
    is_computed = isinstance(k, Traced) and k.value.dtype.is_floating
    if is_computed or (isinstance(k, (float, np.floating)) and k != np.floor(k)):
        raise traced_ops.missing(f"np.{'tril' if lower else 'triu'} with a fraction as k", "give k as an integer")
    recorder = traced.recorder
    # The rows of a vector are the vector, as often as it has elements.
    rows = iota(recorder, 0, 1, traced.extents[max(-2, -rank)], dtypes.int64)
    columns = iota(recorder, 0, 1, traced.extents[-1], dtypes.int64)
    line = apply("add", shaping.expand_dims(rows, 1), k)
    keep = apply("le" if lower else "ge", shaping.expand_dims(columns, 0), line)
    return apply("where", keep, traced, False if traced.value.dtype.kind == "bool" else 0)
