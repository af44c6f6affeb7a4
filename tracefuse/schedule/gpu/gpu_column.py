"""The column template for the GPU: the innermost loop is parallel, and adjacent threads take adjacent columns.

A block computes a tile of columns with several rows of threads. Each thread accumulates a group of columns over a
strided subset of the reduction positions. The rows of threads are combined through shared memory in a fixed order. A
block takes all columns of a matrix with few, whose rows follow each other in memory. If the tiles do not fill
the chip, the reduction loops are split into chunks over the grid (gpu_split.py). Columns that do not fit in registers
may be read once for all reductions that one pass can compute.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Sequence

from segments import Verdict, yes
from segments.lazy_dataclasses import replace
from tracefuse.ir.extents import Extent, Symbol, ceildiv, maximum, product, substitute, symbol, symbol_of
from tracefuse.kernel.kernel_ir import Allocate, Barrier, Buffer, Expression, Store
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_column_tiles import (
    AGAIN,
    FEW_TILES,
    FINISH_UNROLL,
    THREADS,
    Columns,
    Tile,
    choose_tile,
    column_positions,
    finish_tile,
    place_columns,
    resident_columns,
    shifted_tile,
)
from tracefuse.schedule.gpu.gpu_frame import (
    WIDE_BYTES,
    FewSteps,
    Positions,
    Setting,
    Steps,
    Strides,
    Walk,
    bind_position,
    new_body,
    open_block,
    open_threads,
    when,
)
from tracefuse.schedule.gpu.gpu_lanes import reads_short_runs
from tracefuse.schedule.gpu.gpu_phase import (
    State,
    accumulate_phase,
    combine_shared,
    hold,
    run_phases,
    store_parallel_outputs,
)
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_split import Chunks, Partials
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.reduction_states import Accumulator, finish
from tracefuse.schedule.refusal_codes import RegionRefusal, ScheduleRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template

UNROLL = 8
"""The rows that a thread reads at a time. With 16, whose last turns are less often complete, matrices take longer."""

STORED_UNROLL = 4
"""The same where results over all loops are stored in accesses of 16 bytes. (H200)"""
SHORT_ROWS = 16
ROUNDS, NARROW_ROUNDS = 2, 4
"""The reduction loops are split below FEW_TILES tiles per multiprocessor, into ROUNDS rounds of resident blocks, more
if they store single elements (H200), but not those of at most SHORT_ROWS rows for each row of threads."""

REREAD = 32
"""With outputs over all loops, one pass computes several reductions only where a chunk has REREAD rows for each chunk:
every block of the last phase combines the states of all chunks, which takes long if they have several parts."""

WIDE = Tile(THREADS, 1)
"""The tile of a launch that only stores what depends on columns."""

STORING = 4
"""Such a launch has so many times the blocks of one that reduces. (H200)"""

AGAIN_BYTES = 24 << 20
"""A launch of its own stores it if the columns of all resident blocks have more bytes."""

JOINED = "a launch combines the chunks of all columns"
FEW_COLUMN_TILES = 8
"""With so few tiles, columns have so many chunks that a launch combines their states; else its readers do."""

MANY_ROWS = 16
"""The states of so many rows of threads are combined in parts at first, by different threads, then those of the parts:
if every thread combines all rows, it reads as many states as elements."""


class ColumnRefusal(ScheduleRefusal):
    """Refusals of the column template."""

    STORED_RUNS = "chunks of columns store short runs of adjacent elements, one element of each at a time"


def _accepts(problem: GpuProblem) -> Verdict:
    region, sizes = problem.region, problem.rewritten_sizes
    if not region.nest.reduced:
        return RegionRefusal.NOTHING_REDUCED()
    inner = region.nest.loops[-1]
    if inner.reduced:
        return RegionRefusal.INNERMOST_REDUCED()
    if any(region.full) and reads_short_runs(region, inner, sizes):
        tile, lanes = choose_tile(region, sizes, problem.setting)
        if _is_split(problem, tile, _tile_count(problem, tile, lanes)):
            return ColumnRefusal.STORED_RUNS()
    return yes()


def _tile_count(problem: GpuProblem, tile: Tile, lanes: int) -> Extent:
    """Returns the number of tiles side by side."""
    if tile.matrices is not None:
        return ceildiv(product(loop.extent for loop in problem.region.nest.parallel[:-1]), tile.matrices)
    return 1 if tile.bound else ceildiv(column_positions(problem.region, lanes).total, tile.across)


def _is_split(problem: GpuProblem, tile: Tile, count: Extent) -> bool:
    """Whether the rows are split into chunks, since `count` tiles side by side do not fill the GPU."""
    rows, sizes = product(loop.extent for loop in problem.region.nest.reduced), problem.rewritten_sizes
    return (
        tile.steps is None
        and tile.matrices is None
        and not sizes.at_most(rows, SHORT_ROWS * tile.down, "a column too short to split")
        and sizes.at_most(count, FEW_TILES * problem.setting.chip.multiprocessors, "too few columns to fill the GPU")
    )


def _lower(problem: GpuProblem, decision: None) -> Lowered:
    """Emits one launch, or one launch per phase if the reduction loops are split."""
    region, sizes = problem.region, problem.rewritten_sizes
    tile, lanes = choose_tile(region, sizes, problem.setting)
    setting = replace(problem.setting, lanes=lanes)
    groups, tiles = column_positions(region, setting.lanes).total, symbol("tiles", minimum=1)
    count = _tile_count(problem, tile, lanes)
    rounds = NARROW_ROUNDS if lanes == 1 and any(region.full) else ROUNDS
    blocks = rounds * tile.resident * setting.chip.multiprocessors
    narrow = {symbol_of(tile.across): groups} if tile.bound else {}
    if tile.matrices is not None:
        narrow = {symbol_of(tile.matrices): tile.threads // tile.down // tile.across}
    derived = {symbol_of(tiles): substitute(count, narrow), **narrow}
    rows = product(loop.extent for loop in region.nest.reduced)
    if tile.steps is None and tile.matrices is None and not tile.is_row:
        region = problem.one_pass
        if region is not problem.region and any(region.full):
            many = sizes.at_most(rows * count * count, REREAD * blocks**2, "many chunks for their rows")
            region = problem.region if many else region
    wide = WIDE if _stores_alone(problem, tile, lanes) else None
    if wide is None and not _is_split(problem, tile, count):
        # A tile of a thread alone serves columns without rows as well.
        is_short = not tile.is_row or not sizes.at_most(rows, 0, "no rows to load")
        if is_short and setting.lanes > 1:
            is_short = sizes.at_most(rows, UNROLL * tile.down, "a thread has no whole turn")
        return problem.finish([_single(region, setting, tile, tiles, is_short)], (), derived)
    return _split(problem, region, setting, tile, tiles, blocks, derived, wide)


def _stores_alone(problem: GpuProblem, tile: Tile, lanes: int) -> bool:
    """Whether a launch of its own stores what depends on columns, which it reads from memory again anyway.

    Its warps take long runs of rows, where a block of whole columns stores runs of 32 narrow elements that begin
    anywhere in a sector of memory.
    """
    region, sizes = problem.region, problem.rewritten_sizes
    if tile.steps is not None or tile.matrices is not None or tile.is_row or tile.bound:
        return False
    if not region.probe.cached or not region.full[-1]:
        return False
    access = lanes * min(region.fusion.values[number].dtype.itemsize for number, _ in region.probe.cached)
    rows = product(loop.extent for loop in region.nest.reduced)
    in_flight = rows * (access * resident_columns(tile, problem.setting))
    return access < WIDE_BYTES and not sizes.at_most(in_flight, AGAIN_BYTES, AGAIN)


def _split(
    problem: GpuProblem, region: Region, setting: Setting, tile: Tile, tiles: Extent, blocks: int,
    derived: dict[Symbol, Extent], wide: Tile | None,
) -> Lowered:  # fmt: skip
    """Emits the launches of columns in chunks. blocks: about how many. derived: as of a `Lowered`, so far.

    wide: the tile of the last phase if that stores columns which are read again from memory.
    """
    sizes, last = problem.rewritten_sizes, len(region.full) - 1
    groups, count = column_positions(region, setting.lanes).total, derived[symbol_of(tiles)]
    rows = product(loop.extent for loop in region.nest.reduced)
    stored, stored_tiles = wide or stored_shifted(region, setting, groups, sizes), symbol("stored_tiles", minimum=1)
    chunks = Chunks.make(rows, blocks // maximum(count, 1), rows_at_a_time(tile, stored))
    stored_chunks = chunks
    finish, finish_tiles = finish_tile(count, blocks, tile, sizes), symbol("finish_tiles", minimum=1)
    derived = derived | {s: substitute(e, derived) for s, e in chunks.derived.items()}
    derived[symbol_of(finish_tiles)] = ceildiv(groups, finish.across)
    if stored is not None:
        derived[symbol_of(stored_tiles)] = ceildiv(groups + max(stored.shift - 1, 0), stored.across)
    if wide is not None:
        stored_chunks = chunks.divided("stored_chunks", STORING * blocks // derived[symbol_of(stored_tiles)])
        derived = derived | {s: substitute(e, derived) for s, e in stored_chunks.derived.items()}
    partials = Partials(product(loop.extent for loop in region.nest.parallel))
    launches, joined = [], None
    if stored is not None or (region.full[last] and sizes.at_most(count, FEW_COLUMN_TILES, JOINED)):
        joined = replace(partials, states=[])
    for phase in range(last + bool(region.full[last])):
        at = (tile, tiles, phase, chunks)
        if stored is not None and phase == last:
            at = (stored, stored_tiles, phase, stored_chunks)
        launches.append(column_launch(region, setting, *at, partials, joined=joined))
        if joined is not None and phase < last:
            launches.append(combine_chunks(region, setting, finish, finish_tiles, phase, chunks, partials, joined))
    if not region.full[last]:
        launches.append(column_launch(region, setting, finish, finish_tiles, last, chunks, partials, FINISH_UNROLL))
    return problem.finish(launches, partials.scratch, derived)


def rows_at_a_time(tile: Tile, stored: Tile | None) -> int:
    """Returns the rows of which chunks have a multiple: the turns of a thread are complete in both tiles."""
    return UNROLL * max(tile.down, tile.down if stored is None else stored.down)


def stored_shifted(region: Region, setting: Setting, groups: Extent, sizes: Sizes) -> Tile | None:
    """Returns the tile of the phase that stores results over all loops, if it is not that of the reductions."""
    full = region.full[-1]
    if not full or len(region.nest.parallel) > 1:
        return None
    return shifted_tile(setting.lanes, groups, min(region.fusion.values[n].dtype.itemsize for n in full), sizes)


COLUMN = Template("column", _accepts, _lower)


def _join(body: Body, states: Sequence[State], tile: Tile, columns: Columns) -> None:
    combine_rows(body, states, tile.down, tile.across, columns.thread, columns.across, columns.down, tile.threads)


def combine_rows(
    body: Body, states: Sequence[State], rows: Extent, across: Extent, thread: Extent, column: Extent,
    down: Extent, threads: int,
) -> None:  # fmt: skip
    """Combines the states of the rows of threads of a block through shared memory, in row order, in every thread.

    across: the threads of a row. column: a thread's place in the first row. down: its row. threads: of the block.
    """
    if rows == 1 or not states:
        return
    shared = []
    for state in states:
        for accumulator in state:
            buffers = []
            for variable in accumulator.variables:
                buffer = Buffer(body.fresh("states"), variable.dtype, "shared", threads)
                body.append(Allocate(buffer))
                body.append(Store(buffer, body.index.code(thread), variable))
                buffers.append(buffer)
            shared.append((accumulator, buffers))
    body.append(Barrier())
    if isinstance(rows, int) and rows >= MANY_ROWS and rows % (parts := 1 << (rows.bit_length() // 2)) == 0:
        _combine_parts(body, shared, rows // parts, parts, across, column, down)
        rows = parts
    for accumulator, buffers in shared:
        combine_shared(body, accumulator, buffers, rows, lambda place: place * across + column)


def _combine_parts(
    body: Body, shared: Sequence[tuple[Accumulator, Sequence[Buffer]]], rows: int, parts: int, across: Extent,
    column: Extent, down: Extent,
) -> None:  # fmt: skip
    """Combines every `parts`-th row of threads, `rows` of them, and stores the states of the parts as the first rows.

    The rows of different parts are adjacent, so threads of a warp meet in no bank of shared memory.
    """
    first = bind_position(body, "first", down % parts * across + column, parts * across)
    for accumulator, buffers in shared:
        combine_shared(body, accumulator, buffers, rows, lambda place: first + place * (parts * across))
    body.append(Barrier())
    with when(body, [body.index.compare("lt", down, parts)]):
        for accumulator, buffers in shared:
            for variable, buffer in zip(accumulator.variables, buffers, strict=True):
                body.append(Store(buffer, body.index.code(down * across + column), variable))
    body.append(Barrier())


def _single(region: Region, setting: Setting, tile: Tile, tiles: Extent, is_short: bool) -> LaunchSpec:
    body = new_body(region, setting)
    block = open_block(body, tiles)
    thread, variable = open_threads(body, tile.threads)
    columns = place_columns(body, region, tile, block, thread, tiles, 1)
    positions = Positions(region.nest.reduced, 1)
    values = column_positions(region, body.lanes).values(body.lane)
    part = region.placed(values)
    walk: Walk = Strides(0, positions.total, columns.down, tile.down, UNROLL, short=is_short)
    if tile.terms is not None:
        walk = FewSteps(symbol("step", extent=tile.terms), tile.terms, positions.total)
    cached = None
    if tile.steps is not None:
        step = symbol("step", extent=tile.steps)
        walk = Steps(step, tile.steps, 0, tile.down, columns.down, positions.total)
        cached = hold(body, region, values, step, tile.steps)

    def join(states: Sequence[State]) -> None:
        _join(body, states, tile, columns)

    run_phases(
        body, part, walk, positions, join, width=body.lanes, cached=cached, stores=[columns.inside]
    )  # fmt: skip
    store_parallel_outputs(body, part, _first(body, columns, tile))
    return make_launch(
        body, f"{setting.name}_column", "cuda", [(block, tiles)], contract=setting.contract,
        threads=tile.threads, thread=variable, blocks_per_multiprocessor=tile.resident,
    )  # fmt: skip


def _first(body: Body, columns: Columns, tile: Tile) -> list[Expression]:
    """Returns the tests that select one thread per column, which stores the parallel outputs."""
    tests = [columns.inside]
    places = ([] if tile.is_row else [columns.down]) + ([] if columns.chunk == 0 else [columns.chunk])
    return tests + [body.index.compare("eq", place, 0) for place in places]


def column_launch(
    region: Region, setting: Setting, tile: Tile, tiles: Extent, phase: int, chunks: Chunks, partials: Partials,
    unroll: int = 1, joined: Partials | None = None, run: Extent = 1,
) -> LaunchSpec:  # fmt: skip
    """Emits one phase of a split column reduction.

    unroll: the number of chunks read at a time. joined: the states of earlier phases, if a launch combined them. run:
    so many adjacent groups of columns have one result, and another launch stores what depends on results alone.
    """
    body, last = new_body(region, setting), phase + 1 == len(region.full)
    chunked = not last or bool(region.full[phase])
    blocks = tiles * chunks.count if chunked else tiles
    block = open_block(body, blocks)
    thread, variable = open_threads(body, tile.threads)
    columns = place_columns(body, region, tile, block, thread, tiles, chunks.count if chunked else 1)
    positions = Positions(region.nest.reduced, 1)
    part = region.placed(column_positions(region, body.lanes).values(body.lane))
    place = columns.group * body.lanes + (body.lane if body.lanes > 1 else 0)
    if joined is None:
        earlier, read = partials.read(body, part, chunks.count, columns.down, tile.down, place, body.lanes, unroll)
        _join(body, earlier, tile, columns)
    else:
        at = place if run == 1 else bind_position(body, "row", columns.group // run, joined.count)
        earlier, read = joined.read(body, part, 1, 0, 1, at, body.lanes if run == 1 else 1)
    for state in earlier:
        finish(body, part, *state)
    written: list[tuple[int, Buffer]] = []
    if chunked:
        start, stop = chunks.bounds(body, columns.chunk)
        narrowest = min((region.fusion.values[n].dtype.itemsize for n in region.full[phase]), default=0)
        unroll = STORED_UNROLL if last and narrowest * body.lanes >= WIDE_BYTES else UNROLL
        walk = Strides(start, stop, columns.down, tile.down, unroll, narrow=last and body.lanes == 1)
        states = accumulate_phase(
            body, part, phase, walk, positions, width=body.lanes, stores=[columns.inside]
        )  # fmt: skip
        _join(body, states, tile, columns)
        first = [columns.inside, body.index.compare("eq", columns.down, 0)]
        written = partials.write(body, states, chunks.count, columns.chunk * partials.count + place, first)
    if last and run == 1:
        store_parallel_outputs(body, part, _first(body, columns, tile))
    return make_launch(
        body, f"{setting.name}_column_{phase}", "cuda", [(block, blocks)], scratch=[*read, *written],
        contract=setting.contract, threads=tile.threads, thread=variable,
        blocks_per_multiprocessor=tile.resident,
    )  # fmt: skip


def combine_chunks(
    region: Region, setting: Setting, tile: Tile, tiles: Extent, phase: int, chunks: Chunks, partials: Partials,
    joined: Partials,
) -> LaunchSpec:  # fmt: skip
    """Emits the launch that moves the states of a phase's chunks from `partials` to `joined`, combined."""
    body = new_body(region, setting)
    block = open_block(body, tiles)
    thread, variable = open_threads(body, tile.threads)
    columns = place_columns(body, region, tile, block, thread, tiles, 1)
    part = region.placed(column_positions(region, body.lanes).values(body.lane))
    place = columns.group * body.lanes + (body.lane if body.lanes > 1 else 0)
    states, read = partials.read(body, part, chunks.count, columns.down, tile.down, place, body.lanes, FINISH_UNROLL)
    partials.states.clear()
    _join(body, states, tile, columns)
    written = joined.write(body, states, 1, place, _first(body, columns, tile))
    return make_launch(
        body, f"{setting.name}_column_{phase}_joined", "cuda", [(block, tiles)], scratch=[*read, *written],
        contract=setting.contract, threads=tile.threads, thread=variable,
        blocks_per_multiprocessor=tile.resident,
    )  # fmt: skip


def finish_columns(
    region: Region, setting: Setting, tile: Tile, tiles: Extent, chunks: Chunks, partials: Partials, unroll: int
) -> LaunchSpec:
    """Emits the launch that combines the states in scratch memory and stores the outputs computed from the results."""
    alone = replace(region, full=((), ()))
    return column_launch(alone, setting, tile, tiles, 1, chunks, partials, unroll)
