"""`np.nditer` with the flag external_loop, and `np.broadcast`, of traced arrays.

An iterator of NumPy over arrays of positions, which have the sizes and the strides of the operands, tells which
elements each inner loop has. They are a slice of the elements of an operand or of its transpose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import ScalarError, ShapeError
from tracefuse.frontend.numpy_api.arrangement.shapes import broadcast_arrays
from tracefuse.frontend.numpy_api.registration.array_memory import known_stride
from tracefuse.frontend.numpy_api.twins.element_iterators import (
    ElementIterator,
    flags_of_each,
    operand_of_iterator,
    writes_of,
)
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced
from tracefuse.ir.extents import product

FLAG = "external_loop"
_FLAGS = frozenset({"multi_index", "c_index", "f_index", "refs_ok", "zerosize_ok", FLAG})
_OPERAND_FLAGS = frozenset({"readonly", "readwrite", "writeonly", "allocate", "no_broadcast"})
"""The flags with which NumPy makes no copy of an operand."""
_HINT = "iterate over the rows, or write the function on whole arrays"


def nditer(
    recorder: Recorder, op: Any, flags: Any = None, op_flags: Any = None, op_dtypes: Any = None, order: str = "K",
    *others: Any, **more: Any,
) -> Any:  # fmt: skip
    """An iterator over the elements of arrays that are broadcast together, as views: without axes, or with one each."""
    operands = list(op) if isinstance(op, list | tuple) else [op]
    if not any(isinstance(operand, Traced) for operand in operands):
        make: Any = np.nditer
        return make(op, flags, op_flags, op_dtypes, order, *others, **more)
    if isinstance(flags, str):
        raise ScalarError(
            "Iterator global flags must be a list or tuple of strings", hint=f"give [{flags!r}]",
            where=source.user_line(),
        )  # fmt: skip
    given, of_operands = frozenset(flags or ()), flags_of_each(op_flags, len(operands))
    others_given = sorted((given - _FLAGS).union(*of_operands) - _OPERAND_FLAGS)
    if op_dtypes is not None or others or more or others_given:
        names = [*others_given, *more, *(("op_dtypes",) if op_dtypes is not None else ())]
        raise traced_ops.missing(f"np.nditer with {', '.join(names) or 'more arguments'}", _HINT)
    make_iterator = InnerLoopIterator if FLAG in given else ElementIterator
    return make_iterator(recorder, operands, given, op_flags, order)


class InnerLoopIterator(ElementIterator):
    """The iterator of `np.nditer` with external_loop: arrays of the elements of each inner loop, as views."""

    def __init__(
        self, recorder: Recorder, operands: Sequence[Any], flags: frozenset[str], op_flags: Any, order: str
    ) -> None:
        self._recorder, self._body, self._flags = recorder, recorder.body, flags
        if any(one is None for one in operands):
            raise traced_ops.missing(f"np.nditer with {FLAG} and operands that it allocates", _HINT)
        self.operands = tuple(operand_of_iterator(recorder, one) for one in operands)
        more: dict[str, Any] = {} if op_flags is None else {"op_flags": op_flags}
        make: Any = np.nditer
        places = [_positions(recorder, one) for one in self.operands]
        try:
            self._positions = make(places, [*flags], order=order, **more)
        except ValueError as error:
            raise ShapeError(str(error), hint=_HINT, where=source.user_line()) from None
        chunks = [value if isinstance(value, tuple) else (value,) for value in self._positions.copy()]
        orders = [np.concatenate([np.copy(chunk) for chunk in of_one]) for of_one in zip(*chunks, strict=True)]
        self._arranged = list(map(_arranged, self.operands, places, orders or [np.arange(0)] * len(places)))
        self._writes = writes_of(op_flags, operands)
        self._is_at_start = True

    def __getitem__(self, k: int) -> Any:
        elements = _slice_of(*self._arranged[k], self._positions[k])
        if elements is None:
            raise traced_ops.missing(f"np.nditer with {FLAG} over elements in this order", _HINT)
        if not self._writes[k]:
            elements.read_only = "an inner loop of np.nditer"
        return elements


def _arranged(operand: Any, places: Any, order: Any) -> tuple[Any, Any]:
    """An operand with its axes in the order in which they are visited, and the position there of each place.

    places: an array of the row-major positions. order: the positions, in the order of the iterator.
    """
    if not order.size:
        return operand, np.arange(0)
    indices = np.unravel_index(order, places.shape) if places.ndim else ()
    first_moves = [np.argmax(index != index[0]) or order.size for index in indices]
    axes = sorted(range(places.ndim), key=lambda axis: -first_moves[axis])
    key = tuple(slice(None, None, -1 if index[0] else None) for index in indices)
    rows = np.arange(places.size).reshape(places.shape)[key].transpose(axes)
    positions = np.empty(places.size, np.int64)
    positions[rows.ravel()] = np.arange(places.size)
    return shaping.transpose(shaping.getitem(operand, key), axes) if axes else operand, positions


def _slice_of(array: Any, positions: Any, places: Any) -> Any:
    """The elements of an arranged operand at row-major positions of the operand, as a view; None for no slice."""
    elements: Any = views.flat_view(array)
    within, count = positions[places], len(places)
    first, step = int(within[0]), int(within[1] - within[0]) if count > 1 else 1
    if step < 0 or not (np.diff(within) == step).all():
        return None
    if not step:  # an operand that is broadcast
        return shaping.broadcast_to(elements[first : first + 1], (count,))
    return elements[first : first + step * count : step]


def _positions(recorder: Recorder, operand: Any) -> Any:
    """An array of row-major positions with the sizes and the strides of an operand."""
    operand.settle()
    shape = tuple(recorder.pin(extent, "np.nditer") for extent in operand.extents)
    strides = [
        0 if extent == 1 else recorder.pin(known_stride(operand, stride), "np.nditer")
        for extent, stride in zip(shape, views.strides_of(operand), strict=True)
    ]
    if any(not stride and extent > 1 for extent, stride in zip(shape, strides, strict=True)):
        raise traced_ops.missing(f"np.nditer with {FLAG} of a broadcast array", "copy the array first: x.copy()")
    reach = [stride * (extent - 1) for extent, stride in zip(shape, strides, strict=True) if extent > 1]
    lowest = sum(step for step in reach if step < 0)
    memory = np.empty(1 + sum(map(abs, reach)), np.int64)
    array = np.lib.stride_tricks.as_strided(memory[-lowest:], shape, [8 * stride for stride in strides])
    array[...] = np.arange(array.size).reshape(shape)
    return array


class BroadcastElements:
    """The object of `np.broadcast` over traced arrays: the common shape, and tuples of their elements in order."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._arrays = broadcast_arrays(*arrays)
        self.shape, self.ndim = self._arrays[0].shape, len(self._arrays[0].extents)
        self.nd, self.numiter = self.ndim, len(self._arrays)
        self.index = 0

    @property
    def size(self) -> Any:
        first = self._arrays[0]
        return first.recorder.sizes((product(first.extents),))[0]

    def reset(self) -> None:
        """Goes back to the first elements."""
        self.index = 0

    def __getattr__(self, name: str) -> Any:
        raise traced_ops.missing(f"np.broadcast.{name}", "use np.broadcast_arrays(a, b)")

    def __iter__(self) -> BroadcastElements:
        return self

    def __next__(self) -> Any:
        recorder = self._arrays[0].recorder
        shape = tuple(recorder.pin(extent, "np.broadcast") for extent in self._arrays[0].extents)
        if self.index >= math.prod(shape):
            raise StopIteration
        place = tuple(map(int, np.unravel_index(self.index, shape))) if shape else ()
        self.index += 1
        return tuple(shaping.getitem(array, place) for array in self._arrays)


def broadcast(recorder: Recorder, *arrays: Any) -> Any:
    """An object with the shape and the elements of arrays that are broadcast together."""
    if not any(isinstance(one, Traced) or holds_traced(one) for one in arrays):
        return np.broadcast(*arrays)
    return BroadcastElements([operand_of_iterator(recorder, one) for one in arrays])
