"""np.frexp and np.ldexp: the mantissa and the exponent of floats, by scaling with powers of two.

Products with powers of two are exact, except for one rounding of a result that is subnormal, as in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import dtypes
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.traced_ops import as_traced

_LEAST = -1022
"""The exponent of the smallest normal float64."""

_STEP = -969
"""A scaling below `_LEAST` that leaves all 53 digits to a later one, so that a subnormal result rounds once."""


def ldexp(x: Any, exponent: Any) -> Any:
    """Returns x * 2**exponent."""
    dtype = as_traced(x).value.dtype
    wide = traced_ops.astype(as_traced(x), dtypes.float64, copy=False)
    n = np.clip(traced_ops.astype(as_traced(exponent), dtypes.int64, copy=False), -2200, 2200)
    for _ in range(2):
        is_low = n < _LEAST
        is_high = n > -_LEAST
        wide = wide * np.where(is_low, 2.0**_STEP, np.where(is_high, 2.0**-_LEAST, 1.0))
        n = n - np.where(is_low, _STEP, np.where(is_high, -_LEAST, 0))
    factor = np.exp2(traced_ops.astype(np.clip(n, _LEAST, -_LEAST), dtypes.float64))
    scaled = wide * factor
    return traced_ops.astype(scaled, dtype, copy=False) if dtype.kind == "float" else scaled


def frexp(x: Any) -> tuple[Any, Any]:
    """Returns (m, e) with x == m * 2**e and 0.5 <= abs(m) < 1; (x, 0) for zeros, infinities and NaN."""
    dtype = as_traced(x).value.dtype
    wide = traced_ops.astype(as_traced(x), dtypes.float64, copy=False)
    is_plain = np.isfinite(wide) & (wide != 0)
    is_low = np.abs(wide) < 2.0**-900
    is_high = np.abs(wide) > 2.0**900
    near = wide * np.where(is_low, 2.0**200, np.where(is_high, 2.0**-200, 1.0))
    near = np.where(is_plain, near, 0.75)
    shift = np.where(is_low, -200, np.where(is_high, 200, 0))
    guess = np.floor(np.log2(np.abs(near))) + 1
    mantissa = near * np.exp2(-guess)
    # The logarithm may round up or down to a whole number.
    is_large, is_small = np.abs(mantissa) >= 1, np.abs(mantissa) < 0.5
    mantissa = mantissa * np.where(is_large, 0.5, np.where(is_small, 2.0, 1.0))
    exponent = traced_ops.astype(guess, dtypes.int64) + is_large - is_small * 1 + shift
    result = traced_ops.astype(np.where(is_plain, mantissa, wide), dtype, copy=False)
    return result, traced_ops.astype(np.where(is_plain, exponent, 0), dtypes.int32)
