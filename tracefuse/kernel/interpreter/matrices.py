"""Matrices in the interpreter: products of tiles, matrices in the registers of a warp, pairs of halves in a word."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse.dtypes import DType, float32, uint32
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.interpreter.group_order import WARP
from tracefuse.kernel.interpreter.lanes import Lanes
from tracefuse.kernel.primitives import convert

_ROW_BYTES = 16
_THREAD = np.arange(WARP)
_ROW, _PAIR = _THREAD // 4, _THREAD % 4 * 2


def pair_bits(low: Any, high: Any, dtype: DType) -> Any:
    """Return the bits of two arrays of floats, rounded to a half type, as one uint32 each."""
    halves = [convert(part, dtype).view(np.uint16).astype(np.uint32) for part in (low, high)]
    return halves[0] | halves[1] << np.uint32(16)


def whole_warps(lanes: Lanes, statement: str) -> Any:
    """Return the active lanes, by warp. Raises unless all threads of a warp reach the statement."""
    if lanes.kernel.threads % WARP:
        raise lanes.fail(f"{statement} needs complete warps, the block has {lanes.kernel.threads} threads")
    everyone = np.arange(lanes.lanes).reshape(-1, WARP)
    if lanes.mask is None:
        return everyone
    mask = lanes.mask.reshape(-1, WARP)
    if (mask.any(axis=1) & ~mask.all(axis=1)).any():
        raise lanes.fail(f"{statement} is not reached by all threads of a warp")
    return everyone[mask.any(axis=1)]


def add_products(lanes: Lanes, statement: ir.AddProducts) -> None:
    scales, columns = statement.scales, statement.vectors * statement.lanes
    buffers = [matrix.buffer for matrix in statement.matrices] + ([] if scales is None else [scales])
    if len({b.dtype for b in buffers}) > 1 or any(b.space != "local" for b in buffers):
        raise lanes.fail(f"a product of tiles: {', '.join(b.name for b in buffers)} must be local, of one dtype")
    counts = [lanes.broadcast(lanes.evaluate(e)) for e in (statement.rows, statement.terms)]
    starts = [lanes.broadcast(lanes.evaluate(matrix.start)) for matrix in statement.matrices]
    active = lanes.every_lane if lanes.mask is None else np.flatnonzero(lanes.mask)
    for lane in active.tolist():
        rows, terms = (int(count[lane]) for count in counts)
        rows = -(-rows // statement.group) * statement.group
        sides = (rows, columns), (rows, terms), (terms, columns)
        places = []
        for matrix, start, (height, width) in zip(statement.matrices, starts, sides, strict=True):
            lines = np.arange(height)[:, None] * matrix.row_pitch
            place = int(start[lane]) + lines + np.arange(width) * matrix.column_pitch
            if place.size and not 0 <= place.min() <= place.max() < lanes.memory(matrix.buffer).length:
                raise lanes.fail(f"a product of tiles reaches outside {matrix.buffer.name}, by {lanes.lane_text(lane)}")
            places.append(place)
        data = [lanes.memory(matrix.buffer).data[:, lane] for matrix in statement.matrices]
        factors = data[1][places[1]], data[2][places[2]]
        total = np.zeros(sides[0], statement.sums.buffer.dtype.numpy)
        with np.errstate(all="ignore"):
            for term in range(terms):
                total = total + factors[0][:, term, None] * factors[1][term]
            if not statement.replaces:
                before = data[0][places[0]]
                total += before if scales is None else before * lanes.memory(scales).data[:rows, lane, None]
        data[0][places[0]] = total


def load_matrices(lanes: Lanes, statement: ir.LoadMatrices) -> None:
    source, index = statement.source, lanes.evaluate(statement.source_index)
    if source.space != "shared" or source.dtype.itemsize != 2 or statement.destination.dtype is not uint32:
        raise lanes.fail(f"matrices of {source.name}: they must be halves in shared memory, loaded as uint32")
    warps = whole_warps(lanes, "a load of matrices")
    starts = lanes.broadcast(index)[warps]
    if (starts * source.dtype.itemsize % _ROW_BYTES).any():
        raise lanes.fail(f"a row of a matrix in {source.name} is not aligned to {_ROW_BYTES} bytes")
    # Thread t gives the address of row t % 8 of matrix t // 8, and reads that row.
    rows = np.stack([lanes.load(source, index + index.dtype.type(k)) for k in range(8)], axis=-1)[warps]
    matrices = rows.view(np.uint16).astype(np.uint32).reshape(len(warps), 4, 8, 8)
    if statement.transposed:
        matrices = matrices.swapaxes(2, 3)
    pairs = matrices[:, :, _ROW, _PAIR] | matrices[:, :, _ROW, _PAIR + 1] << np.uint32(16)
    place = lanes.evaluate(statement.destination_index)
    for k in range(4):
        value = np.zeros(lanes.lanes, np.uint32)
        value[warps] = pairs[:, k]
        lanes.store(statement.destination, place + place.dtype.type(k), value)


def multiply_matrices(lanes: Lanes, statement: ir.MultiplyMatrices) -> None:
    buffers, is_half = (statement.left, statement.right, statement.sums), statement.dtype.is_half
    held = uint32 if is_half else float32
    if [b.dtype for b in buffers] != [held, held, float32] or any(b.space != "local" for b in buffers):
        raise lanes.fail(f"a product of matrices: pairs are local {held.name}, sums local float32")
    warps = whole_warps(lanes, "a product of matrices")

    def registers(buffer: ir.Buffer, index: ir.Expression, count: int) -> list[Any]:
        start = lanes.evaluate(index)
        return [lanes.broadcast(lanes.load(buffer, start + start.dtype.type(k)))[warps] for k in range(count)]

    def pairs(buffer: ir.Buffer, index: ir.Expression, count: int) -> list[Any]:
        if not is_half:
            words = registers(buffer, index, 2 * count)
            return [np.stack(words[k : k + 2], axis=-1) for k in range(0, 2 * count, 2)]
        parts = (
            np.stack([w & np.uint32(0xFFFF), w >> np.uint32(16)], axis=-1) for w in registers(buffer, index, count)
        )
        return [part.astype(np.uint16).view(statement.dtype.numpy).astype(np.float32) for part in parts]

    pair = _PAIR[:, None] + np.arange(2)
    left = np.zeros((len(warps), 16, 16), np.float32)
    for k, elements in enumerate(pairs(statement.left, statement.left_index, 4)):
        left[:, (_ROW + k % 2 * 8)[:, None], pair + k // 2 * 8] = elements
    right = np.zeros((len(warps), 16, 8), np.float32)
    for k, elements in enumerate(pairs(statement.right, statement.right_index, 2)):
        right[:, pair + k * 8, _ROW[:, None]] = elements
    products = left @ right
    start = lanes.evaluate(statement.sums_index)
    for k, before in enumerate(registers(statement.sums, statement.sums_index, 4)):
        value = np.zeros(lanes.lanes, np.float32)
        value[warps] = before + products[:, _ROW + k // 2 * 8, _PAIR + k % 2]
        lanes.store(statement.sums, start + start.dtype.type(k), value)
