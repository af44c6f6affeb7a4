"""The types in which NumPy computes a ufunc, and the types that it rejects, by NumPy's own resolution.

NumPy does not know bfloat16, so float16 takes its place in the resolution: Python numbers promote both alike.

Must not know: ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import DType, bfloat16, dtype_of, float16, float32
from tracefuse.errors import DtypeError

_PYTHON: dict[str, Any] = {"bool": np.dtype(np.bool_), "int": int, "float": float, "complex": complex}


def loop_types(
    ufunc: np.ufunc, operands: Sequence[tuple[DType | None, str | None]], outputs: Sequence[DType | None] = (), *,
    signature: Sequence[DType | None] | None = None, casting: str = "same_kind",
) -> list[DType]:  # fmt: skip
    """Returns the types of operands and results in the loop that NumPy selects.

    operands: the type and, for a Python number, its kind. outputs: the types of the arrays of `out=`. signature:
    types that the caller specifies, of operands and results. Raises DtypeError if NumPy raises a TypeError.
    """
    outputs = [*outputs, *[None] * (ufunc.nout - len(outputs))]
    named = [*(d for d, weak in operands if weak is None), *outputs, *(signature or ())]
    stand_in = float32 if float16 in named else float16
    places = {bfloat16: stand_in.numpy} if bfloat16 in named else {}

    def of_numpy(dtype: DType | None) -> Any:
        return None if dtype is None else places.get(dtype, dtype.numpy)

    if operands and all(weak is not None for _, weak in operands):  # NumPy makes arrays of numbers of Python alone
        operand_types = [np.dtype(_PYTHON[weak or ""]) for _, weak in operands]
    else:
        operand_types = [_PYTHON[weak] if weak is not None else of_numpy(dtype) for dtype, weak in operands]
    more = {} if signature is None else {"signature": tuple(map(of_numpy, signature))}
    try:
        if casting == "equiv" and any(weak is not None for _, weak in operands):
            _call_without_elements(ufunc, operand_types, [of_numpy(output) for output in outputs], more)
        resolved = ufunc.resolve_dtypes((*operand_types, *map(of_numpy, outputs)), casting=casting, **more)  # type: ignore[arg-type]
    except TypeError as error:
        reason = _reason(ufunc, operands, error)
        raise DtypeError(reason, hint=_hint(ufunc, operands, reason), where=source.user_line()) from None
    types = [dtype_of(d) for d in resolved]
    return [bfloat16 if places and d is stand_in and stand_in is float16 else d for d in types]


def check_reduction(ufunc: np.ufunc, operand: DType, result: DType) -> None:
    """Raises DtypeError if NumPy reduces no array of a type to a result of another."""
    types = [(float32 if dtype is bfloat16 else dtype).numpy for dtype in (operand, result)]
    try:
        ufunc.resolve_dtypes((None, types[0], None), signature=(types[1], None, None), casting="unsafe", reduction=True)
    except TypeError as error:
        reason = _reason(ufunc, [(operand, None)], error)
        hint = _hint(ufunc, [(operand, None)], reason)
        raise DtypeError(f"{reason} to a result of {result}", hint=hint, where=source.user_line()) from None


def _call_without_elements(
    ufunc: np.ufunc, operand_types: Sequence[Any], outputs: Sequence[Any], more: dict[str, Any]
) -> None:
    """Raises the TypeError of a call with casting="equiv": NumPy's resolve_dtypes ends the process with an error."""
    operands = [kind(1) if isinstance(kind, type) else np.empty(0, kind) for kind in operand_types]
    arrays = tuple(None if dtype is None else np.empty(0, dtype) for dtype in outputs)
    ufunc(*operands, out=arrays, casting="equiv", **more)


_INSTEAD = {np.subtract: "use ^ or np.logical_xor", np.negative: "use ~ or np.logical_not"}
"""What to write with truth values."""


def _reason(ufunc: np.ufunc, operands: Sequence[tuple[DType | None, str | None]], error: TypeError) -> str:
    text = " ".join(str(error).split())
    if text.startswith("Cannot cast"):
        return text
    kinds = " and ".join(weak or str(dtype) for dtype, weak in operands)
    return f"{ufunc.__name__} does not take {kinds}"


def _hint(ufunc: np.ufunc, operands: Sequence[tuple[DType | None, str | None]], reason: str) -> str:
    kinds = {weak or str(dtype and dtype.kind) for dtype, weak in operands}
    if reason.startswith("Cannot cast"):
        return "cast the operands with astype first, or the result"
    if "complex" in kinds:
        return "complex numbers have no order, and some functions are not defined on them; use abs(x), x.real or x.imag"
    if "bool" in kinds:
        return _INSTEAD.get(ufunc, "cast the truth values with astype(int)")
    return "cast the operands with astype first"
