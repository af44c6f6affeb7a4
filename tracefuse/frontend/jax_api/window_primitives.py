"""Rules of primitives over windows: pooling and convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse.frontend.jax_api.jaxpr_recording import Equation, primitive
from tracefuse.frontend.jax_api.movement_primitives import as_tensor, in_preferred_type, padded, reshaped
from tracefuse.ir.extents import ceildiv, product


def _windows(e: Equation, x: Any, axes: Sequence[int], widths: Sequence[Any], strides: Sequence[Any]) -> Any:
    """All windows along axes, each in a new last axis, at a stride."""
    for axis, width, stride in zip(axes, widths, strides, strict=True):
        x = e.emit("windows", x, dim=axis, width=e.integer(width))
        if e.integer(stride) != 1:
            rank = len(x.extents)
            steps = tuple(e.integer(stride) if k == axis else 1 for k in range(rank))
            x = e.emit("slice", x, start_indices=(0,) * rank, end_indices=x.extents, strides=steps)
    return x


def _is_dilated(e: Equation, *dilations: str) -> bool:
    return any(e.integer(d) != 1 for name in dilations for d in e.parameters[name] or ())


def _reduced_windows(name: str, op: str) -> None:
    @primitive(name)
    def rule(e: Equation) -> Any:
        if _is_dilated(e, "base_dilation", "window_dilation"):
            return e.by_jax()
        x, widths = as_tensor(e.inputs[0]), e.parameters["window_dimensions"]
        dtype = x.value.dtype
        neutral = 0 if op == "sum" else _extreme(dtype, op)
        x = padded(e, x, neutral, [(e.extent(low), e.extent(high), 0) for low, high in e.parameters["padding"]])
        axes = [
            k
            for k, width in enumerate(widths)
            if e.integer(width) > 1 or e.integer(e.parameters["window_strides"][k]) > 1
        ]
        rank = len(x.extents)
        x = _windows(e, x, axes, [widths[k] for k in axes], [e.parameters["window_strides"][k] for k in axes])
        return e.emit(op, x, dims=tuple(range(rank, rank + len(axes))), keepdim=False) if axes else x


def _extreme(dtype: Any, op: str) -> Any:
    """What every element of the type is at least as large, or as small, as."""
    if dtype.is_floating:
        return -np.inf if op == "max" else np.inf
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if op == "max" else limits.max)


for _name, _op in (("reduce_window_max", "max"), ("reduce_window_min", "min"), ("reduce_window_sum", "sum")):
    _reduced_windows(_name, _op)


@primitive("conv_general_dilated")
def _convolution(e: Equation) -> Any:
    """A product of the windows of the input with the kernel; groups of channels are a stack of products."""
    groups = int(e.parameters["feature_group_count"])
    if int(e.parameters["batch_group_count"]) != 1 or _is_dilated(e, "rhs_dilation"):
        return e.by_jax()
    numbers = e.parameters["dimension_numbers"]
    x, kernel = map(as_tensor, e.inputs)
    x, kernel = (in_preferred_type(e, operand) for operand in (x, kernel))
    x = e.emit("permute", x, dims=tuple(numbers.lhs_spec))  # batch, channels, space
    kernel = e.emit("permute", kernel, dims=tuple(numbers.rhs_spec))  # out, in, space
    inner = [(e.extent(low), e.extent(high), e.integer(d) - 1) for (low, high), d in zip(
        e.parameters["padding"], e.parameters["lhs_dilation"] or [1] * len(e.parameters["padding"]), strict=True
    )]  # fmt: skip
    x = padded(e, x, 0, [(0, 0, 0), (0, 0, 0), *inner])
    space = range(2, len(x.extents))
    widths = kernel.extents[2:]
    batch, channels = x.extents[:2]
    sizes = [
        ceildiv(x.extents[k] - w + 1, e.integer(s))
        for k, w, s in zip(space, widths, e.parameters["window_strides"], strict=True)
    ]
    x = _windows(e, x, space, widths, e.parameters["window_strides"])
    rank = len(space)
    x = reshaped(e, x, (batch, groups, channels // groups, *x.extents[2:]))
    order = (1, 0, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank))
    x = e.emit("permute", x, dims=order)
    depth = channels // groups * product(widths)
    x = reshaped(e, x, (groups, batch * product(sizes), depth))
    out = kernel.extents[0]
    kernel = e.emit("permute", reshaped(e, kernel, (groups, out // groups, depth)), dims=(0, 2, 1))
    result = reshaped(e, e.emit("matmul", x, kernel), (groups, batch, *sizes, out // groups))
    result = e.emit("permute", result, dims=(1, 0, 2 + rank, *range(2, 2 + rank)))
    result = reshaped(e, result, (batch, out, *sizes))
    spec = numbers.out_spec
    return e.emit("permute", result, dims=tuple(sorted(range(len(spec)), key=spec.__getitem__)))
