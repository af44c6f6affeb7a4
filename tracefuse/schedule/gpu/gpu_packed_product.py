"""The packed product template for the GPU: products of halves with few columns whose rows begin anywhere in an access.

The rows of the left operand follow each other in memory without gaps. So those of a tile are a single run, which is
copied to shared memory as it is, in whole accesses, whatever the number of terms. From there threads read pairs of
terms that begin at any half. The columns stay in shared memory while a block goes from tile to tile; the next tile is
on its way meanwhile.

Must not know: CUDA C++.
"""

from __future__ import annotations

from dataclasses import field

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import uint32
from tracefuse.ir.extents import Extent, ceildiv, is_nonnegative, minimum, product, symbol, symbols
from tracefuse.ir.fusion import Shape
from tracefuse.ir.row_major import delinearize
from tracefuse.kernel.kernel_ir import (
    Allocate,
    AwaitCopies,
    Barrier,
    Buffer,
    Constant,
    EndBatch,
    Load,
    LoadPairs,
    MultiplyMatrices,
    StartCopy,
    Store,
    call,
)
from tracefuse.schedule.chip import BLOCK_BYTES
from tracefuse.schedule.gpu.gpu_frame import bind_position
from tracefuse.schedule.gpu.gpu_matrix_product import CHUNK, accepts_columns
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_product_tiles import THREADS, OperandTile
from tracefuse.schedule.gpu.gpu_streamed_product import (
    PAIRS,
    PART,
    STEP,
    TERMS_OF_COLUMNS,
    StreamedProduct,
    StreamedProductRefusal,
    StreamedTiles,
)
from tracefuse.schedule.gpu.gpu_tiles import COLUMNS, MATRIX, load, registers, zeros
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.product_facts import ProductFacts
from tracefuse.schedule.refusal_codes import ScheduleRefusal
from tracefuse.schedule.template import Template

WIDTHS = (16, 24, 32, 48, 64)
"""The columns of a tile. Blocks that sum more, in several parts, take longer than a library: few of them run at a time,
so that others do not hide what each waits for. (H200)"""
HELD = (64, 96, 128, 192, 256)
"""The most terms of a tile of rows in shared memory."""
ROWS = PART
"""The rows of a tile: one matrix of each warp."""
TURNS, TILES_OF_MULTIPROCESSOR = 8, 4
"""The tiles that a block goes through, and from how many tiles for each multiprocessor on; else one. (H200)"""


class PackedProductRefusal(ScheduleRefusal):
    """Refusals of the packed product template."""

    ALIGNED = "rows consist of whole accesses"
    GAPS = "rows of the left operand do not follow each other in memory"
    MEMORY = "shared memory does not hold a tile of rows and all columns"


@dataclass(frozen=True, slots=True)
class PackedTiles(StreamedTiles):
    """As StreamedTiles. turns: how many tiles of ROWS rows a block goes through. packed: a bound on the terms."""

    turns: int = 1
    packed: int = 0

    @property
    def tile(self) -> int:
        """The elements of a tile of rows: the rows, parts of two accesses, and what is read beyond the end."""
        return ROWS * self.packed + 2 * CHUNK

    @property
    def bytes(self) -> int:
        """The shared memory of a block."""
        columns, sums = self.columns * (self.held + STEP), ROWS * (self.columns + 1)
        return 2 * (min(self.turns, 2) * self.tile + columns) + 4 * sums


def _accepts(problem: GpuProblem) -> Verdict:
    assert isinstance(problem.facts, ProductFacts)
    verdict = accepts_columns(problem, WIDTHS)
    if not verdict:
        return verdict
    width = verdict.facts
    assert isinstance(width, int)
    facts, fusion, sizes = problem.facts, problem.fusion, problem.sizes
    stack, rows, terms, _ = facts.extents(fusion)
    if sizes.is_multiple(terms, CHUNK, "rows of whole accesses"):
        return PackedProductRefusal.ALIGNED(terms=terms)
    if not _follow_each_other(problem, facts):
        return PackedProductRefusal.GAPS(left=facts.left)
    if sizes.at_most(product(rows), ROWS - 1, "a matrix has fewer rows than a tile"):
        return StreamedProductRefusal.FEW_ROWS(rows=product(rows))
    if not sizes.at_most(terms, HELD[-1], "shared memory holds the columns"):
        return StreamedProductRefusal.MANY_TERMS(terms=terms)
    packed = next((h for h in HELD[:-1] if sizes.at_most(terms, h, "the terms of a tile of rows")), HELD[-1])
    held = 1 << (packed - 1).bit_length()
    count = product(stack) * ceildiv(product(rows), ROWS)
    few = sizes.at_most(count, TILES_OF_MULTIPROCESSOR * problem.chip.multiprocessors, "a block has one tile")
    turns = 1 if few else TURNS
    tiles = PackedTiles(
        width, min(held, TERMS_OF_COLUMNS), single=False, rows=ROWS * turns, held=held, turns=turns, packed=packed
    )
    if tiles.bytes + BLOCK_BYTES > problem.chip.shared_bytes:
        return PackedProductRefusal.MEMORY(bytes=tiles.bytes)
    return yes(tiles)


