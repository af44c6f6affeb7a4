"""The scan templates for a GPU: sums, products and extremes of the elements so far along one loop.

Along the innermost loop, a group of threads scans a row: short rows whole, several to a block; longer ones in chunks,
with the state before the chunk in a register, so that memory is read once. Along another loop, adjacent threads take
adjacent columns, and a few threads share a column. Too few rows or columns to fill the GPU are split: a launch reduces
each part, and every block of the next one combines the parts before its own. The number of parts follows from the sizes
and the number of multiprocessors, so the bits of a result do not depend on other work on the GPU.

Must not know: CUDA C++.
"""

from __future__ import annotations

from itertools import chain

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, Symbol, ceildiv, maximum, minimum, product, symbol, symbol_of
from tracefuse.kernel.kernel_ir import Buffer, Expression
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import (
    Positions,
    Setting,
    Steps,
    Strides,
    bind_loops,
    bind_position,
    new_body,
    open_block,
    open_threads,
)
from tracefuse.schedule.gpu.gpu_phase import State, accumulate_lanes, combine_threads, store_parallel_outputs
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_row import RowShape
from tracefuse.schedule.gpu.gpu_scan_chunk import Carries, ScannedChunk, Team, declare_carries
from tracefuse.schedule.gpu.gpu_split import Chunks, Partials
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.reduction_states import declare
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template

WARP = 32
STEPS = {1: 16, 2: 8, 4: 4, 8: 2}
"""The steps of a thread in a chunk, by lanes: 16 elements, which are in registers, twice."""

MOST_THREADS = {1: 128, 2: 256, 4: 256, 8: 256}
"""The threads of a block that scans a row in one chunk, by lanes."""

THREADS = 128
"""The threads of a block that scans a longer row: many small blocks hide each other's waits. (H200)"""

LEAST_GROUP = 8
"""The threads of a short row, which read adjacent addresses; fewer if the row has not as many positions."""

FEW_ROWS = 2
BLOCKS = 16
"""Below this many rows per multiprocessor, rows are split into parts, about BLOCKS per multiprocessor."""

REDUCED_AT_ONCE = 16
"""The elements in flight of a thread that reduces a part."""


@dataclass(frozen=True, slots=True)
class RowScan:
    """How rows are scanned. looped: in chunks. split: into parts, each of several chunks."""

    shape: RowShape
    looped: bool
    split: bool


def _accepts(problem: GpuProblem) -> Verdict:
    region, sizes, lanes = problem.region, problem.rewritten_sizes, problem.setting.lanes
    if not region.nest.loops[-1].reduced:
        return RegionRefusal.INNERMOST_NOT_REDUCED()
    total = Positions(region.nest.reduced, lanes).total
    if sizes.at_most(total, MOST_THREADS[lanes] * STEPS[lanes], "a row is one chunk"):
        return yes(RowScan(_share_row(total, sizes, STEPS[lanes]), False, False))
    rows, most = product(loop.extent for loop in region.nest.parallel), FEW_ROWS * problem.chip.multiprocessors
    split = len(region.scans) == 1 and sizes.at_most(rows, most, "rows too few to fill the GPU are split")
    return yes(RowScan(RowShape(THREADS, STEPS[lanes], 0), True, split))


