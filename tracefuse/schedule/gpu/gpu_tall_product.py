"""The tall product template for the GPU: products of float32 with many rows and few terms, and the work after them.

The result is most of what such a product moves. A library call and a kernel after it access it three times; a block
here sums a tile in registers and stores what follows from it. Each thread has a rectangle of sums, for which it reads
far fewer factors from shared memory than it multiplies.

Must not know: CUDA C++.
"""

from __future__ import annotations

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import float32
from tracefuse.ir.extents import Extent, ceildiv, minimum, symbol
from tracefuse.kernel.kernel_ir import Copy, Store, call
from tracefuse.schedule.gpu.gpu_frame import bind_position
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_product import BlockProduct
from tracefuse.schedule.gpu.gpu_product_tiles import THREADS, OperandTile, ProductTiles
from tracefuse.schedule.gpu.gpu_tiles import load, registers
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.product_facts import ProductFacts, multiplications
from tracefuse.schedule.refusal_codes import ScheduleRefusal
from tracefuse.schedule.template import Template

SIDE = 16
"""The threads of a block along either side of its tile."""
THREAD_ROWS = 8
"""The rows of sums of a thread."""
ROWS = SIDE * THREAD_ROWS
WIDTHS = (32, 48, 64)
"""The columns of a tile: the least that has all columns of the result, or the last."""
FEW_TERMS, ALL_TERMS = 16, 32
"""The terms that a block loads at once: FEW_TERMS, or all if there are at most ALL_TERMS."""
TURN = 4
"""The terms that a thread adds at a time; it leaves out such groups of those beyond the end."""
PADDING = 4
"""Elements after the rows or columns of a term in shared memory, so that accesses stay aligned."""
MOST_SMALL, MOST_TERMS = 1 << 25, 128
"""Products of fewer multiplications are for small tiles; those of more terms for a library."""


class TallProductRefusal(ScheduleRefusal):
    """Refusals of the tall product template."""

    OTHER_TYPE = "the operands are not multiplied in float32"
    SMALL = "the product is small"
    LONG = "the product has many terms"


def _accepts(problem: GpuProblem) -> Verdict:
    assert isinstance(problem.facts, ProductFacts)
    sizes = problem.sizes
    _, _, terms, columns = problem.facts.extents(problem.fusion)
    if problem.facts.node.compute is not float32:
        return TallProductRefusal.OTHER_TYPE()
    work = multiplications(problem.fusion, problem.facts)
    if sizes.at_most(work, MOST_SMALL, "a product that small tiles compute"):
        return TallProductRefusal.SMALL()
    if not sizes.at_most(terms, MOST_TERMS, "a product of few terms"):
        return TallProductRefusal.LONG()
    width = next((w for w in WIDTHS[:-1] if sizes.at_most(columns, w, "a tile has all columns")), WIDTHS[-1])
    single = sizes.at_most(terms, ALL_TERMS, "a block loads all terms at once")
    few = sizes.at_most(terms, FEW_TERMS, "a block loads all terms at once") if single else True
    return yes(ProductTiles(width, FEW_TERMS if few else ALL_TERMS, single, ROWS))


def _lower(problem: GpuProblem, decision: ProductTiles) -> Lowered:
    assert isinstance(problem.facts, ProductFacts)
    return _TallProduct(problem, problem.facts, decision).lower()


TALL_PRODUCT: Template[GpuProblem] = Template("tall product", _accepts, _lower, takes=ProductFacts)


@dataclass
class _TallProduct(BlockProduct):
    """The emission of the kernel."""

    paddings = PADDING, PADDING

    @property
    def columns_of_thread(self) -> int:
        return self.tiles.columns // SIDE

    @property
    def sums_of_thread(self) -> int:
        return THREAD_ROWS * self.columns_of_thread

    def _add(self, left: OperandTile, right: OperandTile, terms: Extent) -> None:
        body = self.body
        turns = ceildiv(minimum(terms, self.tiles.terms), TURN)
        turn = symbol(body.fresh("turn"), extent=turns)
        term = symbol(body.fresh("term"), extent=TURN)
        with body.loop(turn, turns), body.loop(term, TURN, "unroll"):
            self._add_term(left, right, turn * TURN + term)

    def _add_term(self, left: OperandTile, right: OperandTile, term: Extent) -> None:
        body, code, width = self.body, self.body.index.code, self.columns_of_thread
        rows = registers(body, "row", THREAD_ROWS, self.dtype)
        columns = registers(body, "column", width, self.dtype)
        row, column = self._first()
        body.append(Copy(rows, code(0), left.shared, code(term * left.pitch + row), THREAD_ROWS))
        for j in range(width):
            body.append(Store(columns, code(j), load(body, right.shared, term * right.pitch + column + j * SIDE)))
        for place in range(self.sums_of_thread):
            factors = load(body, rows, place // width), load(body, columns, place % width)
            body.append(Store(self.sums, code(place), call("add", load(body, self.sums, place), call("mul", *factors))))

    def _first(self) -> tuple[Extent, Extent]:
        """Returns the first row and column of a thread's sums; its columns are SIDE apart."""
        return self.thread // SIDE * THREAD_ROWS, self.thread % SIDE

    def _finish(self, first_row: Extent, first_column: Extent) -> None:
        """Stores what follows from the sums: adjacent threads have adjacent columns."""
        body, width = self.body, self.columns_of_thread
        row, column = self._first()
        for j in range(width):
            last = self.columns + self.tiles.columns
            at_column = bind_position(body, "column", first_column + column + j * SIDE, last)
            for k in range(THREAD_ROWS):
                at_row = bind_position(body, "row", first_row + row + k, self.rows + self.tiles.rows)
                place = k * width + j
                self._store(lambda place=place: load(body, self.sums, place), at_row, at_column)  # type: ignore[misc]


assert THREADS == SIDE * SIDE
