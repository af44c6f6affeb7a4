"""The column template for the CPU: the innermost loop is parallel, and the reduction loops are outside of it.

A worker computes tiles of adjacent columns, with one accumulator per column in local memory. If few tiles have many
rows, the rows are split into chunks.

Must not know: LLVM.
"""

from __future__ import annotations

from segments import Verdict, yes
from tracefuse.ir.extents import ceildiv
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_column_chunks import is_worth_chunks, lower_column_chunks
from tracefuse.schedule.cpu.cpu_column_states import (
    COLUMNS,
    accumulate_rows,
    finish_states,
    open_columns,
    state_arrays,
)
from tracefuse.schedule.cpu.cpu_frame import CpuProblem, new_body, open_grid, work
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.phases import Region, new_accumulator, store_output
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.template import Template


def _accepts(problem: CpuProblem) -> Verdict:
    nest = problem.region.nest
    if not nest.reduced:
        return RegionRefusal.NOTHING_REDUCED()
    return RegionRefusal.INNERMOST_REDUCED() if nest.loops[-1].reduced else yes()


def _lower(problem: CpuProblem, decision: None) -> Lowered:
    region, name = problem.streaming(), f"{problem.name}_column"
    if not is_worth_chunks(region, problem.sizes):
        return problem.finish([_launch(region, name, problem.contract)])
    launches, scratch, derived = lower_column_chunks(region, name, problem.contract)
    return problem.finish(launches, scratch, derived)


COLUMN = Template("column", _accepts, _lower)


def _launch(region: Region, name: str, contract: bool) -> LaunchSpec:
    """Emits tiles of columns with their accumulators, phase after phase."""
    body, nest = new_body(region), region.nest
    inner = nest.loops[-1]
    outer = [loop for loop in nest.parallel if loop is not inner]
    grid, tile = open_grid(body, outer, ceildiv(inner.extent, COLUMNS))
    columns = open_columns(body, inner, tile)
    for phase in range(len(region.full)):
        states = [new_accumulator(body, node, joins=True) for node in region.in_phase(phase)]
        totals = [(accumulator, state_arrays(body, accumulator, "total")) for accumulator in states]
        accumulate_rows(body, region, phase, totals, columns)
        for accumulator, buffers in totals:
            finish_states(body, region, accumulator, buffers, columns)
    if region.parallel_outputs:
        columns.each(body, lambda: _store_parallel_outputs(body, region))
    return make_launch(body, name, "cpu", [grid], work=work(region), contract=contract)


def _store_parallel_outputs(body: Body, region: Region) -> None:
    for output in region.parallel_outputs:
        store_output(body, region, output)
