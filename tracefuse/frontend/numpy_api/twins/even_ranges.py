"""np.arange of sizes, and of floats that a call passes or computes: the number of elements is a size."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from tracefuse import dtypes
from tracefuse.dtypes import dtype_of
from tracefuse.errors import ShapeError
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.array_ops.traced_ops import iota
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import ceildiv


def are_floats(*values: Any) -> bool:
    """Whether values are integers and floats of Python or of float64, some traced and some floats."""
    kinds = {_kind_of(value) for value in values}
    return kinds in ({"float"}, {"float", "int"}) and any(isinstance(value, Traced) for value in values)


def _kind_of(value: Any) -> str | None:
    if isinstance(value, Traced):
        is_scalar = not value.value.shape and value.value.dtype is dtypes.float64
        return value.weak if value.weak is not None else "float" if is_scalar else None
    return {int: "int", float: "float", np.float64: "float", SymbolicSize: "int"}.get(type(value))


def floats(recorder: Recorder, *bounds: Any) -> Any:
    """Returns start, start + step, ... before stop, as float64. bounds: start, stop and step, which is not zero."""
    numbers: list[Any] = [
        recorder.python_number(bound, "float") if isinstance(bound, Traced) and bound.weak is None else bound
        for bound in bounds
    ]
    start, stop, step = numbers
    length: Any = (stop - start) / step
    count: Any = as_size(math.ceil(length)) if length > 0 else 0
    count = count if isinstance(count, SymbolicSize) else operator.index(count)
    # NumPy steps by the difference of the first two elements.
    return iota(recorder, start * 1.0, (start + step) - start, count, dtypes.float64)


def integers(recorder: Recorder, start: Any, stop: Any, step: Any, dtype: Any) -> Any:
    """start, start + step, ... before stop, of integers and sizes."""
    step = int(step)
    if step == 0:
        raise ShapeError("arange: step 0", hint="give a step that is not 0")
    first, last = recorder.plain(start), recorder.plain(stop)
    distance = last - first if step > 0 else first - last
    count = ceildiv(distance, abs(step)) if recorder.decide(0, "<=", distance, "the length of arange") else 0
    return iota(recorder, start, step, count, dtype_of(dtype))
