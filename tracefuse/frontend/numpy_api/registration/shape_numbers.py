"""Products, sums and extremes of shapes: NumPy integers that stay symbolic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tracefuse import dtypes
from tracefuse.frontend.tracer.array_ops.traced_ops import apply
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, extent_of, largest, smallest


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
