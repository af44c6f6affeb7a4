"""Tiles of matrices of halves or float32: their copies to shared memory, and products of them in registers of warps.

A tile has `rows` rows of `features` elements, in shared memory with 16 bytes of padding a row, so that the rows of a
matrix of 8 x 8 are in different banks. Each warp has rows of the left tile of a product, in matrices of 16 rows. Of its
sums, a thread holds, for each matrix of 16 x 8, two adjacent columns in each of two rows, 8 apart.

Must not know: ops, sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType, float32, uint32
from tracefuse.ir.extents import Extent, minimum, symbol
from tracefuse.ir.fusion import Shape
from tracefuse.kernel.kernel_ir import (
    Allocate,
    Buffer,
    Constant,
    Copy,
    Load,
    LoadMatrices,
    MultiplyMatrices,
    MultiplyTiles,
    StartCopy,
    Store,
    StorePair,
    call,
)
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import when

WARP = 32
CHUNK_BYTES = 16
"""Of an access, and after each row of a tile, which shift the next row by four banks."""
MATRIX = 16
"""The rows of a matrix on the left of a product, and the summed elements of one step of it."""
COLUMNS = 8
"""The columns of the matrix of sums of one product."""


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread's index in its block, its warp, its index in the warp, and its row and first column in a matrix."""

    thread: Extent
    warp: Extent
    lane: Extent
    row: Extent
    column: Extent


@dataclass(frozen=True, slots=True)
class SharedTile:
    """A tile of rows of a tensor in shared memory.

    number: the tensor. stack: the coordinates of its stack axes. order: its axes as (stack..., rows, features). stages:
    how many tiles of `rows` rows the buffer has. pitch: the elements from a row to the next. together: the rows of each
    tile of MultiplyTiles in it, stored as there without padding; 0: rows follow each other.
    """

    buffer: Buffer
    number: int
    stack: Shape
    order: tuple[int, ...]
    rows: int
    features: int
    pitch: int
    stages: int = 1
    together: int = 0

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def chunk(self) -> int:
        """The elements of an access."""
        return chunk_of(self.dtype)


def chunk_of(dtype: DType) -> int:
    """Returns the elements of an access of 16 bytes."""
    return CHUNK_BYTES // dtype.itemsize


def pitch_of(dtype: DType, features: int, *, pairs: bool = False) -> int:
    """Returns the elements from a row of a tile to the next.

    pairs: the tile is only read by pairs of features. Pairs of float32 are in different banks with twice the padding.
    """
    return features + chunk_of(dtype) * (1 if dtype.is_half or not pairs else 2)


def new_tile(
    body: Body, name: str, number: int, stack: Shape, order: tuple[int, ...], rows: int, features: int,
    stages: int = 1, *, pairs: bool = False, together: int = 0,
) -> SharedTile:  # fmt: skip
    """Allocates a tile in shared memory.

    pairs: it is only read by pairs of features, never transposed. together: see SharedTile.
    """
    dtype = body.fusion.values[number].dtype
    pitch = features if together else pitch_of(dtype, features, pairs=pairs)
    buffer = Buffer(body.fresh(name), dtype, "shared", stages * rows * pitch)
    body.append(Allocate(buffer))
    return SharedTile(buffer, number, stack, order, rows, features, pitch, stages, together)


