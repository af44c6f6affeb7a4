"""Products of tiles by groups of warps in the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse.dtypes import float32, uint32
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.interpreter.group_order import WARP
from tracefuse.kernel.interpreter.lanes import Lanes
from tracefuse.kernel.interpreter.matrices import whole_warps

GROUP = 4 * WARP
"""The threads of a group of warps."""


def multiply_tiles(lanes: Lanes, statement: ir.MultiplyTiles) -> None:
    """Multiplies in each group of warps. Starts a product as a whole, of which the sums are used once it is awaited."""
    groups, terms, columns = _groups(lanes), statement.terms, statement.columns
    left_is_shared = statement.left.space == "shared"
    if statement.sums.dtype is not float32 or (statement.left.dtype is not uint32 and not left_is_shared) or terms % 16:
        raise lanes.fail("a product of tiles: pairs are uint32, sums float32, the terms multiples of 16")
    if left_is_shared:
        left = _tile(lanes, groups, statement.left, statement.left_index, statement.ROWS, terms)
    else:
        left = _registers(lanes, groups, statement)
    sides = (columns, terms) if statement.transposed else (terms, columns)
    right = _tile(lanes, groups, statement.right, statement.right_index, *sides)
    products = left @ (right.swapaxes(1, 2) if statement.transposed else right)
    start = lanes.evaluate(statement.sums_index)
    row, column = _held(columns // 4)
    for k in range(columns // 2):
        place = start + start.dtype.type(k)
        value = np.zeros(lanes.lanes, np.float32)
        value[groups] = products[:, row[:, k // 2], column[:, k // 2] + k % 2]
        if not statement.replaces:
            value = value + lanes.broadcast(lanes.load(statement.sums, place))
        lanes.store(statement.sums, place, value)
    if not statement.awaited:
        lanes.products.append((statement.sums.name, statement.left.name))


def _groups(lanes: Lanes) -> Any:
    """Returns the active lanes, by group. Raises unless all threads of a group reach the statement."""
    warps = whole_warps(lanes, "a product of tiles")
    if lanes.kernel.threads % GROUP or warps.size % GROUP or (np.diff(warps.reshape(-1, GROUP)) != 1).any():
        raise lanes.fail(f"a product of tiles is not reached by all threads of groups of {GROUP}")
    return warps.reshape(-1, GROUP)


def _held(count: int) -> tuple[Any, Any]:
    """Returns the row and the first column of each thread's pairs: two pairs of each 8 columns."""
    thread, part = np.arange(GROUP)[:, None], np.arange(count)
    row = thread // WARP * 16 + thread % WARP // 4 + part % 2 * 8
    return row, part // 2 * 8 + thread % 4 * 2


def _tile(lanes: Lanes, groups: Any, buffer: ir.Buffer, index: ir.Expression, height: int, width: int) -> Any:
    """Returns the tile of each group; its threads read the elements in turns."""
    if buffer.space != "shared" or not buffer.dtype.is_half:
        raise lanes.fail(f"a product of tiles: {buffer.name} must be halves in shared memory")
    start, statement = lanes.broadcast(lanes.evaluate(index)), ir.MultiplyTiles
    misplaced = start[groups] * buffer.dtype.itemsize % statement.ALIGNMENT
    if (start[groups] != start[groups][:, :1]).any() or misplaced.any():
        raise lanes.fail(f"a tile in {buffer.name} is not at one multiple of {statement.ALIGNMENT} bytes for a group")
    turn = lanes.every_lane % GROUP
    read = [lanes.load(buffer, start + (turn + k).astype(start.dtype)) for k in range(0, height * width, GROUP)]
    elements = np.stack([part[groups] for part in read], axis=1).astype(np.float32)
    parts = elements.reshape(len(groups), width // statement.WIDTH, height, 8, 8)
    row = np.arange(height)[:, None]
    return parts[:, :, row, np.arange(8) ^ row % 8].swapaxes(1, 2).reshape(len(groups), height, width)


def _registers(lanes: Lanes, groups: Any, statement: ir.MultiplyTiles) -> Any:
    """Returns the left operand of each group, from registers."""
    start, count = lanes.evaluate(statement.left_index), statement.terms // 4
    words = [lanes.load(statement.left, start + start.dtype.type(k)) for k in range(count)]
    pairs = np.stack([lanes.broadcast(w)[groups] for w in words], axis=-1)
    halves = np.stack([pairs & np.uint32(0xFFFF), pairs >> np.uint32(16)], axis=-1).astype(np.uint16)
    row, column = _held(count)
    left = np.zeros((len(groups), statement.ROWS, statement.terms), np.float32)
    for k in range(2):
        left[:, row, column + k] = halves[..., k].view(statement.right.dtype.numpy).astype(np.float32)
    return left
