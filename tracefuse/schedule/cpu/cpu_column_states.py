"""The columns of a tile on the CPU: one accumulator per column in local memory, and the loops over the rows.

Rows are read in memory order. Sums of floats add blocks of rows, and the sums of the blocks in float64, since the
rounding error of a plain running sum grows with every row.

Must not know: LLVM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.data_positions import takes_positions
from tracefuse.ir.extents import (
    Extent,
    ceildiv,
    floordiv,
    maximum,
    minimum,
    product,
    substitute,
    symbol,
    symbols,
)
from tracefuse.ir.op_kinds import Movement, Pointwise, Reduction
from tracefuse.kernel.kernel_ir import Allocate, Buffer, Expression, Load, Store
from tracefuse.schedule.body import Body
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.reduction_states import (
    Accumulator,
    State,
    declare,
    lifted,
    new_accumulator,
    state_types,
    store_output,
)
from tracefuse.schedule.region_phases import Region

COLUMNS = 1024
"""Columns of a tile, usually: two accumulators of 4 KiB stay in the L1 cache."""

ROWS_IN_BLOCK = 128
"""Rows summed before the partial sum joins the total."""


ROWS_AT_ONCE = 8
LIGHT_NODES = 8
"""Rows added per pass over the accumulators, which divides their loads and stores by as much; a power of two.

LIGHT_NODES: the most nodes of a region for which the values of so many rows fit in registers.
"""


@dataclass(frozen=True, slots=True)
class TileColumns:
    """The columns of one tile: the loop, its first and its last (exclusive) index.

    width: of a complete tile, at most. at_once: the rows that a light region adds in one pass over the accumulators.
    run: the adjacent columns whose accumulators are joined after the last row; see `column_runs.py`.
    """

    loop: Loop
    first: Extent
    last: Extent
    width: int
    at_once: int
    run: Extent = 1

    @property
    def place(self) -> Extent:
        """The index of the current column's accumulator."""
        return self.loop.index - self.first

    def each(self, body: Body, emit: Callable[[], None]) -> None:
        """Emits a vector loop over the columns."""
        with body.loop(self.loop.index, self.last, "vector", start=self.first):
            emit()


def open_columns(
    body: Body, inner: Loop, tile: Extent, width: int, at_once: int, run: Extent = 1
) -> TileColumns:  # fmt: skip
    """Returns the columns of a tile; binds their bounds to variables. width, at_once, run: see `TileColumns`."""
    step = tile_step(width, run)
    first = symbol("first", extent=inner.extent)
    body.bind(first, body.index.code(tile * step))
    last = symbol("last", extent=inner.extent + 1)
    body.bind(last, body.index.code(minimum(first + step, inner.extent)))
    return TileColumns(inner, first, last, width, at_once, run)


def tile_step(width: int, run: Extent) -> Extent:
    """Returns the columns of a complete tile: as many whole runs as `width` columns have."""
    return width if run == 1 else floordiv(width, run) * run


Arrays: TypeAlias = tuple[Buffer, ...]
"""The states of the columns: one array for each part."""

Totals: TypeAlias = Sequence[tuple[Accumulator, Arrays]]


def state_arrays(body: Body, accumulator: Accumulator, stem: str, columns: TileColumns) -> Arrays:
    """Allocates the states of a tile's columns, in the types of the accumulator."""
    name = f"{stem}{accumulator.node.outputs[0]}"
    buffers = tuple(Buffer(body.fresh(name), v.dtype, "local", columns.width) for v in accumulator.variables)
    for buffer in buffers:
        body.append(Allocate(buffer))
    return buffers


def load_states(arrays: Arrays, at: Expression) -> State:
    return tuple(Load(buffer, at) for buffer in arrays)


def store_states(body: Body, arrays: Arrays, at: Expression, state: State) -> None:
    """Stores a state, which may be computed from the arrays themselves."""
    named = body.name("both", state) if len(state) > 1 else state
    for buffer, value in zip(arrays, named, strict=True):
        body.append(Store(buffer, at, value))


def fill_states(body: Body, totals: Totals, columns: TileColumns) -> None:
    def emit() -> None:
        for accumulator, buffers in totals:
            store_states(body, buffers, body.index.code(columns.place), accumulator.neutral)

    if totals:
        columns.each(body, emit)


