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
from dataclasses import dataclass, replace

from segments import Verdict, yes
from tracefuse.ir.extents import Extent, ceildiv, maximum, minimum, product, substitute, symbol, symbol_of
from tracefuse.kernel.kernel_ir import Allocate, Barrier, Buffer, Expression, Store
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import (
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
)
from tracefuse.schedule.gpu.gpu_phase import (
    State,
    accumulate_phase,
    cached_words,
    combine_shared,
    hold,
    run_phases,
    store_parallel_outputs,
)
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_split import Chunks, Partials
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.phases import Region, finish
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template

THREADS = 256
WARP = 32
RESIDENT_THREADS = 1024
"""Resident threads per multiprocessor: below the maximum, so that each has registers for all its loads in flight."""

UNROLL = 8
FEW_ROWS = 16
"""One thread accumulates up to this many rows alone, without a combination through shared memory."""

MOST_TERMS = 8
"""The most rows that one thread loads all at once."""

FEW_TILES = 2
ROUNDS = 2
"""The reduction loops are split below FEW_TILES tiles per multiprocessor, into ROUNDS rounds of resident blocks."""

REREAD = 32
"""With outputs over all loops, one pass computes several reductions only where a chunk has REREAD rows for each chunk:
every block of the last phase combines the states of all chunks, which takes long if they have several parts."""

MOST_NARROW = 64
"""The most groups of columns that a block takes together if their number is no power of two."""

MOST_NARROW_OF_LONG, LONG = 512, 128
"""The same for columns of more than LONG rows."""

ALIGNED_ROWS, MOST_ALIGNED = 8, 128
"""So many rows of any number of groups end where a sector of memory ends, so that no two warps write a part of one.
Of more than MOST_ALIGNED groups, a block takes fewer."""

FEW_COLUMN_TILES = 8
"""With so few tiles, columns have so many chunks that a launch combines their states; else its readers do."""

FINISH_ACROSS = 4
"""The least threads across the columns where chunks are combined: many threads share the chunks of a column."""

FINISH_UNROLL = 4
"""The chunks that a thread reads at a time where it combines them."""

