"""The product template for the GPU: a block computes a tile of the result; groups of its threads divide the terms.

It is for products that fill a GPU with small tiles only. There the time is that of the latencies, so a block loads as
many terms at once as fit, of which each group sums a part, in their order. The partial sums of the groups are added in
a fixed order, and what follows from the result is computed from them. Operands of any layout and type are read where
they are, through casts and movements.

Must not know: CUDA C++.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import ClassVar

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import DType, float32
from tracefuse.ir.extents import Extent, ceildiv, minimum, product, substitute, symbol, symbol_of
from tracefuse.ir.fusion import Shape
from tracefuse.ir.row_major import delinearize
from tracefuse.kernel.kernel_ir import Allocate, Barrier, Buffer, Constant, Copy, Expression, Load, Store, call
from tracefuse.kernel.scalar_code import convert
from tracefuse.schedule.adjacent_elements import are_adjacent
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import bind_loops, bind_position, open_block, open_threads, when
from tracefuse.schedule.gpu.gpu_problem import GpuProblem, index_dtype_of_arrays
from tracefuse.schedule.gpu.gpu_product_tiles import (
    ROWS,
    THREAD_COLUMNS,
    THREAD_ROWS,
    THREADS,
    OperandTile,
    ProductTiles,
)
from tracefuse.schedule.gpu.gpu_tiles import load, registers
from tracefuse.schedule.launch_spec import Lowered, make_launch
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.product_facts import ProductFacts
from tracefuse.schedule.scopes import Lanes
from tracefuse.schedule.template import Template

LEAST_TERMS = 16
ROW_PADDING, COLUMN_PADDING = 2, 4
"""Elements after the rows or columns of a term in shared memory: threads that store successive terms meet few in a
bank, and accesses stay aligned."""


WIDE, NARROW = ProductTiles(32, 128, single=False), ProductTiles(16, 256, single=False)
"""The largest tiles, and those for results that would leave half of the multiprocessors without one."""


def _accepts(problem: GpuProblem) -> Verdict:
    assert isinstance(problem.facts, ProductFacts)
    stack, rows, terms, columns = problem.facts.extents(problem.fusion)
    sizes, wide = problem.sizes, ceildiv(columns, WIDE.columns) * ceildiv(product(rows), ROWS) * product(stack)
    few = sizes.at_most(wide, problem.chip.multiprocessors // 2, "narrow tiles use more multiprocessors")
    tiles = NARROW if few else WIDE
    itemsize = problem.facts.node.compute.compute.itemsize
    most = tiles.terms * float32.itemsize // max(itemsize, float32.itemsize)
    count = max(LEAST_TERMS, sizes.bucket(terms, most, "the terms that a block loads at once"))
    single = sizes.at_most(terms, count, "a block loads all terms at once")
    return yes(ProductTiles(tiles.columns, count, single))


def _lower(problem: GpuProblem, decision: ProductTiles) -> Lowered:
    assert isinstance(problem.facts, ProductFacts)
    return BlockProduct(problem, problem.facts, decision).lower()


PRODUCT: Template[GpuProblem] = Template("product", _accepts, _lower, takes=ProductFacts)


@dataclass
class BlockProduct:
    """The emission of the kernel.

    stack: the indices of the stack. rows, columns: the extents of the result's rows, all axes joined, and columns.
    """

    problem: GpuProblem
    facts: ProductFacts
    tiles: ProductTiles
    body: Body = field(init=False)
    dtype: DType = field(init=False)
    thread: Extent = field(init=False)
    stack: Shape = field(init=False)
    row_axes: Shape = field(init=False)
    rows: Extent = field(init=False)
    terms: Extent = field(init=False)
    columns: Extent = field(init=False)
    sums: Buffer = field(init=False)
    partial: Buffer = field(init=False)

    paddings = ROW_PADDING, COLUMN_PADDING
    resident: ClassVar[int | None] = None
    """The least blocks of a multiprocessor."""
    by_rows: ClassVar[frozenset[str]] = frozenset()
    """The sides, "row" and "column", whose terms are next to one another in shared memory, else those of a term."""

    @property
    def element(self) -> DType:
        """The type of the factors in registers and shared memory."""
        return self.dtype

    @property
    def sums_of_thread(self) -> int:
        return THREAD_ROWS * THREAD_COLUMNS

    def width_of(self, number: int, at: Shape, index: Extent, length: int) -> int:
        """Returns the elements of an operand, adjacent along `index`, that a thread accesses at once.

        at: the coordinates of an element. length: of the tile.
        """
        return 1

    def tile_memory(self, name: str, length: int, pitch: int) -> tuple[Buffer, Buffer]:
        """Allocates what holds a side's tile on its way from memory, and where it is multiplied from."""
        body, terms = self.body, self.tiles.terms
        loaded = registers(body, f"{name}_elements", length * terms // THREADS, self.element)
        size = pitch * (length if name in self.by_rows else terms)
        shared = Buffer(body.fresh(f"{name}_tile"), self.element, "shared", size)
        body.append(Allocate(shared))
        return loaded, shared

    def lower(self) -> Lowered:
        fusion, memory, facts = self.problem.fusion, self.problem.memory, self.facts
        self.body = body = Body(
            fusion, memory.strides, index_dtype_of_arrays(self.problem), misaligned=memory.misaligned,
            shared=memory.shared,
        )  # fmt: skip
        body.index.inverts = True
        self.dtype = facts.node.compute.compute
        stack, self.row_axes, self.terms, self.columns = facts.extents(fusion)
        self.rows = product(self.row_axes)
        blocks, wide, high = (symbol(name, minimum=1) for name in ("blocks", "tiles_across", "tiles_down"))
        counts = ceildiv(self.columns, self.tiles.columns), ceildiv(self.rows, self.tiles.rows)
        derived = {
            symbol_of(wide): counts[0],
            symbol_of(high): counts[1],
            symbol_of(blocks): product(stack) * counts[0] * counts[1],
        }
        block = open_block(body, blocks)
        self.thread, variable = open_threads(body, THREADS)
        column = bind_position(body, "tile_column", block % wide, wide)
        rest = bind_position(body, "tiles_before", block // wide, blocks)
        row = bind_position(body, "tile_row", rest % high, high)
        loops = [Loop(symbol(f"stack{k}", extent=e), e, False) for k, e in enumerate(stack)]
        self.stack = tuple(0 if loop.extent == 1 else loop.index for loop in loops)
        if loops:
            bind_loops(body, loops, bind_position(body, "place", rest // high, product(stack)))
        left, right = self._sides(row * self.tiles.rows, column * self.tiles.columns)
        self._run(left, right)
        self._finish(left.first, right.first)
        launch = make_launch(
            body, f"{self.problem.name}_product", "cuda", [(block, blocks)], contract=self.problem.contract,
            threads=THREADS, thread=variable, blocks_per_multiprocessor=self.resident,
        )  # fmt: skip
        inverses = {s: substitute(extent, derived) for s, extent in launch.inverses.items()}
        return Lowered("", (launch,), tuple(self.problem.sizes.guards), (), {**inverses, **derived})

    def _sides(self, first_row: Extent, first_column: Extent) -> tuple[OperandTile, OperandTile]:
        """Returns the tiles of both operands, with their memory allocated."""
        fusion, facts, body = self.problem.fusion, self.facts, self.body

        def left_at(row: Extent, term: Extent) -> Shape:
            return facts.left_at(fusion, self.stack, delinearize(row, self.row_axes), term)

        def right_at(column: Extent, term: Extent) -> Shape:
            return facts.right_at(fusion, self.stack, term, column)

        def side(
            name: str, number: int, at: Callable[[Extent, Extent], Shape], length: int, padding: int, first: Extent,
            extent: Extent,
        ) -> OperandTile:  # fmt: skip
            first = bind_position(body, f"first_{name}", first, extent)
            across, term = symbol(name, extent=extent), symbol("term", extent=self.terms)
            along_terms = not are_adjacent(body, number, at(across, term), across)
            by_rows = name in self.by_rows
            joined = along_terms == by_rows  # adjacent in memory and in shared memory
            width = self.width_of(number, at(across, term), term if along_terms else across, length) if joined else 1
            pitch = (self.tiles.terms if by_rows else length) + padding
            loaded, shared = self.tile_memory(name, length, pitch)
            return OperandTile(
                number, at, length, first, extent, pitch, along_terms, loaded, shared, by_rows, width,
                number in fusion.tensor_inputs and fusion.values[number].dtype is self.element,
            )  # fmt: skip

        row_padding, column_padding = self.paddings
        return (
            side("row", facts.left, left_at, self.tiles.rows, row_padding, first_row, self.rows),
            side("column", facts.right, right_at, self.tiles.columns, column_padding, first_column, self.columns),
        )

    # --- the sums -----------------------------------------------------------------------------------------------------

    def _run(self, left: OperandTile, right: OperandTile) -> None:
        """Sums the terms: while those of a block of terms are added, those of the next are on their way."""
        body, count, sides = self.body, self.tiles.terms, (left, right)
        self.sums = registers(body, "sums", self.sums_of_thread, self.dtype)
        for place in range(self.sums_of_thread):
            body.append(Store(self.sums, body.index.code(place), Constant(0.0, self.dtype)))
        self._load(sides, 0)
        if self.tiles.single:
            self._share(sides, 0)
            self._add(left, right, self.terms)
            return
        first = symbol("first_term", extent=self.terms)
        with body.loop(first, self.terms, step=count):
            self._share(sides, first)
            with body.condition(body.index.compare("lt", first + count, self.terms)):
                self._load(sides, first + count)
            self._add(left, right, self.terms - first)
            body.append(Barrier())

    @contextlib.contextmanager
    def _each(self, side: OperandTile) -> Iterator[tuple[Extent, Extent, Extent]]:
        """Opens a loop over the elements of a tile that a thread loads, adjacent threads along memory.

        Yields the step, the place across the tile and the term.
        """
        body, width = self.body, side.width
        along = (self.tiles.terms if side.along_terms else side.length) // width
        steps = side.length * self.tiles.terms // width // THREADS
        with body.loop(step := symbol("step", extent=steps), steps, "unroll"):
            if THREADS % along:
                place = self.thread + step * THREADS
                near, far = place % along, place // along
            else:
                near, far = self.thread % along, self.thread // along + step * (THREADS // along)
            yield (step, far, near * width) if side.along_terms else (step, near * width, far)

    def _load(self, sides: tuple[OperandTile, ...], first: Extent) -> None:
        """Loads the terms from `first` on of both operands into registers.

        Nothing is computed from what is loaded here: that would wait for it. Places beyond the end have other elements,
        and so have terms beyond the end if they are plain; else these are 0.
        """
        body, zero = self.body, Constant(0.0, self.dtype)
        for side in sides:
            with self._each(side) as (step, across, term):
                position = bind_position(body, "position", first + term, self.terms + self.tiles.terms)
                wide, high = (1, side.width) if side.along_terms else (side.width, 1)
                place = bind_position(body, "across", minimum(side.first + across, side.extent - wide), side.extent)
                inside = bind_position(body, "term", minimum(position, self.terms - high), self.terms)
                exists = body.index.compare("lt", position, self.terms)
                if side.width > 1:
                    self._load_wide(side, step, side.at(place, inside), position)
                    continue
                if side.plain:
                    offset = body.index.code(body.offset(side.number, side.at(place, inside)))
                    source = Load(body.buffer_of(side.number), offset)
                    body.append(Store(side.loaded, body.index.code(step), source))
                    continue
                (element,) = body.value(side.number, side.at(place, inside))
                element = call("select", exists, convert(element, self.dtype), zero)
                body.append(Store(side.loaded, body.index.code(step), convert(element, self.element)))

    def _load_wide(self, side: OperandTile, step: Extent, at: Shape, position: Extent) -> None:
        """Loads `width` adjacent elements, all of which exist or none."""
        body, code, width = self.body, self.body.index.code, side.width
        source = replace(body.buffer_of(side.number), alignment=width * self.element.itemsize)
        body.buffers[side.number] = source
        # To overwrite registers after their load waits for it.
        for k in range(width):
            body.append(Store(side.loaded, code(step * width + k), Constant(0.0, self.element)))
        with body.condition(body.index.compare("lt", position, self.terms)):
            body.append(Copy(side.loaded, code(step * width), source, code(body.offset(side.number, at)), width))

    def _share(self, sides: tuple[OperandTile, ...], first: Extent) -> None:
        """Stores the loaded elements in shared memory, and 0 for terms beyond the end. first: the first term."""
        body = self.body
        for side in sides:
            with self._each(side) as (step, across, term):
                place = body.index.code(side.place(across, term))
                if side.width > 1:
                    from_ = body.index.code(step * side.width)
                    body.append(Copy(side.shared, place, side.loaded, from_, side.width))
                    continue
                element: Expression = load(body, side.loaded, step)
                if side.plain:
                    exists = body.index.compare("lt", first + term, self.terms)
                    element = call("select", exists, element, Constant(0.0, self.element))
                body.append(Store(side.shared, place, element))
        body.append(Barrier())

    def _add(self, left: OperandTile, right: OperandTile, terms: Extent) -> None:
        """Adds the products of the terms of a thread's group to its sums. terms: how many are left; others are 0."""
        body, code = self.body, self.body.index.code
        count = self.tiles.terms // self.tiles.groups
        group, row, column = self._place()
        term = symbol("term", extent=count)
        with body.loop(term, count, "unroll"):
            rows = registers(body, "row", THREAD_ROWS, self.dtype)
            columns = registers(body, "column", THREAD_COLUMNS, self.dtype)
            for to, side, place in ((rows, left, row), (columns, right, column)):
                at = (group * count + term) * side.pitch + place
                assert isinstance(to.size, int)
                body.append(Copy(to, code(0), side.shared, code(at), to.size))
            for place in range(THREAD_ROWS * THREAD_COLUMNS):
                factors = load(body, rows, place // THREAD_COLUMNS), load(body, columns, place % THREAD_COLUMNS)
                total = call("add", load(body, self.sums, place), call("mul", *factors))
                body.append(Store(self.sums, code(place), total))

    def _place(self) -> tuple[Extent, Extent, Extent]:
        """Returns the group of a thread, and the first row and column of its sums."""
        across, members = self.tiles.columns // THREAD_COLUMNS, THREADS // self.tiles.groups
        row = self.thread % members // across * THREAD_ROWS
        return self.thread // members, row, self.thread % across * THREAD_COLUMNS

    # --- results ------------------------------------------------------------------------------------------------------

    def _finish(self, first_row: Extent, first_column: Extent) -> None:
        """Adds the sums of the groups, computes what follows from each element of the tile, and stores the results."""
        body, width, groups = self.body, self.tiles.columns, self.tiles.groups
        pitch = self._share_sums()
        area = self.tiles.rows * width
        steps = area // THREADS
        with body.loop(step := symbol("step", extent=steps), steps, "unroll"):
            place = bind_position(body, "place", self.thread + step * THREADS, area)
            at_row = bind_position(body, "row", first_row + place // width, self.rows + self.tiles.rows)
            at_column = bind_position(body, "column", first_column + place % width, self.columns + width)
            at = place if pitch == width else place // width * pitch + place % width

            def total(at: Extent = at) -> Expression:
                first: Expression = load(body, self.partial, at)
                for k in range(1, groups):
                    first = call("add", first, load(body, self.partial, at + k * area))
                return first

            self._store(total, at_row, at_column)

    def _share_sums(self) -> int:
        """Stores the sums of all threads in shared memory; returns the elements from a row to the next."""
        body, code, width = self.body, self.body.index.code, self.tiles.columns
        area = self.tiles.rows * width
        self.partial = Buffer(body.fresh("partial_sums"), self.dtype, "shared", self.tiles.groups * area)
        body.append(Allocate(self.partial))
        group, row, column = self._place()
        for k in range(THREAD_ROWS):
            at = group * area + (row + k) * width + column
            body.append(Copy(self.partial, code(at), self.sums, code(k * THREAD_COLUMNS), THREAD_COLUMNS))
        body.append(Barrier())
        return width

    def _store(
        self, total: Callable[[], Expression], row: Extent, column: Extent, tests: Sequence[Expression] = ()
    ) -> None:  # fmt: skip
        """Computes what follows from an element of the result, and stores it if it exists and the tests hold.

        total: emits the element. Without branches around them, the loads of several elements are on their way together:
        for elements that do not exist, what follows from others is computed.
        """
        body = self.body
        tests = [*tests, body.index.compare("lt", row, self.rows), body.index.compare("lt", column, self.columns)]
        row, column = minimum(row, self.rows - 1), minimum(column, self.columns - 1)
        if self.problem.memory.shared:  # another thread may overwrite what follows from an element that does not exist
            with when(body, tests):
                self._store_computed(self._computed(total(), row, column))
            return
        with body.kept_inside():
            computed = self._computed(total(), row, column)
            with when(body, tests):
                self._store_computed(computed)

    def _store_computed(self, computed: Sequence[tuple[Buffer, Extent, Lanes]]) -> None:
        for buffer, offset, lanes in computed:
            self.body.store(buffer, offset, lanes)

    def _computed(self, total: Expression, row: Extent, column: Extent) -> list[tuple[Buffer, Extent, Lanes]]:
        """Computes what follows from an element of the result; returns where to store it."""
        body, fusion, number = self.body, self.problem.fusion, self.facts.result
        rows = self.row_axes
        if len(rows) > 1:
            bounded = bind_position(body, "row", row, self.rows)
            parts = delinearize(bounded, rows)
            row_axes = [
                bind_position(body, "row_axis", c, e) if e != 1 else 0 for c, e in zip(parts, rows, strict=True)
            ]
        else:
            row_axes = [bind_position(body, "row", row, self.rows)]
        at = (*self.stack, *row_axes, bind_position(body, "column", column, self.columns))
        lanes = tuple(convert(e, fusion.values[number].dtype.compute) for e in body.name("product", (total,)))
        if fusion.values[number].dtype.is_half and number in fusion.outputs:
            lanes = body.rounded("product", lanes, fusion.values[number].dtype)
        body.levels[-1].memo[number, at] = lanes
        computed = []
        for output in fusion.outputs:
            strides = self.problem.memory.output_strides(fusion, output)
            offset: Extent = 0
            for coordinate, stride in zip(at, strides, strict=True):
                offset = offset + coordinate * stride
            computed.append((body.buffer_of(output, written=True), offset, body.value(output, at)))
        return computed
