"""The streamed product template for the GPU: products of halves with many rows of whole accesses and few columns.

Such a product takes as long as its left operand takes to read. So its elements go from memory to the registers that
tensor cores multiply, without shared memory, which has all of the right operand. A thread reads adjacent terms of a row
in an access of 16 bytes. A tensor core takes other terms from it, but they may come in any order if those of both
operands agree. While the terms in registers are multiplied, the next ones are on their way.

Must not know: CUDA C++.
"""

from __future__ import annotations

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import uint32
from tracefuse.ir.extents import Extent, ceildiv, minimum, product, symbol
from tracefuse.ir.row_major import delinearize
from tracefuse.kernel.kernel_ir import (
    Allocate,
    Barrier,
    Buffer,
    Constant,
    Expression,
    LoadPairs,
    MultiplyMatrices,
    Store,
    call,
)
from tracefuse.schedule.gpu.gpu_frame import bind_position, when
from tracefuse.schedule.gpu.gpu_matrix_product import (
    CHUNK,
    MatrixProduct,
    accepts_columns,
    are_whole_accesses,
)
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_product_tiles import THREADS, OperandTile, ProductTiles
from tracefuse.schedule.gpu.gpu_tiles import COLUMNS, MATRIX, WARP, load, registers, zeros
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.product_facts import ProductFacts
from tracefuse.schedule.refusal_codes import ScheduleRefusal
from tracefuse.schedule.template import Template

MATRICES = 2
"""The matrices of 16 rows of a warp: more of them read the columns from shared memory less often. (H200)"""
PART = THREADS // WARP * MATRIX
"""The rows of a block's tile between those of the matrices of a warp: one matrix of each warp."""
ROWS = MATRICES * PART
WIDTHS = (16, 24, 32, 40)
"""The columns of a tile. With more, a thread has too few registers for its loads. (H200)"""
STEP = 4 * CHUNK
"""The terms that the threads of a row read in one access: of a matrix of 16 rows, two steps of a tensor core."""
MOST_TERMS, TERMS_OF_COLUMNS = 256, 128
"""The most terms whose columns are in shared memory, and how many of them a block loads at once. (H200)"""
LEAST_FILLED = 3, 4
"""The least part of the places for terms that have one, as a fraction. (H200)"""
WIDE_COLUMNS = 32
"""For more columns, a thread reads STEP terms of a row at a time, else twice as many: it lacks registers. (H200)"""
PAIRS = LoadPairs.COUNT
PADDING = STEP
"""Halves after the terms of a column in shared memory: two adjacent columns are in all banks."""
RESIDENT = 2
"""The blocks of a multiprocessor: with more, threads have too few registers for their loads. (H200)"""


class StreamedProductRefusal(ScheduleRefusal):
    """Refusals of the streamed product template."""

    UNALIGNED = "rows of the left operand do not consist of whole accesses"
    FEW_ROWS = "a matrix has fewer rows than a tile"
    MANY_TERMS = "the columns have too many terms for shared memory"
    FEW_TERMS = "too few places for terms have one"


@dataclass(frozen=True, slots=True)
class StreamedTiles(ProductTiles):
    """As ProductTiles, whose terms are those of columns that a block loads at once.

    held: a bound on the terms: the power of two above. part: the terms of rows that a thread reads at a time. whole:
    they divide the terms.
    """

    held: int = 0
    part: int = STEP
    whole: bool = False


