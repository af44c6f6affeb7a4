"""Column sums of many rows on the CPU: chunks of rows, if tiles of columns alone would leave workers idle.

The first launch computes the states of each chunk of rows for each tile of columns. The second launch combines them in
order and stores the outputs. The number of chunks depends on sizes only, so the bits do not depend on the number of
workers.

Must not know: LLVM.
"""

from __future__ import annotations

from collections.abc import Mapping

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, Symbol, ceildiv, product, symbol
from tracefuse.kernel.kernel_ir import Buffer
from tracefuse.schedule.body import Body
from tracefuse.schedule.column_runs import ColumnRuns
from tracefuse.schedule.cpu.cpu_chunks import LoopChunks, partial_buffers
from tracefuse.schedule.cpu.cpu_column_states import (
    COLUMNS,
    TileColumns,
    Totals,
    accumulate_rows,
    fill_states,
    finish_states,
    load_states,
    open_columns,
    state_arrays,
    store_results,
    store_states,
    tile_step,
)
from tracefuse.schedule.cpu.cpu_frame import new_body, open_grid, work
from tracefuse.schedule.launch_spec import LaunchSpec, Scratch, make_launch
from tracefuse.schedule.nest import Loop, position_in
from tracefuse.schedule.reduction_states import new_accumulator, total_types
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.tilings import Tiling

FEW_TILES = 16
"""Rows are split up to this many tiles of columns; more tiles keep several workers busy."""

LEAST_WORK = 1 << 20
"""The least number of elements for which a second launch pays."""

CHUNK = 1 << 18
MOST_CHUNKS = 64
"""A chunk has at least CHUNK elements, and there are at most MOST_CHUNKS of them."""


@dataclass(frozen=True, slots=True)
class _ColumnSplit:
    """The loops of a region, the chunks of its rows, and its tiling."""

    region: Region
    run: Extent
    chunks: LoopChunks
    tiling: Tiling

    @property
    def inner(self) -> Loop:
        return self.region.nest.loops[-1]

    @property
    def outer(self) -> list[Loop]:
        return [loop for loop in self.region.nest.parallel if loop is not self.inner]

    @property
    def tiles(self) -> Extent:
        return ceildiv(self.inner.extent, tile_step(self.tiling["columns"], self.run))

    def place(self, chunk: Extent) -> Extent:
        """Returns the index of the state of the current column and a chunk."""
        return (position_in(self.outer) * self.chunks.count + chunk) * self.inner.extent + self.inner.index


def is_worth_chunks(region: Region, sizes: Sizes) -> bool:
    """Whether few tiles of columns have many rows and no full output; guards the sizes."""
    if len(region.reductions) != 1 or any(region.full):
        return False
    inner = region.nest.loops[-1]
    tiles = ceildiv(inner.extent, COLUMNS) * product(k.extent for k in region.nest.parallel if k is not inner)
    reason = "a small sum of columns is one launch"
    return not sizes.at_most(work(region), LEAST_WORK - 1, reason) and sizes.at_most(
        tiles, FEW_TILES, "many tiles of columns need no chunks of rows"
    )


def lower_column_chunks(
    runs: ColumnRuns, tiling: Tiling, name: str, contract: bool
) -> tuple[tuple[LaunchSpec, ...], tuple[Scratch, ...], Mapping[Symbol, Extent]]:
    """Returns the two launches, the scratch memory between them, and the definitions of the chunk symbols."""
    region = runs.region
    rows = region.nest.reduced[0]
    width = product(loop.extent for loop in (*region.nest.reduced[1:], region.nest.loops[-1]))
    chunks = LoopChunks.of(rows.extent, width, CHUNK, MOST_CHUNKS)
    split = _ColumnSplit(region, runs.run, chunks, tiling)
    states = [dtype for node in region.in_phase(0) for dtype in total_types(node)]
    size = product(loop.extent for loop in region.nest.parallel) * chunks.count
    launches = (_chunks(split, f"{name}_0", contract), _results(split, f"{name}_1", contract))
    return launches, tuple(Scratch(dtype, size) for dtype in states), chunks.derived


def _partials(totals: Totals, *, written: bool) -> list[tuple[Buffer, ...]]:
    """Makes the parameters that connect the launches: for each reduction, one for each part of its state."""
    result: list[tuple[Buffer, ...]] = []
    for accumulator, _ in totals:
        first = sum(map(len, result))
        result.append(partial_buffers(accumulator, first, written=written))
    return result


def _open(split: _ColumnSplit, extra: Extent) -> tuple[Body, tuple[Extent, Extent], Extent, TileColumns, Totals]:
    """Opens a body over tiles and `extra` further iterations, with states initialized to their neutral elements."""
    body = new_body(split.region)
    grid, part = open_grid(body, split.outer, split.tiles * extra)
    width, rows = split.tiling["columns"], split.tiling["rows"]
    columns = open_columns(body, split.inner, part % split.tiles, width, rows, split.run)
    states = [new_accumulator(body, node, joins=True) for node in split.region.in_phase(0)]
    totals = [(accumulator, state_arrays(body, accumulator, "total", columns)) for accumulator in states]
    return body, grid, part // split.tiles, columns, totals


def _chunks(split: _ColumnSplit, name: str, contract: bool) -> LaunchSpec:
    body, grid, chunk, columns, totals = _open(split, split.chunks.count)
    start, stop = split.chunks.bounds(chunk)
    accumulate_rows(body, split.region, 0, totals, columns, start, stop)
    partials = _partials(totals, written=True)

    def emit() -> None:
        at = body.index.code(columns.place)
        for (_, arrays), buffers in zip(totals, partials, strict=True):
            store_states(body, buffers, body.index.code(split.place(chunk)), load_states(arrays, at))

    columns.each(body, emit)
    scratch = list(enumerate(buffer for buffers in partials for buffer in buffers))
    return make_launch(body, name, "cpu", [grid], scratch=scratch, work=work(split.region), contract=contract)


def _results(split: _ColumnSplit, name: str, contract: bool) -> LaunchSpec:
    body, grid, _, columns, totals = _open(split, 1)
    fill_states(body, totals, columns)
    partials = _partials(totals, written=False)
    chunk = symbol("c", extent=split.chunks.count)

    def join() -> None:
        at = body.index.code(columns.place)
        for (accumulator, arrays), buffers in zip(totals, partials, strict=True):
            later = load_states(buffers, body.index.code(split.place(chunk)))
            store_states(body, arrays, at, accumulator.combined(load_states(arrays, at), later))

    with body.loop(chunk, split.chunks.count):
        columns.each(body, join)
    for accumulator, arrays in totals:
        finish_states(body, split.region, accumulator, arrays, columns)
    store_results(body, split.region, columns)
    scratch = list(enumerate(buffer for buffers in partials for buffer in buffers))
    elements = product(loop.extent for loop in split.region.nest.parallel) * split.chunks.count
    return make_launch(body, name, "cpu", [grid], scratch=scratch, work=elements, contract=contract)
