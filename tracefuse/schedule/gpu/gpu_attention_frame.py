"""What the kernels of attention share: their tiles, the indices of a block and its threads, and reads and writes.

A block computes a tile of rows of the scores (or, for the gradients of keys and values, of their columns) for one
element of the stack, with 4 warps.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from segments import Verdict, yes
from tracefuse.dtypes import DType, int32, int64
from tracefuse.ir.extents import (
    Extent,
    Symbol,
    as_symbol,
    ceildiv,
    product,
    substitute,
    symbol,
    symbol_of,
    terms_of,
)
from tracefuse.ir.fusion import Shape
from tracefuse.kernel.kernel_ir import Expression, Variable
from tracefuse.passes.attention_match import Attention, Factor
from tracefuse.schedule.attention_facts import AttentionFacts
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import bind_loops, open_block, open_threads
from tracefuse.schedule.gpu.gpu_problem import NARROW_INDEX, GpuProblem, span_of
from tracefuse.schedule.gpu.gpu_tiles import CHUNK, MATRIX, WARP, SharedTile, Thread, new_tile
from tracefuse.schedule.launch_spec import Lowered, make_launch
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.refusal_codes import ScheduleRefusal

WARPS = 4
THREADS = WARPS * WARP
WIDE_FEATURES = 128
"""With more features, a warp takes 16 queries and a tile 32 keys: sums of 32 rows would not fit in registers."""


class AttentionRefusal(ScheduleRefusal):
    """Refusals of the attention template."""

    FEATURES = "the number of features is not a multiple of 16 up to 256"
    ACCESSES = "an operand cannot be read in accesses of 16 bytes"


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """The extents of an attention's tiles: features of query and value, matrices of 16 queries a warp, keys.

    fixed: the symbols of the features, with their values.
    """

    query_features: int
    value_features: int
    matrices: int
    keys: int
    fixed: Mapping[Symbol, Extent]

    @property
    def queries(self) -> int:
        return WARPS * self.matrices * MATRIX


def attention_tiles(problem: GpuProblem) -> Verdict:
    """Returns the tiles of an attention as the facts of a verdict; guards the sizes and strides that decide."""
    assert isinstance(problem.facts, AttentionFacts)
    match, fusion, sizes = problem.facts.match, problem.fusion, problem.sizes
    features = []
    fixed: dict[Symbol, Extent] = {}
    for factor in (match.query, match.value):
        extent = fusion.shape_of(factor.number)[factor.order[-1]]
        count = sizes.hint(extent)
        sizes.require(extent, "==", count, "the features of an attention fill its tiles")
        if (known := as_symbol(extent)) is not None:
            fixed[known] = count
        if count % MATRIX or not 0 < count <= 2 * WIDE_FEATURES:
            return AttentionRefusal.FEATURES(features=count)
        features.append(count)
    for factor in (match.query, match.key, match.value):
        strides = problem.memory.strides[factor.number]
        rows = [substitute(strides[axis], fixed) for axis in factor.order[:-1]]
        rows = [stride for stride in rows if any(coefficient % CHUNK for _, coefficient in terms_of(stride))]
        wide = all(sizes.is_multiple(stride, CHUNK, "rows are copied in accesses of 16 bytes") for stride in rows)
        if strides[factor.order[-1]] != 1 or not wide or factor.number not in problem.memory.aligned:
            return AttentionRefusal.ACCESSES(value=factor.number)
    queries = fusion.shape_of(match.scores)[-2]
    small = max(features) > WIDE_FEATURES
    few = sizes.at_most(queries, WARPS * MATRIX, "few queries take small tiles")
    tiles = AttentionTiles(features[0], features[1], 1 if small or few else 2, 32 if small else 64, fixed)
    return yes(tiles)


@dataclass
class AttentionFrame:
    """The emission of one kernel of attention."""

    problem: GpuProblem
    match: Attention
    tiles: AttentionTiles
    body: Body = field(init=False)
    at: Thread = field(init=False)
    block: Extent = field(init=False)
    first: Extent = field(init=False)
    stack: Shape = field(init=False)
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        fusion, memory = self.problem.fusion, self.problem.memory
        self.body = Body(
            fusion, memory.strides, self._index_dtype(), aligned=memory.aligned, misaligned=memory.misaligned,
            shared=memory.shared,
        )  # fmt: skip
        self.body.index.known.update(self.tiles.fixed)
        self.shape = fusion.shape_of(self.match.scores)

    def _index_dtype(self) -> DType:
        fusion, memory, sizes = self.problem.fusion, self.problem.memory, self.problem.sizes
        spans = [span_of(fusion.shape_of(n), strides, sizes) for n, strides in memory.strides.items()]
        spans += [product(fusion.shape_of(n)) for n in fusion.outputs]
        fits = [sizes.at_most(span, NARROW_INDEX, "positions fit 32 bits") for span in dict.fromkeys(spans)]
        return int32 if all(fits) else int64

    @property
    def dtype(self) -> DType:
        """The half type of the operands."""
        return self.problem.fusion.values[self.match.value.number].dtype

    def open(self, extent: Extent, rows: int, *, last_first: bool) -> tuple[Extent, Variable]:
        """Binds the indices of a block, which computes `rows` rows of `extent`, and of its threads.

        last_first: the first blocks compute the last rows. Returns the number of blocks and the variable of a thread.
        """
        body, count = self.body, ceildiv(extent, rows)
        blocks = symbol("blocks")
        self.block = open_block(body, blocks)
        thread, variable = open_threads(body, THREADS)
        lane = self.bound("lane_of_warp", thread % WARP, WARP)
        self.at = Thread(
            thread, self.bound("warp", thread // WARP, WARPS), lane, self.bound("row", lane // 4, 8),
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
            contract=self.problem.contract, threads=THREADS, thread=variable, blocks_per_multiprocessor=2,
        )  # fmt: skip
        return Lowered("", (launch,), tuple(self.problem.sizes.guards), (), {symbol_of(blocks): count})

    def bound(self, name: str, value: Extent, extent: Extent | None) -> Extent:
        """Binds an integer to a new variable; returns its index."""
        index = symbol(self.body.fresh(name), extent=extent)
        self.body.bind(index, self.body.index.code(value))
        return index

    def tile(self, name: str, factor: Factor, rows: int, features: int) -> SharedTile:
        """Allocates the tile of an operand; its stack axes of extent 1 are read at 0."""
        shape = self.problem.fusion.shape_of(factor.number)
        own = len(factor.order) - 2
        stack = self.stack[len(self.stack) - own :]
        at = tuple(0 if shape[axis] == 1 else c for axis, c in zip(factor.order[:-2], stack, strict=True))
        return new_tile(self.body, name, factor.number, at, factor.order, rows, features)

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
