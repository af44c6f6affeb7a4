"""The initial values of reductions: how they are joined with the elements, and what they are without elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import DType
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import product

JOINS = {
    "sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "logical_or", "all": "logical_and",
}  # fmt: skip
"""The op that joins the initial value with the result of a reduction."""


def check_order(name: str, dtype: DType, initial: Any) -> None:
    """Raises UnsupportedError where a result depends on the place of an initial value, or of what a mask excludes.

    1 * inf is inf + nan j for complex numbers, and a sum starts at 0: of -0 and the initial value -0 it is 0.
    """
    is_negative = isinstance(initial, np.inexact) and any(
        part == 0 and np.signbit(part) for part in (initial.real, initial.imag)
    )
    if name == "prod" and dtype.is_complex:
        of, hint = "a product of complex numbers with initial= or where=", "np.prod(np.where(mask, x, 1)) * initial"
    elif name == "sum" and is_negative:
        of, hint = "a sum with the initial value -0", "np.sum(x) + 0.0"
    else:
        return
    raise UnsupportedError(of, hint=f"write {hint}", where=source.user_line())


def is_empty(x: Traced, axes: tuple[int, ...]) -> bool:
    """Whether a reduction over some axes has no elements."""
    count = product(x.extents[k] for k in axes)
    return x.recorder.decide(count, "==", 0, "whether a reduction has elements")


def filled(x: Traced, axes: tuple[int, ...], keepdims: bool, value: Any) -> Any:
    """Returns the result of an empty reduction: its initial value."""
    shape = [1 if k in axes else e for k, e in enumerate(x.extents) if keepdims or k not in axes]
    return x.recorder.movement("full", [value], shape=tuple(shape))
