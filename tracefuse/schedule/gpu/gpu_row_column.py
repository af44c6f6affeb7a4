"""The row_column template for the GPU, for rows that fit in registers: one launch over the rows, one for the columns.

The first launch reads all inputs once, and each of its blocks writes one state per column to scratch memory
(gpu_row_column_launch.py). The second launch combines these states in row order and stores the outputs computed from
the results. The number of blocks depends on the number of rows and multiprocessors, so the bits of a result do not
depend on other work on the GPU.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Sequence

from segments import Verdict, yes
from segments.lazy_dataclasses import replace
from tracefuse.ir.extents import Extent, ceildiv, maximum, minimum, product, substitute, symbol, symbol_of
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.indexing import AxisMap
from tracefuse.schedule.gpu.gpu_column import finish_columns
from tracefuse.schedule.gpu.gpu_column_tiles import Tile, threads_across
from tracefuse.schedule.gpu.gpu_frame import Positions, Setting, new_body, read_once
from tracefuse.schedule.gpu.gpu_phase import cached_dtype
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_row import RowShape, share_row
from tracefuse.schedule.gpu.gpu_row_column_launch import Ring, RowsLaunch, RowsShape
from tracefuse.schedule.gpu.gpu_split import Chunks, Partials
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.nest import Loop, Nest
from tracefuse.schedule.reduction_states import state_types
from tracefuse.schedule.refusal_codes import ScheduleRefusal
from tracefuse.schedule.region_phases import Region, operand_of
from tracefuse.schedule.row_column_rule import RowColumnFacts
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template
from tracefuse.schedule.transposed import is_known

THREADS = 512
"""The most threads of a block that processes one row."""

RESIDENT = 1024
"""Resident threads per multiprocessor, of 64 registers each."""

MOST_WORDS = 40
"""The most registers per thread for cached row values and column states with RESIDENT threads."""

RING_BYTES = 96 * 1024
"""Shared memory per block for prefetched rows: every GPU with asynchronous copies has it, most have twice as much."""

MOST_SLOTS = 2
"""The most slots of a ring per block: more slots gave no speedup."""

LEAST_ROWS = 4
"""The least number of turns per block, so that its writes to scratch memory are small compared to its reads."""

MOST_RESIDENT_WORDS = 88
"""The same as MOST_WORDS with half as many threads; a row that needs more is too long for this template."""

FIRST_STEPS = {1: 4, 2: 4, 4: 2, 8: 1}
"""Steps per thread, by lanes, before a row uses more threads."""

FINISH = Tile(8, 32)
FINISH_UNROLL = 4
"""The tile of the second launch: few columns per block for many blocks, and several loads in flight per thread."""


class RowColumnRefusal(ScheduleRefusal):
    """Refusals of the template for reductions over rows and columns."""

    ROWS_NOT_CONTIGUOUS = "the rows do not lie in memory one after the other"
    TOO_MANY_REGISTERS = "a row and the states of its columns do not fit in the registers"


def _accepts(problem: GpuProblem) -> Verdict:
    """Chooses the RowsShape; no if the rows are not contiguous in order, or a row is too long."""
    region, sizes, lanes = problem.region, problem.rewritten_sizes, problem.setting.lanes
    loops = region.nest.loops
    if [loop.reduced for loop in loops] != sorted(loop.reduced for loop in loops) or not loops[-1].reduced:
        return RowColumnRefusal.ROWS_NOT_CONTIGUOUS()
    total = Positions(region.nest.reduced, lanes).total
    ring = _ring_of(region, problem.setting)
    row_bytes = sum(region.fusion.values[number].dtype.itemsize * lanes for number, _ in ring)
    if ring and not sizes.at_most(total, max(1, RING_BYTES // row_bytes), "a row fits in shared memory"):
        ring = ()
    cached = [number for number, at in region.probe.cached if (number, at) not in ring]
    words = sum(-(-cached_dtype(region, number).itemsize * lanes // 4) for number in cached) + _state_words(
        region, lanes
    )
    most = THREADS << (max(1, MOST_RESIDENT_WORDS // words).bit_length() - 1)
    if words > MOST_RESIDENT_WORDS or not sizes.at_most(total, most, "a row and its columns fit in the registers"):
        return RowColumnRefusal.TOO_MANY_REGISTERS(registers=words)
    row = _row_shape(total, sizes, lanes, words)
    block_bytes = row_bytes * row.steps * row.threads
    slots = min(MOST_SLOTS, RING_BYTES // block_bytes) if ring else 0
    resident = RESIDENT if row.steps * words <= MOST_WORDS else RESIDENT // 2
    return yes(RowsShape(row, resident, ring if slots else (), slots))


def _row_shape(total: Extent, sizes: Sizes, lanes: int, words: int) -> RowShape:
    """Returns the threads and steps of a row. words: registers per step."""
    steps = FIRST_STEPS[lanes]
    while steps > 1 and steps * words > MOST_WORDS:
        steps //= 2
    return share_row(total, sizes, steps, THREADS)


def _ring_of(region: Region, setting: Setting) -> Ring:
    """Returns the inputs that are read once along all loops, with accesses that asynchronous copies support."""
    body = new_body(region, setting)
    values, once = Positions(region.nest.reduced, setting.lanes).values(body.lane), read_once(region)
    fetched = []
    for number, coordinates in region.probe.reads:
        at = tuple(substitute(c, values) for c in coordinates)
        known = (number, coordinates) in region.probe.unconditional and is_known(region, coordinates)
        if known and number in once and body.can_start(number, at):
            fetched.append((number, coordinates))
    return tuple(fetched)


def _state_words(region: Region, lanes: int) -> int:
    """Returns the registers for the column states of one step."""
    nodes = (node for phase in region.columns for node in phase)
    return sum(-(-v.itemsize // 4) * lanes for node in nodes for v in state_types(node))


def _lower(problem: GpuProblem, shape: RowsShape) -> Lowered:
    """Emits the launch over the rows, and the launch that finishes the columns."""
    region, setting, sizes = problem.region, problem.setting, problem.rewritten_sizes
    nest, finishing = region.nest, _finishing(problem)
    rows, turns, blocks = symbol("rows", minimum=1), symbol("turns"), symbol("blocks", minimum=1)
    count = product(loop.extent for loop in nest.parallel)
    needed = ceildiv(count, shape.row.rows)
    wanted = minimum(shape.blocks * setting.chip.multiprocessors, ceildiv(needed, LEAST_ROWS))
    derived = {symbol_of(rows): count, symbol_of(turns): needed, symbol_of(blocks): maximum(wanted, 1)}
    partials = Partials(product(loop.extent for loop in nest.reduced))
    first = RowsLaunch(region, setting, shape, partials, rows, turns, blocks).emit()
    groups, tiles = Positions(finishing.nest.parallel, setting.lanes).total, symbol("tiles", minimum=1)
    across = threads_across(groups, sizes, FINISH.least_across)
    tile = Tile(across, FINISH.least_across * FINISH.down // across)
    derived[symbol_of(tiles)] = ceildiv(groups, across)
    chunks = Chunks(turns, blocks, 1, {})
    second = finish_columns(finishing, setting, tile, tiles, chunks, partials, FINISH_UNROLL)
    return problem.finish((first, second), partials.scratch, derived)


ROW_COLUMN = Template("row_column", _accepts, _lower, takes=RowColumnFacts)


def _finishing(problem: GpuProblem) -> Region:
    """Returns the region of the second launch, whose parallel loops are the reduction loops of the rows.

    Its outputs are those computed from the column results.
    """
    assert isinstance(problem.facts, RowColumnFacts)
    region, fusion = problem.region, problem.rewritten
    facts, nest, first = region.facts, region.nest, problem.columns[0]
    after = [output for output in fusion.outputs if output in problem.facts.after]
    operand, dims = facts.outputs[operand_of(first)], first.attributes["dims"]
    loops = [entry for axis, entry in enumerate(operand) if axis not in dims and isinstance(entry, int)]
    outputs = {output: _along(fusion, output, loops) for output in after}
    return replace(
        region,
        fusion=fusion,
        facts=replace(facts, outputs=outputs),
        nest=Nest(tuple(Loop(loop.index, loop.extent, False) for loop in nest.reduced), nest.at),
        parallel_outputs=tuple(after),
    )


def _along(fusion: Fusion, value: int, loops: Sequence[int]) -> AxisMap:
    """Returns the axis map of a value whose axes of extent other than 1 follow these loops in order."""
    remaining = iter(loops)
    return tuple(None if extent == 1 else next(remaining) for extent in fusion.shape_of(value))
