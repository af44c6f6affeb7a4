"""The template of products of halves with few terms: one kernel with what follows from the product elementwise.

A block computes tiles of the result from a tile of rows of the left operand, which it reads once with all terms, and
tiles of columns of the right one. Tensor cores sum in float32. The sums pass through shared memory, after which
adjacent threads compute and store adjacent elements of the result. Terms beyond the last are zeros in both tiles.

Must not know: CUDA C++.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from segments import Verdict, yes
from tracefuse.dtypes import float32
from tracefuse.ir.extents import Extent, ceildiv, minimum, product, symbol, symbol_of
from tracefuse.kernel.kernel_ir import Allocate, AwaitCopies, Barrier, Buffer, Constant, StartCopy, Store, call
from tracefuse.kernel.scalar_code import convert
from tracefuse.passes.attention_match import Factor
from tracefuse.passes.product_match import FusedProduct
from tracefuse.schedule.gpu.gpu_attention_frame import AttentionFrame
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_tiles import CHUNK, COLUMNS, MATRIX, SharedTile, WarpProducts, load, ordered, registers
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.product_facts import ProductFacts
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.template import Template

ROWS = 64
"""The rows of a block: 16 for each of its warps."""
COLUMN_TILE = 64
TERMS = (16, 32, 48, 64, 96, 128)
"""The terms of a tile."""
MOST_TERMS = TERMS[-1]
FEW_BLOCKS = 8
"""With fewer tiles of rows for each multiprocessor, a block computes one tile of columns; else all of its rows."""
READ = (32, 24, 16, 8)
"""The elements that a thread reads at a time: the first of these that divides their number."""
STORED = 8
"""The elements that a thread stores at a time."""
SUM_PADDING = 4
"""Sums after each row of a tile in shared memory, which shift the next row by as many banks."""
REASON = "the terms of a product fill its tiles"


@dataclass(frozen=True, slots=True)
class _Decision:
    """terms: of a tile. wide: whether each operand is copied in accesses of 16 bytes. splits: see FEW_BLOCKS."""

    terms: int
    wide: tuple[bool, bool]
    splits: bool


def _accepts(problem: GpuProblem) -> Verdict:
    assert isinstance(problem.facts, ProductFacts)
    match, fusion, sizes = problem.facts.match, problem.fusion, problem.sizes
    extent = fusion.shape_of(match.left.number)[match.left.order[-1]]
    terms = next((bound for bound in TERMS if sizes.at_most(extent, bound, REASON)), None)
    if terms is None:
        return RegionRefusal.NO_PRODUCT()
    full = not sizes.at_most(extent, terms - 1, REASON)
    wide = full and _is_wide(problem, match.left), full and _is_wide(problem, match.right)
    shape = fusion.shape_of(match.product)
    count = product(shape[:-2]) * ceildiv(shape[-2], ROWS)
    few = sizes.at_most(count, FEW_BLOCKS * problem.chip.multiprocessors, "few tiles of rows are split by columns")
    return yes(_Decision(terms, wide, few))


def _is_wide(problem: GpuProblem, factor: Factor) -> bool:
    """Whether the rows of an operand can be read in accesses of 16 bytes; guards the sizes that decide."""
    shape, strides = problem.fusion.shape_of(factor.number), problem.memory.strides[factor.number]
    if factor.number not in problem.memory.aligned or strides[factor.order[-1]] != 1:
        return False
    numbers = [shape[factor.order[-1]], *(strides[axis] for axis in factor.order[:-1])]
    reason = "rows are copied in accesses of 16 bytes"
    return all(problem.sizes.is_multiple(number, CHUNK, reason) for number in numbers)


def _lower(problem: GpuProblem, decision: _Decision) -> Lowered:
    assert isinstance(problem.facts, ProductFacts)
    return _Product(problem, problem.facts.match, {}, decision).lower()


PRODUCT: Template[GpuProblem] = Template("product", _accepts, _lower, takes=ProductFacts)


@dataclass
class _Product(AttentionFrame):
    """The emission of the kernel."""

    decision: _Decision

    @property
    def fused(self) -> FusedProduct:
        assert isinstance(self.match, FusedProduct)
        return self.match

    def lower(self) -> Lowered:
        body, decision, match = self.body, self.decision, self.fused
        self.rows, self.columns = self.shape[-2:]
        self.terms = self.problem.fusion.shape_of(match.left.number)[match.left.order[-1]]
        tiles = ceildiv(self.columns, COLUMN_TILE)
        inner = [Loop(symbol("column_tile", extent=tiles), tiles, False)] if decision.splits else []
        blocks, variable = self.open(self.rows, ROWS, last_first=False, inner=inner)
        self.products = WarpProducts(body, self.at, 1, self.dtype)
        self.left = self.tile("left", match.left, ROWS, decision.terms)
        self.right = self.tile("right", match.right, decision.terms, COLUMN_TILE)
        self.staged = Buffer(body.fresh("staged"), float32, "shared", ROWS * (COLUMN_TILE + SUM_PADDING))
        body.append(Allocate(self.staged))
        self.sums = registers(body, "sums", COLUMN_TILE // 2, float32)
        self._fill(self.left, self.first, self.rows, 0, self.terms)
        if decision.splits:
            self._columns(inner[0].index * COLUMN_TILE)
        else:
            first = symbol("first_column")
            with body.loop(first, self.columns, step=COLUMN_TILE):
                self._columns(first)
                body.append(Barrier())
        count = product(self.shape[:-2]) * ceildiv(self.rows, ROWS) * (tiles if decision.splits else 1)
        return self.close("product", blocks, count, variable)

    def _columns(self, first: Extent) -> None:
        """Computes and stores a tile of columns."""
        body = self.body
        self._fill(self.right, 0, self.terms, first, self.columns)
        body.append(AwaitCopies())
        body.append(Barrier())
        self.products.multiply(self.sums, self.left, self.right)
        row = self.bound("row_of_sums", self.products.first_row + self.at.row, ROWS)
        with body.loop(n := symbol(body.fresh("n"), extent=COLUMN_TILE // MATRIX), COLUMN_TILE // MATRIX, "unroll"):
            for k in range(8):
                column = self.at.column + n * MATRIX + k // 4 * COLUMNS + k % 2
                place = (row + k // 2 % 2 * 8) * (COLUMN_TILE + SUM_PADDING) + column
                body.append(Store(self.staged, body.index.code(place), load(body, self.sums, n * 8 + k)))
        body.append(Barrier())
        self._store(first)

    def _fill(
        self, tile: SharedTile, first_row: Extent, rows: Extent, first_column: Extent, columns: Extent
    ) -> None:  # fmt: skip
        """Copies a tile; rows and columns beyond the last are read at the last, and terms beyond it are zeros."""
        if self.decision.wide[tile is self.right]:
            self._copy(tile, first_row, rows, first_column, columns)
            return
        body, total = self.body, tile.rows * tile.features
        by_row = tile.order[-1] == len(tile.order) - 1
        steps = total // self.threads
        unroll = next(count for count in READ if steps % count == 0)
        part, step = symbol(body.fresh("part"), extent=steps // unroll), symbol(body.fresh("step"), extent=unroll)
        with body.loop(part, steps // unroll), body.loop(step, unroll, "unroll"):
            place = self.bound("place", (part * unroll + step) * self.threads + self.at.thread, total)
            row, column = (place // tile.features, place % tile.features) if by_row else (
                place % tile.rows, place // tile.rows
            )  # fmt: skip
            row, column = self.bound("tile_row", row, tile.rows), self.bound("tile_column", column, tile.features)
            source_row = self.bound("source_row", minimum(first_row + row, rows - 1), rows)
            source_column = self.bound("source_column", minimum(first_column + column, columns - 1), columns)
            (element,) = body.value(tile.number, ordered(tile.order, (*tile.stack, source_row, source_column)))
            inside = body.index.compare("lt", column if tile is self.left else row, self.terms)
            element = call("select", inside, convert(element, float32), Constant(0.0, float32))
            body.append(Store(tile.buffer, body.index.code(row * tile.pitch + column), convert(element, self.dtype)))

    def _copy(
        self, tile: SharedTile, first_row: Extent, rows: Extent, first_column: Extent, columns: Extent
    ) -> None:  # fmt: skip
        """Copies a tile with all terms in accesses of 16 bytes."""
        body, chunks = self.body, tile.features // CHUNK
        count = tile.rows * chunks // self.threads
        source = body.buffer_of(tile.number)
        with body.loop(step := symbol(body.fresh("step"), extent=count), count, "unroll"):
            chunk = self.bound("chunk", step * self.threads + self.at.thread, tile.rows * chunks)
            row = self.bound("source_row", minimum(first_row + chunk // chunks, rows - 1), rows)
            column = self.bound("source_column", minimum(first_column + chunk % chunks * CHUNK, columns - CHUNK), None)
            offset = body.offset(tile.number, ordered(tile.order, (*tile.stack, row, column)))
            place = chunk // chunks * tile.pitch + chunk % chunks * CHUNK
            body.append(StartCopy(tile.buffer, body.index.code(place), source, body.index.code(offset), CHUNK))

    def _store(self, first: Extent) -> None:
        """Computes what follows from the product at the elements of a tile, and stores the result."""
        body, match, index = self.body, self.fused, self.body.index
        across = self.bound("across", self.at.thread % COLUMN_TILE, COLUMN_TILE)
        down = self.bound("down", self.at.thread // COLUMN_TILE, self.threads // COLUMN_TILE)
        column = self.bound("column", minimum(first + across, self.columns - 1), self.columns)
        per_step = self.threads // COLUMN_TILE
        part = symbol(body.fresh("part"), extent=ROWS // per_step // STORED)
        step = symbol(body.fresh("step"), extent=STORED)
        with ExitStack() as inside:
            inside.enter_context(body.condition(index.compare("lt", first + across, self.columns), {symbol_of(column)}))
            inside.enter_context(body.loop(part, ROWS // per_step // STORED))
            inside.enter_context(body.loop(step, STORED, "unroll"))
            tile_row = self.bound("tile_row", (part * STORED + step) * per_step + down, ROWS)
            row = self.bound("row", minimum(self.first + tile_row, self.rows - 1), self.rows)
            at = self.coordinates(row, column)
            place = tile_row * (COLUMN_TILE + SUM_PADDING) + across
            body.levels[-1].memo[match.product, at] = body.name("product", (load(body, self.staged, place),))
            with body.condition(index.compare("lt", self.first + tile_row, self.rows), {symbol_of(row)}):
                (value,) = body.value(match.result, at)
                self.store(match.result, at, value)
