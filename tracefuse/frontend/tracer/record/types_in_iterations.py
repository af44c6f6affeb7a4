"""Types of results of ops whose operands are numbers of Python in some iterations of a recorded loop.

Must not know: overlays of values.
"""

from __future__ import annotations

from collections.abc import Sequence

from segments.lazy_dataclasses import replace
from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.values.operands import Resolved, literal, numpy_types
from tracefuse.ops import Pointwise


def types_in_iterations(op: Pointwise, operands: Sequence[Resolved]) -> tuple[Pointwise, DType, DType]:
    """Returns the op with NumPy's compute and result types for the ufunc, as `numpy_types`.

    Raises NotInEveryIteration if the result has another type where operands are numbers of Python.
    """
    types = numpy_types(op, operands)
    if any(map(_is_mixed, operands)) and types != numpy_types(op, _as_numbers(operands)):
        raise NotInEveryIteration("a variable is a number of Python in some iterations, and changes types in others")
    return types


def _is_mixed(one: Resolved) -> bool:
    return one.traced is not None and one.traced.number_where is not None


def _as_numbers(operands: Sequence[Resolved]) -> list[Resolved]:
    """Returns operands as they are in iterations in which all that may be numbers of Python are."""
    is_weak = any(one.weak is None and not _is_mixed(one) for one in operands)
    result = []
    for one in operands:
        if _is_mixed(one):
            kind = one.traced.number_where.kind
            number = literal(dtypes.PYTHON_TYPES[kind](0))
            result.append(number if is_weak else replace(number, dtype=dtypes.NUMPY_TYPES[kind], weak=None))
        else:
            result.append(one)
    return result