def start_tile(
    body: Body, tile: SharedTile, first: Extent, extent: Extent, thread: Extent, threads: int, stage: Extent = 0
) -> None:  # fmt: skip
    """Starts the copy of the rows from `first` on; beyond `extent` rows, of the last row.

    stage: the first row of the buffer to copy to.
    """
    chunks = tile.features // tile.chunk
    total = tile.rows * chunks
    step = symbol(body.fresh("step"), extent=-(-total // threads))
    source = body.buffer_of(tile.number)
    with body.loop(step, -(-total // threads), "unroll"):
        chunk = symbol(body.fresh("chunk"), extent=total)
        body.bind(chunk, body.index.code(step * threads + thread))
        with when(body, [] if total % threads == 0 else [body.index.compare("lt", chunk, total)]):
            row = symbol(body.fresh("source_row"), extent=extent)
            body.bind(row, body.index.code(minimum(first + chunk // chunks, extent - 1)))
            at = ordered(tile.order, (*tile.stack, row, chunk % chunks * tile.chunk))
            place = (stage + chunk // chunks) * tile.pitch + chunk % chunks * tile.chunk
            if tile.together:
                place = place_together(body, tile, stage, step * (threads // chunks), thread)
            offset = body.offset(tile.number, at)
            body.append(StartCopy(tile.buffer, body.index.code(place), source, body.index.code(offset), tile.chunk))


def place_together(body: Body, tile: SharedTile, stage: Extent, first: Extent, thread: Extent) -> Extent:
    """Returns the place of a thread's chunk in a tile of MultiplyTiles, in a step of rows from `first` on."""
    width, chunks = MultiplyTiles.WIDTH, tile.features // tile.chunk
    row, swizzled = first + thread // chunks, symbol(body.fresh("swizzled"), extent=COLUMNS)
    # The first row of a step is a multiple of 8, since a block has whole groups of warps.
    body.bind(swizzled, call("xor", body.index.code(thread % COLUMNS), body.index.code(thread // chunks % COLUMNS)))
    part = row // tile.together * tile.together if tile.rows > tile.together else 0
    within = thread % chunks // COLUMNS * tile.together + row - part
    return (stage + part) * tile.pitch + within * width + swizzled * tile.chunk


def ordered(order: Sequence[int], coordinates: Shape) -> Shape:
    """Returns coordinates in the order of a tensor's own axes; order: those axes in the order of the coordinates."""
    result: list[Extent] = [0] * len(order)
    for axis, coordinate in zip(order, coordinates, strict=True):
        result[axis] = coordinate
    return tuple(result)


def registers(body: Body, name: str, size: int, dtype: DType) -> Buffer:
    """Allocates a buffer in the registers of each thread."""
    buffer = Buffer(body.fresh(name), dtype, "local", size)
    body.append(Allocate(buffer))
    return buffer


def zeros(body: Body, buffer: Buffer) -> None:
    """Sets float32 registers to 0."""
    assert isinstance(buffer.size, int)
    k = symbol(body.fresh("k"), extent=buffer.size)
    with body.loop(k, buffer.size, "unroll"):
        body.append(Store(buffer, body.index.code(k), Constant(0.0, float32)))


def load_left(body: Body, at: Thread, to: Buffer, place: Extent, tile: SharedTile, row: Extent, column: Extent) -> None:
    """Loads a matrix of 16 x 16 of a tile as the left operand of a product."""
    if tile.dtype.is_half:
        start = (row + at.lane % MATRIX) * tile.pitch + column + at.lane // MATRIX * COLUMNS
        body.append(LoadMatrices(to, body.index.code(place), tile.buffer, body.index.code(start)))
        return
    for k in range(4):
        start = (row + at.row + k % 2 * COLUMNS) * tile.pitch + column + at.column + k // 2 * COLUMNS
        body.append(Copy(to, body.index.code(place + 2 * k), tile.buffer, body.index.code(start), 2))


def load_right(body: Body, at: Thread, to: Buffer, tile: SharedTile, row: Extent, column: Extent) -> None:
    """Loads the transpose of a matrix of 16 x 16 of a tile as two right operands, for 8 rows of the tile each."""
    if tile.dtype.is_half:
        start = (row + at.lane // MATRIX * COLUMNS + at.lane % COLUMNS) * tile.pitch
        start = start + column + at.lane // COLUMNS % 2 * COLUMNS
        body.append(LoadMatrices(to, body.index.code(0), tile.buffer, body.index.code(start)))
        return
    for k in range(4):
        start = (row + at.row + k // 2 * COLUMNS) * tile.pitch + column + at.column + k % 2 * COLUMNS
        body.append(Copy(to, body.index.code(2 * k), tile.buffer, body.index.code(start), 2))


def load_right_transposed(body: Body, at: Thread, to: Buffer, tile: SharedTile, row: Extent, column: Extent) -> None:
    """Loads a matrix of 16 x 16 of a tile as two right operands, for 8 columns of the tile each."""
    if tile.dtype.is_half:
        start = (row + at.lane % MATRIX) * tile.pitch + column + at.lane // MATRIX * COLUMNS
        body.append(LoadMatrices(to, body.index.code(0), tile.buffer, body.index.code(start), True))
        return
    for k in range(8):
        start = (row + at.column + k // 2 % 2 * COLUMNS + k % 2) * tile.pitch + column + at.row + k // 4 * COLUMNS
        body.append(Store(to, body.index.code(k), load(body, tile.buffer, start)))


@dataclass(frozen=True, slots=True)
class WarpProducts:
    """Products of the tiles of a block, of which each warp computes `matrices` matrices of 16 rows."""

    body: Body
    at: Thread
    matrices: int
    dtype: DType

    @property
    def first_row(self) -> Extent:
        """The first row of the warp in its tile."""
        return self.at.warp * (self.matrices * MATRIX)

    @property
    def words(self) -> int:
        """The registers of a left operand, and of two right ones: pairs of halves, or float32."""
        return 4 if self.dtype.is_half else 8

    def operands(self, name: str, count: int = 1) -> Buffer:
        """Allocates the registers of so many left operands, or as many times two right ones."""
        return registers(self.body, name, count * self.words, uint32 if self.dtype.is_half else float32)

    def load_rows(self, tile: SharedTile) -> Buffer:
        """Loads the warp's rows of a tile of halves into registers, as left operands."""
        body, steps = self.body, tile.features // MATRIX
        buffer = self.operands("rows", self.matrices * steps)
        with body.loop(k := symbol(body.fresh("k"), extent=steps), steps, "unroll"):
            for m in range(self.matrices):
                place = (m * steps + k) * 4 if steps > 1 else m * 4
                load_left(body, self.at, buffer, place, tile, self.first_row + m * MATRIX, k * MATRIX)
        return buffer

    def scores(
        self, sums: Buffer, left: SharedTile, right: SharedTile, loaded: Buffer | None, stage: Extent = 0
    ) -> None:  # fmt: skip
        """sums = left @ right.T, the features being summed.

        loaded: the warp's rows of `left` in registers. stage: the first row of `right` in its buffer.
        """
        body, steps, pairs = self.body, left.features // MATRIX, right.rows // MATRIX
        zeros(body, sums)
        kind = "unroll" if self.dtype.is_half else "serial"  # the code of float32 products is long
        with body.loop(k := symbol(body.fresh("k"), extent=steps), steps, kind):
            rows = loaded
            if rows is None:
                rows = self.operands("rows", self.matrices)
                for m in range(self.matrices):
                    load_left(body, self.at, rows, m * self.words, left, self.first_row + m * MATRIX, k * MATRIX)
            columns = self.operands("columns")
            with body.loop(n := symbol(body.fresh("n"), extent=pairs), pairs, "unroll"):
                load_right(body, self.at, columns, right, stage + n * MATRIX, k * MATRIX)
                for m in range(self.matrices):
                    place = (m if loaded is None else m * steps + k) * self.words
                    self.multiply(sums, (m * pairs + n) * 8, rows, place, columns)

    def multiply(self, sums: Buffer, place: Extent, rows: Buffer, at: Extent, columns: Buffer) -> None:
        """Adds the products with both right operands in `columns`."""
        body, code = self.body, self.body.index.code
        for half in range(2):
            body.append(
                MultiplyMatrices(
                    sums, code(place + half * 4), rows, code(at), columns, code(half * self.words // 2), self.dtype
                )
            )  # fmt: skip

    def accumulate(self, sums: Buffer, weights: Buffer, right: SharedTile, stage: Extent = 0) -> None:
        """sums += weights @ right: float32 weights in registers, rounded to dtype, over the rows of the tile.

        stage: the first row of `right` in its buffer.
        """
        body, steps, pairs = self.body, right.rows // MATRIX, right.features // MATRIX
        with body.loop(k := symbol(body.fresh("k"), extent=steps), steps, "unroll"):
            rows = self.operands("halves", self.matrices) if self.dtype.is_half else weights
            columns = self.operands("columns")
            if self.dtype.is_half:
                self._round(rows, weights, k, steps)
            with body.loop(n := symbol(body.fresh("n"), extent=pairs), pairs, "unroll"):
                load_right_transposed(body, self.at, columns, right, stage + k * MATRIX, n * MATRIX)
                for m in range(self.matrices):
                    place = (m if self.dtype.is_half else m * steps + k) * self.words
                    self.multiply(sums, (m * pairs + n) * 8, rows, place, columns)

    def _round(self, rows: Buffer, weights: Buffer, k: Extent, steps: int) -> None:
        """Rounds the left operands of one step over the columns of the weights to pairs of halves."""
        for m in range(self.matrices):
            for part in range(4):
                self.round_pair(rows, m * 4 + part, weights, (m * steps + k) * 8 + part * 2)

    def round_pair(self, rows: Buffer, at: Extent, weights: Buffer, place: Extent) -> None:
        """Rounds two adjacent weights to a pair of halves."""
        pair = (load(self.body, weights, place), load(self.body, weights, place + 1))
        self.body.append(StorePair(rows, self.body.index.code(at), *pair, self.dtype))


def load(body: Body, buffer: Buffer, place: Extent) -> Load:
    """Returns an element of a buffer."""
    return Load(buffer, body.index.code(place))
