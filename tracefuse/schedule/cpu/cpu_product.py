"""The product template for the CPU: a worker computes a tile of the result, for blocks of terms in their order.

A chunk of rows of the left operand is copied for each block of terms, and of the right operand one panel of columns
after the other, so that each is contiguous as `cpu_product_tiles.py` reads it, in the type of the sums. So operands of
any layout and type are read where they are. The sum of an element is the sum of those of its blocks, whatever the tile.
What follows from the result is computed from the tile.

Must not know: LLVM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType, int64
from tracefuse.ir.extents import Extent, ceildiv, floordiv, maximum, minimum, product, symbol
from tracefuse.ir.fusion import Shape
from tracefuse.ir.row_major import delinearize
from tracefuse.kernel.kernel_ir import (
    AddProducts,
    Allocate,
    Buffer,
    Constant,
    Expression,
    Load,
    Matrix,
    Store,
    Transpose,
)
from tracefuse.kernel.scalar_code import convert
from tracefuse.schedule.adjacent_elements import are_adjacent, array_read
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_frame import CpuProblem, open_grid, store_at
from tracefuse.schedule.cpu.cpu_product_tiles import shapes_of_columns, vector_lanes
from tracefuse.schedule.launch_spec import Lowered, make_launch
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.product_facts import ProductFacts, multiplications
from tracefuse.schedule.template import Template

ROWS, COLUMNS, TERMS = 192, 128, 256
"""The largest tile of a task, and the terms of a block: what it copies stays in the second cache, a panel in the first.
More rows use each panel that is copied more often, and longer blocks each sum that is loaded and stored."""
LEAST_ROWS, TASKS = 96, 8
"""Tiles have as few as LEAST_ROWS rows where there are less than TASKS larger ones."""
TRANSPOSED = 16
"""The sides of a tile that is transposed are multiples of this."""
PER_ELEMENT = 16
"""So many multiplications take about as long as an element of a kernel that is bound by memory."""


def _accepts(problem: CpuProblem) -> Verdict:
    return yes()


def _lower(problem: CpuProblem, decision: object) -> Lowered:
    assert isinstance(problem.facts, ProductFacts)
    return _ProductKernel(problem, problem.facts).lower()


PRODUCT: Template[CpuProblem] = Template("product", _accepts, _lower, takes=ProductFacts)


@dataclass
class _ProductKernel:
    """The emission of the kernel.

    stack: the indices of the stack. first_row, rows, first_column, columns: of the task's tile. left, right, sums: the
    operands of a block of terms and the tile. terms, row_axes: their extents.
    """

    problem: CpuProblem
    facts: ProductFacts
    body: Body = field(init=False)
    dtype: DType = field(init=False)
    lanes: int = field(init=False)
    stack: Shape = field(init=False)
    first_row: Extent = field(init=False)
    rows: Extent = field(init=False)
    first_column: Extent = field(init=False)
    columns: Extent = field(init=False)
    left: Buffer = field(init=False)
    right: Buffer = field(init=False)
    sums: Buffer = field(init=False)
    terms: Extent = field(init=False)
    row_axes: Shape = field(init=False)

    def lower(self) -> Lowered:
        fusion, memory, facts = self.problem.fusion, self.problem.memory, self.facts
        self.body = body = Body(
            fusion, memory.strides, int64, misaligned=memory.misaligned, shared=memory.shared, checks_positions=True
        )
        self.dtype = facts.node.compute.compute
        self.lanes = vector_lanes(self.dtype)
        stack, row_axes, self.terms, columns = facts.extents(fusion)
        self.row_axes = row_axes
        rows = product(row_axes)
        loops = [Loop(symbol(f"stack{k}", extent=e), e, False) for k, e in enumerate(stack)]
        self.stack = tuple(0 if loop.extent == 1 else loop.index for loop in loops)
        panels = ceildiv(columns, COLUMNS)
        shared = ceildiv(product(stack) * rows * panels, TASKS * LEAST_ROWS) * LEAST_ROWS
        height = minimum(maximum(shared, LEAST_ROWS), ROWS)
        grid, tile = open_grid(body, [loop for loop in loops if loop.extent != 1], ceildiv(rows, height) * panels)
        panels, height = self._bound("panels", panels, None), self._bound("height", height, ROWS + 1)
        self.first_row = self._bound("first_row", tile // panels * height, rows)
        self.first_column = self._bound("first_column", tile % panels * COLUMNS, columns)
        self.rows = self._bound("rows", minimum(rows - self.first_row, height), ROWS + 1)
        self.columns = self._bound("columns", minimum(columns - self.first_column, COLUMNS), COLUMNS + 1)
        self.left = self._local("left", ROWS * TERMS)
        self.right = self._local("right", TERMS * self.lanes)
        self.sums = self._local("tile", ROWS * COLUMNS)
        self._run()
        self._finish()
        work = floordiv(multiplications(fusion, facts), PER_ELEMENT) + 1
        name = f"{self.problem.name}_product"
        return self.problem.finish([make_launch(body, name, "cpu", [grid], work=work, contract=self.problem.contract)])

    def _local(self, name: str, size: int) -> Buffer:
        buffer = Buffer(self.body.fresh(name), self.dtype, "local", size)
        self.body.append(Allocate(buffer))
        return buffer

    def _bound(self, name: str, value: Extent, extent: Extent | None) -> Extent:
        """Binds an integer to a new variable; returns its index."""
        index = symbol(self.body.fresh(name), extent=extent)
        self.body.bind(index, self.body.index.code(value))
        return index

    def _load(self, buffer: Buffer, place: Extent) -> Expression:
        return Load(buffer, self.body.index.code(place))

    # --- the sums -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        body, code, compare = self.body, self.body.index.code, self.body.index.compare
        row, column = symbol("row", extent=ROWS), symbol("column", extent=COLUMNS)
        empty = body.condition(compare("eq", self.terms, 0))
        with empty, body.loop(row, self.rows), body.loop(column, COLUMNS, "vector"):
            body.append(Store(self.sums, code(row * COLUMNS + column), Constant(0.0, self.dtype)))
        block, panel = symbol("block", extent=self.terms), symbol("panel", extent=COLUMNS)
        with body.loop(block, self.terms, step=TERMS):
            count = self._bound("count", minimum(self.terms - block, TERMS), TERMS + 1)
            by_terms = self._copy_left(block, count)
            left = Matrix(self.left, Constant(0, int64), *(1, ROWS) if by_terms else (TERMS, 1))
            with body.loop(panel, self.columns, step=self.lanes):
                here = self._copy_right(block, count, panel)
                with body.condition(compare("eq", block, 0)):
                    self._multiply(left, count, panel, here, replaces=True)
                with body.otherwise():
                    self._multiply(left, count, panel, here, replaces=False)

    def _multiply(self, left: Matrix, count: Extent, panel: Extent, here: Extent, *, replaces: bool) -> None:
        """Adds a block of terms to a panel of sums. here: the columns of the panel.

        replaces: it is the first block. Few columns take fewer or narrower vectors.
        """
        body, code = self.body, self.body.index.code
        matrices = (
            Matrix(self.sums, code(panel), COLUMNS),
            left,
            Matrix(self.right, Constant(0, int64), self.lanes),
        )  # fmt: skip

        def add(shapes: Sequence[tuple[int, int, int, int]]) -> None:
            columns, group, vectors, lanes = shapes[0]
            counts = code(self.rows), code(count)
            statement = AddProducts(*matrices, *counts, group, vectors, lanes, replaces=replaces)
            if len(shapes) == 1:
                body.append(statement)
                return
            with body.condition(body.index.compare("le", here, columns)):
                body.append(statement)
            with body.otherwise():
                add(shapes[1:])

        add(shapes_of_columns(self.dtype))

    # --- operands -----------------------------------------------------------------------------------------------------

    def _copy_left(self, block: Extent, count: Extent) -> bool:
        """Copies a chunk of rows for a block of terms; returns whether the elements of one term are adjacent."""
        body, fusion, facts = self.body, self.problem.fusion, self.facts
        row, term = symbol("copied", extent=ROWS), symbol("term", extent=TERMS)

        def at(flat: Extent, of_term: Extent) -> Shape:
            return facts.left_at(fusion, self.stack, delinearize(flat, self.row_axes), of_term)

        probe_row, probe_term = symbol("row", extent=product(self.row_axes)), symbol("term", extent=self.terms)
        probed = at(probe_row, probe_term)
        by_terms = not are_adjacent(body, facts.left, probed, probe_term) and len(self.row_axes) == 1
        by_terms = by_terms and are_adjacent(body, facts.left, probed, probe_row)
        if by_terms:
            with body.loop(term, count), body.loop(row, self.rows, "vector"):
                element = self._element(facts.left, at(self.first_row + row, block + term))
                body.append(Store(self.left, body.index.code(term * ROWS + row), element))
            return True
        with body.loop(row, self.rows):
            flat = self._bound("row", self.first_row + row, product(self.row_axes))
            rows = [
                self._bound("row_axis", c, e)
                for c, e in zip(delinearize(flat, self.row_axes), self.row_axes, strict=True)
            ]
            with body.loop(term, count, "vector"):
                element = self._element(facts.left, facts.left_at(fusion, self.stack, rows, block + term))
                body.append(Store(self.left, body.index.code(row * TERMS + term), element))
        return False

    def _copy_right(self, block: Extent, count: Extent, panel: Extent) -> Extent:
        """Copies a panel of columns for a block of terms, so that the elements of one term are adjacent.

        Returns how many columns there are.
        """
        body, facts = self.body, self.facts
        column, term = symbol("column", extent=self.lanes), symbol("term", extent=TERMS)
        first = self._bound("first", self.first_column + panel, None)
        here = self._bound("here", minimum(self.columns - panel, self.lanes), self.lanes + 1)

        def element(of_term: Extent, of_column: Extent) -> Expression:
            at = facts.right_at(self.problem.fusion, self.stack, block + of_term, first + of_column)
            return self._element(facts.right, at)

        probe = symbol("term", extent=self.terms)
        probed = facts.right_at(self.problem.fusion, self.stack, probe, first)
        if are_adjacent(body, facts.right, probed, probe) and self.lanes % TRANSPOSED == 0:
            lines = self._local("lines", self.lanes * TERMS)
            with body.loop(column, here), body.loop(term, count, "vector"):
                body.append(Store(lines, body.index.code(column * TERMS + term), element(term, column)))
            sides = body.index.code(here), body.index.code(count)
            body.append(Transpose(self.right, self.lanes, lines, TERMS, *sides))
            return here
        if self._is_copied(facts.right, facts.right_at(self.problem.fusion, self.stack, probe, column), column):
            self._copy_lines(count, here, element)
            return here
        with body.condition(body.index.compare("eq", here, self.lanes)):
            self._copy_lines(count, self.lanes, element)
        with body.otherwise():
            self._copy_lines(count, here, element)
        return here

    def _is_copied(self, number: int, at: Shape, index: Extent) -> bool:
        """Whether an operand is an array as it is, at elements that are adjacent as an index counts."""
        read = array_read(self.body, number, at)
        is_plain = read is not None and self.problem.fusion.values[read[0]].dtype is self.dtype
        return is_plain and are_adjacent(self.body, number, at, index)

    def _copy_lines(self, count: Extent, columns: Extent, element: Callable[[Extent, Extent], Expression]) -> None:
        body, column, term = self.body, symbol("column", extent=self.lanes), symbol("term", extent=TERMS)
        kind = "vector" if isinstance(columns, int) else "serial"
        with body.loop(term, count), body.loop(column, columns, kind):
            body.append(Store(self.right, body.index.code(term * self.lanes + column), element(term, column)))

    def _element(self, number: int, at: Shape) -> Expression:
        """Emits an element of an operand in the type of the sums."""
        (element,) = self.body.value(number, at)
        return convert(element, self.dtype)

    # --- results ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Computes what follows from each element of the tile, and stores the results."""
        body, fusion, facts = self.body, self.problem.fusion, self.facts
        place, column = symbol("place", extent=ROWS), symbol("column", extent=COLUMNS)
        value = fusion.values[facts.result]
        with body.loop(place, self.rows):
            row = self._bound("row", self.first_row + place, product(self.row_axes))
            rows = [
                self._bound("row_axis", c, e) if e != 1 else 0
                for c, e in zip(delinearize(row, self.row_axes), self.row_axes, strict=True)
            ]
            with body.loop(column, self.columns, "vector"):
                at = (*self.stack, *rows, self.first_column + column)
                lanes = body.name("product", (self._load(self.sums, place * COLUMNS + column),))
                lanes = tuple(convert(e, value.dtype.compute) for e in lanes)
                if value.dtype.is_half and facts.result in fusion.outputs:
                    lanes = body.rounded("product", lanes, value.dtype)
                body.levels[-1].memo[facts.result, at] = lanes
                for number in fusion.outputs:
                    store_at(self.problem, body, number, at, body.value(number, at)[0])