def _follow_each_other(problem: GpuProblem, facts: ProductFacts) -> bool:
    """Whether the left operand is an input whose rows, of the type that is multiplied, have no gaps between them."""
    fusion, memory, left = problem.fusion, problem.memory, facts.left
    if left not in memory.aligned or fusion.values[left].dtype is not facts.node.compute:
        return False
    stack, rows, terms, _ = facts.extents(fusion)
    row, term = symbol("row", extent=product(rows)), symbol("term", extent=terms)
    around = tuple(symbol(f"stack{k}", extent=e) for k, e in enumerate(stack))
    offset = _offset(problem, facts.left_at(fusion, around, delinearize(row, rows), term))
    start = offset - (row * terms + term)
    return set(symbols(start)).isdisjoint((*symbols(row), *symbols(term))) and is_nonnegative(start)


def _offset(problem: GpuProblem, at: Shape) -> Extent:
    """Returns the place of an element of the left operand in memory."""
    assert isinstance(problem.facts, ProductFacts)
    total: Extent = 0
    for coordinate, stride in zip(at, problem.memory.strides[problem.facts.left], strict=True):
        total = total + coordinate * stride
    return total


def _lower(problem: GpuProblem, decision: PackedTiles) -> Lowered:
    assert isinstance(problem.facts, ProductFacts)
    return _PackedProduct(problem, problem.facts, decision).lower()


PACKED_PRODUCT: Template[GpuProblem] = Template("packed product", _accepts, _lower, takes=ProductFacts)


