"""Numbers of Python as elements of a type: NumPy converts them when it assigns them, and as initial values.

An integer must be in range, a number for an integer type must be finite, and a complex one needs a complex type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import DType
from tracefuse.errors import DtypeError, IntegerRangeError, ScalarError, ShapeError
from tracefuse.frontend.tracer.record.assumptions import ScalarGuard
from tracefuse.frontend.tracer.record.computed_numbers import checked_operand, in_range, is_computed
from tracefuse.frontend.tracer.values.host_numbers import HeldNumber
from tracefuse.frontend.tracer.values.nested_lists import leaves_of
from tracefuse.frontend.tracer.values.operands import RANGE, Resolved, check_range, literal
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, rank_of
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ops import Pointwise


def number_in(value: complex, dtype: DType, recorder: Any) -> Any:
    """Converts a Python number to an element of a type, as NumPy's assignment does.

    Raises DtypeError for a complex number in a real type, IntegerRangeError and ScalarError for what an integer type
    does not hold.
    """
    check_is_real(value, dtype)
    if dtype.is_integer and isinstance(value, float):
        if not math.isfinite(value):
            kind = ScalarError if math.isnan(value) else IntegerRangeError
            raise kind(f"cannot convert float {value} to {dtype}", hint="assign a finite number",
                       where=source.user_line())  # fmt: skip
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        check_range(literal(value), dtype, recorder)
    return bool(value) if dtype.kind == "bool" else value


def without_none(value: Any, dtype: DType) -> Any:
    """Returns what NumPy makes of None as an element: NaN, or False. Raises DtypeError where that is an integer."""
    if value is not None:
        return value
    if dtype.is_integer:
        text = "int() argument must be a string, a bytes-like object or a real number, not 'NoneType'"
        raise DtypeError(text, hint="give a number", where=source.user_line())
    return False if dtype.kind == "bool" else complex(math.nan, math.nan) if dtype.is_complex else math.nan


def check_is_real(value: Any, dtype: DType) -> None:
    """Raises DtypeError for a complex number of Python, also a computed one, as an element of a real type."""
    is_complex = isinstance(value, complex) and not isinstance(value, np.generic)
    is_complex |= isinstance(value, Traced) and value.weak == "complex"
    if is_complex and not dtype.is_complex and dtype.kind != "bool":
        message = f"a complex number is assigned to an element of type {dtype}"
        raise DtypeError(message, hint="assign z.real", where=source.user_line())


def is_number(value: Any) -> bool:
    """Whether a value is a number of Python: known, computed from sizes, or one that a call passes."""
    if isinstance(value, Traced):
        return value.weak is not None and value.on_host
    if isinstance(value, SymbolicSize):
        return True
    return isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)


def host_number_in(value: Traced, dtype: DType) -> Traced:
    """Returns a number of Python that a call passes, checked as `number_in` does: guards whether the type holds it."""
    recorder = value.recorder
    check_is_real(value, dtype)
    if value.weak == "float" and dtype.is_integer and not _is_finite(value):
        number_in(_read(value), dtype, recorder)
    if value.weak == "int" or (value.weak == "float" and dtype.is_integer and not _is_held(value, dtype)):
        check_range(recorder.resolve(value if value.weak == "int" else int(_read(value))), dtype, recorder)
    return value


def checked_entries(values: Any, dtype: DType, recorder: Any) -> Any:
    """Returns nested lists whose numbers become elements of a type. Raises for a number that it does not hold."""
    computed: dict[int, Any] = {}
    in_list = isinstance(values, (list, tuple))  # NumPy casts a scalar of its own that is no entry of one
    for value in leaves_of(values):
        if isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic):
            number_in(value, dtype, recorder)
        elif value is None:
            computed[id(value)] = without_none(value, dtype)
        else:
            entry = scalar_in(value, dtype, recorder) if in_list else value
            checked = checked_number(entry, dtype, recorder)
            if checked is not value:
                computed[id(value)] = checked
    return _replaced(values, computed) if computed else values


def _replaced(values: Any, others: Mapping[int, Any]) -> Any:
    """Returns nested lists with other leaves, by the ids of those before."""
    if not isinstance(values, (list, tuple)):
        return others.get(id(values), values)
    return [_replaced(value, others) for value in values]


def checked_number(value: Any, dtype: DType, recorder: Any) -> Any:
    """Returns a value. Raises as `number_in` does if it is a number of Python that a call passes."""
    check_is_real(value, dtype)
    if isinstance(value, SymbolicSize):
        number = recorder.resolve(value)
        check_range(number, dtype, recorder)
        return in_range(number.traced, dtype, casts_scalars=True) if is_computed(number.traced) else value
    if isinstance(value, Traced) and is_number(value):
        return host_number_in(value, dtype)
    return in_range(value, dtype, casts_scalars=True) if is_computed(value) else value


def scalar_in(value: Any, dtype: DType, recorder: Any) -> Any:
    """Returns a value that NumPy assigns to elements; a NumPy scalar is an error if a signed type does not hold it.

    NumPy casts them to unsigned types without a check.
    """
    if dtype.kind != "int":
        return value
    if isinstance(value, Traced) and value.read is not None and value.on_host:
        if np.can_cast(value.value.dtype.numpy, dtype.numpy) or (_is_finite(value) and _is_held(value, dtype)):
            return value
        number_of_call = value.value.dtype.numpy.type(_read(value))
    else:
        number_of_call = value
    if isinstance(number_of_call, np.generic):
        number = number_of_call.item()
        number_in(number.real if isinstance(number, complex) else number, dtype, recorder)
    is_scalar = is_computed(value) and value.weak is None
    return in_range(value, dtype, casts_scalars=False) if is_scalar else value


def check_has_no_axes(value: Any, dtype: DType) -> None:
    """Raises for an array or a list as the value of one element. NumPy takes one truth value from it for bools."""
    is_list = isinstance(value, (list, tuple))
    if dtype.kind == "bool" or not (is_list or rank_of(value)):
        return
    is_of_type = dtype.is_complex or (is_list and dtype.is_integer)
    kind = DtypeError if is_of_type else ShapeError
    raise kind(
        f"setting one element of type {dtype} to {'a list' if is_list else 'an array with axes'}",
        hint="assign one number, as value[0]", where=source.user_line(),
    )  # fmt: skip


def read_where_outside(op: Pointwise, operands: Sequence[Resolved], dtype: DType, recorder: Any) -> Sequence[Resolved]:
    """Returns the operands of an op, with Python integers that a call passes and the integer type does not hold read.

    An integer whose extent is known is a question about sizes instead.
    """
    is_free = op.result == "dtype" or op.promotion == "where" or all(r.weak is not None for r in operands)
    if is_free or not dtype.is_integer:
        return operands

    def is_outside(operand: Resolved) -> bool:
        value = operand.traced
        if operand.weak != "int" or operand.read is None or value is None or value.value.extent is not None:
            return False
        key = (value.number, dtype)
        if key not in recorder.held_numbers:
            recorder.held_numbers[key] = bool(value.on_host) and _is_held(value, dtype)
        return not recorder.held_numbers[key]

    return [
        literal(int(recorder.value_of(r.traced, RANGE)), sized=False) if is_outside(r)
        else checked_operand(r, dtype, recorder) for r in operands
    ]  # fmt: skip


def _read(value: Traced) -> Any:
    """Returns the number of this call, as a number of Python."""
    assert value.read is not None
    number = value.read(value.recorder.hints)
    return number.item() if isinstance(number, np.generic) else number


def _is_finite(value: Traced) -> bool:
    return _guarded(value, HeldNumber(value.read, -np.inf, np.inf))  # type: ignore[arg-type]


def _is_held(value: Traced, dtype: DType) -> bool:
    """Whether an integer type holds a finite number that a call passes, cut off to an integer."""
    limits = np.iinfo(dtype.name)
    return _guarded(value, HeldNumber(value.read, int(limits.min) - 1, int(limits.max) + 1))  # type: ignore[arg-type]


def _guarded(value: Traced, outcome: HeldNumber) -> bool:
    recorder = value.recorder
    result = bool(outcome(recorder.hints))
    reason = "whether an integer type holds an assigned number"
    recorder.scalar_guards.append(ScalarGuard(outcome, result, reason, source.user_line()))
    return result
