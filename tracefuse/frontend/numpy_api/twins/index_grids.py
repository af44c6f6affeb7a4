"""`np.mgrid`, `np.ogrid`, `np.r_` and `np.c_` while a function is traced, with symbolic bounds and traced parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tracefuse import source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import ShapeError, UnsupportedError
from tracefuse.frontend.numpy_api.arrangement import grids
from tracefuse.frontend.numpy_api.twins.even_ranges import count_of
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.assignment import array_of
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import holds_traced

Line: TypeAlias = Callable[[Recorder, slice], Any]
"""The numbers of a slice: start, start + step, ... before stop; for an imaginary step so many from start to stop."""
Constant: TypeAlias = Callable[[Recorder, Any], Any]
"""An array that depends on nothing traced, as a traced array."""


class _Recorded:
    """Records indexing of one of NumPy's indexed objects, such as np.r_. original: that object."""

    def __init__(self, original: Any, name: str, line: Line, constant: Constant) -> None:
        self.original, self.__name__, self.line, self.constant = original, name, line, constant

    def __getitem__(self, key: Any) -> Any:
        recorder = current.get()
        parts = key if isinstance(key, tuple) else (key,)
        bounds = [(part.start, part.stop, part.step) if isinstance(part, slice) else part for part in parts]
        if recorder is None:
            return self.original[key]
        if not holds_traced(bounds):
            result = self.original[key]
            many = isinstance(result, (tuple, list))
            return (
                type(result)(self.constant(recorder, part) for part in result)
                if many
                else self.constant(recorder, result)
            )
        return self.record(recorder, key)

    def record(self, recorder: Recorder, key: Any) -> Any:
        raise NotImplementedError


class RecordedGrid(_Recorded):
    """np.mgrid or np.ogrid."""

    def record(self, recorder: Recorder, key: Any) -> Any:
        if isinstance(key, slice):
            return _floats(recorder, key) if isinstance(key.step, complex) else self.line(recorder, key)
        for part in key:
            _check_length(part)
        if all(_is_whole(bound) for part in key for bound in _bounds(part)):
            lines = [self.line(recorder, part) for part in key]
        else:
            lines = [_floats(recorder, part) for part in key]
        dtype = np.result_type(*lines)
        rank = len(lines)
        spread = [
            shaping.expand_dims(traced_ops.astype(line, dtype, copy=False), tuple(k for k in range(rank) if k != axis))
            if rank > 1
            else traced_ops.astype(line, dtype, copy=False)
            for axis, line in enumerate(lines)
        ]
        if self.original.sparse:
            return tuple(spread)
        return shaping.stack(np.broadcast_arrays(*spread))


def _bounds(part: slice) -> tuple[Any, Any, Any]:
    return (0 if part.start is None else part.start, part.stop, 1 if part.step is None else part.step)


def _is_whole(bound: Any) -> bool:
    """Whether a bound is an integer or a size."""
    return isinstance(as_size(bound), (int, SymbolicSize))


def _check_length(part: slice) -> None:
    """Raises ShapeError where NumPy finds a negative number of elements."""
    start, stop, step = _bounds(part)
    if not isinstance(step, complex) and not (start - stop < step if step > 0 else start - stop > step):
        raise ShapeError("negative dimensions are not allowed", hint="give a stop in the direction of the step")


def _floats(recorder: Recorder, part: slice) -> Any:
    """Returns 0, 1, ... times the step, plus the start; so many for an imaginary step, the last one being the stop."""
    start, stop, step = _bounds(part)
    if isinstance(step, complex):
        count: Any = int(abs(step))
        step = 1 if count == 1 else (stop - start) / (count - 1)
    else:
        count = count_of(start, stop, step)
    kinds = [0 if isinstance(bound, SymbolicSize) else bound for bound in (start, stop, 1.0)]
    places = traced_ops.iota(recorder, 0, 1, count, dtype_of(np.result_type(*kinds)))
    return grids.stepped(places, step, start)


class RecordedJoin(_Recorded):
    """np.r_ or np.c_."""

    def record(self, recorder: Recorder, key: Any) -> Any:
        parts = list(key) if isinstance(key, tuple) else [key]
        axis, rank, place = (-1, 2, 0) if self.__name__ == "c_" else (0, 1, -1)
        if isinstance(parts[0], str):
            axis, rank, place = _directive(f"np.{self.__name__}", parts.pop(0), (axis, rank, place))
        parts = [self._part(recorder, entry) for entry in parts]
        dtype = np.result_type(*(0 if isinstance(part, SymbolicSize) else part for part in parts))
        arrays: list[Any] = [traced_ops.astype(traced_ops.as_tensor(part), dtype, copy=False) for part in parts]
        return shaping.concatenate([_widened(x, rank, place) for x in arrays], axis)

    def _part(self, recorder: Recorder, part: Any) -> Any:
        if isinstance(part, slice):
            return self.line(recorder, part)
        return array_of(part) if isinstance(part, (list, tuple)) else part


def _directive(name: str, text: str, numbers: tuple[int, int, int]) -> tuple[int, int, int]:
    """The axis, the least rank and the place of the given axes that a text such as "0,2" names."""
    if text in ("r", "c"):
        raise UnsupportedError(
            f"{name} with {text!r} makes a matrix", hint="use np.stack((a, b)) and @", where=source.user_line()
        )
    named = [int(part) for part in text.split(",")]
    return (*named, *numbers[len(named) :])[:3]  # type: ignore[return-value]


def _widened(x: Any, rank: int, place: int) -> Any:
    """An array with at least `rank` axes, its own from `place` on; -1: they are the last."""
    missing = rank - len(x.extents)
    if missing <= 0:
        return x
    first = place + missing + 1 if place < 0 else place
    new_axes = [*range(first), *range(first + len(x.extents), rank)]
    return shaping.expand_dims(x, tuple(new_axes))
