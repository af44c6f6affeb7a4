"""Layers of neural networks of `fd.ops`, decomposed into other operations: batch normalization, products, lookups.

Everything here is recorded through `fd.ops`, so that it fuses with what is around it.
"""

from __future__ import annotations

import math
from typing import Any

from tracefuse.dtypes import DataType, dtype_of
from tracefuse.errors import DtypeError, ShapeError, UnsupportedError
from tracefuse.ir.extents import product

NORM_GUARD = 1e-7
"""Added to the norm of a row before its quotient, as in PyTorch."""


def batch_norm(
    ops: Any, arg: Any, weight: Any = None, bias: Any = None, running_mean: Any = None, running_var: Any = None,
    momentum: Any = 0.1, eps: Any = 1e-5, training: bool = True, channels_last: bool = False,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Returns (output, mean, 1 / sqrt(variance + eps)) of a batch normalization.

    arg (N, C, ...), or (N, ..., C) with channels_last; the other tensors (C,). training: normalizes by the batch's
    statistics and updates running_mean and running_var, which are inputs, in place; otherwise normalizes by these.
    Statistics are float32 for halves; output has the dtype of arg. Raises ShapeError for fewer than 2 axes or for one
    running statistic without the other.
    """
    rank = arg.ndim
    if rank < 2:
        raise ShapeError(f"arg with {rank} axes", hint="give (N, C, ...)")
    if (running_mean is None) != (running_var is None):
        raise ShapeError("running_mean and running_var go together", hint="give both or none")
    if not training and running_mean is None:
        raise ShapeError("without training, running_mean and running_var are needed", hint="give both")
    channel = rank - 1 if channels_last else 1
    reduced_axes = [axis for axis in range(rank) if axis != channel]
    wide = dtype_of(arg.dtype).compute
    data = ops.cast(arg, wide)

    def spread(value: Any) -> Any:
        return ops.broadcast(ops.cast(value, wide), [axis != channel for axis in range(rank)])

    if training:
        variance, mean = ops.var_mean(data, reduced_axes, 0)
        if running_mean is not None:
            _update_statistics(ops, arg, (mean, variance), (running_mean, running_var), momentum, reduced_axes)
    else:
        mean, variance = ops.cast(running_mean, wide), ops.cast(running_var, wide)
    inverse = ops.rsqrt(ops.add(variance, eps))
    result = ops.mul(ops.sub(data, spread(mean)), spread(inverse))
    if weight is not None:
        result = ops.mul(result, spread(weight))
    if bias is not None:
        result = ops.add(result, spread(bias))
    return ops.cast(result, arg.dtype), mean, inverse


def _update_statistics(ops: Any, arg: Any, batch: Any, running: Any, momentum: Any, reduced_axes: list[int]) -> None:
    """Records the updates of the running mean and of the running variance, which is the unbiased one."""
    mean, variance = batch
    count = ops.cast(ops.extent(product(arg.ir_value.shape[axis] for axis in reduced_axes)), variance.dtype)
    unbiased = ops.mul(variance, ops.truediv(count, ops.sub(count, 1.0)))
    for old, new in zip(running, (mean, unbiased), strict=True):
        weighted = ops.mul(ops.cast(old, new.dtype), ops.sub(1.0, momentum))
        updated = ops.cast(ops.add(weighted, ops.mul(new, momentum)), old.dtype)
        ops.recording.add_output(updated, old)


def scaled_mm(
    ops: Any, mat1: Any, mat2: Any, scale1: Any, scale2: Any, alpha: Any = None, bias: Any = None, beta: Any = None,
    dtype: Any = None,
) -> tuple[Any, None, None]:  # fmt: skip
    """Returns (alpha * (mat1 * scale1) @ (mat2 * scale2) + beta * bias, None, None).

    mat1 (..., M, K), mat2 (..., K, N); the scales broadcast to the matrix that they scale. alpha and beta have no axes.
    dtype: of the result, by default that of mat1. The product is computed in float32 for halves. The two Nones stand
    for the scales of a block-scaled result, which does not exist here: there are no fp8 or fp4 types.
    """
    wide = dtype_of(mat1.dtype).compute
    chosen = mat1.dtype if dtype is None or dtype is DataType.Null else dtype
    if not (dtype_of(mat1.dtype).is_floating and dtype_of(mat2.dtype).is_floating):
        raise DtypeError(f"{mat1.dtype} @ {mat2.dtype}", hint="give matrices of floats")
    scaled = [ops.mul(ops.cast(m, wide), ops.cast(s, wide)) for m, s in ((mat1, scale1), (mat2, scale2))]
    result = ops.matmul(*scaled)
    if alpha is not None:
        result = ops.mul(result, ops.cast(alpha, wide))
    if bias is not None:
        addend = ops.cast(bias, wide)
        result = ops.add(result, addend if beta is None else ops.mul(addend, ops.cast(beta, wide)))
    return ops.cast(result, chosen), None, None


def embedding_fwd(
    ops: Any, input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: Any = None,
    scale_grad_by_freq: Any = None, sparse: Any = None,
) -> Any:  # fmt: skip
    """Looks up the rows of `weight` at the positions `input`.

    max_norm: rows with a larger norm are scaled down to it in the result; `weight` itself stays as it is. norm_type:
    the p of the norm, 2 by default. padding_idx, scale_grad_by_freq and sparse only affect gradients and are ignored.
    """
    rows = ops.take(weight, input, 0)
    if max_norm is None:
        return rows
    wide = dtype_of(weight.dtype).compute
    data = ops.cast(rows, wide)
    norm = _norm(ops, data, 2.0 if norm_type is None else norm_type)
    limit = ops.cast(max_norm, wide) if hasattr(max_norm, "ir_value") else float(max_norm)
    factor = ops.where(ops.gt(norm, limit), ops.truediv(limit, ops.add(norm, NORM_GUARD)), 1.0)
    return ops.cast(ops.mul(data, factor), weight.dtype)


def _norm(ops: Any, rows: Any, order: Any) -> Any:
    """Returns the norm of each row, (..., 1)."""
    last = [rows.ndim - 1]
    constant = ops.recording.constant_of(order)
    if constant == 2:
        return ops.sqrt(ops.sum(ops.mul(rows, rows), last, True))
    if constant == math.inf:
        return ops.max(ops.abs(rows), last, True)
    if constant is not None and not constant > 0:
        raise UnsupportedError(f"norm_type cannot be {constant}", hint="give a positive number")
    power = ops.cast(order, rows.dtype) if constant is None else float(constant)
    return ops.pow(ops.sum(ops.pow(ops.abs(rows), power), last, True), ops.truediv(1.0, power))
