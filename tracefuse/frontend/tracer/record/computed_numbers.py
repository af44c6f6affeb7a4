"""Numbers that a call computes where NumPy would convert a number of Python, or a scalar, to an integer type.

NumPy raises OverflowError for a number that the type does not hold. Kernels on the CPU check it. A comparison with an
integer of Python is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from segments.lazy_dataclasses import replace
from tracefuse import source
from tracefuse.dtypes import DType, float32, int64
from tracefuse.errors import IntegerRangeError
from tracefuse.frontend.tracer.values.operands import Resolved
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ops import REGISTRY, Pointwise


def is_computed(value: Any) -> bool:
    """Whether a value is a number of Python or a scalar of NumPy that a call computes."""
    if not isinstance(value, Traced) or value.value.shape or (value.on_host and value.read is not None):
        return False
    return value.weak is not None or value.is_immutable


def in_range(value: Traced, dtype: DType, *, casts_scalars: bool) -> Traced:
    """Returns a computed number, cut off to an integer, that is an error if the integer type does not hold it.

    casts_scalars: whether NumPy casts its own scalars without a check.
    """
    own = value.value.dtype
    if not dtype.is_integer or own.kind == "bool" or np.can_cast(own.numpy, dtype.numpy):
        return value
    where = value.number_where if casts_scalars else None
    if casts_scalars and where is None and value.weak is None:
        return value
    if own.is_complex:
        value, own = _record(value, "real"), own.real
    checked = value if where is None else _record(where.condition, "where", value, 0)
    if own.is_half:
        checked = _record(checked, "cast", dtype=float32)
    if own.kind == "float":
        checked = _record(checked, "trunc")
    low, high = _limits(own, dtype)
    if value.recorder.body is None and value.recorder.builder.may_be_caught():
        if not _record(_record(checked, "ge", low), "logical_and", _record(checked, "le", high)):  # asks for it
            raise IntegerRangeError(f"a computed number is out of bounds for {dtype}",
                                    hint="assign to an array of a wider type", where=source.user_line())  # fmt: skip
    else:
        checked = _record(checked, "checked_range", low, high)
    return checked if where is None else _record(where.condition, "where", checked, value)


def _limits(own: DType, dtype: DType) -> tuple[Any, Any]:
    """Returns the least and the largest number of a type that an integer type holds."""
    limits = np.iinfo(dtype.name)
    if own.kind != "float":
        return max(int(limits.min), int(np.iinfo(own.name).min)), min(int(limits.max), int(np.iinfo(own.name).max))
    kind = np.float64 if own.itemsize == 8 else np.float32
    high = kind(limits.max)
    return float(kind(limits.min)), float(high if int(high) <= limits.max else np.nextafter(high, kind(0)))


def _record(value: Any, name: str, *others: Any, **attributes: Any) -> Traced:
    op = REGISTRY[name]
    assert isinstance(op, Pointwise)
    result: Traced = value.recorder.pointwise(op, [value, *others], **attributes)
    return result


def checked_operand(operand: Resolved, dtype: DType, recorder: Any) -> Resolved:
    """Returns an operand of an op in an integer type; a computed integer of Python is checked."""
    value = operand.traced
    if operand.weak != "int" or dtype is int64 or not is_computed(value):
        return operand
    resolved: Resolved = recorder.resolve(in_range(value, dtype, casts_scalars=True))
    return resolved


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def compared_exactly(op: Pointwise, operands: Sequence[Resolved]) -> Sequence[Resolved]:
    """Returns the operands of an op. A computed integer of Python is compared with other integers as an int64."""
    if op.name not in _COMPARISONS or not any(
        r.weak is None and r.dtype is not None and r.dtype.is_integer for r in operands
    ):
        return operands
    return [replace(r, weak=None) if r.weak == "int" and is_computed(r.traced) else r for r in operands]
