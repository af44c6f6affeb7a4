"""`x.flat`: the elements of a traced array in row-major order, to read and to assign.

As in NumPy, a part that is read is a copy, an assignment writes the array itself, and assigned values repeat to the
number of elements that the key selects.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import DtypeError, IntegerRangeError, ScalarError
from tracefuse.frontend.numpy_api.arrangement.grids import resize
from tracefuse.frontend.tracer.array_ops import assignment, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.in_place import check_writable, into, note_update
from tracefuse.frontend.tracer.array_ops.index_keys import is_mask
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_array
from tracefuse.frontend.tracer.record.assigned_numbers import without_none
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.symbolic_size import rank_of
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.frontend.tracer.values.views import flat_view
from tracefuse.ir.extents import product


class FlatElements:
    """The elements of `base` in row-major order."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, base: Traced) -> None:
        self.base = base
        self._position: int | None = 0  # None where a loop, which may end early, goes through the elements

    def __next__(self) -> Any:
        elements, position = self.copy(), self.index
        if position >= len(elements):
            raise StopIteration
        self._position = position + 1
        return elements[position]

    @property
    def index(self) -> int:
        """The number of elements that `next` has given."""
        if self._position is None:
            raise traced_ops.missing("x.flat.index of an iterator in a loop", "count with enumerate(x.flat)")
        return self._position

    @property
    def coords(self) -> tuple[int, ...]:
        """The position in the array of the element that comes next."""
        shape = tuple(self.base.recorder.pin(extent, "x.flat.coords") for extent in self.base.extents)
        return tuple(self.index // math.prod(shape[axis + 1 :]) % n for axis, n in enumerate(shape))

    def copy(self) -> Any:
        """Returns the elements as a new array with one axis."""
        return traced_ops.copy(shaping.reshape(self.base, -1))

    def __getitem__(self, key: Any) -> Any:
        return assignment.getitem(self.copy(), key)

    def __setitem__(self, key: Any, value: Any) -> None:
        base: Any = self.base
        check_writable(base)
        elements: Any = flat_view(base)
        if isinstance(value, FlatElements):
            value = value.copy()
        if isinstance(key, (int, np.integer)):
            value = _single(value, elements)
        _check_apart(value, base, key)
        value = without_none(value, elements.value.dtype)
        values = _repeated(elements, key, value)
        if values is None:
            note_update(base)  # as in NumPy, no values change nothing, but only an array that can be written takes them
            return
        if is_mask(key):
            chosen = apply("where", as_array(key), values, elements)
            into(elements, traced_ops.astype(chosen, elements.value.dtype, copy=False))
        else:
            _assign(elements, key, values)

    def __len__(self) -> int:
        return len(self.copy())

    def __iter__(self) -> Iterator[Any]:
        start, self._position = self.index, None
        return iter(self.copy()[start:] if start else self.copy())

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        return function(*_as_arrays(arguments), **_as_arrays(keywords))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        return getattr(ufunc, method)(*_as_arrays(inputs), **keywords)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.copy(), dtype)

    def __eq__(self, other: Any) -> Any:
        return self.copy() == other

    def __ne__(self, other: Any) -> Any:
        return self.copy() != other

    def __lt__(self, other: Any) -> Any:
        return self.copy() < other

    def __le__(self, other: Any) -> Any:
        return self.copy() <= other

    def __gt__(self, other: Any) -> Any:
        return self.copy() > other

    def __ge__(self, other: Any) -> Any:
        return self.copy() >= other


def _single(value: Any, elements: Traced) -> Any:
    """Returns a value for one element. Raises ScalarError for one with axes that is no truth value."""
    is_none = value is None and elements.value.dtype.is_integer
    is_list = isinstance(value, (list, tuple))
    if not (is_none or is_list or rank_of(value)):
        return value
    if elements.value.dtype.kind == "bool" and is_list:
        return len(value) > 0  # NumPy takes the truth value of the list
    if elements.value.dtype.kind == "bool" and not is_none:
        array = as_array(value)
        if elements.recorder.decide(product(array.extents), "==", 1, "whether one element is assigned"):
            return apply("ne", shaping.reshape(array, ()), 0)
    raise ScalarError(
        "Error setting single item of array.", hint="assign one number, as value[0]", where=source.user_line()
    )


def _check_apart(value: Any, base: Traced, key: Any) -> None:
    """Raises for values in the memory of the array, which NumPy reads one by one while it writes them."""
    is_shared = isinstance(value, Traced) and views.owner_of(value) is views.owner_of(base) and value.extents
    is_itself = value is base and (key is Ellipsis or (isinstance(key, slice) and key == slice(None)))
    if is_shared and value.value.dtype is base.value.dtype and not (is_itself or isinstance(key, (int, np.integer))):
        raise traced_ops.missing("x.flat[key] = values in the memory of x", "write x.flat[key] = values.copy()")


def _assign(elements: Any, key: Any, values: Any) -> None:
    """Assigns to one element, where NumPy raises ValueError for whatever it does not hold, or casts to several."""
    is_scalar = isinstance(values, np.generic) or (
        isinstance(values, Traced) and values.is_immutable and values.weak is None
    )
    if not isinstance(key, (int, np.integer)):
        if is_scalar:  # cast without a check, as an array is
            array = as_array(values)
            is_cast = not array.value.dtype.is_complex
            values = traced_ops.astype(array, elements.value.dtype, copy=False) if is_cast else array
        assignment.setitem(elements, key, values)
        return
    try:
        assignment.setitem(elements, key, values)
    except (DtypeError, IntegerRangeError) as error:
        raise ScalarError(error.message, hint=error.hint, where=error.where) from None


def _as_arrays(values: Any) -> Any:
    """Returns nested arguments with the elements of each `x.flat` as an array."""
    if isinstance(values, FlatElements):
        return values.copy()
    if isinstance(values, dict):
        return {name: _as_arrays(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)) and type(values) in (list, tuple):
        return type(values)(map(_as_arrays, values))
    return values


def _repeated(elements: Any, key: Any, value: Any) -> Any:
    """Returns assigned values, repeated to the number of elements that a key selects; None if there are no values."""
    is_list = isinstance(value, (list, tuple))
    if isinstance(value, (bool, int, float, complex)) or not (is_list or rank_of(value)):
        return value
    values = shaping.reshape(as_array(assignment.assigned_list(value, elements) if is_list else value), -1)
    if elements.recorder.decide(values.extents[0], "==", 0, "whether values are assigned"):
        return None
    if is_mask(key):
        return spread_under_mask(as_array(key), values)
    selected: Any = assignment.getitem(elements, key)
    if not selected.shape:
        return values[0]
    recorder, count, given = elements.recorder, product(selected.extents), values.extents[0]
    is_one_each = recorder.known(count) == recorder.known(given) and recorder.decide(
        count, "==", given, "whether each element gets a value of its own"
    )
    return shaping.reshape(values if is_one_each else resize(values, selected.size), selected.shape)


def spread_under_mask(mask: Any, values: Any) -> Any:
    """Returns an array of the mask's shape whose k-th masked element is the k-th of `values`, which repeat."""
    flags: Any = traced_ops.astype(shaping.reshape(mask, -1), np.int64)
    positions = (np.cumsum(flags) - 1) % values.shape[0]
    return shaping.reshape(shaping.take(values, apply("maximum", positions, 0), 0), mask.shape)
