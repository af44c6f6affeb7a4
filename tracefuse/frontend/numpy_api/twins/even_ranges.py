"""np.arange of sizes, and of floats that a call passes or computes: the number of elements is a size."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import dtypes
from tracefuse.dtypes import dtype_of
from tracefuse.frontend.tracer.array_ops.constant_arrays import recorded_constant
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.array_ops.traced_ops import iota
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced
from tracefuse.ir.extents import Extent, ceildiv

_LARGEST = 2**63 - 1


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
    # NumPy steps by the difference of the first two elements.
    return iota(recorder, start * 1.0, (start + step) - start, count_of(start, stop, step), dtypes.float64)


def count_of(start: Any, stop: Any, step: Any) -> Any:
    """Returns how many numbers of start, start + step, ... are before stop: an integer or a size."""
    length: Any = (stop - start) / step
    count: Any = as_size(math.ceil(length)) if length > 0 else 0
    return count if isinstance(count, SymbolicSize) else operator.index(count)


def between_ends(original: Callable[..., Any], of_traced: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of two ends and a number of elements, which records where one of them is traced."""

    def call(recorder: Recorder, *arguments: Any, **keywords: Any) -> Any:
        if holds_traced((arguments, keywords)):
            return of_traced(*arguments, **keywords)
        return recorded_constant(recorder, original(*arguments, **keywords))

    return call


def integers(recorder: Recorder, start: Any, stop: Any, step: Any, dtype: Any = None) -> Any:
    """start, start + step, ... before stop, of integers and sizes; step is not 0. dtype None: int64."""
    first, last, by = recorder.plain(start), recorder.plain(stop), recorder.plain(step)
    if recorder.counts_in(by):
        by = recorder.pin(by, "the step of np.arange")
    is_upward = recorder.decide(1, "<=", by, "the sign of the step of np.arange")
    distance, size = (last - first, by) if is_upward else (first - last, -by)
    reason = "the length of np.arange"
    count: Extent = int(recorder.decide(int(not isinstance(size, int)), "<=", distance, reason))
    if isinstance(size, int) or (count and recorder.decide(size, "<=", distance, reason)):
        count = ceildiv(distance, size) if count else 0
    elif recorder.decide(size, "<=", _LARGEST, "the type of np.arange"):
        step = 1
    else:  # of a step that int64 does not hold, NumPy's type is another one
        return recorded_constant(recorder, np.arange(int(start), int(stop), int(step), dtype=dtype))
    return iota(recorder, start, step, count, dtypes.int64 if dtype is None else dtype_of(dtype))
