"""The neutral elements that the states of reductions begin with, in each dtype.

Must not know: the individual ops.
"""

from __future__ import annotations

import math

from tracefuse.dtypes import DType


def neutral_element(name: str, initial: bool | int | float | str, dtype: DType) -> bool | int | float | complex:
    """Returns `initial` in a dtype; "lowest" and "highest" are the bounds of the dtype.

    name: the reduction. Raises ValueError for any other string.
    """
    if initial not in ("lowest", "highest"):
        if isinstance(initial, str):
            raise ValueError(f"{name} has no neutral element")
        return bool(initial) if dtype.kind == "bool" else initial
    sign = -1 if initial == "lowest" else 1
    if dtype.is_floating:
        return sign * math.inf
    if dtype.is_complex:
        return complex(sign * math.inf, sign * math.inf)
    if dtype.kind == "bool":
        return sign > 0
    bits = dtype.itemsize * 8
    if dtype.kind == "uint":
        return 0 if sign < 0 else 2**bits - 1
    return -(1 << bits - 1) if sign < 0 else (1 << bits - 1) - 1
