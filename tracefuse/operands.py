"""Operands of a row and NumPy's promotion of them.

Knows: rows, promotion, Python's and NumPy's scalars. Must not know: what records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tracefuse import dtypes, source
from tracefuse.dtypes import DType
from tracefuse.errors import DtypeError, ScalarError, TracefuseError
from tracefuse.ir import Literal, Operand, Shape
from tracefuse.ops import REGISTRY, Pointwise

Facts: TypeAlias = Mapping[int, Any]
"""Extent values by negative id and scalar arguments by value number, in one call."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """What an operand is.

    traced: the name, where it is a traced value. read: a host scalar as a function of a call's facts. sized: made of
    sizes alone.
    """

    operand: Operand
    dtype: DType | None
    weak: str | None
    shape: Shape
    traced: Any
    read: Callable[[Facts], Any] | None
    sized: bool


_OF_BOOLS = {"add": "logical_or", "mul": "logical_and", "maximum": "logical_or", "minimum": "logical_and"}
_NOT_OF_BOOLS = {"sub": "use ^ or np.logical_xor", "neg": "use ~ or np.logical_not"}
_BOOLS_AS_INT8 = ("floor_divide", "remainder", "pow")


def numpy_types(row: Pointwise, operands: Sequence[Resolved]) -> tuple[Pointwise, list[DType], list[str]]:
    """The row and the types that take part in promotion; of bools, NumPy's arithmetic is logic or none."""
    strong = [r.dtype for r in operands if r.weak is None and r.dtype is not None]
    weak = [r.weak for r in operands if r.weak is not None]
    if operands and all(d is dtypes.bool_ for d in strong) and all(k == "bool" for k in weak):
        if row.name in _NOT_OF_BOOLS:
            raise DtypeError(f"{row.name} does not take bool", hint=_NOT_OF_BOOLS[row.name])
        if row.name in _OF_BOOLS:
            row = REGISTRY[_OF_BOOLS[row.name]]  # type: ignore[assignment]
        elif row.name in _BOOLS_AS_INT8:
            strong, weak = [dtypes.int8], []
    return row, strong, weak


def check_literals(row: Pointwise, resolved: Sequence[Resolved], compute: DType) -> None:
    """NumPy refuses a Python integer that the other operand's type cannot hold."""
    if not compute.is_integer or row.result in ("dtype", "bool"):
        return
    limits = np.iinfo(compute.name)
    for operand in resolved:
        if isinstance(operand.operand, Literal) and type(operand.operand.value) is int:
            value = operand.operand.value
            if not limits.min <= value <= limits.max:
                raise ScalarError(
                    f"Python integer {value} out of bounds for {compute}",
                    hint="cast the array with astype first", where=source.user_line(),
                )  # fmt: skip


def located_error(
    error: TracefuseError, describe: Callable[[int, Any], str], resolved: Sequence[Resolved], where: str | None
) -> Exception:
    """The error with the operands that it is about and the user's line. describe: names a value."""
    kinds = []
    for operand in resolved:
        if isinstance(operand.operand, int):
            type_name = operand.weak if operand.weak is not None else str(operand.dtype)
            kinds.append(f"{type_name} ({describe(operand.operand, operand.traced)})")
        else:
            kinds.append(repr(operand.operand.value))
    return type(error)(f"{error.message}: operands {', '.join(kinds)}", hint=error.hint, where=where)


def reader_of(
    row: Pointwise, reads: Sequence[Callable[[Facts], Any] | None], compute: DType, result: DType, weak: str | None
) -> Callable[[Facts], Any] | None:
    """The value of a host scalar as a function of a call's facts: the row's NumPy meaning."""
    if any(r is None for r in reads):
        return None
    known = [r for r in reads if r is not None]

    def read(facts: Facts) -> Any:
        with np.errstate(all="ignore"):
            operands = [np.asarray(r(facts)).astype(compute.compute.numpy) for r in known]
            if row.promotion == "where":
                operands[0] = np.asarray(known[0](facts)).astype(np.bool_)
            value = np.asarray(row.numpy(*operands)).astype(result.numpy)
        return value.item() if weak is not None else value[()]

    return read
