"""NumPy's functions whose results have sizes that the data decide: positions, distinct elements, sets.

Positions under a mask are those of one library call; elements taken at them are recorded. The other functions run in
the array library. See `tracer/array_ops/selections.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse.errors import ScalarError, ShapeError
from tracefuse.frontend.numpy_api.arrangement.moving_elements import take
from tracefuse.frontend.numpy_api.arrangement.shapes import without_python_numbers
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.array_ops import shaping
from tracefuse.frontend.tracer.array_ops.selections import (
    ResultShape,
    decided_by_data,
    flat_positions,
    positions,
    positions_along_axes,
)
from tracefuse.frontend.tracer.array_ops.traced_ops import as_array, as_number, axes_of, missing
from tracefuse.frontend.tracer.libraries.stage_calls import call_between_stages
from tracefuse.frontend.tracer.values.traced import ViewStep
from tracefuse.ir.axes import normalize_axis
from tracefuse.ops import REGISTRY

FUNCTIONS = Functions()
implements = FUNCTIONS.implements

# -- positions --------------------------------------------------------------------------------------------------------


@implements(np.flatnonzero)
def flatnonzero(a: Any) -> Any:
    return flat_positions(as_array(a), "np.flatnonzero")


@implements(np.nonzero)
def nonzero(a: Any) -> tuple[Any, ...]:
    return positions_along_axes(a, "np.nonzero")


@implements(np.argwhere)
def argwhere(a: Any) -> Any:
    x = as_array(a)
    rank = len(x.extents)
    by_axis = positions(x if rank else shaping.reshape(x, 1), "np.argwhere")
    return np.stack(by_axis, axis=1)[:, :rank]


@implements(np.compress)
def compress(condition: Any, a: Any, axis: Any = None, out: Any = None) -> Any:
    x, flags = as_array(a), as_array(condition)
    if len(flags.extents) != 1:
        raise ShapeError("condition must be a 1-d array", hint="give one truth value for each entry of the axis")
    if axis is None:
        x, axis = shaping.reshape(x, -1), 0
    x = shaping.with_axis(x, axis)
    places, dim = flat_positions(flags, "np.compress"), normalize_axis(as_number(axis), len(x.extents))
    return take(x, places, dim, out)


@implements(np.extract)
def extract(condition: Any, arr: Any) -> Any:
    flags = shaping.reshape(as_array(condition), -1)
    return shaping.take(shaping.reshape(as_array(arr), -1), flat_positions(flags, "np.extract"), 0)


# -- distinct elements ------------------------------------------------------------------------------------------------


@implements(np.unique)
def unique(
    ar: Any, return_index: Any = False, return_inverse: Any = False, return_counts: Any = False, axis: Any = None,
    *, equal_nan: Any = True, **more: Any,
) -> Any:  # fmt: skip
    x = as_array(ar)
    dim = None if axis is None else normalize_axis(as_number(axis), len(x.extents))
    extents = x.extents
    shapes: list[ResultShape] = [("n",) if dim is None else (*extents[:dim], "n", *extents[dim + 1 :])]
    wanted = {"return_index": return_index, "return_inverse": return_inverse, "return_counts": return_counts}
    for name, is_wanted in wanted.items():
        if is_wanted:
            inverse = extents if dim is None else extents[dim : dim + 1]
            shapes.append(inverse if name == "return_inverse" else ("n",))
    flags: dict[str, Any] = {name: True for name, is_wanted in wanted.items() if is_wanted}
    flags |= {"axis": dim, **({} if equal_nan else {"equal_nan": False}), **more}
    results = decided_by_data("np.unique", _unique, [x], shapes, _OUTSIDE, **flags)
    return results[0] if len(results) == 1 else results


def _unique(library: Any, x: Any, **keywords: Any) -> Any:
    results = library.unique(x, **keywords)
    if "return_inverse" not in keywords:
        return results
    position = 2 if "return_index" in keywords else 1  # NumPy 2.0 and CuPy flatten it, or keep the axes
    shape = x.shape if keywords["axis"] is None else (-1,)
    return (*results[:position], results[position].reshape(shape), *results[position + 1 :])


def _unique_values(library: Any, x: Any) -> Any:
    # NumPy leaves the order open from version 2.3 on.
    return library.unique_values(x) if library is np else library.unique(x, equal_nan=False)


_OUTSIDE = "call it outside the fused function, or mark elements with np.isin and np.where"


@implements(np.unique_values)
def unique_values(x: Any, /) -> Any:
    (result,) = decided_by_data("np.unique_values", _unique_values, [as_array(x)], [("n",)], _OUTSIDE)
    return result


@implements(np.unique_all)
def unique_all(x: Any, /) -> Any:
    return _ALL(*unique(x, True, True, True, equal_nan=False))


@implements(np.unique_counts)
def unique_counts(x: Any, /) -> Any:
    return _COUNTS(*unique(x, return_counts=True, equal_nan=False))


@implements(np.unique_inverse)
def unique_inverse(x: Any, /) -> Any:
    return _INVERSE(*unique(x, return_inverse=True, equal_nan=False))


_NOTHING = np.zeros(1)
_ALL, _COUNTS, _INVERSE = (
    type(function(_NOTHING)) for function in (np.unique_all, np.unique_counts, np.unique_inverse)
)

# -- other functions of the library -----------------------------------------------------------------------------------


def _by_library(function: Any, results: int = 1) -> Callable[..., Any]:
    """Implements a function of one or two arrays whose `results` have one axis each."""
    name = function.__name__

    def call(library: Any, *arrays: Any, **keywords: Any) -> Any:
        return getattr(library, name)(*arrays, **keywords)

    def recorded(*arguments: Any, **keywords: Any) -> Any:
        given = arguments[: _OPERANDS[function]]
        if function is np.polydiv and any(len(as_array(argument).extents) > 1 for argument in given):
            return call_between_stages(function, "np.polydiv", given, keywords)
        parameters = dict(zip(_PARAMETERS[function], arguments[len(given) :], strict=False)) | keywords
        plain = {key: as_number(value) for key, value in parameters.items()}
        if function is np.union1d or (function is np.setxor1d and plain.get("assume_unique")):
            given = without_python_numbers(given)
        operands = [as_array(argument) for argument in given]
        count = 3 if plain.get("return_indices") else results
        shapes = [(f"n{k if results > 1 else 0}",) for k in range(count)]
        computed = decided_by_data(f"np.{name}", call, operands, shapes, _OUTSIDE, **plain)
        return computed[0] if count == 1 else computed

    recorded.__name__ = name
    return recorded


_OPERANDS = {
    np.union1d: 2, np.intersect1d: 2, np.setdiff1d: 2, np.setxor1d: 2, np.polymul: 2, np.polydiv: 2, np.roots: 1,
}  # fmt: skip
"""Functions of arrays with one axis, and how many arrays they take."""
_PARAMETERS: dict[Any, Sequence[str]] = {
    np.union1d: (), np.intersect1d: ("assume_unique", "return_indices"), np.setdiff1d: ("assume_unique",),
    np.setxor1d: ("assume_unique",), np.polymul: (), np.polydiv: (), np.roots: (),
}  # fmt: skip

for _function in _OPERANDS:
    implements(_function)(_by_library(_function, 2 if _function is np.polydiv else 1))


@implements(np.trim_zeros)
def trim_zeros(filt: Any, trim: Any = "fb", axis: Any = None) -> Any:
    """Returns the part of an array between its first and last elements other than 0 on the axes, a view."""
    if trim.lower() not in ("fb", "bf", "f", "b"):
        raise ScalarError(f"unexpected character(s) in `trim`: {trim!r}", hint="use 'fb', 'f' or 'b'")
    x = as_array(filt)
    axes = axes_of(axis, len(x.extents))
    if not axes:
        return filt
    if len(x.extents) > 1 and not _TRIMS_SEVERAL_AXES:
        raise missing("np.trim_zeros of several axes with this NumPy", "slice the array")
    shapes: list[ResultShape] = [(f"n{k}",) for k in axes]
    computed = decided_by_data("np.trim_zeros", _kept_positions, [x], shapes, _OUTSIDE, trim=trim.lower(), axes=axes)
    for k, index in zip(axes, computed, strict=True):
        x = _positions_along(x, index, k)
    return x


_TRIMS_SEVERAL_AXES = "axis" in inspect.signature(np.trim_zeros).parameters
"""Whether np.trim_zeros takes arrays with several axes, as since NumPy 2.2."""


def _positions_along(x: Any, index: Any, dim: int) -> Any:
    """The elements at consecutive positions along an axis, as a view."""
    recorder = x.recorder
    result = shaping.take(x, index, dim)

    def write(base: Any, values: Any) -> Any:
        rows, new = (shaping.moveaxis(one, dim, 0) for one in (base, values))
        return shaping.moveaxis(recorder.library(REGISTRY["index_put"], [rows, index, new], how="assign"), 0, dim)

    step = ViewStep(("trim_zeros", index.number, dim), lambda base: shaping.take(base, index, dim), write)
    result.become_view(x, step)
    return result


def _kept_positions(library: Any, x: Any, trim: str, axes: Sequence[int]) -> Any:
    """The positions that np.trim_zeros keeps, for each of the axes."""
    places = library.nonzero(x)
    kept = []
    for k in axes:
        first, last = (int(places[k].min()), int(places[k].max()) + 1) if places[k].size else (0, 0)
        is_empty = not places[k].size
        start = first if is_empty or "f" in trim else 0
        kept.append(library.arange(start, last if is_empty or "b" in trim else x.shape[k]))
    return kept