def _accepts(problem: GpuProblem) -> Verdict:
    assert isinstance(problem.facts, ProductFacts)
    verdict = accepts_columns(problem, WIDTHS)
    if not verdict:
        return verdict
    width = verdict.facts
    assert isinstance(width, int)
    facts, fusion, sizes = problem.facts, problem.fusion, problem.sizes
    stack, rows, terms, _ = facts.extents(fusion)
    row, term = symbol("row", extent=product(rows)), symbol("term", extent=terms)
    at = facts.left_at(fusion, (0,) * len(stack), delinearize(row, rows), term)
    if not are_whole_accesses(problem, facts.node.compute, facts.left, at, term):
        return StreamedProductRefusal.UNALIGNED()
    if sizes.at_most(product(rows), ROWS - 1, "a matrix has fewer rows than a tile"):
        return StreamedProductRefusal.FEW_ROWS(rows=product(rows))
    if not sizes.at_most(terms, MOST_TERMS, "shared memory holds the columns"):
        return StreamedProductRefusal.MANY_TERMS(terms=terms)
    held = max(2 * STEP, sizes.bucket(terms, MOST_TERMS, "the terms of columns in shared memory"))
    part = STEP if width > WIDE_COLUMNS or sizes.at_most(terms, STEP, "a thread reads few terms") else 2 * STEP
    places, (filled, of) = ceildiv(terms, part) * part, LEAST_FILLED
    if not sizes.at_most(places * filled - terms * of, 0, "most places for terms have one"):
        return StreamedProductRefusal.FEW_TERMS(terms=terms)
    single = sizes.at_most(terms, part, "a thread reads all terms at once")
    whole = sizes.is_multiple(terms, part, "a thread has terms for all accesses")
    return yes(StreamedTiles(width, min(held, TERMS_OF_COLUMNS), single, ROWS, held, part, whole))


def _lower(problem: GpuProblem, decision: StreamedTiles) -> Lowered:
    assert isinstance(problem.facts, ProductFacts)
    return StreamedProduct(problem, problem.facts, decision).lower()


STREAMED_PRODUCT: Template[GpuProblem] = Template("streamed product", _accepts, _lower, takes=ProductFacts)


