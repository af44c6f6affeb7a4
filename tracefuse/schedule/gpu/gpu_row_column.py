"""The row_column template for the GPU, where a row fits the registers: one launch over the rows, one for the columns.

The first launch reads everything once, and each of its blocks leaves one state a column in scratch memory
(gpu_row_column_launch.py). The second combines these in the order of the rows, and stores what is made of the results.

How many blocks there are follows from the number of rows and of multiprocessors, so the bits of a result do not depend
on what else the GPU does.

Knows: phases, walks, kernel IR. Must not know: CUDA's notation, arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from segments import Verdict, no, yes
from tracefuse.ir.extents import Extent, ceildiv, maximum, minimum, product, substitute, symbol, symbol_of
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.indexing import AxisMap
from tracefuse.schedule.gpu.gpu_column import Tile, finish_columns, threads_across
from tracefuse.schedule.gpu.gpu_frame import Positions, Setting, new_body, read_once
from tracefuse.schedule.gpu.gpu_phase import cached_dtype
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_row import RowShape, share_row
from tracefuse.schedule.gpu.gpu_row_column_launch import Ring, RowsLaunch, RowsShape
from tracefuse.schedule.gpu.gpu_split import Chunks, Partials
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.nest import Loop, Nest
from tracefuse.schedule.phases import Region, operand_of, state_types
from tracefuse.schedule.row_column_rule import RowColumnFacts
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template
from tracefuse.schedule.transposed import is_known

THREADS = 512
"""Threads of a block that works on one row, at most."""

RESIDENT = 1024
"""Threads of a multiprocessor: 64 registers each."""

MOST_WORDS = 40
"""Registers of a thread for what it holds of a row and of its columns, where so many threads are resident."""

RING_BYTES = 96 * 1024
"""Shared memory of a block for rows on their way: every GPU that has such copies has as much, most have it twice."""

MOST_SLOTS = 2
"""Rows of a block in the ring: more brought nothing."""

LEAST_ROWS = 4
"""A block takes at least so many rows: what it leaves in scratch memory is then little beside what it reads."""

MOST_RESIDENT_WORDS = 88
"""The same with half as many threads; beyond that a row is too long for this template."""

FIRST_STEPS = {1: 4, 2: 4, 4: 2, 8: 1}
"""Steps of a thread before more threads are taken, by lanes."""

FINISH = Tile(8, 32)
FINISH_UNROLL = 4
"""The second launch: few columns a block, so that there are many blocks, and loads on their way in each thread."""


def _accepts(problem: GpuProblem) -> Verdict:
    """How to work on a row; no where memory lies otherwise or the row is too long."""
    region, sizes, lanes = problem.region, problem.rewritten_sizes, problem.setting.lanes
    loops = region.nest.loops
    if [loop.reduced for loop in loops] != sorted(loop.reduced for loop in loops) or not loops[-1].reduced:
        return no("the rows do not lie in memory one after the other")
    total = Positions(region.nest.reduced, lanes).total
    ring = _ring_of(region, problem.setting)
    row_bytes = sum(region.fusion.values[number].dtype.itemsize * lanes for number, _ in ring)
    if ring and not sizes.at_most(total, max(1, RING_BYTES // row_bytes), "a row fits in shared memory"):
        ring = ()
    held = [number for number, at in region.probe.cached if (number, at) not in ring]
    words = sum(-(-cached_dtype(region, number).itemsize * lanes // 4) for number in held) + _state_words(region, lanes)
    most = THREADS << (max(1, MOST_RESIDENT_WORDS // words).bit_length() - 1)
    if words > MOST_RESIDENT_WORDS or not sizes.at_most(total, most, "a row and its columns fit in the registers"):
        return no("a row and the states of its columns do not fit in the registers", registers=words)
    row = _row_shape(total, sizes, lanes, words)
    block_bytes = row_bytes * row.steps * row.threads
    slots = min(MOST_SLOTS, RING_BYTES // block_bytes) if ring else 0
    resident = RESIDENT if row.steps * words <= MOST_WORDS else RESIDENT // 2
    return yes(RowsShape(row, resident, ring if slots else (), slots))


def _row_shape(total: Extent, sizes: Sizes, lanes: int, words: int) -> RowShape:
    """Threads and steps of a row, of which a step takes `words` registers."""
    steps = FIRST_STEPS[lanes]
    while steps > 1 and steps * words > MOST_WORDS:
        steps //= 2
    return share_row(total, sizes, steps, THREADS)


def _ring_of(region: Region, setting: Setting) -> Ring:
    """The inputs that are read once along all loops, in accesses that can be started and awaited."""
    body = new_body(region, setting)
    values, once = Positions(region.nest.reduced, setting.lanes).values(body.lane), read_once(region)
    found = []
    for number, coordinates in region.probe.reads:
        at = tuple(substitute(c, values) for c in coordinates)
        known = (number, coordinates) in region.probe.unconditional and is_known(region, coordinates)
        if known and number in once and body.can_start(number, at):
            found.append((number, coordinates))
    return tuple(found)


def _state_words(region: Region, lanes: int) -> int:
    """Registers that the columns' states of one step take."""
    nodes = (node for phase in region.columns for node in phase)
    return sum(-(-v.itemsize // 4) * lanes for node in nodes for v in state_types(node))


def _lower(problem: GpuProblem, shape: RowsShape) -> Lowered:
    """The launch over the rows, and the one that finishes the columns."""
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
    across = threads_across(groups, sizes, FINISH.across)
    tile = Tile(across, FINISH.across * FINISH.down // across)
    derived[symbol_of(tiles)] = ceildiv(groups, across)
    chunks = Chunks(turns, blocks, 1, {})
    second = finish_columns(finishing, setting, tile, tiles, chunks, partials, FINISH_UNROLL)
    return problem.finish((first, second), partials.scratch, derived)


ROW_COLUMN = Template("row_column", _accepts, _lower, takes=RowColumnFacts)


def _finishing(problem: GpuProblem) -> Region:
    """The region of the second launch: the reduction loops alone, over which it stores what is made of the columns."""
    assert isinstance(problem.facts, RowColumnFacts)
    region, fusion = problem.region, problem.whole
    facts, nest, first = region.facts, region.nest, problem.columns[0]
    after = [output for output in fusion.outputs if output in problem.facts.after]
    operand, dims = facts.outputs[operand_of(first)], first.attributes["dims"]
    loops = [entry for axis, entry in enumerate(operand) if axis not in dims and entry is not None]
    outputs = {output: _along(fusion, output, loops) for output in after}
    return replace(
        region,
        fusion=fusion,
        facts=replace(facts, outputs=outputs),
        nest=Nest(tuple(Loop(loop.index, loop.extent, False) for loop in nest.reduced), nest.at),
        parallel_outputs=tuple(after),
    )


def _along(fusion: Fusion, value: int, loops: Sequence[int]) -> AxisMap:
    """The map of a value whose axes of more than one element run along these loops, in order."""
    own = iter(loops)
    return tuple(None if extent == 1 else next(own) for extent in fusion.shape_of(value))
