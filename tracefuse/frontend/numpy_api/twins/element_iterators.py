"""`np.nditer` and `np.ndenumerate` of traced arrays: the elements one by one, at positions that the trace knows.

The sizes and strides of the operands are guarded. An iterator of NumPy over arrays of these sizes and strides, which
have no elements of their own, decides the order, tracks positions and checks flags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from tracefuse import source
from tracefuse.errors import ShapeError, UnsupportedError
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.constant_arrays import recorded_constant
from tracefuse.frontend.tracer.array_ops.traced_ops import as_array
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced
from tracefuse.ir.fusion import Shape

_WRITES = frozenset({"readwrite", "writeonly"})
_READ_FROM_ITERATOR = (
    "finished", "has_index", "has_multi_index", "index", "iterindex", "itersize", "iterrange", "multi_index", "ndim",
    "nop", "shape",
)  # fmt: skip
_ORDER = "the order of elements in memory"
_HINT = "write the function on whole arrays, with np.where for its cases"


def ndenumerate(recorder: Recorder, arr: Any) -> Any:
    """Pairs of positions and elements, in row-major order; the sizes are guarded."""
    if not isinstance(arr, Traced):
        return np.ndenumerate(arr)
    shape = tuple(recorder.pin(extent, "np.ndenumerate") for extent in arr.extents)
    return ((place, shaping.getitem(arr, place)) for place in np.ndindex(shape))


def flags_of_each(op_flags: Any, count: int) -> list[Sequence[str]]:
    """The flags of each operand. op_flags: those of all operands, a list for each, or None."""
    if not op_flags:
        return [()] * count
    return [op_flags] * count if isinstance(op_flags[0], str) else list(op_flags)


def writes_of(op_flags: Any, operands: Sequence[Any]) -> list[bool]:
    """Whether the elements of each operand can be written."""
    return [
        one is None if op_flags is None else not _WRITES.isdisjoint(own)
        for one, own in zip(operands, flags_of_each(op_flags, len(operands)), strict=True)
    ]


class ElementIterator:
    """The iterator of `np.nditer` over traced arrays.

    operands: those given, and new arrays for each None. Each element is a view of its operand; it can be written where
    the flags of the operand say so.
    """

    def __init__(
        self, recorder: Recorder, operands: Sequence[Any], flags: frozenset[str], op_flags: Any, order: str
    ) -> None:
        self._recorder, self._body, self._flags = recorder, recorder.body, flags
        given = [None if one is None else operand_of_iterator(recorder, one) for one in operands]
        stand_ins = [None if one is None else _without_elements(recorder, one) for one in given]
        more: dict[str, Any] = {} if op_flags is None else {"op_flags": op_flags}
        make: Any = np.nditer
        try:
            self._positions = make(stand_ins, [*{*flags, "multi_index"}], order=order, **more)
        except ValueError as error:
            raise ShapeError(str(error), hint="iterate over x.flat", where=source.user_line()) from None
        self.operands = tuple(
            _new_array(recorder, made) if one is None else one
            for one, made in zip(given, self._positions.operands, strict=True)
        )
        self._writes = writes_of(op_flags, operands)
        self._is_at_start = True

    def __getattr__(self, name: str) -> Any:
        if name not in _READ_FROM_ITERATOR:
            raise traced_ops.missing(f"np.nditer.{name}", _HINT)
        if name in ("multi_index", "has_multi_index") and "multi_index" not in self._flags:
            if name == "has_multi_index":
                return False
            raise ValueError("Iterator is not tracking a multi-index")
        return getattr(self._positions, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("multi_index", "index", "iterindex"):
            self._move()
            setattr(self._positions, name, value)
        else:
            object.__setattr__(self, name, value)

    @property
    def value(self) -> Any:
        """The current element of each operand; of one operand, the element itself."""
        values = tuple(self[k] for k in range(len(self.operands)))
        return values if len(values) > 1 else values[0]

    def __getitem__(self, k: int) -> Any:
        operand = self.operands[k]
        place = self._positions.multi_index
        inner = place[len(place) - len(operand.extents) :]
        key = [0 if extent == 1 else index for index, extent in zip(inner, operand.extents, strict=True)]
        element = shaping.getitem(operand, (*key, ...))
        if not self._writes[k]:
            element.read_only = "an element of np.nditer"
        return element

    def __setitem__(self, k: int, value: Any) -> None:
        self[k][...] = value

    def __len__(self) -> int:
        return len(self.operands)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._move()
        if not self._is_at_start and not self._positions.iternext():
            raise StopIteration
        if self._positions.finished:
            raise StopIteration
        self._is_at_start = False
        return self.value

    def iternext(self) -> bool:
        """Goes on by one element; returns whether there is one."""
        self._move()
        self._is_at_start = False
        return bool(self._positions.iternext())

    def reset(self) -> None:
        """Goes back to the first element."""
        self._move()
        self._is_at_start = True
        self._positions.reset()

    def close(self) -> None:
        """Writes have happened at once; nothing is left to do."""

    def __enter__(self) -> ElementIterator:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _move(self) -> None:
        """Raises where a body that is recorded once for many steps would move the iterator once."""
        if self._recorder.body is self._body:
            return
        if self._recorder.loops.open:
            raise NotInEveryIteration("an iteration moves an np.nditer")
        _refuse_in_body()


def _refuse_in_body() -> NoReturn:
    raise UnsupportedError(
        "an np.nditer moves inside a body that is recorded once for all steps", hint=_HINT, where=source.user_line()
    )


def operand_of_iterator(recorder: Recorder, value: Any) -> Any:
    """An operand as a traced array."""
    return as_array(value) if holds_traced(value) else recorded_constant(recorder, np.asarray(value))


def _without_elements(recorder: Recorder, operand: Any) -> Any:
    """An array of NumPy with the type and the sizes of a traced one, and strides in the same order, without memory."""
    shape = tuple(recorder.pin(extent, "np.nditer") for extent in operand.extents)
    one = np.empty(1, operand.dtype)
    strides = [one.itemsize * stride for stride in _ranked(recorder, views.strides_of(operand))]
    return np.lib.stride_tricks.as_strided(one, shape, strides)


def _ranked(recorder: Recorder, strides: Shape) -> list[int]:
    """Strides with the signs and the order of these, which is all that decides the order of elements."""
    signs = [
        0 if recorder.decide(stride, "==", 0, _ORDER) else 1 if recorder.decide(0, "<=", stride, _ORDER) else -1
        for stride in strides
    ]
    sizes = [sign * stride for sign, stride in zip(signs, strides, strict=True)]
    return [
        sign * (1 + sum(not recorder.decide(size, "<=", other, _ORDER) for other in sizes))
        for sign, size in zip(signs, sizes, strict=True)
    ]


def _new_array(recorder: Recorder, made: Any) -> Any:
    """An array of zeros for an operand that NumPy allocates."""
    return recorded_constant(recorder, np.zeros(made.shape, made.dtype))
