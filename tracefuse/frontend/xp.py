"""The array API namespace: records on tracers, compiles on arrays.

Names and parameters are those of the array API, as in NumPy 2. A call on traced values, or during a trace, records. A
call on concrete arrays runs a fusion of one op, keyed by rank and element type, not by shape. Outside of a trace,
creation functions return NumPy arrays, or CuPy arrays for a GPU `device`.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import ShapeError
from tracefuse.frontend.fuse import FusedFunction
from tracefuse.frontend.numpy_api import grids
from tracefuse.frontend.traced_array import Tracer
from tracefuse.frontend.tracer import shaping, traced_ops
from tracefuse.frontend.tracer.recorder import Recorder, current
from tracefuse.frontend.tracer.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.frontend.tracer.traced_ops import apply, iota
from tracefuse.ir.extents import ceildiv
from tracefuse.runtime.devices import arrays, cuda_arrays

_numpy: Any = np  # creation functions accept everything that NumPy's do, and symbolic sizes

bool = np.bool_
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16, float32, float64, bfloat16 = np.float16, np.float32, np.float64, dtypes.bfloat16.numpy.type
complex64, complex128 = np.complex64, np.complex128
e, inf, nan, pi, newaxis = np.e, np.inf, np.nan, np.pi, None
finfo, iinfo, isdtype, can_cast = np.finfo, np.iinfo, np.isdtype, np.can_cast

_NAMES = """
abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert bitwise_or
bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1 floor floor_divide greater
greater_equal hypot imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and logical_not
logical_or logical_xor maximum minimum multiply negative nextafter not_equal positive pow real reciprocal remainder
round sign signbit sin sinh square sqrt subtract tan tanh trunc all any max mean min prod std sum var count_nonzero
argmax argmin cumulative_sum cumulative_prod diff where broadcast_arrays broadcast_to concat expand_dims flip moveaxis
permute_dims repeat reshape roll squeeze stack tile unstack take take_along_axis matmul matrix_transpose vecdot
tensordot tril triu zeros_like ones_like full_like empty_like astype result_type sort argsort searchsorted
"""


def _contains_traced(values: Sequence[Any]) -> Any:
    return builtins.any(
        isinstance(v, (Traced, SymbolicSize)) or (isinstance(v, (list, tuple)) and _contains_traced(v)) for v in values
    )


def _record_or_run(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of this namespace: records NumPy's function during a trace, else runs it as a fused function."""

    def recorded(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    fused: FusedFunction[..., Any] = FusedFunction(functools.wraps(function)(recorded))

    @source.hides_own_frames
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if current.get() is None and not _contains_traced([*arguments, *keywords.values()]):
            return fused(*arguments, **keywords)
        return function(*[_lift(a) for a in arguments], **keywords)

    return call


def _lift(value: Any) -> Any:
    """Captures a concrete array during a trace, so that ops on it are recorded."""
    if arrays.kind_of(value) is not None:
        return traced_ops.as_traced(value)
    if isinstance(value, (list, tuple)) and builtins.any(arrays.kind_of(v) is not None for v in value):
        return type(value)([_lift(v) for v in value])
    return value


for _name in _NAMES.split():
    if hasattr(np, _name):
        globals()[_name] = _record_or_run(getattr(np, _name))


# ---------------------------------------------------------------------------------------------------------------------
# creation


def _recorder(*values: Any) -> Recorder | None:
    recorder = current.get()
    if recorder is None and _contains_traced(values):
        recorder = traced_ops.recorder_of([v for v in values if isinstance(v, Traced)])
    return recorder


def _create(device: Any, make: Callable[[Any], Any]) -> Any:
    """Returns make(numpy), or make(cupy) on the GPU `device`."""
    number = arrays.device_number(device)
    if number is None:
        return make(_numpy)
    with cuda_arrays.on_device(number):
        return make(cuda_arrays.namespace())


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array of `shape` with every element `fill_value`."""
    recorder = _recorder(shape, fill_value)
    if recorder is None:
        return _create(device, lambda m: m.full(shape, fill_value, dtype))
    recorder.require_device(device)
    target = None if dtype is None else dtype_of(dtype)
    return recorder.movement("full", [fill_value], shape=shaping.new_shape(shape, recorder), dtype=target)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array of zeros; float64 unless `dtype` says otherwise."""
    return full(shape, 0, dtype=np.float64 if dtype is None else dtype, device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array of ones; float64 unless `dtype` says otherwise."""
    return full(shape, 1, dtype=np.float64 if dtype is None else dtype, device=device)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array whose elements may be anything; here zeros."""
    return zeros(shape, dtype=dtype, device=device)


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Any:
    """start, start + step, ... before stop. Sizes may be symbolic; other bounds are asked for their values."""
    recorder = _recorder(start, stop, step)
    if recorder is None:
        first, last = (0, start) if stop is None else (start, stop)
        return _create(device, lambda m: m.arange(first, last, step, dtype))
    recorder.require_device(device)
    start, stop = (0, start) if stop is None else (start, stop)
    whole = [isinstance(v, (int, SymbolicSize)) for v in (start, stop, step)]
    if not builtins.all(whole):
        values = [float(v) for v in (start, stop, step)]
        length = builtins.max(0, int(np.ceil((values[1] - values[0]) / values[2])))
        return iota(recorder, values[0], values[2], length, dtypes.float64 if dtype is None else dtype_of(dtype))
    step = int(step)
    if step == 0:
        raise ShapeError("arange: step 0", hint="give a step that is not 0")
    first, last = recorder.plain(start), recorder.plain(stop)
    distance = last - first if step > 0 else first - last
    count = ceildiv(distance, builtins.abs(step)) if recorder.decide(0, "<=", distance, "the length of arange") else 0
    return iota(recorder, start, step, count, dtypes.int64 if dtype is None else dtype_of(dtype))


def linspace(start: Any, stop: Any, /, num: Any, *, dtype: Any = None, device: Any = None, endpoint: Any = True) -> Any:
    """`num` numbers from start to stop, evenly spaced."""
    recorder = _recorder(start, stop, num)
    if recorder is None:
        return _create(device, lambda m: m.linspace(start, stop, num, dtype=dtype, endpoint=endpoint))
    recorder.require_device(device)
    return grids.linspace(start, stop, num, builtins.bool(endpoint), dtype=dtype)


def eye(n_rows: Any, n_cols: Any = None, /, *, k: Any = 0, dtype: Any = None, device: Any = None) -> Any:
    """Ones on the k-th diagonal, zeros elsewhere."""
    n_cols = n_rows if n_cols is None else n_cols
    recorder = _recorder(n_rows, n_cols, k)
    if recorder is None:
        return _create(device, lambda m: m.eye(n_rows, n_cols, k, np.float64 if dtype is None else dtype))
    recorder.require_device(device)
    rows = shaping.expand_dims(iota(recorder, 0, 1, n_rows, dtypes.int64), 1)
    columns = shaping.expand_dims(iota(recorder, 0, 1, n_cols, dtypes.int64), 0)
    return traced_ops.astype(apply("eq", apply("add", rows, k), columns), np.float64 if dtype is None else dtype)


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: Any = None) -> Any:
    """`obj` as an array; inside a trace it becomes part of it."""
    recorder = _recorder(obj)
    if recorder is None:
        if device is None and arrays.kind_of(obj) == "cupy":
            device = obj.device
        if arrays.device_number(device) is None:
            return np.asarray(obj, dtype, copy=copy)
        return _create(device, lambda m: m.array(obj, dtype) if copy else m.asarray(obj, dtype))
    recorder.require_device(device)
    traced = traced_ops.as_tensor(obj)
    return traced_ops.astype(traced, dtype, copy=copy is True) if dtype is not None else traced


def meshgrid(*vectors: Any, indexing: str = "xy") -> list[Any]:
    """Coordinate arrays from coordinate vectors."""
    if _recorder(*vectors) is None:
        return list(_numpy.meshgrid(*vectors, indexing=indexing))
    return list(grids.meshgrid(*vectors, indexing=indexing))


Tracer.namespace = sys.modules[__name__]
