"""The taken rows template for the GPU: elementwise work on rows that data choose, as in an embedding lookup.

If rows start anywhere in a sector, a thread accesses one element at a time. With threads numbered through all elements,
each divides by the number of columns, loads the position of its row and tests it. Here a warp takes several rows, so
that its threads share this work and go through the columns alone.

Must not know: CUDA C++.
"""

from __future__ import annotations

from segments import Verdict, yes
from tracefuse.ir.extents import Extent, Symbol, ceildiv, minimum, product, symbol, symbol_of, symbols
from tracefuse.kernel.kernel_ir import Allocate, Buffer
from tracefuse.schedule.gpu.gpu_frame import (
    Setting,
    bind_loops,
    bind_position,
    new_body,
    open_block,
    open_threads,
    when,
)
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.nest import coefficient
from tracefuse.schedule.reduction_states import store_outputs
from tracefuse.schedule.refusal_codes import RegionRefusal, ScheduleRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.template import Template
from tracefuse.schedule.transposed import is_known

THREADS, WARP = 256, 32
MOST_STEPS, USUAL_STEPS = 8, 4
"""The steps of a warp along a row that it has alone, and along longer rows, which several warps share."""
ELEMENTS = 16
"""The elements of a thread, all of which it loads before it stores the first."""
SHORTEST = 33
"""Shorter rows leave threads of a warp idle."""


class TakenRowsRefusal(ScheduleRefusal):
    """Refusals of the template for rows that data choose."""

    NOT_TAKEN = "no data choose rows alone"
    WHOLE_LANES = "a thread accesses several elements at once"
    SHORT = "rows are shorter than a warp"


def _accepts(problem: GpuProblem) -> Verdict:
    region, sizes = problem.region, problem.rewritten_sizes
    if region.nest.reduced:
        return RegionRefusal.REDUCES()
    if problem.setting.lanes > 1:
        return TakenRowsRefusal.WHOLE_LANES()
    if not _takes_rows(region):
        return TakenRowsRefusal.NOT_TAKEN()
    columns = region.nest.loops[-1].extent
    if sizes.at_most(columns, SHORTEST - 1, "rows are shorter than a warp"):
        return TakenRowsRefusal.SHORT()
    for steps in range(2, MOST_STEPS + 1):
        if sizes.at_most(columns, steps * WARP, "a warp takes a row in few steps"):
            return yes(steps)
    return yes(USUAL_STEPS)


def _takes_rows(region: Region) -> bool:
    """Returns whether data choose the rows of an input, but no elements of a row."""
    if len(region.nest.loops) < 2:
        return False
    inner, taken = region.nest.loops[-1].symbol, False
    for number, coordinates in region.probe.reads:
        if not is_known(region, coordinates):
            offsets = [c for c in coordinates if is_known(region, (c,))]
            strides = [s for c, s in zip(coordinates, region.memory.strides[number], strict=True) if c in offsets]
            along = sum(coefficient(c, inner) * s for c, s in zip(offsets, strides, strict=True) if isinstance(s, int))
            if along != 1:
                return False
            taken = True
        elif region.fusion.values[number].dtype.is_integer and any(inner in symbols(c) for c in coordinates):
            return False
    return taken


def _lower(problem: GpuProblem, decision: int) -> Lowered:
    launch, derived = _launch(problem.region, problem.setting, decision)
    return problem.finish([launch], (), derived)


TAKEN_ROWS = Template("taken rows", _accepts, _lower)


def _launch(region: Region, setting: Setting, steps: int) -> tuple[LaunchSpec, dict[Symbol, Extent]]:
    """Returns the launch, and the definitions of its integer parameters. steps: of a warp along a row."""
    body, (*outer, inner) = new_body(region, setting), region.nest.loops
    rows, wide, blocks = symbol("rows", minimum=1), symbol("tiles_across", minimum=1), symbol("blocks")
    each = max(1, ELEMENTS // steps)
    rows_of_block, width = THREADS // WARP * each, steps * WARP
    row_count = product(loop.extent for loop in outer)
    derived = {
        symbol_of(rows): row_count,
        symbol_of(wide): ceildiv(inner.extent, width),
        symbol_of(blocks): ceildiv(row_count, rows_of_block) * ceildiv(inner.extent, width),
    }
    block = open_block(body, blocks)
    thread, variable = open_threads(body, THREADS)
    first = bind_position(body, "first", block // wide * rows_of_block + thread // WARP * each, blocks * rows_of_block)
    start = bind_position(body, "start", block % wide * width + thread % WARP, wide * width)
    step = symbol("step", extent=each * steps)
    at_row, at_column = first + step // steps, start + step % steps * WARP

    def bind(row: Extent, column: Extent) -> None:
        bind_loops(body, outer, row)
        body.bind(inner.index, body.index.code(column))

    values, held = region.fusion.values, {}
    for number in region.full[0]:
        buffer = Buffer(body.fresh(f"y{number}"), values[number].dtype.compute, "local", each * steps)
        body.append(Allocate(buffer))
        held[number, region.coordinates(number)] = (buffer, step)
    body.to_cache.update(held)
    with body.loop(step, each * steps, "unroll"):
        # Beyond the end, the last row and column are computed again: no load waits for a branch.
        row = bind_position(body, "row", minimum(at_row, rows - 1), rows)
        bind(row, minimum(at_column, inner.extent - 1))
        for key in held:
            body.value(*key)
    body.cached.update(held)
    with body.loop(step, each * steps, "unroll"):
        tests = [body.index.compare("lt", at_row, rows), body.index.compare("lt", at_column, inner.extent)]
        with when(body, tests):
            bind(bind_position(body, "row", at_row, rows), at_column)
            store_outputs(body, region, region.full[0])
    launch = make_launch(
        body, f"{setting.name}_taken_rows", "cuda", [(block, blocks)], contract=setting.contract, threads=THREADS,
        thread=variable,
    )  # fmt: skip
    return launch, derived
