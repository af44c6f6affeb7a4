"""The row template for the CPU: the innermost loop is reduced, and a worker computes one row at a time.

The values of a short row are cached between phases; a longer row is recomputed in each phase.

Must not know: LLVM.
"""

from __future__ import annotations

from collections.abc import Sequence

from segments import Verdict, yes
from tracefuse.ir.extents import product
from tracefuse.kernel.kernel_ir import Allocate, Buffer
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_frame import CpuProblem, new_body, open_grid, work
from tracefuse.schedule.cpu.cpu_lanes import reduce_loops
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.nest import Loop, position_in
from tracefuse.schedule.reduction_states import Accumulator, declare, finish, store_output
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.template import Template

KEPT_ELEMENTS = 1 << 15
"""The longest row, in elements, whose values are cached between phases: 256 KiB of the L2 cache."""


def is_short(problem: CpuProblem) -> bool:
    """Whether a row stays in cache between phases; guards its length."""
    length = product(loop.extent for loop in problem.region.nest.reduced)
    return problem.sizes.at_most(length, KEPT_ELEMENTS, "a row stays in cache between passes")


def _accepts(problem: CpuProblem) -> Verdict:
    nest = problem.region.nest
    if not nest.reduced:
        return RegionRefusal.NOTHING_REDUCED()
    return yes(is_short(problem)) if nest.loops[-1].reduced else RegionRefusal.INNERMOST_NOT_REDUCED()


def _lower(problem: CpuProblem, keep: bool) -> Lowered:
    return problem.finish([_launch(problem.streaming(), f"{problem.name}_row", problem.contract, keep)])


ROW = Template("row", _accepts, _lower)


def _launch(region: Region, name: str, contract: bool, keep: bool) -> LaunchSpec:
    """Emits one row per iteration of the grid, phase after phase. keep: cache values between phases."""
    body, nest = new_body(region), region.nest
    grid, _ = open_grid(body, nest.parallel)
    if keep:
        _keep_rows(body, region)
    for phase in range(len(region.full)):
        states = [declare(body, node, joins=True) for node in region.in_phase(phase)]
        _run_phase(body, region, phase, states, nest.reduced)
        for state in states:
            finish(body, region, state)
    for output in region.parallel_outputs:
        store_output(body, region, output)
    return make_launch(body, name, "cpu", [grid], work=work(region), contract=contract)


def _run_phase(body: Body, region: Region, phase: int, states: Sequence[Accumulator], loops: Sequence[Loop]) -> None:
    """Emits one pass: accumulates the phase's reductions and stores its full outputs."""
    if not states and not region.full[phase]:
        return
    reduce_loops(body, region, phase, states, loops)
    body.cached.update({k: v for k, v in body.to_cache.items() if region.probe.cached.get(k) == phase})


def _keep_rows(body: Body, region: Region) -> None:
    """Allocates a row of local memory for every value that a later phase rereads."""
    loops = region.nest.reduced
    for number, coordinates in region.probe.cached:
        dtype = region.fusion.values[number].dtype.compute
        size = body.index.code(product(loop.extent for loop in loops))
        buffer = Buffer(body.fresh(f"row{number}"), dtype, "local", size)
        body.append(Allocate(buffer))
        body.to_cache[(number, coordinates)] = (buffer, position_in(loops))