@dataclass
class StreamedProduct(MatrixProduct):
    """The emission of the kernel."""

    tiles: StreamedTiles

    by_rows = frozenset(("row", "column"))
    resident = RESIDENT

    @property
    def sums_of_thread(self) -> int:
        return MATRICES * self.tiles.columns // 2

    @property
    def steps(self) -> int:
        """The accesses of a row for the terms that a thread reads at a time."""
        return self.tiles.part // STEP

    def tile_memory(self, name: str, length: int, pitch: int) -> tuple[Buffer, Buffer]:
        """As for all products; rows stay in registers, and columns have all terms in shared memory."""
        if name == "column":
            loaded = registers(self.body, "column_elements", length * self.tiles.terms // THREADS, self.element)
            shared = Buffer(self.body.fresh("column_tile"), self.element, "shared", self.pitch * length)
            self.body.append(Allocate(shared))
            return loaded, shared
        words = registers(self.body, "rows", MATRICES * self.steps * 2 * PAIRS, uint32)
        return words, words

    @property
    def pitch(self) -> int:
        """The elements from a column in shared memory to the next."""
        return self.tiles.held + PADDING

    def _run(self, left: OperandTile, right: OperandTile) -> None:
        """Sums the terms; those of two parts are on their way at a time, to registers of their own."""
        body, part = self.body, self.tiles.part
        self.sums = registers(body, "sums", self.sums_of_thread, self.dtype)
        zeros(body, self.sums)
        rows = left.loaded
        self._load_rows(left, rows, 0)
        self._share_columns(right)
        if self.tiles.single:
            self._add_part(rows, right, 0)
            body.append(Barrier())
            return
        later, _ = self.tile_memory("row", left.length, 0)
        first = symbol("first_term", extent=self.terms)
        second, third = first + part, first + 2 * part
        with body.loop(first, self.terms, step=2 * part):
            has_second = body.index.compare("lt", second, self.terms)
            with body.condition(has_second):
                self._load_rows(left, later, second)
            self._add_part(rows, right, first)
            with body.condition(body.index.compare("lt", third, self.terms)):
                self._load_rows(left, rows, third)
            with body.condition(has_second):
                self._add_part(later, right, second)

    def _share_columns(self, right: OperandTile) -> None:
        """Copies all terms of the columns to shared memory, and zeros up to the last part of the terms."""
        body, first = self.body, symbol("first_term", extent=self.terms)
        zero = Constant(0.0, self.element)
        with body.loop(first, self.terms, step=self.tiles.terms):
            self._load((right,), first)
            with self._each(right) as (step, across, term):
                element: Expression = load(body, right.loaded, step)
                if right.plain:
                    element = call("select", body.index.compare("lt", first + term, self.terms), element, zero)
                body.append(Store(right.shared, body.index.code(across * self.pitch + first + term), element))
        body.append(Barrier())

    def _load_rows(self, left: OperandTile, to: Buffer, first: Extent) -> None:
        """Loads the terms from `first` on of the rows of a thread; terms beyond the end are 0."""
        body, at, code = self.body, self._at(), self.body.index.code
        source = replace(body.buffer_of(left.number), alignment=CHUNK * self.element.itemsize)
        body.buffers[left.number] = source
        for place in range(MATRICES * 2):
            row = left.first + (place // 2 * PART + place % 2 * COLUMNS) + at.warp * MATRIX + at.row
            row = bind_position(body, "across", minimum(row, left.extent - 1), left.extent)
            for step in range(self.steps):
                start, position = self._word(place // 2, step) + place % 2, first + step * STEP + at.column * 4
                tests: list[Expression] = []
                if not self.tiles.whole:
                    for k in range(PAIRS):
                        body.append(Store(to, code(start + 2 * k), Constant(0, uint32)))
                    position = bind_position(body, "position", position, self.terms + self.tiles.held)
                    tests = [body.index.compare("lt", position, self.terms)]
                    position = bind_position(body, "term", minimum(position, self.terms - CHUNK), self.terms)
                offset = body.offset(left.number, left.at(row, position))
                with when(body, tests):
                    body.append(LoadPairs(to, code(start), source, code(offset), 2))

    def _word(self, matrix: int, step: int) -> int:
        """Returns the place of the operands of both steps of a tensor core, whose rows g and g + 8 alternate."""
        return (matrix * self.steps + step) * 2 * PAIRS

    def _add_part(self, rows: Buffer, right: OperandTile, first: Extent) -> None:
        """Adds the products of the terms from `first` on to the sums."""
        body, at, code, groups = self.body, self._at(), self.body.index.code, self.tiles.columns // COLUMNS
        columns = registers(body, "columns", PAIRS, uint32)
        for step in range(self.steps):
            for n in range(groups):
                start = (n * COLUMNS + at.row) * self.pitch + first + step * STEP + at.column * 4
                body.append(LoadPairs(columns, code(0), right.shared, code(start)))
                for m in range(MATRICES):
                    for half in range(2):
                        sums, words = (m * groups + n) * 4, self._word(m, step) + half * PAIRS
                        body.append(
                            MultiplyMatrices(
                                self.sums, code(sums), rows, code(words), columns, code(half * 2), self.element
                            )
                        )  # fmt: skip

    def _finish(self, first_row: Extent, first_column: Extent) -> None:
        """Stores what follows from the sums, of PART rows after another."""
        body = self.body
        self.partial = Buffer(body.fresh("partial_sums"), self.dtype, "shared", PART * (self.tiles.columns + 1))
        body.append(Allocate(self.partial))
        for m in range(MATRICES):
            if m:
                body.append(Barrier())
            self._share_part(m)
            body.append(Barrier())
            self._store_part(first_row + m * PART)

    def _share_part(self, matrix: int) -> None:
        """Stores the sums of one matrix of each warp in shared memory."""
        body, width, at = self.body, self.tiles.columns, self._at()
        for place in range(width // 2):
            row = at.warp * MATRIX + at.row + place // 2 % 2 * COLUMNS
            to = row * (width + 1) + place // 4 * COLUMNS + at.column + place % 2
            value = load(body, self.sums, matrix * (width // 2) + place)
            body.append(Store(self.partial, body.index.code(to), value))

    def _store_part(self, first_row: Extent) -> None:
        """Stores what follows from the sums in shared memory; a thread has elements of one column.

        first_row: of the PART rows.
        """
        body, width = self.body, self.tiles.columns
        threads = 1 << (width - 1).bit_length()
        steps = PART * threads // THREADS
        column = bind_position(body, "column", self.thread % threads, threads)
        with body.loop(step := symbol(body.fresh("step"), extent=steps), steps, "unroll"):
            row = self.thread // threads + step * (THREADS // threads)
            at = row * (width + 1) + minimum(column, width - 1)
            at_row = bind_position(body, "row", first_row + row, self.rows + self.tiles.rows)
            self._store(lambda at=at: load(body, self.partial, at), at_row, column)  # type: ignore[misc]
