"""The column template for the CPU: the innermost loop is parallel, and the reduction loops are outside of it.

Short runs of reduced elements inside are columns, too (`column_runs.py`).

A worker computes tiles of adjacent columns, with one accumulator per column in local memory. If few tiles have many
rows, the rows are split into chunks.

Must not know: LLVM.
"""

from __future__ import annotations

from functools import partial

from segments import Verdict, yes
from segments.lazy_dataclasses import replace
from tracefuse.ir.extents import ceildiv
from tracefuse.schedule.column_runs import ColumnRuns, column_runs
from tracefuse.schedule.cost import Work
from tracefuse.schedule.cpu.cpu_column_chunks import (
    CHUNK,
    LEAST_WORK,
    MOST_CHUNKS,
    is_worth_chunks,
    lower_column_chunks,
)
from tracefuse.schedule.cpu.cpu_column_rows import rows_at_once, rows_stored_at_once
from tracefuse.schedule.cpu.cpu_column_states import (
    COLUMNS,
    ROWS_IN_BLOCK,
    accumulate_rows,
    finish_states,
    is_light,
    open_columns,
    state_arrays,
    store_results,
    tile_step,
)
from tracefuse.schedule.cpu.cpu_column_values import keep_column_values
from tracefuse.schedule.cpu.cpu_frame import BYTE_EDGES, CpuProblem, is_small, new_body, open_grid, with_streams, work
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.reduction_states import new_accumulator
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.region_work import byte_classes, bytes_of_iteration, operations
from tracefuse.schedule.template import Template
from tracefuse.schedule.tilings import Offer, Point, SizeClasses, Tiled, Tiling

OFFERED = (256, 4096)
COLUMN_EDGES = (256, 512, 1024, 2048, 4096, 8192, 16384)
"""Other widths of a tile that the cost model may choose, and the classes of the number of columns."""

ROWS_OFFERED = (1, 4, 8, 16)
"""Numbers of rows at once."""


def _accepts(problem: CpuProblem) -> Verdict:
    if not problem.region.nest.reduced:
        return RegionRefusal.NOTHING_REDUCED()
    runs = column_runs(problem.region, problem.sizes)
    return RegionRefusal.INNERMOST_REDUCED() if runs is None else yes(runs)


def _offers(problem: CpuProblem, runs: ColumnRuns) -> Offer:
    """Offers tiles of fewer or more columns, and other numbers of rows at once, which change the order of sums."""
    region = runs.region
    usual = rows_at_once(region, problem.sizes)
    if is_small(problem) or runs.run != 1:
        return Offer((Tiling.of(usual, columns=COLUMNS, rows=usual),))
    widths = [Tiling.of(usual, columns=width, rows=usual) for width in (COLUMNS, *OFFERED)]
    others = [count for count in ROWS_OFFERED if count != usual] if is_light(region) else []
    rows = [Tiling.of(count, columns=COLUMNS, rows=count) for count in others]
    classes = (
        SizeClasses(region.nest.loops[-1].extent, COLUMN_EDGES, "the columns of a tile"),
        byte_classes(region, BYTE_EDGES),
    )
    return Offer((*widths, *rows), classes, partial(_work, region))


def _work(region: Region, tiling: Tiling, point: Point) -> Work:
    """Returns what tiles of columns do: every row of a tile is a run of each full array, in every phase."""
    columns, moved = point
    elements, width = moved / bytes_of_iteration(region), min(tiling["columns"], columns)
    passes = len(region.full) - (not region.full[-1])
    full = len({*region.fusion.tensor_inputs, *(output for phase in region.full for output in phase)})
    states = passes * elements * 8 / (tiling["rows"] if is_light(region) else 1)
    tasks = columns / width
    if len(region.nest.parallel) > 1:
        tasks *= max(elements / columns / ROWS_IN_BLOCK, 1)
    elif passes == 1 and not any(region.full) and elements >= LEAST_WORK:
        tasks *= min(elements / CHUNK, MOST_CHUNKS)
    return Work(
        moved * max(passes / 2, 1), moved, states, 12 * width, full * elements / width,
        operations=operations(region, passes * elements), tasks=tasks,
    )  # fmt: skip


def _lower(problem: CpuProblem, tiled: Tiled) -> Lowered:
    runs, name, tiling = tiled.decision, f"{problem.name}_column", tiled.tiling
    starts = () if runs.run == 1 else (tile_step(tiling["columns"], runs.run),)
    runs = replace(runs, region=with_streams(runs.region, problem.sizes, starts))
    if not is_worth_chunks(runs.region, problem.sizes):
        stored = rows_stored_at_once(runs.region, problem.sizes, tiling["rows"])
        return problem.finish([_launch(runs, tiling, stored, name, problem.contract)])
    launches, scratch, derived = lower_column_chunks(runs, tiling, name, problem.contract)
    return problem.finish(launches, scratch, derived)


COLUMN = Template("column", _accepts, _lower, offers=_offers)


def _launch(runs: ColumnRuns, tiling: Tiling, stored: int, name: str, contract: bool) -> LaunchSpec:
    """Emits tiles of columns with their accumulators, phase by phase. stored: rows at once of a phase that stores."""
    region = runs.region
    body, nest = new_body(region), region.nest
    inner = nest.loops[-1]
    outer = [loop for loop in nest.parallel if loop is not inner]
    grid, tile = open_grid(body, outer, ceildiv(inner.extent, tile_step(tiling["columns"], runs.run)))
    columns = open_columns(body, inner, tile, tiling["columns"], tiling["rows"], runs.run)
    for phase in range(len(region.full)):
        states = [new_accumulator(body, node, joins=True) for node in region.in_phase(phase)]
        totals = [(accumulator, state_arrays(body, accumulator, "total", columns)) for accumulator in states]
        at_once = stored if region.full[phase] else columns.at_once
        accumulate_rows(body, region, phase, totals, replace(columns, at_once=at_once))
        for accumulator, buffers in totals:
            finish_states(body, region, accumulator, buffers, columns)
        keep_column_values(body, region, phase, columns)
    store_results(body, region, columns)
    return make_launch(body, name, "cpu", [grid], work=work(region), contract=contract)
