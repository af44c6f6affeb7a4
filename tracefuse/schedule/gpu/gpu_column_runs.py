"""The column_runs template for the GPU: reductions over rows and over short runs of adjacent columns.

The rows of (n, 5, 43) that is reduced over (0, 2) are five runs of 43 elements, which start anywhere in a sector. Read
one run after another, with the reduced positions spread over threads, each element takes a division, and sectors are
read and written in parts. So a launch accumulates the 5 * 43 columns of a wider matrix in chunks of its rows
(gpu_column.py), one combines the chunks of each column, and one the columns of each run.

Must not know: CUDA C++.
"""

from __future__ import annotations

from segments import Verdict, yes
from segments.lazy_dataclasses import replace
from tracefuse.ir.extents import Extent, ceildiv, maximum, minimum, product, symbol, symbol_of
from tracefuse.schedule.column_runs import ColumnRuns, column_runs
from tracefuse.schedule.gpu.gpu_column import ROUNDS, column_launch, combine_chunks, rows_at_a_time, stored_shifted
from tracefuse.schedule.gpu.gpu_column_tiles import THREADS, WARP, column_positions, finish_tile, share_columns
from tracefuse.schedule.gpu.gpu_frame import (
    WIDE_BYTES,
    Setting,
    bind_loops,
    bind_position,
    new_body,
    open_block,
    open_threads,
)
from tracefuse.schedule.gpu.gpu_lanes import reads_short_runs, run_beside
from tracefuse.schedule.gpu.gpu_phase import combine_threads, store_parallel_outputs
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_split import Chunks, Partials
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.reduction_states import finish
from tracefuse.schedule.refusal_codes import RegionRefusal, ScheduleRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template

LINE_BYTES, MOST_LINES = 128, 4
"""Runs whose elements are read in vectors are columns if they are shorter than a line of memory, or, where results are
stored over them, if they are at most MOST_LINES lines long and no whole ones. (H200)"""

LONG_RUN = 192
"""Longer runs that begin anywhere in an access are faster to read one after the other if nothing is stored over them.
(H200)"""

SHORT = "runs of parts of a line of memory"


class ColumnRunsRefusal(ScheduleRefusal):
    """Refusals of the template for reductions over rows and runs of columns."""

    NO_RUNS = "the reduced elements are no short runs in many rows"
    LONG_RUNS = "runs are read in whole accesses, one after the other"


def _accepts(problem: GpuProblem) -> Verdict:
    region = _with_runs_inside(problem.one_pass, problem.rewritten_sizes)
    if not region.nest.reduced or not region.nest.loops[-1].reduced:
        return RegionRefusal.INNERMOST_NOT_REDUCED()
    sizes = problem.rewritten_sizes
    runs = _choose_runs(region, sizes, problem.setting.lanes)
    if runs is None:
        return ColumnRunsRefusal.NO_RUNS()
    whole = problem.run is not None and not any(region.full)
    if whole and not sizes.at_most(runs.run, LONG_RUN - 1, "runs of few whole accesses"):
        return ColumnRunsRefusal.LONG_RUNS(run=runs.run)
    return yes(runs)


def _choose_runs(region: Region, sizes: Sizes, lanes: int) -> ColumnRuns | None:
    """Returns the runs of a region if it is faster to read its rows than its runs, one after the other."""
    runs = column_runs(region, sizes, strict=False)
    if runs is None or lanes == 1:
        return runs
    line = LINE_BYTES // _itemsize(region)
    if sizes.at_most(runs.run, line - 1, SHORT):
        return runs
    stored = any(region.full) and sizes.at_most(runs.run, MOST_LINES * line, SHORT)
    return runs if stored and not sizes.is_multiple(runs.run, line, "runs are whole lines of memory") else None


