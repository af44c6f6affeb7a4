"""The template for scans along a loop that is not the innermost: adjacent threads take adjacent columns.

Each thread scans a few elements of the columns of its lanes. If there are too few columns for a thread each, the rows
of a block share columns and combine what they have through shared memory; of narrow arrays, adjacent threads of a warp
do. The rest is as for rows, see gpu_scan.py.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Sequence

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, ceildiv, maximum, minimum, product, symbol, symbol_of
from tracefuse.kernel.kernel_ir import Buffer, Expression
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_column import combine_rows
from tracefuse.schedule.gpu.gpu_frame import (
    Positions,
    Setting,
    Steps,
    Strides,
    bind_position,
    new_body,
    open_block,
    open_threads,
)
from tracefuse.schedule.gpu.gpu_phase import State, combine_threads, store_parallel_outputs
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_scan import reduce_part
from tracefuse.schedule.gpu.gpu_scan_chunk import BlockRows, Carries, ScannedChunk, Team, declare_carries
from tracefuse.schedule.gpu.gpu_split import Chunks, Partials
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template

THREADS = 256
STEPS = {1: 8, 2: 8, 4: 4, 8: 2}
"""The elements of a column that a thread scans at a time, by lanes."""

ENOUGH_THREADS = 1024
"""Columns for this many threads per multiprocessor are a thread's each."""

WARP = 32
NARROW = 8
"""Below this many groups of columns, adjacent threads share a column; else, the rows of a block."""

FEW_BLOCKS = 3
BLOCKS = 8
"""Below FEW_BLOCKS blocks per multiprocessor, columns are split into parts, about BLOCKS per multiprocessor."""


@dataclass(frozen=True, slots=True)
class ColumnScan:
    """How columns are scanned: the threads that share one, the columns of a block, and whether they are split."""

    down: int
    across: int
    split: bool

    @property
    def adjacent(self) -> bool:
        """Whether adjacent threads share a column."""
        return self.across < NARROW


@dataclass(frozen=True, slots=True)
class _Thread:
    """A thread's place: its group of columns, whether that group exists, its place along the scan and across it in its
    block, and its part."""

    group: Extent
    inside: Expression
    down: Extent
    across: Extent
    chunk: Extent