def accumulate_rows(
    body: Body, region: Region, phase: int, totals: Totals, columns: TileColumns, start: Extent = 0,
    stop: Extent | None = None,
) -> None:  # fmt: skip
    """Emits one pass over the rows: accumulates the phase's reductions and stores its full outputs.

    start, stop: the bounds of the outermost reduction loop; by default all of it.
    """
    if not totals and not region.full[phase]:
        return
    fill_states(body, totals, columns)
    loops = region.nest.reduced
    bounds = [(start if k == 0 else 0, loop.extent if k or stop is None else stop) for k, loop in enumerate(loops)]
    sums = [] if _fit_one_block(body, loops, totals) else [(a, b) for a, b in totals if a.adds_floats]
    if not sums:
        _rows(body, region, phase, totals, columns, bounds)
        return
    accumulators = [new_accumulator(body, a.node) for a, _ in sums]
    parts = [(a, state_arrays(body, a, "part", columns)) for a in accumulators]
    sequential = [pair for pair in totals if pair not in sums]

    def join() -> None:
        at = body.index.code(columns.place)
        for (accumulator, total), (_, part) in zip(sums, parts, strict=True):
            store_states(body, total, at, accumulator.combined(load_states(total, at), load_states(part, at)))

    with contextlib.ExitStack() as stack:
        within = _open_blocks(body, stack, loops, bounds)
        fill_states(body, parts, columns)
        _rows(body, region, phase, [*parts, *sequential], columns, within)
        columns.each(body, join)


def _fit_one_block(body: Body, loops: Sequence[Loop], totals: Totals) -> bool:
    """Returns whether so few rows are summed that the sum of their one block is the total, bit for bit."""
    rows = substitute(product(loop.extent for loop in loops), body.index.known)
    are_exact = all(tuple(v.dtype for v in a.variables) == tuple(state_types(a.node, body)) for a, _ in totals)
    return isinstance(rows, int) and rows <= ROWS_IN_BLOCK and are_exact


def accumulate_few_rows(body: Body, region: Region, phase: int, totals: Totals, columns: TileColumns) -> None:
    """Emits one pass over rows that are too few to need blocks, as `accumulate_rows` does."""
    if totals or region.full[phase]:
        fill_states(body, totals, columns)
        _rows(body, region, phase, totals, columns, [(0, loop.extent) for loop in region.nest.reduced])


def accumulate_row(body: Body, region: Region, phase: int, totals: Totals, columns: TileColumns) -> None:
    """Accumulates one row, and stores its full outputs; `region` has its index in place of the reduction loop."""
    columns.each(body, lambda: _elements(body, [region], phase, totals, columns))


Bounds: TypeAlias = Sequence[tuple[Extent, Extent]]
"""The first and the last (exclusive) index of each reduction loop, outermost first."""


def _open_blocks(body: Body, stack: contextlib.ExitStack, loops: Sequence[Loop], bounds: Bounds) -> Bounds:
    """Opens loops over blocks of about ROWS_IN_BLOCK rows; returns the bounds of a block.

    A block has rows of the innermost loop, or several iterations of the outermost loop if the inner ones are short.
    """
    lengths: list[Extent] = [*(stop - start for start, stop in bounds)]
    lengths[-1] = ROWS_IN_BLOCK
    if len(loops) > 1:
        lengths[0] = maximum(floordiv(ROWS_IN_BLOCK, maximum(product(loop.extent for loop in loops[1:]), 1)), 1)
    result = list(bounds)
    for position in sorted({0, len(loops) - 1}):
        start, stop = bounds[position]
        length = symbol(f"length{position}", minimum=1)
        body.bind(length, body.index.code(lengths[position]))
        count = symbol(f"blocks{position}", minimum=0)
        body.bind(count, body.index.code(ceildiv(stop - start, length)))
        block = symbol(f"block{position}", extent=count)
        stack.enter_context(body.loop(block, count))
        first = start + block * length
        result[position] = (first, minimum(first + length, stop))
    return result


def _rows(body: Body, region: Region, phase: int, targets: Totals, columns: TileColumns, bounds: Bounds) -> None:
    """Loops over the reduction loops, and inside them over the columns."""
    loops = region.nest.reduced
    with contextlib.ExitStack() as stack:
        for loop, (start, stop) in zip(loops[:-1], bounds, strict=False):
            stack.enter_context(body.loop(loop.index, stop, start=start))
        _bands(body, region, phase, targets, columns, *bounds[-1])


def _bands(
    body: Body, region: Region, phase: int, targets: Totals, columns: TileColumns, start: Extent, stop: Extent
) -> None:
    """Loops over the innermost reduction loop from `start` to `stop`: several rows per pass, then the remainder."""
    loop, count = region.nest.reduced[-1], columns.at_once if is_light(region) else 1
    if count > 1:
        group = symbol(f"{loop.symbol.name}g", extent=loop.extent - (count - 1))
        rows = [region.at_loop(loop.symbol, group + k) for k in range(count)]
        with body.loop(group, stop - (count - 1), start=start, step=count):
            columns.each(body, lambda: _elements(body, rows, phase, targets, columns))
        start = start + floordiv(stop - start, count) * count
    if substitute(stop - start, body.index.known) == 0:
        return
    with body.loop(loop.index, stop, start=start):
        columns.each(body, lambda: _elements(body, [region], phase, targets, columns))


def is_light(region: Region) -> bool:
    """Returns whether several rows fit in registers: rows compute few ops, none of them expensive.

    Movements are index expressions, so that a product of slices is as light as one of whole arrays.
    """
    in_rows = values_in_rows(region)
    nodes = [n for n in region.fusion.nodes if isinstance(n.op, Reduction) or not in_rows.isdisjoint(n.outputs)]
    computing = [node for node in nodes if not isinstance(node.op, Movement) or takes_positions(node)]
    is_cheap = not any(isinstance(node.op, Pointwise) and node.op.expensive for node in nodes)
    return len(computing) <= LIGHT_NODES and is_cheap