def reads_parts_of_lines(problem: GpuProblem) -> bool:
    """Returns whether the rows of a region consist of so short runs that column_runs serves it best."""
    region, sizes = _with_runs_inside(problem.one_pass, problem.rewritten_sizes), problem.rewritten_sizes
    if not region.nest.reduced or not region.nest.loops[-1].reduced:
        return False
    runs = _choose_runs(region, sizes, problem.setting.lanes)
    if runs is None:
        return False
    itemsize = _itemsize(region)
    narrow = 1 < problem.setting.lanes < WIDE_BYTES // itemsize
    return sizes.at_most(runs.run, (LINE_BYTES if narrow else LINE_BYTES // 2) // itemsize - 1, SHORT)


def _itemsize(region: Region) -> int:
    """Returns the bytes of the narrowest elements that a region reads."""
    return min(region.fusion.values[number].dtype.itemsize for number, _ in region.probe.reads)


def _with_runs_inside(region: Region, sizes: Sizes) -> Region:
    """Returns the region with its innermost loop over short runs, if they were moved out of the loop around them."""
    *outer, inner = region.nest.loops
    run = run_beside(region, inner)
    if run is None or not reads_short_runs(region, inner, sizes):
        return region
    loops = (*(loop for loop in outer if loop is not run), inner, run)
    return replace(region, nest=replace(region.nest, loops=loops))


def _lower(problem: GpuProblem, runs: ColumnRuns) -> Lowered:
    """Emits for each phase a launch over the columns, one that combines chunks, and one that combines runs."""
    region, setting, sizes = problem.one_pass, problem.setting, problem.rewritten_sizes
    wide, last, lanes = runs.region, len(region.full) - 1, setting.lanes
    rows, columns = product(loop.extent for loop in wide.nest.reduced), column_positions(wide, lanes).total
    tile, tiles, finish_tiles = share_columns(columns, rows, sizes), symbol("tiles", minimum=1), symbol("finish_tiles")
    count = 1 if tile.bound else ceildiv(columns, tile.across)
    blocks = ROUNDS * tile.resident * setting.chip.multiprocessors
    finished = finish_tile(count, blocks, tile, sizes)
    results = product(loop.extent for loop in region.nest.parallel)
    stored, stored_tiles = stored_shifted(wide, setting, columns, sizes), symbol("stored_tiles", minimum=1)
    chunks = Chunks.make(rows, blocks // maximum(count, 1), rows_at_a_time(tile, stored))
    derived = {
        **({symbol_of(tile.across): columns} if tile.bound else {}), **chunks.derived, symbol_of(tiles): count,
        symbol_of(finish_tiles): ceildiv(columns, finished.across),
    }  # fmt: skip
    if stored is not None:
        derived[symbol_of(stored_tiles)] = ceildiv(columns + stored.shift - 1, stored.across)
    partials = Partials(columns * lanes)
    of_columns, of_runs = replace(partials, states=[]), Partials(results, partials.scratch)
    launches = []
    for phase in range(last + bool(region.full[last])):
        at = (tile, tiles) if stored is None or phase < last else (stored, stored_tiles)
        run = runs.run // lanes
        launches.append(column_launch(wide, setting, *at, phase, chunks, partials, joined=of_runs, run=run))
        if phase < last:
            launches.append(combine_chunks(wide, setting, finished, finish_tiles, phase, chunks, partials, of_columns))
            launches.append(_combine_runs(region, replace(setting, lanes=1), runs.run, phase, of_columns, of_runs))
    return problem.finish(launches, partials.scratch, derived)


COLUMN_RUNS = Template("column_runs", _accepts, _lower)


def _combine_runs(
    region: Region, setting: Setting, run: Extent, phase: int, of_columns: Partials, of_runs: Partials
) -> LaunchSpec:
    """Emits the launch that combines the states of the columns of each run, by a warp for each.

    After the last reduction it stores the outputs computed from the results. of_columns, of_runs: the states of columns
    and of runs; those of columns are moved.
    """
    body, last = new_body(region, setting), phase + 2 == len(region.full)
    results, runs = of_runs.count, THREADS // WARP
    blocks = ceildiv(results, runs)
    block = open_block(body, blocks)
    thread, variable = open_threads(body, THREADS)
    place = bind_position(body, "place", block * runs + thread // WARP, blocks * runs)
    inside = body.index.compare("lt", place, results)
    result = bind_position(body, "result", minimum(place, results - 1), results)
    bind_loops(body, region.nest.parallel, result)
    lane = bind_position(body, "lane", thread % WARP, WARP)
    earlier, read = of_runs.read(body, region, 1, 0, 1, result, 1)
    states, columns = replace(of_columns, count=1).read(body, region, run, lane, WARP, result * run, 1)
    of_columns.states.clear()
    combine_threads(body, states, WARP)
    tests = [inside, body.index.compare("eq", lane, 0)]
    written = of_runs.write(body, states, 1, result, tests) if not last or region.full[-1] else []
    if last:
        for state in (*earlier, *states):
            finish(body, region, *state)
        store_parallel_outputs(body, region, tests)
    return make_launch(
        body, f"{setting.name}_runs_{phase}", "cuda", [(block, blocks)], scratch=[*read, *columns, *written],
        contract=setting.contract, threads=THREADS, thread=variable,
    )  # fmt: skip
