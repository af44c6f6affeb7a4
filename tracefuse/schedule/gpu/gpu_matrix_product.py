"""The matrix product template for the GPU: products of halves with few columns, by warps on tensor cores.

A library reads operands of halves in accesses of 16 bytes, or several times slower. A block here loads single elements,
adjacent threads along memory, of as many rows as its warps multiply, and passes them through shared memory. What
follows from the result is computed from the sums.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Sequence

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent, ceildiv, symbol
from tracefuse.ir.fusion import Shape
from tracefuse.kernel.kernel_ir import Allocate, Barrier, Buffer, Store
from tracefuse.schedule.gpu.gpu_frame import bind_position
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_product import BlockProduct
from tracefuse.schedule.gpu.gpu_product_tiles import THREADS, OperandTile, ProductTiles
from tracefuse.schedule.gpu.gpu_tiles import (
    COLUMNS,
    MATRIX,
    WARP,
    SharedTile,
    Thread,
    WarpProducts,
    load,
    load_left,
    load_right_transposed,
)
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.product_facts import ProductFacts, multiplications
from tracefuse.schedule.refusal_codes import ScheduleRefusal
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template

ROWS = THREADS // WARP * MATRIX
"""The rows of a block's tile: a warp takes one matrix."""
FEW_TERMS, MANY_TERMS = 32, 64
"""The terms that a block loads at once: few if there are no more, or up to SHORT_TERMS in an odd number of such parts,
as half of the last of the other parts would be empty. (H200)"""
SHORT_TERMS = 384
WIDTHS, UNALIGNED_WIDTHS = (16, 32, 48, 64), (16, 32, 64)
"""The columns of a tile. Threads that load single elements of 64 rows for 48 columns take too many registers. (H200)"""
MOST_SMALL = 1 << 22
"""The most multiplications of a product whose time is that of the latencies, for small tiles."""
CHUNK = 8
"""The halves of an access of 16 bytes."""
PADDING = 8
"""Halves after each row of a tile, so that the rows of a matrix of 8 x 8 are in different banks."""


class MatrixProductRefusal(ScheduleRefusal):
    """Refusals of the matrix product template."""

    NO_HALVES = "the operands are no halves"
    SMALL = "the product is small"
    WIDE = "a tile does not have all columns"


def accepts_columns(problem: GpuProblem, widths: Sequence[int]) -> Verdict:
    """Judges a product for tiles of all columns; the facts of a yes are the columns of a tile, one of `widths`."""
    assert isinstance(problem.facts, ProductFacts)
    fusion, sizes = problem.fusion, problem.sizes
    columns = problem.facts.extents(fusion)[-1]
    if not problem.facts.node.compute.is_half:
        return MatrixProductRefusal.NO_HALVES()
    work = multiplications(fusion, problem.facts)
    if sizes.at_most(work, MOST_SMALL, "a product that small tiles compute"):
        return MatrixProductRefusal.SMALL()
    if not sizes.at_most(columns, widths[-1], "a tile has all columns"):
        return MatrixProductRefusal.WIDE()
    return yes(next((w for w in widths[:-1] if sizes.at_most(columns, w, "the columns of a tile")), widths[-1]))


def terms_at_once(terms: Extent, sizes: Sizes) -> tuple[int, bool]:
    """Returns how many terms a block loads at once, and whether these are all."""
    single = sizes.at_most(terms, FEW_TERMS, "a block loads all terms at once")
    count = FEW_TERMS if single or _fills_short_parts(sizes, terms) else MANY_TERMS
    return count, single or sizes.at_most(terms, count, "a block loads all terms at once")


def _accepts(problem: GpuProblem) -> Verdict:
    assert isinstance(problem.facts, ProductFacts)
    sizes, terms = problem.sizes, problem.facts.extents(problem.fusion)[2]
    aligned = sizes.is_multiple(terms, CHUNK, "rows of whole accesses")
    verdict = accepts_columns(problem, WIDTHS if aligned else UNALIGNED_WIDTHS)
    if not verdict:
        return verdict
    width = verdict.facts
    assert isinstance(width, int)
    return yes(ProductTiles(width, *terms_at_once(terms, sizes), ROWS))


def _fills_short_parts(sizes: Sizes, terms: Extent) -> bool:
    """Whether parts of FEW_TERMS have fewer places without a term; guards the number of terms."""
    if not sizes.at_most(terms, SHORT_TERMS, "few terms"):
        return False
    return not sizes.is_multiple(ceildiv(terms, FEW_TERMS), 2, "an even number of short parts has all terms")


