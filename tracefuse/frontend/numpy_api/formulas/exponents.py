"""np.frexp and np.ldexp: the mantissa and the exponent of floats, by scaling with powers of two.

Products with powers of two are exact, except for one rounding of a result that is subnormal, as in NumPy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tracefuse import dtypes
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.traced_ops import as_traced

_LEAST = -1022
"""The exponent of the smallest normal float64."""


class _Format(NamedTuple):
    """A binary format of IEEE 754.

    bits_of, of_bits: the ops to and from its bits. bias: of its exponents. digits: of its fraction. far: values beyond
    2**-far and 2**far are scaled by 2**scaling first, so that neither they nor the factor that takes their exponent
    away are subnormal.
    """

    dtype: dtypes.DType
    bits_of: str
    of_bits: str
    bias: int
    digits: int
    far: int
    scaling: int

    @property
    def mask(self) -> int:
        """The bits of an exponent, shifted to the right."""
        return 2 * self.bias + 1

    def power(self, exponent: int) -> Any:
        """A power of two in this type."""
        return self.dtype.numpy.type(2.0**exponent)


_SINGLE = _Format(dtypes.float32, "bits_of_float32", "float32_of_bits", 127, 23, 100, 40)
_DOUBLE = _Format(dtypes.float64, "bits_of_float64", "float64_of_bits", 1023, 52, 900, 200)

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
    power = (np.clip(n, _LEAST, -_LEAST) + _DOUBLE.bias) << _DOUBLE.digits
    scaled = wide * traced_ops.apply(_DOUBLE.of_bits, power)
    return traced_ops.astype(scaled, dtype, copy=False) if dtype.kind == "float" else scaled


def frexp(x: Any) -> tuple[Any, Any]:
    """Returns (m, e) with x == m * 2**e and 0.5 <= abs(m) < 1; (x, 0) for zeros, infinities and NaN."""
    dtype = as_traced(x).value.dtype
    form = _DOUBLE if dtype is dtypes.float64 else _SINGLE
    wide = traced_ops.astype(as_traced(x), form.dtype, copy=False)
    is_plain = np.isfinite(wide) & (wide != 0)
    size = np.abs(wide)
    is_low, is_high = size < form.power(-form.far), size > form.power(form.far)
    near = wide * np.where(
        is_low, form.power(form.scaling), np.where(is_high, form.power(-form.scaling), form.power(0))
    )
    field = (traced_ops.apply(form.bits_of, near) >> form.digits) & form.mask
    # 2**-e of the scaled value, whose exponent is far from both ends: the product is exact.
    scale = traced_ops.apply(form.of_bits, (2 * form.bias - 1 - field) << form.digits)
    exponent = field - (form.bias - 1) + np.where(is_low, -form.scaling, np.where(is_high, form.scaling, 0))
    mantissa = traced_ops.astype(np.where(is_plain, near * scale, wide), dtype, copy=False)
    return mantissa, traced_ops.astype(np.where(is_plain, exponent, 0), dtypes.int32)
