"""Rules of primitives that move elements, and of products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse.dtypes import dtype_of
from tracefuse.frontend.jax_api.jaxpr_recording import Equation, primitive
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.recorded_ops import converted
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Extent


def as_tensor(value: Any) -> Traced:
    """Returns an operand, which may be a scalar, as a traced array."""
    return value if isinstance(value, Traced) and not value.on_host else traced_ops.as_tensor(value)


def reshaped(e: Equation, value: Any, shape: Sequence[Extent]) -> Any:
    return e.emit("reshape", value, new_shape=tuple(shape), groups=(), inferable=())


@primitive("broadcast_in_dim")
def _broadcast_in_dim(e: Equation) -> Any:
    shape = e.extents(e.results[0].shape)
    dimensions = [int(k) for k in e.parameters["broadcast_dimensions"]]
    x = as_tensor(e.inputs[0])
    x = e.emit("broadcast", x, is_broadcast_dim=tuple(k not in dimensions for k in range(len(shape))))
    return e.emit("expand", x, shape=shape)


@primitive("reshape")
def _reshape(e: Equation) -> Any:
    x, order = as_tensor(e.inputs[0]), e.parameters["dimensions"]
    return reshaped(e, x if order is None else permuted(e, x, order), e.extents(e.results[0].shape))


def permuted(e: Equation, value: Any, order: Sequence[int]) -> Any:
    """Returns an array with its axes in another order."""
    is_same = list(order) == list(range(len(order)))
    return value if is_same else e.emit("permute", value, dims=tuple(int(k) for k in order))


@primitive("transpose")
def _transpose(e: Equation) -> Any:
    return permuted(e, as_tensor(e.inputs[0]), e.parameters["permutation"])


@primitive("squeeze")
def _squeeze(e: Equation) -> Any:
    return e.emit("squeeze", e.inputs[0], dims=tuple(int(k) for k in e.parameters["dimensions"]))


@primitive("expand_dims")
def _expand_dims(e: Equation) -> Any:
    return reshaped(e, e.inputs[0], e.extents(e.results[0].shape))


@primitive("concatenate")
def _concatenate(e: Equation) -> Any:
    return e.emit("cat", *map(as_tensor, e.inputs), dim=int(e.parameters["dimension"]))


@primitive("tile")
def _tile(e: Equation) -> Any:
    """Each axis after one for its copies, which then are one axis."""
    x, copies = as_tensor(e.inputs[0]), e.extents(e.parameters["reps"])
    extents = [extent for pair in zip(copies, x.extents, strict=True) for extent in pair]
    x = e.emit("broadcast", x, is_broadcast_dim=(True, False) * len(copies))
    return reshaped(e, e.emit("expand", x, shape=tuple(extents)), e.extents(e.results[0].shape))


@primitive("empty", "empty2")
def _empty(e: Equation) -> Any:
    result = e.results[0]
    return e.recorder.movement("full", [0], dtype=dtype_of(result.dtype), shape=e.extents(result.shape))


@primitive("rev")
def _rev(e: Equation) -> Any:
    return e.emit("flip", e.inputs[0], dims=tuple(int(k) for k in e.parameters["dimensions"]))


@primitive("slice")
def _slice(e: Equation) -> Any:
    starts, ends = e.extents(e.parameters["start_indices"]), e.extents(e.parameters["limit_indices"])
    strides = e.extents(e.parameters["strides"] or (1,) * len(starts))
    return e.emit("slice", e.inputs[0], start_indices=starts, end_indices=ends, strides=strides)


@primitive("split")
def _split(e: Equation) -> Any:
    x, axis, start, parts = e.inputs[0], int(e.parameters["axis"]), 0, []
    begin: Extent = start
    for size in e.extents(e.parameters["sizes"]):
        starts = tuple(begin if k == axis else 0 for k in range(len(x.extents)))
        ends = tuple(begin + size if k == axis else extent for k, extent in enumerate(x.extents))
        parts.append(e.emit("slice", x, start_indices=starts, end_indices=ends, strides=(1,) * len(starts)))
        begin = begin + size
    return parts


@primitive("stack")
def _stack(e: Equation) -> Any:
    axis, rank = int(e.parameters["axis"]), len(e.results[0].shape)
    flags = tuple(k == axis % rank for k in range(rank))
    return e.emit(
        "cat", *(e.emit("broadcast", as_tensor(x), is_broadcast_dim=flags) for x in e.inputs), dim=axis % rank
    )


@primitive("unstack")
def _unstack(e: Equation) -> Any:
    x, rank = e.inputs[0], len(e.inputs[0].extents)
    axis = int(e.parameters["axis"]) % rank
    parts = []
    for position in range(len(e.results)):
        starts = tuple(position if k == axis else 0 for k in range(rank))
        ends = tuple(position + 1 if k == axis else extent for k, extent in enumerate(x.extents))
        part = e.emit("slice", x, start_indices=starts, end_indices=ends, strides=(1,) * rank)
        parts.append(e.emit("squeeze", part, dims=(axis,)))
    return parts


@primitive("iota")
def _iota(e: Equation) -> Any:
    shape, dim = e.extents(e.results[0].shape), int(e.parameters["dimension"])
    line = e.emit("iota", 0, 1, length=shape[dim])
    line = converted(e.recorder, line, dtype_of(e.parameters["dtype"]))
    return e.emit(
        "expand", e.emit("broadcast", line, is_broadcast_dim=tuple(k != dim for k in range(len(shape)))), shape=shape
    )


@primitive("pad")
def _pad(e: Equation) -> Any:
    widths = [(e.extent(low), e.extent(high), int(inner)) for low, high, inner in e.parameters["padding_config"]]
    return padded(e, as_tensor(e.inputs[0]), e.inputs[1], widths)


def padded(e: Equation, x: Any, value: Any, widths: Sequence[tuple[Extent, Extent, int]]) -> Any:
    """Puts a value between and around elements; negative widths cut. widths: before, after, between, for each axis."""
    if not any(width != 0 for three in widths for width in three):
        return x
    lows = [low if not isinstance(low, int) or low > 0 else 0 for low, _, _ in widths]
    highs = [high if not isinstance(high, int) or high > 0 else 0 for _, high, _ in widths]
    dilated = [
        n + (n - 1) * inner if inner and n != 0 else n for n, (_, _, inner) in zip(x.extents, widths, strict=True)
    ]
    shape = tuple(low + n + high for low, n, high in zip(lows, dilated, highs, strict=True))
    around = e.recorder.movement("full", [value], dtype=x.value.dtype, shape=shape)
    result = e.emit(
        "slice_scatter", around, x, start_indices=tuple(lows),
        end_indices=tuple(low + n for low, n in zip(lows, dilated, strict=True)),
        strides=tuple(inner + 1 for _, _, inner in widths),
    )  # fmt: skip
    cuts = [min(0, width) if isinstance(width, int) else 0 for low, high, _ in widths for width in (low, high)]
    return e.emit("pad", result, pad_widths=tuple(cuts), value=0) if any(cuts) else result


# ---------------------------------------------------------------------------------------------------------------------
# products


def in_preferred_type(e: Equation, x: Any) -> Any:
    """Returns an operand of a product in the type that sums are wanted in, unless that is a narrower one."""
    wanted = e.parameters.get("preferred_element_type")
    if wanted is None or dtype_of(wanted).itemsize < x.value.dtype.itemsize:
        return x
    return converted(e.recorder, x, dtype_of(wanted))


@primitive("dot_general")
def _dot_general(e: Equation) -> Any:
    """A product of stacks of matrices: (batch, free of a, contracted) by (batch, contracted, free of b)."""
    (a_contracted, b_contracted), (a_batch, b_batch) = e.parameters["dimension_numbers"]
    a, b = map(as_tensor, e.inputs)
    a, b = (in_preferred_type(e, operand) for operand in (a, b))
    a_free = [k for k in range(len(a.extents)) if k not in (*a_contracted, *a_batch)]
    b_free = [k for k in range(len(b.extents)) if k not in (*b_contracted, *b_batch)]
    a_dims, b_dims = (*a_batch, *a_free, *a_contracted), (*b_batch, *b_contracted, *b_free)
    if len(a_contracted) == len(a_free) == len(b_free) == 1:
        return e.emit("matmul", permuted(e, a, a_dims), permuted(e, b, b_dims))
    a_dims, b_dims = (tuple(map(int, dims)) for dims in (a_dims, b_dims))
    return e.emit(
        "contract_axes", a, b, a_dims=a_dims, b_dims=b_dims, stack_axes=len(a_batch), summed_axes=len(a_contracted)
    )