def _accepts(problem: GpuProblem) -> Verdict:
    region, sizes, lanes = problem.region, problem.rewritten_sizes, problem.setting.lanes
    if region.nest.loops[-1].reduced:
        return RegionRefusal.INNERMOST_REDUCED()
    groups = Positions(region.nest.parallel, lanes).total
    rows = product(loop.extent for loop in region.nest.reduced)
    if sizes.at_most(rows, 2 * STEPS[lanes], "a column of a few elements is a thread's"):
        return yes(ColumnScan(1, THREADS, False))
    if not sizes.at_most(groups, ENOUGH_THREADS * problem.chip.multiprocessors, "threads share columns"):
        return yes(ColumnScan(1, THREADS, False))
    across = sizes.bucket(groups, WARP, "the columns of a block")
    down = min(WARP, THREADS // across)
    split = len(region.scans) == 1 and _is_worth_parts(problem, sizes, groups, rows, across, down)
    return yes(ColumnScan(down, across, split))


def _is_worth_parts(problem: GpuProblem, sizes: Sizes, groups: Extent, rows: Extent, across: int, down: int) -> bool:
    chunk = down * STEPS[problem.setting.lanes]
    if sizes.at_most(rows, 4 * chunk, "a column too short to split"):
        return False
    return sizes.at_most(
        ceildiv(groups, across), FEW_BLOCKS * problem.chip.multiprocessors, "too few columns to fill the GPU"
    )


def _lower(problem: GpuProblem, decision: ColumnScan) -> Lowered:
    region, setting = problem.region, problem.setting
    groups, tiles = Positions(region.nest.parallel, setting.lanes).total, symbol("tiles", minimum=1)
    count = ceildiv(groups, decision.across)
    derived = {symbol_of(tiles): count}
    total = product(loop.extent for loop in region.nest.reduced)
    if not decision.split:
        return problem.finish([_launch(region, setting, decision, tiles)], (), derived)
    wanted = (BLOCKS * setting.chip.multiprocessors) // maximum(count, 1)
    chunks = Chunks.make(total, wanted, decision.down * STEPS[setting.lanes])
    partials = Partials(product(loop.extent for loop in region.nest.parallel))
    first = _reduce_parts(region, setting, decision, tiles, chunks, partials)
    second = _launch(region, setting, decision, tiles, chunks, partials)
    return problem.finish([first, second], partials.scratch, {**derived, **chunks.derived})


COLUMN_SCAN = Template("column scan", _accepts, _lower, scans=True)


def _place(
    body: Body, positions: Positions, decision: ColumnScan, tiles: Extent, parts: Extent, block: Extent, thread: Extent
) -> _Thread:
    """Binds the parallel loops; threads past the last column use its coordinates, and load and store nothing."""
    down: Extent = 0
    across = thread
    if decision.down > 1:
        first, second = thread // decision.across, thread % decision.across
        if decision.adjacent:
            first, second = thread % decision.down, thread // decision.down
        down = bind_position(body, "down", first, decision.down)
        across = bind_position(body, "across", second, decision.across)
    chunk = 0 if parts == 1 else bind_position(body, "chunk", block // tiles, parts)
    tile = block if parts == 1 else bind_position(body, "tile", block % tiles, tiles)
    column = bind_position(body, "column", tile * decision.across + across, tiles * decision.across)
    inside = body.index.compare("lt", column, positions.total)
    group = bind_position(body, "group", minimum(column, positions.total - 1), positions.total)
    positions.bind(body, group)
    return _Thread(group, inside, down, across, chunk)


def _launch(
    region: Region, setting: Setting, decision: ColumnScan, tiles: Extent, chunks: Chunks | None = None,
    partials: Partials | None = None,
) -> LaunchSpec:  # fmt: skip
    """Emits the scans and the outputs. partials: the states of the parts of a column."""
    body, parts = new_body(region, setting), 1 if chunks is None else chunks.count
    block = grid = open_block(body, tiles * parts)
    if chunks is not None:  # the first launch read the last parts last: they are in the L2 cache
        block = bind_position(body, "part", tiles * parts - 1 - block, tiles * parts)
    thread, variable = open_threads(body, decision.across * decision.down)
    columns, positions = Positions(region.nest.parallel, setting.lanes), Positions(region.nest.reduced, 1)
    place = _place(body, columns, decision, tiles, parts, block, thread)
    part = region.placed(columns.values(body.lane))
    first: Extent = 0
    stop = positions.total
    read: list[tuple[int, Buffer]] = []
    if chunks is not None and partials is not None:
        carries, read = _earlier_parts(body, part, partials, decision, place)
        first, stop = chunks.bounds(body, place.chunk)
    else:
        carries = declare_carries(body, part, body.lanes)
    _scan_columns(body, part, positions, decision, place, first, stop, carries)
    tests = [place.inside]
    tests += [] if decision.down == 1 else [body.index.compare("eq", place.down, 0)]
    tests += [] if chunks is None else [body.index.compare("eq", place.chunk, 0)]
    store_parallel_outputs(body, part, tests)
    return make_launch(
        body, f"{setting.name}_column_scan", "cuda", [(grid, tiles * parts)], scratch=read,
        contract=setting.contract, threads=decision.across * decision.down, thread=variable,
    )  # fmt: skip


def _scan_columns(
    body: Body, part: Region, positions: Positions, decision: ColumnScan, place: _Thread, first: Extent, stop: Extent,
    carries: Carries,
) -> None:  # fmt: skip
    """Emits the chunks of a column: those that are full, then the rest."""
    steps = STEPS[body.lanes]
    length, step = decision.down * steps, symbol("step", extent=steps)
    rows = BlockRows(decision.down, decision.across, place.down, place.across)
    by_rows = decision.down > 1 and not decision.adjacent
    team = Team(1 if by_rows else decision.down, 1, None, False, rows if by_rows else None)

    def scan(start: Extent, sure: int) -> None:
        walk = Steps(step, steps, sure, 1, start + place.down * steps, stop, place.inside)
        ScannedChunk(body, part, positions, walk, team, carries).emit()

    turns = (stop - first) // length
    turn = symbol("turn", extent=turns)
    with body.loop(turn, turns):
        scan(bind_position(body, "start", first + turn * length, positions.total), steps)
    rest = bind_position(body, "rest", first + turns * length, positions.total + 1)
    with body.condition(body.index.compare("lt", rest, stop)):
        scan(rest, 0)


def _reduce_parts(
    region: Region, setting: Setting, decision: ColumnScan, tiles: Extent, chunks: Chunks, partials: Partials
) -> LaunchSpec:
    """Emits the states of all parts of all columns."""
    body = new_body(region, setting)
    block = open_block(body, tiles * chunks.count)
    thread, variable = open_threads(body, decision.across * decision.down)
    columns, positions = Positions(region.nest.parallel, setting.lanes), Positions(region.nest.reduced, 1)
    place = _place(body, columns, decision, tiles, chunks.count, block, thread)
    part = region.placed(columns.values(body.lane))
    start, stop = chunks.bounds(body, place.chunk)
    walk = Strides(start, stop, place.down, decision.down, STEPS[body.lanes])
    states = reduce_part(body, part, positions, walk, body.lanes)
    _join(body, states, decision, place)
    tests = [place.inside] if decision.down == 1 else [place.inside, body.index.compare("eq", place.down, 0)]
    written = partials.write(body, states, chunks.count, place.chunk * partials.count + _column(body, place), tests)
    return make_launch(
        body, f"{setting.name}_column_scan_parts", "cuda", [(block, tiles * chunks.count)], scratch=written,
        contract=setting.contract, threads=decision.across * decision.down, thread=variable,
    )  # fmt: skip


def _join(body: Body, states: Sequence[State], decision: ColumnScan, place: _Thread) -> None:
    """Combines the states of the threads that share a column, in every one of them."""
    if decision.adjacent:
        combine_threads(body, states, decision.down)
    else:
        thread, threads = place.down * decision.across + place.across, decision.across * decision.down
        combine_rows(body, states, decision.down, decision.across, thread, place.across, place.down, threads)


def _column(body: Body, place: _Thread) -> Extent:
    return place.group * body.lanes + (body.lane if body.lanes > 1 else 0)


def _earlier_parts(
    body: Body, part: Region, partials: Partials, decision: ColumnScan, place: _Thread
) -> tuple[Carries, list[tuple[int, Buffer]]]:
    """Combines the states of the parts before a thread's own, in every thread that shares the column."""
    states: list[State]
    states, read = partials.read(
        body, part, place.chunk, place.down, decision.down, _column(body, place), body.lanes
    )  # fmt: skip
    _join(body, states, decision, place)
    return {state[0].node.outputs[0]: tuple(lane.variables[0] for lane in state) for state in states}, read
