"""NumPy's functions that move elements, on traced values: flip, roll, pad, take, repeat, tile, diff, triangles.

Knows: NumPy's functions and parameters. Must not know: how values are recorded.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tracefuse import dtypes, operations, shaping, source
from tracefuse.errors import DtypeError, ShapeError
from tracefuse.in_place import into
from tracefuse.numpy_table import Functions
from tracefuse.operations import apply, as_tensor, iota, missing, refuse
from tracefuse.ops.row import normalize_axis
from tracefuse.recorder import Traced

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


@implements(np.flip)
def flip(m: Any, axis: Any = None) -> Any:
    traced = as_tensor(m)
    dims = operations.axes_of(axis, len(traced.extents))
    return traced.recorder.movement("flip", [traced], view_of=traced, dims=dims)


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
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    axes = axes * len(shifts) if len(axes) == 1 else axes
    result = traced
    for amount, one in zip(shifts, axes, strict=True):
        dim = normalize_axis(operator.index(one), len(traced.extents))
        (extent,) = shaping.new_shape_entries((amount,), recorder)
        result = recorder.movement("roll", [result], shift=extent, dim=dim)
    return result


@implements(np.pad)
def pad(array: Any, pad_width: Any, mode: Any = "constant", **keywords: Any) -> Any:
    if mode != "constant":
        raise missing(f"np.pad with mode={mode!r}", "use mode='constant'")
    value = keywords.pop("constant_values", 0)
    refuse("np.pad", **keywords)
    traced = as_tensor(array)
    rank = len(traced.extents)
    if isinstance(value, (tuple, list, np.ndarray)):
        flat = np.unique(np.asarray(value))
        if flat.size != 1:
            raise missing("np.pad with several constant_values", "pad one axis after the other")
        value = flat[0]
    value = operations.as_number(value)
    value = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
    entries = shaping.new_shape_entries(_pad_pairs(pad_width, rank), traced.recorder)
    for entry in entries:
        message = "pad: a width of {right} is negative"
        traced.recorder.builder.require(0, "<=", entry, message, "slice to remove elements", source.user_line())
    return traced.recorder.movement(
        "pad", [traced], pad_widths=entries, value=traced.value.dtype.numpy.type(value).item()
    )


def _pad_pairs(width: Any, rank: int) -> list[Any]:
    """NumPy's spellings of pad widths (n, (n,), (before, after), one pair an axis) as before, after per axis."""
    if isinstance(width, dict):
        pairs = {normalize_axis(k, rank): v for k, v in width.items()}
        return [e for k in range(rank) for e in _pair(pairs.get(k, 0))]
    if not isinstance(width, (tuple, list, np.ndarray)):
        return [width] * (2 * rank)
    rows = list(width)
    if rows and not isinstance(rows[0], (tuple, list, np.ndarray)):
        return list(_pair(tuple(rows))) * rank
    if len(rows) == 1:
        return list(_pair(tuple(rows[0]))) * rank
    if len(rows) != rank:
        raise ShapeError(f"pad: {len(rows)} pairs of widths for {rank} axes", hint="give one pair per axis")
    return [e for row in rows for e in _pair(tuple(row))]


def _pair(width: Any) -> tuple[Any, Any]:
    if not isinstance(width, tuple):
        return width, width
    return (width[0], width[0]) if len(width) == 1 else (width[0], width[1])


@implements(np.take_along_axis)
def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Any:
    traced, index = as_tensor(arr), as_tensor(indices)
    if axis is None:
        traced, axis = shaping.reshape(traced, -1), 0
    if not index.value.dtype.is_integer:
        raise DtypeError(f"`indices` must be an integer array, not {index.value.dtype}", hint="cast it to an integer")
    dim = normalize_axis(operator.index(axis), len(traced.extents))
    return traced.recorder.movement("take_along_axis", [traced, index], dim=dim)


@implements(np.take)
def take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Any:
    refuse("np.take", mode=None if mode == "raise" else mode)
    result = shaping.take(a, indices, axis)
    return result if out is None else into(out, result)


@implements(np.repeat)
def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    """Each element `repeats` times: a new axis, expanded and joined with the one before."""
    if isinstance(repeats, (list, tuple, np.ndarray)) and np.size(repeats) == 1:
        repeats = np.asarray(repeats).item()
    if isinstance(repeats, (list, tuple, np.ndarray)) or (isinstance(repeats, Traced) and not repeats.on_host):
        raise missing("np.repeat with one count per element", "use one count")
    traced = as_tensor(a) if axis is not None else shaping.reshape(as_tensor(a), -1)
    recorder = traced.recorder
    dim = normalize_axis(0 if axis is None else operator.index(axis), len(traced.extents))
    own = recorder.sizes(traced.extents)
    wide = shaping.broadcast_to(shaping.expand_dims(traced, dim + 1), (*own[: dim + 1], repeats, *own[dim + 1 :]))
    return shaping.reshape(wide, (*own[:dim], own[dim] * repeats, *own[dim + 1 :]))


@implements(np.tile)
def tile(A: Any, reps: Any) -> Any:
    traced = as_tensor(A)
    recorder = traced.recorder
    counts = list(reps) if isinstance(reps, (tuple, list)) else [reps]
    rank = max(len(counts), len(traced.extents))
    traced = shaping.expand_dims(traced, tuple(range(rank - len(traced.extents)))) if rank > len(traced.extents) else traced  # fmt: skip # noqa: E501
    counts = [1] * (rank - len(counts)) + counts
    own = recorder.sizes(traced.extents)
    between = shaping.expand_dims(traced, tuple(range(0, 2 * rank, 2)))
    wide = shaping.broadcast_to(between, [e for c, n in zip(counts, own, strict=True) for e in (c, n)])
    return shaping.reshape(wide, tuple(c * n for c, n in zip(counts, own, strict=True)))


@implements(np.diff)
def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    refuse("np.diff", prepend=prepend, append=append)
    result = as_tensor(a)
    dim = normalize_axis(axis, len(result.extents))
    before = (slice(None),) * dim
    for _ in range(n):
        later = shaping.getitem(result, (*before, slice(1, None)))
        earlier = shaping.getitem(result, (*before, slice(None, -1)))
        result = apply("ne" if result.value.dtype.kind == "bool" else "sub", later, earlier)
    return result


@implements(np.tril)
def tril(m: Any, k: Any = 0) -> Any:
    return _triangle(m, k, lower=True)


@implements(np.triu)
def triu(m: Any, k: Any = 0) -> Any:
    return _triangle(m, k, lower=False)


def _triangle(m: Any, k: Any, *, lower: bool) -> Any:
    """m with zeros above (below) its k-th diagonal: rows and columns are compared as numbers."""
    traced = as_tensor(m)
    rank = len(traced.extents)
    if rank < 2:
        raise ShapeError(f"{'tril' if lower else 'triu'} of an array with {rank} axes", hint="give a matrix")
    recorder = traced.recorder
    rows = iota(recorder, 0, 1, traced.extents[-2], dtypes.int64)
    columns = iota(recorder, 0, 1, traced.extents[-1], dtypes.int64)
    line = apply("add", shaping.expand_dims(rows, 1), k)
    keep = apply("le" if lower else "ge", shaping.expand_dims(columns, 0), line)
    return apply("where", keep, traced, False if traced.value.dtype.kind == "bool" else 0)
