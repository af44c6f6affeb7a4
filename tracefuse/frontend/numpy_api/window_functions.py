"""NumPy's window functions of a size, and the products and extremes of shapes, which stay symbolic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tracefuse import dtypes
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, iota
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, extent_of, largest, smallest


def _cosines(*factors: float) -> Callable[..., Any]:
    """A window that is the sum of factors times cosines of 0, 1, ... half turns from end to end."""

    def window(recorder: Recorder, count: Any) -> Any:
        places = iota(recorder, 1 - count, 2, count, dtypes.float64)
        total: Any = factors[0]
        for turns, factor in enumerate(factors[1:], 1):
            total = total + factor * np.cos(turns * math.pi * places / (count - 1))
        return total

    return window


def _triangle(recorder: Recorder, count: Any) -> Any:
    places = iota(recorder, 1 - count, 2, count, dtypes.float64)
    return np.where(places <= 0, 1 + places / (count - 1), 1 - places / (count - 1))


def _bessel(recorder: Recorder, count: Any, beta: Any) -> Any:
    middle = (count - 1) / 2.0
    places = iota(recorder, 0, 1, count, dtypes.float64)
    return np.i0(beta * np.sqrt(1 - ((places - middle) / middle) ** 2.0)) / np.i0(beta)


WINDOWS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    np.hanning: _cosines(0.5, 0.5), np.hamming: _cosines(0.54, 0.46), np.blackman: _cosines(0.42, 0.5, 0.08),
    np.bartlett: _triangle, np.kaiser: _bessel,
}  # fmt: skip
"""What records each window of more than one element."""


def _joined(values: list[Any], join: Callable[[Any, Any], Any]) -> Any:
    result = values[0]
    for value in values[1:]:
        result = join(result, value)
    return result


def of_sizes(function: Callable[..., Any], recorder: Recorder, values: Any) -> Any:
    """Returns the result of a function of `REDUCTIONS` for a shape, as a NumPy integer; None if it is no shape."""
    if type(values) not in (tuple, list) or not any(isinstance(value, SymbolicSize) for value in values):
        return None
    if any(isinstance(value, bool) or extent_of(value) is None for value in values):
        return None
    extent = extent_of(_joined(list(values), lambda a, b: REDUCTIONS[function](recorder, a, b)))
    if extent is None or isinstance(extent, int):
        return None
    size = recorder.scalar(extent)
    read = apply("cast", size, dtype=dtypes.int64).read  # a scalar of NumPy, with the extent of the size
    return recorder.traced_type(recorder, size.number, None, read)


REDUCTIONS: Mapping[Callable[..., Any], Callable[[Any, Any, Any], Any]] = {
    np.prod: lambda recorder, a, b: a * b, np.sum: lambda recorder, a, b: a + b,
    np.max: lambda recorder, a, b: largest(a, b, recorder), np.min: lambda recorder, a, b: smallest(a, b, recorder),
}  # fmt: skip
"""Reductions whose result for a shape is a size."""
