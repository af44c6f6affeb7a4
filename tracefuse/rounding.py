"""Conversions to float16 and bfloat16 that round once.

A conversion by way of float32, as in ml_dtypes, rounds twice: 2049.0000001 becomes 2049 in float32 and then 2048 in
float16, whose nearest number is 2050.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse.dtypes import DType


def round_to_half(values: Any, dtype: DType) -> Any:
    """Converts an array of any real type to `dtype`, float16 or bfloat16: to nearest, ties to even."""
    values = np.asarray(values)
    with np.errstate(all="ignore"):  # values out of range become infinite
        if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
            values = _sticky(values)
        if values.dtype == np.float64 or values.dtype.kind in "iu":
            values = _round_to_odd(values.astype(np.float64))
        return values.astype(dtype.numpy)


def _round_to_odd(values: Any) -> Any:
    """Rounds float64 to float32 with round-to-odd, after which rounding to a half type is correct.

    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008.
    """
    nearest = values.astype(np.float32)
    wrong = np.abs(nearest.astype(np.float64)) > np.abs(values)
    toward_zero = np.where(wrong, np.nextafter(nearest, np.float32(0)), nearest).astype(np.float32)
    inexact = (toward_zero.astype(np.float64) != values) & ~np.isnan(values)
    return (toward_zero.view(np.uint32) | inexact).astype(np.uint32).view(np.float32)


def _sticky(values: Any) -> Any:
    """Converts 64-bit integers to float64 without rounding: beyond 2**53 one sticky bit replaces the low 12 bits."""
    wide = values.astype(np.float64)
    low = values & values.dtype.type(0xFFF)
    cut = (values - low) + np.where(low != 0, 0x800, 0).astype(values.dtype)
    return np.where(np.abs(wide) >= 2.0**53, cut, values).astype(np.float64)