MOST_WORDS = 32
MOST_STEPS = 16
"""A thread caches its part of a column between phases in at most this many registers and steps."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A block of `down` rows of `across` adjacent threads; of narrow columns, `across` is an argument of the kernel.

    steps: positions that each thread caches, if it does. terms: an upper bound on the positions, if they are few.
    threads: of the block, some of which have no row. bound: of narrow columns, the power of two above `across`.
    """

    across: Extent
    down: int
    steps: int | None = None
    terms: int | None = None
    threads: int = THREADS
    bound: int | None = None

    @property
    def is_row(self) -> bool:
        """Whether a thread takes its columns alone."""
        return self.down == 1

    @property
    def least_across(self) -> int:
        return int(self.across) if self.bound is None else self.bound // 2  # type: ignore[arg-type]

    @property
    def resident(self) -> int:
        """The blocks of a multiprocessor."""
        return -(-RESIDENT_THREADS // self.threads)


@dataclass(frozen=True, slots=True)
class Columns:
    """A thread's group of columns, whether that group exists, the thread, its place in its block, and its chunk."""

    group: Extent
    inside: Expression
    thread: Extent
    down: Extent
    across: Extent
    chunk: Extent


def _column_positions(region: Region, lanes: int) -> Positions:
    """Returns the positions of the columns: groups of lanes over all parallel loops."""
    return Positions(region.nest.parallel, lanes)


def threads_across(groups: Extent, sizes: Sizes, most: int) -> int:
    """Returns the number of threads across the columns, from a guarded bucket of the number of groups."""
    return sizes.bucket(groups, most, "the threads across the columns")


def choose_tile(region: Region, sizes: Sizes, lanes: int) -> Tile:
    """Chooses the threads across and down, from guarded buckets of the extents."""
    rows = product(loop.extent for loop in region.nest.reduced)
    if sizes.at_most(rows, FEW_ROWS, "a thread takes few rows alone"):
        if sizes.at_most(rows, 0, "no rows to load") or not sizes.at_most(rows, MOST_TERMS, "a thread loads all rows"):
            return Tile(THREADS, 1)
        return Tile(THREADS, 1, terms=sizes.bucket(rows, MOST_TERMS, "the rows that a thread loads at once"))
    tile = _share_columns(_column_positions(region, lanes).total, rows, sizes)
    longest = tile.down * min(MOST_STEPS, max(1, MOST_WORDS // cached_words(region, lanes)))
    if not region.probe.cached or not sizes.at_most(rows, longest, "a column fits in the registers of a block"):
        return tile
    steps = 1
    while steps * tile.down < sizes.hint(rows):
        steps *= 2
    sizes.at_most(rows, steps * tile.down, "the steps of a column")
    return replace(tile, steps=steps)


def _share_columns(groups: Extent, rows: Extent, sizes: Sizes) -> Tile:
    """Chooses the threads of a block: a block takes all groups of columns if they are few, and no power of two."""
    most = MOST_NARROW if sizes.at_most(rows, LONG, "short columns") else MOST_NARROW_OF_LONG
    if sizes.at_most(groups, most, "a block takes all columns"):
        bound, exact = sizes.power_of_two_above(groups, "every thread of a block has work", "the threads of a block")
        if not exact:
            few = sizes.at_most(groups, 3 * bound // 4, "the threads of a block")
            least = ALIGNED_ROWS if bound <= MOST_ALIGNED else 2
            down = max(least, 2 * THREADS // bound if few else THREADS // bound)
            threads = down * bound * 3 // 4 if few else down * bound
            return Tile(symbol("columns", minimum=bound // 2 + 1), down, threads=threads, bound=bound)
        across = min(bound, WARP)
        return Tile(across, THREADS // across)
    return Tile(WARP, THREADS // WARP)


def _accepts(problem: GpuProblem) -> Verdict:
    nest = problem.region.nest
    if not nest.reduced:
        return RegionRefusal.NOTHING_REDUCED()
    return RegionRefusal.INNERMOST_REDUCED() if nest.loops[-1].reduced else yes()


def _lower(problem: GpuProblem, decision: None) -> Lowered:
    """Emits one launch, or one launch per phase if the reduction loops are split."""
    region, setting, sizes = problem.region, problem.setting, problem.rewritten_sizes
    tile = choose_tile(region, sizes, setting.lanes)
    groups, tiles = _column_positions(region, setting.lanes).total, symbol("tiles", minimum=1)
    count = 1 if tile.bound else ceildiv(groups, tile.across)
    blocks = ROUNDS * tile.resident * setting.chip.multiprocessors
    narrow = {symbol_of(tile.across): groups} if tile.bound else {}
    derived = {symbol_of(tiles): count, **narrow}
    rows = product(loop.extent for loop in region.nest.reduced)
    if tile.steps is None and not tile.is_row:
        region = problem.one_pass
        if region is not problem.region and any(region.full):
            many = sizes.at_most(rows * count * count, REREAD * blocks**2, "many chunks for their rows")
            region = problem.region if many else region
    split = (
        tile.steps is None
        and not sizes.at_most(rows, 2 * UNROLL * tile.down, "a column too short to split")
        and sizes.at_most(count, FEW_TILES * setting.chip.multiprocessors, "too few columns to fill the GPU")
    )
    if not split:
        return problem.finish([_single(region, setting, tile, tiles)], (), derived)
    chunks = Chunks.make(rows, blocks // maximum(count, 1), UNROLL * tile.down)
    finish, finish_tiles = _finish_tile(count, blocks, tile, sizes), symbol("finish_tiles", minimum=1)
    derived |= {s: substitute(e, narrow) for s, e in chunks.derived.items()}
    derived |= {symbol_of(finish_tiles): ceildiv(groups, finish.across)}
    partials = Partials(product(loop.extent for loop in region.nest.parallel))
    launches, last, joined = [], len(region.full) - 1, None
    if region.full[last] and sizes.at_most(count, FEW_COLUMN_TILES, "a launch combines the chunks of all columns"):
        joined = replace(partials, states=[])
    for phase in range(last + bool(region.full[last])):
        launches.append(_launch(region, setting, tile, tiles, phase, chunks, partials, joined=joined))
        if joined is not None and phase < last:
            launches.append(_combine(region, setting, finish, finish_tiles, phase, chunks, partials, joined))
    if not region.full[last]:
        launches.append(_launch(region, setting, finish, finish_tiles, last, chunks, partials, FINISH_UNROLL))
    return problem.finish(launches, partials.scratch, derived)


def _finish_tile(tiles: Extent, blocks: int, tile: Tile, sizes: Sizes) -> Tile:
    """Returns the threads that combine chunks: so many down that each reads FINISH_UNROLL chunks, if there are few."""
    bucket = sizes.bucket(tiles, 1 << (blocks.bit_length() - 1), "the threads that combine the chunks of a column")
    chunks = max(1, blocks // (bucket // 2 + 1))
    down, most = 1, THREADS // min(FINISH_ACROSS, tile.least_across)
    while down < most and down * FINISH_UNROLL < chunks:
        down *= 2
    return Tile(THREADS // down, down)


COLUMN = Template("column", _accepts, _lower)


def _place(
    body: Body, region: Region, tile: Tile, block: Extent, thread: Extent, tiles: Extent, chunks: Extent
) -> Columns:
    """Binds the parallel loops of a thread; threads past the last column read the last column and store nothing."""
    positions = _column_positions(region, body.lanes)
    across = thread if tile.is_row else bind_position(body, "across", thread % tile.across, tile.across)
    chunk = 0 if chunks == 1 else bind_position(body, "chunk", block // tiles, chunks)
    if tile.bound is not None:
        # Threads past the last row do the same as those of the last row, and store nothing.
        down = bind_position(body, "down", minimum(thread // tile.across, tile.down - 1), tile.down)
        positions.bind(body, across)
        inside = body.index.compare("lt", thread, tile.across * tile.down)
        return Columns(across, inside, thread, down, across, chunk)
    down = 0 if tile.is_row else bind_position(body, "down", thread // tile.across, tile.down)
    first = (block if chunks == 1 else block % tiles) * tile.across
    column = bind_position(body, "column", first + across, tiles * tile.across)
    inside = body.index.compare("lt", column, positions.total)
    group = bind_position(body, "group", minimum(column, positions.total - 1), positions.total)
    positions.bind(body, group)
    return Columns(group, inside, down * tile.across + across, down, across, chunk)


def _join(body: Body, states: Sequence[State], tile: Tile, columns: Columns) -> None:
    combine_rows(body, states, tile.down, tile.across, columns.thread, columns.across, tile.threads)


def combine_rows(
    body: Body, states: Sequence[State], rows: Extent, across: Extent, thread: Extent, column: Extent, threads: int
) -> None:
    """Combines the states of the rows of threads of a block through shared memory, in row order, in every thread.

    across: the threads of a row. column: a thread's place in its row. threads: of the block.
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
    for accumulator, buffers in shared:
        combine_shared(body, accumulator, buffers, rows, lambda place: place * across + column)


def _single(region: Region, setting: Setting, tile: Tile, tiles: Extent) -> LaunchSpec:
    body = new_body(region, setting)
    block = open_block(body, tiles)
    thread, variable = open_threads(body, tile.threads)
    columns = _place(body, region, tile, block, thread, tiles, 1)
    positions = Positions(region.nest.reduced, 1)
    values = _column_positions(region, body.lanes).values(body.lane)
    part = region.placed(values)
    walk: Walk = Strides(0, positions.total, columns.down, tile.down, UNROLL)
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
    if not tile.is_row:
        tests.append(body.index.compare("eq", columns.down, 0))
    if columns.chunk != 0:
        tests.append(body.index.compare("eq", columns.chunk, 0))
    return tests


def _launch(
    region: Region, setting: Setting, tile: Tile, tiles: Extent, phase: int, chunks: Chunks, partials: Partials,
    unroll: int = 1, joined: Partials | None = None,
) -> LaunchSpec:  # fmt: skip
    """Emits one phase of a split column reduction.

    unroll: the number of chunks read at a time. joined: the states of earlier phases, if a launch combined them.
    """
    body = new_body(region, setting)
    last = phase + 1 == len(region.full)
    chunked = not last or bool(region.full[phase])
    blocks = tiles * chunks.count if chunked else tiles
    block = open_block(body, blocks)
    thread, variable = open_threads(body, tile.threads)
    columns = _place(body, region, tile, block, thread, tiles, chunks.count if chunked else 1)
    positions = Positions(region.nest.reduced, 1)
    part = region.placed(_column_positions(region, body.lanes).values(body.lane))
    place = columns.group * body.lanes + (body.lane if body.lanes > 1 else 0)
    if joined is None:
        earlier, read = partials.read(body, part, chunks.count, columns.down, tile.down, place, body.lanes, unroll)
        _join(body, earlier, tile, columns)
    else:
        earlier, read = joined.read(body, part, 1, 0, 1, place, body.lanes)
    for state in earlier:
        finish(body, part, *state)
    written: list[tuple[int, Buffer]] = []
    if chunked:
        start, stop = chunks.bounds(body, columns.chunk)
        walk = Strides(start, stop, columns.down, tile.down, UNROLL, narrow=last and body.lanes == 1)
        states = accumulate_phase(
            body, part, phase, walk, positions, width=body.lanes, stores=[columns.inside]
        )  # fmt: skip
        _join(body, states, tile, columns)
        first = [columns.inside, body.index.compare("eq", columns.down, 0)]
        written = partials.write(body, states, chunks.count, columns.chunk * partials.count + place, first)
    if last:
        store_parallel_outputs(body, part, _first(body, columns, tile))
    return make_launch(
        body, f"{setting.name}_column_{phase}", "cuda", [(block, blocks)], scratch=[*read, *written],
        contract=setting.contract, threads=tile.threads, thread=variable,
        blocks_per_multiprocessor=tile.resident,
    )  # fmt: skip


def _combine(
    region: Region, setting: Setting, tile: Tile, tiles: Extent, phase: int, chunks: Chunks, partials: Partials,
    joined: Partials,
) -> LaunchSpec:  # fmt: skip
    """Emits the launch that moves the states of a phase's chunks from `partials` to `joined`, combined."""
    body = new_body(region, setting)
    block = open_block(body, tiles)
    thread, variable = open_threads(body, tile.threads)
    columns = _place(body, region, tile, block, thread, tiles, 1)
    part = region.placed(_column_positions(region, body.lanes).values(body.lane))
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
    return _launch(alone, setting, tile, tiles, 1, chunks, partials, unroll)
