"""The array API namespace, version 2025.12: records on tracers, computes on arrays.

Names and parameters are those of the standard. Where NumPy's function has more parameters, they are accepted too. A
call on traced values, or during a trace, records. On concrete arrays a call computes at once
(`array_api/standard_calls.py`), large ones by a fusion of one op that is keyed by rank and element type. Outside of a
trace, creation functions return NumPy arrays, or CuPy arrays for a GPU `device`.
"""

from __future__ import annotations

import sys

import numpy as np

from tracefuse import dtypes
from tracefuse.frontend.array_api import standard_creation, standard_fourier, standard_functions, standard_linalg
from tracefuse.frontend.array_api.namespace_info import API_VERSION, NamespaceInfo, check_version
from tracefuse.frontend.array_api.standard_calls import standard
from tracefuse.frontend.traced_array import Tracer

__array_api_version__ = API_VERSION
__array_namespace_info__ = NamespaceInfo

linalg, fft = standard_linalg, standard_fourier

bool = np.bool_
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16, float32, float64, bfloat16 = np.float16, np.float32, np.float64, dtypes.bfloat16.numpy.type
complex64, complex128 = np.complex64, np.complex128
e, inf, nan, pi, newaxis = np.e, np.inf, np.nan, np.pi, None

_TYPES_AND_CONSTANTS = """
bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bfloat16 complex64 complex128
e inf nan pi newaxis linalg fft
"""

_AS_IN_NUMPY = """
abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert bitwise_or
bitwise_right_shift bitwise_xor ceil conj copysign cos cosh divide equal exp expm1 floor floor_divide greater
greater_equal hypot imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and logical_not
logical_or logical_xor maximum minimum multiply negative nextafter not_equal positive pow real reciprocal remainder
round sign signbit sin sinh square sqrt subtract tan tanh trunc all any max mean min prod std sum var
argmax argmin cumulative_sum cumulative_prod diff where broadcast_arrays broadcast_to concat expand_dims flip moveaxis
permute_dims repeat reshape roll squeeze stack tile unstack take take_along_axis matmul matrix_transpose vecdot
tensordot tril triu zeros_like ones_like full_like empty_like astype
"""
"""Functions whose parameters in NumPy are those of the standard, or more."""

_CREATION = "arange asarray empty eye from_dlpack full linspace meshgrid ones zeros"
_FUNCTIONS = """
argsort broadcast_shapes can_cast clip count_nonzero finfo iinfo isdtype isin nonzero result_type searchsorted sort
unique_all unique_counts unique_inverse unique_values
"""

globals().update({name: standard(getattr(np, name)) for name in _AS_IN_NUMPY.split() if hasattr(np, name)})
globals().update({name: getattr(standard_creation, name) for name in _CREATION.split()})
globals().update({name: getattr(standard_functions, name) for name in _FUNCTIONS.split()})

__all__ = [
    "__array_api_version__", "__array_namespace_info__", *_TYPES_AND_CONSTANTS.split(),
    *(name for name in _AS_IN_NUMPY.split() if hasattr(np, name)), *_CREATION.split(), *_FUNCTIONS.split(),
]  # fmt: skip


def __dir__() -> list[str]:
    return list(__all__)


Tracer.namespace, Tracer.check_version = sys.modules[__name__], staticmethod(check_version)
