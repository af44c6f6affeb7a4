"""What the kernels of attention share: their tiles, the indices of a block and its threads, and reads and writes.

A block computes a tile of rows of the scores (or, for the gradients of keys and values, of their columns) for one
element of the stack, with 4 warps, fewer if it has few rows, and up to 6 if a block has all of them.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from segments import Verdict
from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType, float32
from tracefuse.ir.extents import (
    Extent,
    Symbol,
    as_symbol,
    ceildiv,
    minimum,
    substitute,
    symbol,
    symbol_of,
    terms_of,
)
from tracefuse.ir.fusion import Shape
from tracefuse.kernel.kernel_ir import Buffer, Copy, Expression, Store, Variable, call
from tracefuse.passes.attention_match import Attention, Factor
from tracefuse.passes.gradient_match import AttentionGradient
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import bind_loops, open_block, open_threads
from tracefuse.schedule.gpu.gpu_problem import GpuProblem, index_dtype_of_arrays
from tracefuse.schedule.gpu.gpu_tiles import (
    COLUMNS,
    MATRIX,
    WARP,
    SharedTile,
    Thread,
    WarpProducts,
    chunk_of,
    load,
    new_tile,
    registers,
)
from tracefuse.schedule.launch_spec import Lowered, make_launch
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.refusal_codes import ScheduleRefusal

WARPS = 4
"""The warps of a block, for many rows."""
BLOCKS = 2
"""The blocks of a multiprocessor, with four warps."""
MOST_FEATURES = 256


class AttentionRefusal(ScheduleRefusal):
    """Refusals of the attention template."""

    FEATURES = "the number of features is not a multiple of 16 up to 256"
    ACCESSES = "an operand cannot be read in accesses of 16 bytes"


@dataclass(frozen=True, slots=True)
class TileRow:
    """A row of scores of a thread: its matrix and half of a matrix, the row, and its position, which may be outside."""

    matrix: int
    half: int
    row: Extent
    position: Extent


def readable_features(
    problem: GpuProblem, factors: Sequence[Factor]
) -> Verdict | tuple[dict[Factor, int], dict[Symbol, Extent]]:
    """Returns the features of each operand, and the symbols of the features with their values.

    Returns a refusal if one cannot be read in accesses of 16 bytes. Guards the sizes and strides that decide.
    """
    fusion, sizes = problem.fusion, problem.sizes
    features: dict[Factor, int] = {}
    fixed: dict[Symbol, Extent] = {}
    for factor in factors:
        extent = fusion.shape_of(factor.number)[factor.order[-1]]
        count = features[factor] = sizes.hint(extent)
        sizes.require(extent, "==", count, "the features of an attention fill its tiles")
        if (known := as_symbol(extent)) is not None:
            fixed[known] = count
        if count % MATRIX or not 0 < count <= MOST_FEATURES:
            return AttentionRefusal.FEATURES(features=count)
    for factor in factors:
        strides, chunk = problem.memory.strides[factor.number], chunk_of(fusion.values[factor.number].dtype)
        rows = [substitute(strides[axis], fixed) for axis in factor.order[:-1]]
        rows = [stride for stride in rows if any(coefficient % chunk for _, coefficient in terms_of(stride))]
        wide = all(sizes.is_multiple(stride, chunk, "rows are copied in accesses of 16 bytes") for stride in rows)
        if strides[factor.order[-1]] != 1 or not wide or factor.number not in problem.memory.aligned:
            return AttentionRefusal.ACCESSES(value=factor.number)
    return features, fixed


@dataclass
class AttentionFrame:
    """The emission of one kernel of attention. fixed: the symbols of features, with their values."""

    problem: GpuProblem
    match: Attention | AttentionGradient
    fixed: Mapping[Symbol, Extent]
    body: Body = field(init=False)
    at: Thread = field(init=False)
    block: Extent = field(init=False)
    first: Extent = field(init=False)
    stack: Shape = field(init=False)
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        fusion, memory = self.problem.fusion, self.problem.memory
        self.body = Body(
            fusion, memory.strides, index_dtype_of_arrays(self.problem), aligned=memory.aligned,
            misaligned=memory.misaligned, shared=memory.shared,
        )  # fmt: skip
        self.body.index.known.update(self.fixed)
        self.shape = fusion.shape_of(self.match.scores)

    @property
    def warps(self) -> int:
        """The warps of a block."""
        return WARPS

    @property
    def resident(self) -> int:
        """The blocks of a multiprocessor, at least."""
        return BLOCKS

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def dtype(self) -> DType:
        """The type of the operands."""
        return self.problem.fusion.values[self.match.factors[0][0].number].dtype

    def open(self, extent: Extent, rows: int, *, last_first: bool) -> tuple[Extent, Variable]:
        """Binds the indices of a block, which computes `rows` rows of `extent`, and of its threads.

        last_first: the first blocks compute the last rows. Returns the number of blocks and the variable of a thread.
        """
        body, count = self.body, ceildiv(extent, rows)
        blocks = symbol("blocks")
        self.block = open_block(body, blocks)
        thread, variable = open_threads(body, self.threads)
        lane = self.bound("lane_of_warp", thread % WARP, WARP)
        self.at = Thread(
            thread, self.bound("warp", thread // WARP, self.warps), lane, self.bound("row", lane // 4, 8),
            self.bound("pair", lane % 4 * 2, 8),
        )  # fmt: skip
        tile = symbol("tile", extent=count)
        loops = [Loop(symbol(f"stack{k}", extent=e), e, False) for k, e in enumerate(self.shape[:-2])]
        self.stack = tuple(0 if loop.extent == 1 else loop.index for loop in loops)
        bind_loops(body, [*(loop for loop in loops if loop.extent != 1), Loop(tile, count, False)], self.block)
        self.first = self.bound("first", (count - 1 - tile if last_first else tile) * rows, None)
        return blocks, variable

    def close(self, name: str, blocks: Extent, count: Extent, variable: Variable) -> Lowered:
        """Returns the launch. blocks: the symbol of their number, which is `count`."""
        launch = make_launch(
            self.body, f"{self.problem.name}_{name}", "cuda", [(self.block, blocks)],
            contract=self.problem.contract, threads=self.threads, thread=variable,
            blocks_per_multiprocessor=self.resident,
        )  # fmt: skip
        return Lowered("", (launch,), tuple(self.problem.sizes.guards), (), {symbol_of(blocks): count})

    def bound(self, name: str, value: Extent, extent: Extent | None) -> Extent:
        """Binds an integer to a new variable; returns its index."""
        index = symbol(self.body.fresh(name), extent=extent)
        self.body.bind(index, self.body.index.code(value))
        return index

    def tile(
        self, name: str, factor: Factor, rows: int, features: int, stages: int = 1, *, pairs: bool = False,
        together: int = 0,
    ) -> SharedTile:  # fmt: skip
        """Allocates the tile of an operand; its stack axes of extent 1 are read at 0. The rest: see `new_tile`."""
        shape = self.problem.fusion.shape_of(factor.number)
        outer_axes = len(factor.order) - 2
        stack = self.stack[len(self.stack) - outer_axes :]
        at = tuple(0 if shape[axis] == 1 else c for axis, c in zip(factor.order[:-2], stack, strict=True))
        return new_tile(
            self.body, name, factor.number, at, factor.order, rows, features, stages, pairs=pairs, together=together
        )  # fmt: skip

    def coordinates(self, row: Extent, *more: Extent) -> Shape:
        """Returns coordinates of the scores, or of a row of them, with 0 on axes of extent 1, where values are read."""
        at = (*self.stack, row, *more)
        return tuple(0 if extent == 1 else c for c, extent in zip(at, self.shape, strict=False))

    def store(self, number: int, coordinates: Shape, value: Expression) -> None:
        buffer = self.body.buffer_of(number, written=True)
        self.body.store(buffer, self.offset(number, coordinates), (value,))

    def offset(self, number: int, coordinates: Shape) -> Extent:
        strides = self.problem.memory.output_strides(self.problem.fusion, number)
        total: Extent = 0
        for coordinate, stride in zip(coordinates, strides, strict=True):
            total = total + coordinate * stride
        return total

    # --- the rows of a thread -----------------------------------------------------------------------------------------

    def tile_rows(self, products: WarpProducts, matrices: int, extent: Extent) -> list[TileRow]:
        """Binds the rows of a thread, of `extent` rows; those beyond are the last row."""
        start = self.bound("first_row", self.first + products.first_row + self.at.row, None)
        rows = []
        for matrix in range(matrices):
            for half in range(2):
                position = start + (matrix * MATRIX + half * 8)
                row = self.bound("row", minimum(position, extent - 1), extent)
                rows.append(TileRow(matrix, half, row, position))
        return rows

    def places(self, row: TileRow, n: Extent, width: int) -> Iterator[tuple[Extent, Extent]]:
        """Yields the places of a row's sums in matrices 2n and 2n + 1, with their columns from the row's first."""
        for matrix in range(2):
            for column in range(2):
                place = (row.matrix * (width // MATRIX) + n) * 8 + matrix * 4 + row.half * 2 + column
                yield place, n * MATRIX + matrix * COLUMNS + column

    def store_sums(
        self, row: TileRow, sums: Buffer, width: int, number: int, order: tuple[int, ...], scale: Expression
    ) -> None:  # fmt: skip
        """Stores a row of sums with `width` columns, scaled, in pairs of elements where the buffer allows.

        number: the result; order: its axes as (stack..., rows, columns).
        """
        body, rank = self.body, len(self.shape)
        buffer = body.buffer_of(number, written=True)
        wide = number not in self.problem.memory.placed and order[-1] == rank - 1
        with body.loop(n := symbol(body.fresh("n"), extent=width // MATRIX), width // MATRIX, "unroll"):
            places = list(self.places(row, n, width))
            for k in (0, 2):
                pair = registers(body, "result", 2, float32)
                for part, (place, _) in enumerate(places[k : k + 2]):
                    scaled = call("mul", load(body, sums, place), scale)
                    body.append(Store(pair, body.index.code(part), scaled))
                at = [(*self.stack, row.row, self.at.column + column) for _, column in places[k : k + 2]]
                offsets = [self.offset(number, tuple(coordinates[axis] for axis in order)) for coordinates in at]
                if wide:
                    body.append(Copy(buffer, body.index.code(offsets[0]), pair, body.index.code(0), 2))
                    continue
                for part, offset in enumerate(offsets):
                    body.store(buffer, offset, (load(body, pair, part),))
