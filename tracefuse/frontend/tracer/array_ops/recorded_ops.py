"""Records ops by name, and conversions of values between types and shapes."""

from __future__ import annotations

from typing import Any

from tracefuse.dtypes import DType, int64
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.whole_arrays import record_whole
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.fusion import Shape
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ops import REGISTRY, Library, Movement, Pointwise, Reduction


def emit(recorder: Recorder, name: str, *operands: Any, **attributes: Any) -> Any:
    """Records an op by name; returns its result, or a tuple of several."""
    op = REGISTRY[name]
    if name == "extent":
        return recorder.scalar(attributes["value"])
    if name == "iota":
        start, step = operands
        return traced_ops.iota(recorder, start, step, attributes["length"], int64)
    if name == "where" and isinstance(operands[0], bool):
        return operands[1] if operands[0] else operands[2]
    if isinstance(op, Pointwise):
        return recorder.pointwise(op, operands, **attributes)
    if isinstance(op, Movement):
        return recorder.movement(name, operands, **attributes)
    if isinstance(op, Reduction):
        return recorder.reduction(op, operands[0], attributes.pop("dims"), attributes.pop("keepdim"), **attributes)
    if isinstance(op, WholeArrayOp):
        results = record_whole(recorder, op, operands, **attributes)
        return results if len(results) > 1 else results[0]
    assert isinstance(op, Library)
    return recorder.library(op, operands, **attributes)


def sum_to(recorder: Recorder, value: Any, shape: Shape) -> Any:
    """Sums `value` over the axes along which an array of `shape` was broadcast to it."""
    lead = len(value.extents) - len(shape)
    if lead:
        value = emit(recorder, "sum", value, dims=tuple(range(lead)), keepdim=False)
    axes = tuple(k for k, (e, extent) in enumerate(zip(shape, value.extents, strict=True)) if e == 1 and extent != 1)
    return emit(recorder, "sum", value, dims=axes, keepdim=True) if axes else value


def zeros(recorder: Recorder, shape: Shape, dtype: DType) -> Any:
    """Returns an array of zeros."""
    return recorder.movement("full", [0], dtype=dtype, shape=tuple(shape))


def expanded(recorder: Recorder, value: Any, shape: Shape) -> Any:
    """Returns `value` broadcast to `shape`."""
    if isinstance(value, Traced) and not value.on_host and value.extents == tuple(shape):
        return value
    traced = value if isinstance(value, Traced) and not value.on_host else traced_ops.as_tensor(value)
    return recorder.movement("expand", [traced], shape=tuple(shape))


def converted(recorder: Recorder, value: Any, dtype: DType) -> Any:
    """Returns `value` in `dtype`; the real part of a complex value for a real type. Python numbers stay."""
    if not isinstance(value, Traced) or (value.value.dtype is dtype and value.weak is None):
        return value
    if value.value.dtype.is_complex and not dtype.is_complex and dtype.kind != "bool":
        value = emit(recorder, "real", value)
    return value if value.value.dtype is dtype and value.weak is None else emit(recorder, "cast", value, dtype=dtype)


def is_inexact(dtype: DType) -> bool:
    """Whether values of a dtype have derivatives: floating-point and complex numbers."""
    return dtype.is_floating or dtype.is_complex
