"""Transposes of the ops that are linear: the cotangents of operands from the cotangent of the result.

Each takes the node as an `Application` and the cotangents of its results (see ir/derivatives.py). The transpose of a
gather adds the rows in the order of the index, so equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse.ir.derivatives import Application
from tracefuse.ir.extents import Extent, product
from tracefuse.ir.fusion import Shape

Cotangents = Sequence[Any]
MOST_WINDOW_COPIES = 64
"""Windows that are at most this wide are added as shifted copies in one kernel; wider ones are scattered."""


def copy(node: Application, cotangents: Cotangents) -> Cotangents:
    return cotangents


def where(node: Application, cotangents: Cotangents) -> Cotangents:
    condition, (cotangent,) = node.operands[0], cotangents
    return (
        None,
        node.sum_to(node.emit("where", condition, cotangent, 0), node.shapes[1]) if node.active[1] else None,
        node.sum_to(node.emit("where", condition, 0, cotangent), node.shapes[2]) if node.active[2] else None,
    )


# ---------------------------------------------------------------------------------------------------------------------
# complex numbers and their parts


def real(node: Application, cotangents: Cotangents) -> Cotangents:
    return cotangents


def imag(node: Application, cotangents: Cotangents) -> Cotangents:
    (cotangent,) = cotangents
    return (node.emit("complex", cotangent * 0, -cotangent),)


def conj(node: Application, cotangents: Cotangents) -> Cotangents:
    return (node.emit("conj", cotangents[0]),)


def complex(node: Application, cotangents: Cotangents) -> Cotangents:
    (cotangent,) = cotangents
    parts = (node.emit("real", cotangent), -node.emit("imag", cotangent))
    return tuple(node.sum_to(part, shape) for part, shape in zip(parts, node.shapes, strict=True))


# ---------------------------------------------------------------------------------------------------------------------
# axes


def broadcast(node: Application, cotangents: Cotangents) -> Cotangents:
    axes = tuple(k for k, flag in enumerate(node.attributes["is_broadcast_dim"]) if flag)
    return (node.emit("squeeze", cotangents[0], dims=axes),)


def squeeze(node: Application, cotangents: Cotangents) -> Cotangents:
    rank = len(node.shapes[0])
    dims = [axis % rank for axis in node.attributes["dims"]]
    return (node.emit("broadcast", cotangents[0], is_broadcast_dim=tuple(k in dims for k in range(rank))),)


def sum_to_operand(node: Application, cotangents: Cotangents) -> Cotangents:
    return (node.sum_to(cotangents[0], node.shapes[0]),)


def permute(node: Application, cotangents: Cotangents) -> Cotangents:
    dims = node.attributes["dims"]
    return (node.emit("permute", cotangents[0], dims=tuple(sorted(range(len(dims)), key=dims.__getitem__))),)


def reshape(node: Application, cotangents: Cotangents) -> Cotangents:
    return (node.emit("reshape", cotangents[0], new_shape=node.shapes[0], groups=(), inferable=()),)


def flip(node: Application, cotangents: Cotangents) -> Cotangents:
    return (node.emit("flip", cotangents[0], dims=node.attributes["dims"]),)


def roll(node: Application, cotangents: Cotangents) -> Cotangents:
    return (node.emit("roll", cotangents[0], shift=-node.attributes["shift"], dim=node.attributes["dim"]),)


def triu(node: Application, cotangents: Cotangents) -> Cotangents:
    return (node.emit("triu", cotangents[0], diagonal=node.attributes["diagonal"]),)


def tril(node: Application, cotangents: Cotangents) -> Cotangents:
    return (node.emit("tril", cotangents[0], diagonal=node.attributes["diagonal"]),)


# ---------------------------------------------------------------------------------------------------------------------
# slices and joins

_BOUNDS = ("start_indices", "end_indices", "strides")


def slice(node: Application, cotangents: Cotangents) -> Cotangents:
    (cotangent,), shape = cotangents, node.shapes[0]
    bounds = {name: node.attributes[name] for name in _BOUNDS}
    if all(step == 1 for step in bounds["strides"]):
        ends = zip(shape, bounds["start_indices"], bounds["end_indices"], strict=True)
        widths = tuple(width for extent, start, end in ends for width in (start, extent - end))
        return (node.emit("pad", cotangent, pad_widths=widths, value=0),)
    return (node.emit("slice_scatter", node.zeros(shape, cotangent), cotangent, **bounds),)


def slice_scatter(node: Application, cotangents: Cotangents) -> Cotangents:
    (cotangent,) = cotangents
    bounds = {name: node.attributes[name] for name in _BOUNDS}
    values = node.zeros(node.shapes[1], cotangent)
    return (
        node.emit("slice_scatter", cotangent, values, **bounds) if node.active[0] else None,
        node.emit("slice", cotangent, **bounds) if node.active[1] else None,
    )


def diagonal(node: Application, cotangents: Cotangents) -> Cotangents:
    (cotangent,) = cotangents
    return (node.emit("diagonal_scatter", node.zeros(node.shapes[0], cotangent), cotangent, **node.attributes),)


def diagonal_scatter(node: Application, cotangents: Cotangents) -> Cotangents:
    (cotangent,) = cotangents
    values = node.zeros(node.shapes[1], cotangent)
    return (
        node.emit("diagonal_scatter", cotangent, values, **node.attributes) if node.active[0] else None,
        node.emit("diagonal", cotangent, **node.attributes) if node.active[1] else None,
    )


def pad(node: Application, cotangents: Cotangents) -> Cotangents:
    widths = tuple(-width for width in node.attributes["pad_widths"])
    return (node.emit("pad", cotangents[0], pad_widths=widths, value=0),)


def cat(node: Application, cotangents: Cotangents) -> Cotangents:
    dim, start, results = node.attributes["dim"], 0, []
    dim %= len(node.shapes[0])
    begin: Extent = start
    for shape, is_active in zip(node.shapes, node.active, strict=True):
        if is_active:
            starts = tuple(begin if k == dim else 0 for k in range(len(shape)))
            ends = tuple(begin + e if k == dim else e for k, e in enumerate(shape))
            results.append(
                node.emit("slice", cotangents[0], start_indices=starts, end_indices=ends, strides=(1,) * len(shape))
            )
        else:
            results.append(None)
        begin = begin + shape[dim]
    return results


def windows(node: Application, cotangents: Cotangents) -> Cotangents:
    (cotangent,), shape = cotangents, node.shapes[0]
    dim, width = node.attributes["dim"] % len(shape), node.attributes["width"]
    if not isinstance(width, int) or width > MOST_WINDOW_COPIES:
        return (_windows_scattered(node, cotangent, dim, width),)
    count = shape[dim] - width + 1
    total = None
    for offset in range(width):
        starts = (*[0] * len(shape), offset)
        ends = (*(count if k == dim else e for k, e in enumerate(shape)), offset + 1)
        part = node.emit("slice", cotangent, start_indices=starts, end_indices=ends, strides=(1,) * len(ends))
        part = node.emit("squeeze", part, dims=(len(shape),))
        widths = tuple(w for k in range(len(shape)) for w in ((offset, width - 1 - offset) if k == dim else (0, 0)))
        part = node.emit("pad", part, pad_widths=widths, value=0)
        total = part if total is None else total + part
    return (total,)


def _windows_scattered(node: Application, cotangent: Any, dim: int, width: Extent) -> Any:
    shape = node.shapes[0]
    count, rank = shape[dim] - width + 1, len(shape)
    first = node.emit("broadcast", node.emit("iota", 0, 1, length=count), is_broadcast_dim=(False, True))
    index = first + node.emit("broadcast", node.emit("iota", 0, 1, length=width), is_broadcast_dim=(True, False))
    order = (*(k for k in range(rank + 1) if k <= dim), rank, *(k for k in range(dim + 1, rank)))
    inner = node.emit("permute", cotangent, dims=order)
    return add_at(node, node.zeros(shape, cotangent), index, inner, dim, (count, width))


# ---------------------------------------------------------------------------------------------------------------------
# positions that are data


def take(node: Application, cotangents: Cotangents) -> Cotangents:
    shape, index = node.shapes[:2]
    dim = node.attributes["dim"] % len(shape)
    return (add_at(node, node.zeros(shape, cotangents[0]), node.operands[1], cotangents[0], dim, index), None)


def add_at(node: Application, data: Any, index: Any, values: Any, dim: int, index_shape: Shape) -> Any:
    """Adds to slices of `data` along `dim` the slices of `values`, whose axes from `dim` on are those of the index."""
    shape, of_index = data.extents, range(dim, dim + len(index_shape))
    rank = len(values.extents)
    front = (*of_index, *(k for k in range(rank) if k not in of_index))
    trailing = tuple(e for k, e in enumerate(shape) if k != dim)
    rows = node.emit("permute", values, dims=front)
    rows = node.emit("reshape", rows, new_shape=(product(index_shape), *trailing), groups=(), inferable=())
    flat = node.emit("reshape", index, new_shape=(product(index_shape),), groups=(), inferable=())
    turned = node.emit("permute", data, dims=(dim, *(k for k in range(len(shape)) if k != dim)))
    result = node.emit("index_put_accumulate", turned, flat, rows)
    return node.emit("permute", result, dims=(*range(1, dim + 1), 0, *range(dim + 1, len(shape))))


def take_along_axis(node: Application, cotangents: Cotangents) -> Cotangents:
    (cotangent,), shape = cotangents, node.shapes[0]
    dim = node.attributes["dim"] % len(shape)
    index = node.operands[1]
    index = node.emit("where", index < 0, index + node.emit("extent", value=shape[dim]), index)
    position: Any = 0
    for axis, extent in enumerate(shape):
        if axis == dim:
            place = index
        elif extent == 1:
            place = 0
        else:
            line = node.emit("iota", 0, 1, length=extent)
            place = node.emit("broadcast", line, is_broadcast_dim=tuple(k != axis for k in range(len(shape))))
        position = position * node.emit("extent", value=extent) + place
    position = node.emit("expand", position, shape=node.result_shapes[0])
    count = product(node.result_shapes[0])
    flat = node.emit("reshape", position, new_shape=(count,), groups=(), inferable=())
    values = node.emit("reshape", cotangent, new_shape=(count,), groups=(), inferable=())
    total = node.emit("index_put_accumulate", node.zeros((product(shape),), cotangent), flat, values)
    return (node.emit("reshape", total, new_shape=shape, groups=(), inferable=()), None)


def index_put_accumulate(node: Application, cotangents: Cotangents) -> Cotangents:
    (cotangent,) = cotangents
    return cotangent, None, node.emit("take", cotangent, node.operands[1], dim=0) if node.active[2] else None


def scatter(node: Application, cotangents: Cotangents) -> Cotangents:
    """Of several elements that are written to one position the last remains, so only that one has a derivative."""
    (cotangent,), index, dim = cotangents, node.operands[1], node.attributes["dim"]
    dim %= len(node.shapes[0])
    data = source = None
    if node.active[0]:
        data = node.emit("scatter", cotangent, index, node.zeros(node.shapes[2], cotangent), dim=dim)
    if node.active[2]:
        order = _positions(node, node.shapes[2], dim)
        remaining = node.emit("scatter", _positions(node, node.shapes[0], dim) * 0 - 1, index, order, dim=dim)
        inside = _cut(node, node.shapes[1], order)
        is_last = node.emit("take_along_axis", _rows(node, remaining, dim), index, dim=dim) == inside
        gathered = node.emit("take_along_axis", _rows(node, cotangent, dim), index, dim=dim)
        source = _grown(node, node.emit("where", is_last, gathered, 0), node.shapes[2])
    return data, None, source


def _positions(node: Application, shape: Shape, dim: int) -> Any:
    """The position along `dim` of every element of an array of `shape`."""
    line = node.emit("iota", 0, 1, length=shape[dim])
    line = node.emit("broadcast", line, is_broadcast_dim=tuple(k != dim for k in range(len(shape))))
    return node.emit("expand", line, shape=shape)


def _cut(node: Application, shape: Shape, value: Any) -> Any:
    """The part of `value` with the extents `shape`, from the first element of each axis on."""
    return node.emit("slice", value, start_indices=(0,) * len(shape), end_indices=shape, strides=(1,) * len(shape))


def _grown(node: Application, value: Any, shape: Shape) -> Any:
    """`value` with zeros behind each axis up to `shape`."""
    widths = tuple(w for length, e in zip(value.extents, shape, strict=True) for w in (0, e - length))
    return node.emit("pad", value, pad_widths=widths, value=0)


def _rows(node: Application, value: Any, dim: int) -> Any:
    """`value` cut to the extents of the index on every axis but `dim`."""
    index = node.shapes[1]
    return _cut(node, tuple(e if k == dim else index[k] for k, e in enumerate(value.extents)), value)


def index_put(node: Application, cotangents: Cotangents) -> Cotangents:
    """Rows are assigned, of which the last one for a row remains, or added."""
    (cotangent,), index, combine = cotangents, node.operands[1], node.attributes["how"]
    node.require(
        node.attributes.get("joined_axes", 1) == 1, "positions in several axes", "join them first: x.reshape(-1)"
    )
    if combine == "add":
        return index_put_accumulate(node, cotangents)
    rows = node.shapes[2]
    data = values = None
    if node.active[0]:
        data = node.emit("index_put", cotangent, index, node.zeros(rows, cotangent), how="assign")
    if node.active[2]:
        order = node.emit("iota", 0, 1, length=rows[0])
        remaining = node.emit("iota", 0, 0, length=node.shapes[0][0]) - 1
        remaining = node.emit("index_put", remaining, index, order, how="assign")
        is_last = node.emit("take", remaining, index, dim=0) == order
        is_last = node.emit("broadcast", is_last, is_broadcast_dim=(False, *[True] * (len(rows) - 1)))
        values = node.emit("where", is_last, node.emit("take", cotangent, index, dim=0), 0)
    return data, None, values


# ---------------------------------------------------------------------------------------------------------------------
# reductions and scans


def sum(node: Application, cotangents: Cotangents) -> Cotangents:
    (cotangent,), shape = cotangents, node.shapes[0]
    if not node.attributes["keepdim"]:
        flags = tuple(k in node.attributes["dims"] for k in range(len(shape)))
        cotangent = node.emit("broadcast", cotangent, is_broadcast_dim=flags)
    return (node.emit("expand", cotangent, shape=shape),)


def mean(node: Application, cotangents: Cotangents) -> Cotangents:
    count = node.emit("extent", value=product(node.shapes[0][axis] for axis in node.attributes["dims"]))
    return sum(node, (cotangents[0] / count,))


def cumsum(node: Application, cotangents: Cotangents) -> Cotangents:
    dim = node.attributes["dim"] % len(node.shapes[0])
    backwards = node.emit("cumsum", node.emit("flip", cotangents[0], dims=(dim,)), dim=dim)
    return (node.emit("flip", backwards, dims=(dim,)),)


# ---------------------------------------------------------------------------------------------------------------------
# products


def _swapped(node: Application, value: Any) -> Any:
    rank = len(value.extents)
    return node.emit("permute", value, dims=(*range(rank - 2), rank - 1, rank - 2))


def _as_matrix(node: Application, value: Any, is_left: bool) -> Any:
    """A vector as a row, or as a column; a stack of matrices as it is."""
    if len(value.extents) > 1:
        return value
    return node.emit("broadcast", value, is_broadcast_dim=(is_left, not is_left))


def matmul(node: Application, cotangents: Cotangents) -> Cotangents:
    (cotangent,), (a, b), (a_shape, b_shape) = cotangents, node.operands, node.shapes
    left, right = _as_matrix(node, a, True), _as_matrix(node, b, False)
    for is_vector, axis in ((len(a_shape) == 1, -1 if len(b_shape) == 1 else -2), (len(b_shape) == 1, -1)):
        if is_vector:
            rank = len(cotangent.extents) + 1
            cotangent = node.emit("broadcast", cotangent, is_broadcast_dim=tuple(k == axis % rank for k in range(rank)))
    results: list[Any] = [None, None]
    if node.active[0]:
        results[0] = _matrix_cotangent(node, node.emit("matmul", cotangent, _swapped(node, right)), a_shape, 0)
    if node.active[1] and len(b_shape) == 2 and len(a_shape) > 2:
        last = len(a_shape) - 1  # one product, which sums over the stack
        axes = {"a_dims": (last, *range(last)), "b_dims": (*range(last + 1),), "stack_axes": 0, "summed_axes": last}
        results[1] = node.emit("contract_axes", a, cotangent, **axes)
    elif node.active[1]:
        results[1] = _matrix_cotangent(node, node.emit("matmul", _swapped(node, left), cotangent), b_shape, 1)
    return results


def contract_axes(node: Application, cotangents: Cotangents) -> Cotangents:
    """The cotangent of an operand is a product of that of the result with the other operand, in its order of axes."""
    (cotangent,), (a, b), (a_shape, b_shape) = cotangents, node.operands, node.shapes
    a_dims, b_dims, batch, inner = (node.attributes[name] for name in ("a_dims", "b_dims", "stack_axes", "summed_axes"))
    rows, columns = len(a_shape) - batch - inner, len(b_shape) - batch - inner
    stack, results = tuple(range(batch)), [None, None]
    of_rows, of_columns = tuple(range(batch, batch + rows)), tuple(range(batch + rows, batch + rows + columns))
    if node.active[0]:
        other = (*b_dims[:batch], *b_dims[batch + inner :], *b_dims[batch : batch + inner])
        order = (*stack, *of_rows, *of_columns)
        value = node.emit(
            "contract_axes", cotangent, b, a_dims=order, b_dims=other, stack_axes=batch, summed_axes=columns
        )
        results[0] = node.emit("permute", value, dims=_inverse(a_dims))
    if node.active[1]:
        other = (*a_dims[:batch], *a_dims[batch + rows :], *a_dims[batch : batch + rows])
        order = (*stack, *of_rows, *of_columns)
        value = node.emit("contract_axes", a, cotangent, a_dims=other, b_dims=order, stack_axes=batch, summed_axes=rows)
        results[1] = node.emit("permute", value, dims=_inverse(b_dims))
    return results


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _matrix_cotangent(node: Application, value: Any, shape: Shape, position: int) -> Any:
    if len(shape) > 1:
        return node.sum_to(value, shape)
    rank = len(value.extents)
    value = node.emit("squeeze", value, dims=(rank - 2 if position == 0 else rank - 1,))
    return node.sum_to(value, shape)


def bincount(node: Application, cotangents: Cotangents) -> Cotangents:
    """Each weight has the cotangent of the sum that it is part of."""
    return None, node.emit("take", cotangents[0], node.operands[0], dim=0)