def _share_row(total: Extent, sizes: Sizes, most_steps: int) -> RowShape:
    """Chooses the threads and the steps of a short row by the power of two above its length."""
    bound, exact = sizes.power_of_two_above(total, "every thread of a row has work", "the threads of a row")
    group = max(bound // most_steps, min(bound, LEAST_GROUP))
    steps = bound // group
    sure = steps if exact else steps // 2 if group <= WARP else 0
    return RowShape(group, steps, sure)


def _lower(problem: GpuProblem, decision: RowScan) -> Lowered:
    region, setting = problem.region, problem.setting
    rows, total = product(loop.extent for loop in region.nest.parallel), symbol("positions", minimum=1)
    derived: dict[Symbol, Extent] = {symbol_of(total): Positions(region.nest.reduced, setting.lanes).total}
    if not decision.split:
        launch, more = _launch(region, setting, decision, total)
        return problem.finish([launch], (), {**derived, **more})
    wanted = (BLOCKS * setting.chip.multiprocessors) // maximum(rows, 1)
    chunks = Chunks.make(derived[symbol_of(total)], wanted, THREADS * STEPS[setting.lanes])
    partials = Partials(rows)
    first = _reduce_parts(region, setting, chunks, partials)
    second, more = _launch(region, setting, decision, chunks.total, chunks, partials)
    return problem.finish([first, second], partials.scratch, {**chunks.derived, **more})


SCAN = Template("scan", _accepts, _lower, scans=True)


def _row_of_thread(
    body: Body, shape: RowShape, block: Extent, thread: Extent, rows: Extent, tiles: Extent
) -> tuple[Extent, Extent, Expression]:
    """Returns the row of a thread in a block of several rows, its position in the row, and whether that row exists."""
    slot = bind_position(body, "slot", thread % shape.group, shape.group)
    place = bind_position(body, "place", block * shape.rows + thread // shape.group, tiles * shape.rows)
    inside = body.index.compare("lt", place, rows)
    return bind_position(body, "row", minimum(place, rows - 1), rows), slot, inside


def _launch(
    region: Region, setting: Setting, decision: RowScan, total: Extent, chunks: Chunks | None = None,
    partials: Partials | None = None,
) -> tuple[LaunchSpec, dict[Symbol, Extent]]:  # fmt: skip
    """Emits the scans and the outputs. total: the positions of a row. partials: the states of the parts."""
    body, nest, shape = new_body(region, setting), region.nest, decision.shape
    row_count = product(loop.extent for loop in nest.parallel)
    rows, tiles = symbol("rows", minimum=1), symbol("tiles", minimum=1)
    derived = {symbol_of(rows): row_count, symbol_of(tiles): ceildiv(row_count, shape.rows)}
    blocks = tiles if chunks is None else rows * chunks.count
    block = grid = open_block(body, blocks)
    thread, variable = open_threads(body, shape.threads)
    inside: Expression | None = None
    row, slot = block, thread
    if chunks is not None:
        # The first launch read the last parts last: they are in the L2 cache.
        block = bind_position(body, "part", blocks - 1 - block, blocks)
        row = bind_position(body, "row", block // chunks.count, rows)
    if shape.rows > 1:
        row, slot, inside = _row_of_thread(body, shape, block, thread, rows, tiles)
    bind_loops(body, nest.parallel, row)
    positions = Positions(nest.reduced, setting.lanes)
    part = region.placed(positions.values(body.lane))
    first: Extent = 0
    stop = total
    carries: Carries = {}
    read: list[tuple[int, Buffer]] = []
    chunk: Extent = 0
    if chunks is not None and partials is not None:
        chunk = bind_position(body, "chunk", block % chunks.count, chunks.count)
        carries, read = _earlier_parts(body, part, partials, chunk, thread, row)
        first, stop = chunks.bounds(body, chunk)
    elif decision.looped:
        carries = declare_carries(body, part, 1)
    _scan_rows(body, part, positions, decision, slot, first, stop, carries, inside)
    tests = [body.index.compare("eq", slot, 0), body.index.compare("eq", chunk, 0)][: 1 if chunks is None else 2]
    store_parallel_outputs(body, part, tests if inside is None else [*tests, inside])
    launch = make_launch(
        body, f"{setting.name}_scan", "cuda", [(grid, blocks)], scratch=read, contract=setting.contract,
        threads=shape.threads, thread=variable,
    )  # fmt: skip
    return launch, derived


def _scan_rows(
    body: Body, part: Region, positions: Positions, decision: RowScan, slot: Extent, first: Extent, stop: Extent,
    carries: Carries, inside: Expression | None,
) -> None:  # fmt: skip
    """Emits the chunks of a row: those that are full, then the rest."""
    shape = decision.shape
    group, length = min(shape.group, WARP), shape.group * shape.steps
    step = symbol("step", extent=shape.steps)
    warps = shape.group // group
    last = body.index.compare("eq", slot % WARP, WARP - 1) if warps > 1 else None
    team = Team(group, warps, last, True)
    lane = slot if warps == 1 else slot // group * (group * shape.steps) + slot % group

    def scan(start: Extent, sure: int) -> None:
        walk = Steps(step, shape.steps, sure, group, start + lane, stop, inside)
        ScannedChunk(body, part, positions, walk, team, carries).emit()

    if not decision.looped:
        scan(first, shape.sure)
        return
    turns = (stop - first) // length
    turn = symbol("turn", extent=turns)
    with body.loop(turn, turns):
        start = bind_position(body, "start", first + turn * length, positions.total)
        scan(start, shape.steps)
    rest = bind_position(body, "rest", first + turns * length, positions.total + 1)
    with body.condition(body.index.compare("lt", rest, stop)):
        scan(rest, 0)


def _reduce_parts(region: Region, setting: Setting, chunks: Chunks, partials: Partials) -> LaunchSpec:
    """Emits the states of all parts of all rows."""
    body, nest = new_body(region, setting), region.nest
    rows = product(loop.extent for loop in nest.parallel)
    block = open_block(body, rows * chunks.count)
    thread, variable = open_threads(body, THREADS)
    row = bind_position(body, "row", block // chunks.count, rows)
    chunk = bind_position(body, "chunk", block % chunks.count, chunks.count)
    bind_loops(body, nest.parallel, row)
    positions = Positions(nest.reduced, setting.lanes)
    part = region.placed(positions.values(body.lane))
    start, stop = chunks.bounds(body, chunk)
    states = reduce_part(body, part, positions, Strides(start, stop, thread, THREADS, REDUCED_AT_ONCE // body.lanes), 1)
    combine_threads(body, states, THREADS)
    first = [body.index.compare("eq", thread, 0)]
    written = partials.write(body, states, chunks.count, chunk * rows + row, first)
    return make_launch(
        body, f"{setting.name}_scan_parts", "cuda", [(block, rows * chunks.count)], scratch=written,
        contract=setting.contract, threads=THREADS, thread=variable,
    )  # fmt: skip


def reduce_part(body: Body, part: Region, positions: Positions, walk: Strides, width: int) -> list[State]:
    """Accumulates a thread's elements. width: the states of a scan, one for all lanes or one for each."""
    nodes = tuple(chain.from_iterable(part.scans))
    states = [tuple(declare(body, node) for _ in range(width)) for node in nodes]

    def work() -> None:
        for state in states:
            accumulate_lanes(body, part, state)

    walk.each(body, positions.binder(body), work)
    return states


def _earlier_parts(
    body: Body, part: Region, partials: Partials, chunk: Extent, thread: Extent, row: Extent
) -> tuple[Carries, list[tuple[int, Buffer]]]:
    """Combines the states of the parts before `chunk`, in every thread."""
    states, read = partials.read(body, part, chunk, thread, THREADS, row, 1)
    combine_threads(body, states, THREADS)
    return {state[0].node.outputs[0]: state[0].variables for state in states}, read