def values_in_rows(region: Region) -> set[int]:
    """Returns the values that differ between rows."""
    reduced = {loop.symbol for loop in region.nest.reduced}
    walked = region.probe.walked
    return {number for number, at in walked if not reduced.isdisjoint(s for c in at for s in symbols(c))}


def _elements(body: Body, rows: Sequence[Region], phase: int, targets: Totals, columns: TileColumns) -> None:
    """Accumulates one column of some rows into the targets, and stores the full outputs there."""
    at = body.index.code(columns.place)
    for accumulator, buffers in targets:
        elements = [lifted(body, row, accumulator.node)[0] for row in rows]
        if _joins_in_turn(accumulator):
            state = load_states(buffers, at)
            for element in elements:
                state = accumulator.combined(state, element)
            store_states(body, buffers, at, state)
            continue
        while len(elements) > 1:
            pairs = zip(elements[::2], elements[1::2], strict=True)
            elements = [accumulator.combined(first, second) for first, second in pairs]
            if len(buffers) > 1:  # each part of a state depends on every part of both operands
                elements = [body.name("pair", element) for element in elements]
        store_states(body, buffers, at, accumulator.combined(load_states(buffers, at), elements[0]))
    for row in rows:
        for output in row.full[phase]:
            store_output(body, row, output)


def _joins_in_turn(accumulator: Accumulator) -> bool:
    """Whether elements join the state one after another: the extreme of halves.

    LLVM turns the extreme of two widened halves into one of halves, which it does not vectorize.
    """
    return accumulator.node.compute.is_half and bool(accumulator.op.combine) and not accumulator.adds_floats


def finish_states(body: Body, region: Region, accumulator: Accumulator, buffers: Arrays, columns: TileColumns) -> None:
    """Computes the results from the states, into an array that consumers index by column.

    States that are results already are that array.
    """
    number = accumulator.node.outputs[0]
    dtype = region.fusion.values[number].dtype.compute
    result = buffers[0]
    if columns.run != 1 or accumulator.op.final != "a" or result.dtype is not dtype:
        result = Buffer(body.fresh(f"v{number}"), dtype, "local", columns.width)
        body.append(Allocate(result))
        _compute_results(body, region, accumulator, buffers, columns, result)
    coordinates = region.at[number][0]
    # If no coordinate depends on the column, all elements are equal, and a consumer may be outside the column loop.
    differs = any(columns.loop.symbol in symbols(coordinate) for coordinate in coordinates)
    body.cached[(number, coordinates)] = (result, columns.place if differs else 0)


def _compute_results(
    body: Body, region: Region, accumulator: Accumulator, buffers: Arrays, columns: TileColumns, result: Buffer
) -> None:
    def emit() -> None:
        at = body.index.code(columns.place)
        body.append(Store(result, at, accumulator.final(load_states(buffers, at), region, body)))

    if columns.run == 1:
        columns.each(body, emit)
    else:
        _join_runs(body, region, accumulator, buffers, columns, result)


def _join_runs(
    body: Body, region: Region, accumulator: Accumulator, buffers: Arrays, columns: TileColumns, result: Buffer
) -> None:
    """Joins the states of each run of columns, and repeats the result for each of its columns."""
    run, count = columns.run, floordiv(columns.last - columns.first, columns.run)
    place, column = symbol("run", extent=count), symbol("column", extent=run)
    with body.loop(place, count):
        total = declare(body, accumulator.node, joins=True)
        with body.loop(column, run, "vector"):
            total.absorb(body, load_states(buffers, body.index.code(place * run + column)))
        (value,) = body.name("joined", (total.final(total.variables, region, body),))
        with body.loop(column, run, "vector"):
            body.append(Store(result, body.index.code(place * run + column), value))


def store_results(body: Body, region: Region, columns: TileColumns) -> None:
    """Stores the outputs over the parallel loops: of each column, or of each run of them."""
    if not region.parallel_outputs:
        return
    if columns.run == 1:
        columns.each(body, lambda: _store_parallel_outputs(body, region))
        return
    count = floordiv(columns.last - columns.first, columns.run)
    place = symbol("run", extent=count)
    first = {columns.loop.symbol: columns.first + place * columns.run}
    earlier = dict(body.cached)
    for (number, coordinates), (buffer, at) in earlier.items():
        body.cached[number, tuple(substitute(c, first) for c in coordinates)] = (buffer, substitute(at, first))
    with body.loop(place, count, "vector"):
        _store_parallel_outputs(body, region.placed(first))
    body.cached.clear()
    body.cached.update(earlier)


def _store_parallel_outputs(body: Body, region: Region) -> None:
    for output in region.parallel_outputs:
        store_output(body, region, output)