@dataclass
class _PackedProduct(StreamedProduct):
    """The emission of the kernel.

    tile: the rows of a tile as they are in memory, from the first access on that has an element of them; of two tiles
    in turn. shift: the place of the first element in its access.
    """

    tiles: PackedTiles
    tile: Buffer = field(init=False)
    source: Buffer = field(init=False)
    shift: Extent = field(init=False)

    @property
    def sums_of_thread(self) -> int:
        return self.tiles.columns // 2

    def tile_memory(self, name: str, length: int, pitch: int) -> tuple[Buffer, Buffer]:
        """As of StreamedProduct; rows are in shared memory, too."""
        if name == "column":
            return StreamedProduct.tile_memory(self, name, length, pitch)
        stages = min(self.tiles.turns, 2)
        self.tile = Buffer(self.body.fresh("row_tile"), self.element, "shared", stages * self.tiles.tile)
        self.body.append(Allocate(self.tile))
        return self.tile, self.tile

    def _run(self, left: OperandTile, right: OperandTile) -> None:
        """Sums and stores one tile of rows after another."""
        body, turns = self.body, self.tiles.turns
        self.source = replace(body.buffer_of(left.number), alignment=CHUNK * self.element.itemsize)
        body.buffers[left.number] = self.source
        self._start_tile(left, left.first)
        body.append(EndBatch())
        self._share_columns(right)
        self.partial = Buffer(body.fresh("partial_sums"), self.dtype, "shared", ROWS * (self.tiles.columns + 1))
        body.append(Allocate(self.partial))
        self.sums = registers(body, "sums", self.sums_of_thread, self.dtype)
        stop = bind_position(body, "last_row", minimum(self.rows, left.first + ROWS * turns), self.rows + 1)
        first = symbol("first_of_tile", extent=self.rows)
        with body.loop(first, stop, start=left.first, step=ROWS):
            if turns > 1:
                following = first + ROWS
                with body.condition(body.index.compare("lt", following, stop)):
                    self._start_tile(left, following)
                body.append(EndBatch())
            body.append(AwaitCopies(min(turns - 1, 1)))
            body.append(Barrier())
            zeros(body, self.sums)
            self._add_tile(left, right, first)
            self._share_part(0)
            body.append(Barrier())
            self._store_part(first)

    def _finish(self, first_row: Extent, first_column: Extent) -> None:
        """Nothing is left: each tile was stored."""

    def _stage(self, first: Extent) -> Extent:
        """Returns the place of the tile of the rows from `first` on in shared memory."""
        return first // ROWS % 2 * self.tiles.tile if self.tiles.turns > 1 else 0

    def _start_of(self, left: OperandTile, row: Extent) -> Extent:
        """Returns the place of a row in memory."""
        return self.body.offset(left.number, left.at(row, 0))

    def _start_tile(self, left: OperandTile, first: Extent) -> None:
        """Starts the copies of the rows from `first` on, in the accesses that have an element of them.

        The last elements of the array may fill no access; they are copied one by one.
        """
        body, code = self.body, self.body.index.code
        shape, strides = self.problem.fusion.shape_of(left.number), self.problem.memory.strides[left.number]
        last: Extent = 1
        for extent, stride in zip(shape, strides, strict=True):
            last = last + (extent - 1) * stride
        whole = last // CHUNK
        start = self._start_of(left, bind_position(body, "row", first, self.rows))
        count = minimum(self.rows - first, ROWS) * self.terms
        before = bind_position(body, "first_access", start // CHUNK, whole + 1)
        beyond = bind_position(body, "last_access", ceildiv(start + count, CHUNK), whole + 2)
        stage = bind_position(body, "stage", self._stage(first), 2 * self.tiles.tile)
        access = symbol("access", extent=whole)
        with body.loop(access, minimum(beyond, whole), start=before + self.thread, step=THREADS):
            place = stage + (access - before) * CHUNK
            body.append(StartCopy(self.tile, code(place), self.source, code(access * CHUNK), CHUNK))
        rest = self.thread + whole * CHUNK
        tests = body.index.compare("lt", whole, beyond), body.index.compare("lt", rest, last)
        with body.condition(call("and", *tests)):
            element = Load(self.source, code(rest))
            body.append(Store(self.tile, code(stage + (whole - before) * CHUNK + self.thread), element))

    def _add_tile(self, left: OperandTile, right: OperandTile, first: Extent) -> None:
        """Adds the products of all terms to the sums of the rows from `first` on."""
        body, at = self.body, self._at()
        start = self._start_of(left, bind_position(body, "row", first, self.rows))
        place = self._stage(first) + start % CHUNK + (at.warp * MATRIX + at.row) * self.terms + at.column * 4
        place = bind_position(body, "row_place", place, 2 * self.tiles.tile)
        rows, columns = (registers(body, n, s * PAIRS, uint32) for n, s in (("rows", 2), ("columns", 1)))
        term = symbol("first_term", extent=self.terms)
        code, groups = body.index.code, self.tiles.columns // COLUMNS
        with body.loop(term, self.terms, step=STEP):
            for half in range(2):
                source = (self.tile, code(place + half * COLUMNS * self.terms + term))
                body.append(LoadPairs(rows, code(half), *source, 2, aligned=False))
            with body.condition(body.index.compare("lt", self.terms, term + STEP)):
                self._clear_beyond(rows, term + at.column * 4)
            for n in range(groups):
                source = (right.shared, code((n * COLUMNS + at.row) * self.pitch + term + at.column * 4))
                body.append(LoadPairs(columns, code(0), *source))
                for half in range(2):
                    sides = (rows, code(half * PAIRS), columns, code(half * 2))
                    body.append(MultiplyMatrices(self.sums, code(n * 4), *sides, self.element))

    def _clear_beyond(self, rows: Buffer, first: Extent) -> None:
        """Sets the terms beyond the end to 0, of pairs of both rows from a term on."""
        body, compare = self.body, self.body.index.compare
        for k in range(PAIRS):
            low, high = (compare("lt", first + 2 * k + part, self.terms) for part in range(2))
            first_only = call("select", low, Constant(0xFFFF, uint32), Constant(0, uint32))
            (mask,) = body.name("mask", (call("select", high, Constant(0xFFFFFFFF, uint32), first_only),))
            for half in range(2):
                word = 2 * k + half
                body.append(Store(rows, body.index.code(word), call("and", load(body, rows, word), mask)))