def _lower(problem: GpuProblem, decision: ProductTiles) -> Lowered:
    assert isinstance(problem.facts, ProductFacts)
    return MatrixProduct(problem, problem.facts, decision).lower()


def are_whole_accesses(problem: GpuProblem, element: DType, number: int, at: Shape, index: Extent) -> bool:
    """Returns whether every row of an input along `index` is in whole accesses of 16 bytes; guards the sizes.

    at: the coordinates of an element.
    """
    fusion, memory, sizes = problem.fusion, problem.memory, problem.sizes
    if number not in memory.aligned or fusion.values[number].dtype is not element:
        return False
    last = at.index(index) if index in at else -1
    strides = memory.strides[number]
    if last < 0 or strides[last] != 1:
        return False
    row = fusion.shape_of(number)[last]
    others = (row, *(stride for k, stride in enumerate(strides) if k != last))
    return all(sizes.is_multiple(extent, CHUNK, "rows of whole accesses") for extent in others)


MATRIX_PRODUCT: Template[GpuProblem] = Template("matrix product", _accepts, _lower, takes=ProductFacts)


@dataclass
class MatrixProduct(BlockProduct):
    """The emission of the kernel."""

    paddings = PADDING, PADDING
    by_rows = frozenset(("row",))

    @property
    def element(self) -> DType:
        return self.facts.node.compute

    @property
    def sums_of_thread(self) -> int:
        return self.tiles.columns // 2

    def width_of(self, number: int, at: Shape, index: Extent, length: int) -> int:
        """As for all products: those of an access of 16 bytes if every row of an input starts at a multiple of them."""
        if length * self.tiles.terms % (CHUNK * THREADS):
            return 1
        return CHUNK if are_whole_accesses(self.problem, self.element, number, at, index) else 1

    def _at(self) -> Thread:
        """Returns the indices of a thread in its block, its warp and a matrix."""
        body = self.body
        lane = bind_position(body, "lane", self.thread % WARP, WARP)
        return Thread(
            self.thread, bind_position(body, "warp", self.thread // WARP, THREADS // WARP), lane,
            bind_position(body, "matrix_row", lane // 4, COLUMNS), bind_position(body, "pair", lane % 4 * 2, COLUMNS),
        )  # fmt: skip

    def _add(self, left: OperandTile, right: OperandTile, terms: Extent) -> None:
        """Adds the products of the terms that are in shared memory to the sums."""
        body, at = self.body, self._at()
        products = WarpProducts(body, at, 1, self.element)
        rows_tile, columns_tile = (_tile(side, self.tiles.terms) for side in (left, right))
        rows, columns = products.operands("rows"), products.operands("columns")
        steps, pairs = self.tiles.terms // MATRIX, self.tiles.columns // MATRIX
        with body.loop(k := symbol(body.fresh("k"), extent=steps), steps, "unroll"):
            load_left(body, at, rows, 0, rows_tile, products.first_row, k * MATRIX)
            with body.loop(n := symbol(body.fresh("n"), extent=pairs), pairs, "unroll"):
                load_right_transposed(body, at, columns, columns_tile, k * MATRIX, n * MATRIX)
                products.multiply(self.sums, n * 8, rows, 0, columns)

    def _share_sums(self) -> int:
        body, code, at = self.body, self.body.index.code, self._at()
        pitch = self.tiles.columns + PADDING
        self.partial = Buffer(body.fresh("partial_sums"), self.dtype, "shared", self.tiles.rows * pitch)
        body.append(Allocate(self.partial))
        pairs = self.tiles.columns // MATRIX
        with body.loop(n := symbol(body.fresh("n"), extent=pairs), pairs, "unroll"):
            for place in range(8):
                matrix, half, column = place // 4, place // 2 % 2, place % 2
                row = at.warp * MATRIX + at.row + half * COLUMNS
                to: Extent = row * pitch + n * MATRIX + matrix * COLUMNS + at.column + column
                body.append(Store(self.partial, code(to), load(body, self.sums, n * 8 + place)))
        body.append(Barrier())
        return pitch


def _tile(side: OperandTile, terms: int) -> SharedTile:
    """Returns the shared memory of an operand as a tile of rows of terms, or of terms of columns."""
    rows, features = (side.length, terms) if side.by_rows else (terms, side.length)
    return SharedTile(side.shared, side.number, (), (), rows, features, side.pitch)
