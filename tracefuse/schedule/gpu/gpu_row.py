"""The row templates for the GPU: the innermost loop is reduced, and one group of threads works on a row.

In registers: each thread holds its part of the row, so that memory is read once however many phases there are. A short
row is the work of a part of a warp, several rows to a block; a longer one of a whole block. The steps of a thread are
unrolled, their number and the number of threads follow from the power of two above the row's length, which is guarded.
Looped: a row of any length, reread by each phase, from the L2 cache where it fits.

Must not know: CUDA C++, arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from segments import Verdict, yes
from tracefuse.ir.extents import Extent, Symbol, ceildiv, minimum, product, symbol, symbol_of
from tracefuse.kernel.kernel_ir import Expression
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
    row_positions,
)
from tracefuse.schedule.gpu.gpu_phase import (
    State,
    cached_words,
    combine_threads,
    hold,
    run_phases,
    store_parallel_outputs,
)
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.phases import Region, combining
from tracefuse.schedule.refusal_codes import RegionRefusal, ScheduleRefusal
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template

WARP = 32
ROWS_THREADS = 128
"""The threads of a block that computes several rows."""

MOST_THREADS = 512
"""The threads of a block that computes one row; with more, too few blocks are resident on a multiprocessor."""

MOST_WORDS = 32
"""The registers of a thread for cached values of a row; it uses twice as many for other values."""

FIRST_STEPS = {1: 8, 2: 4, 4: 2, 8: 4}
"""The steps of a thread before a row gets more threads, by lanes: a trade-off of loads in flight and occupancy."""

STEPS_OF_PAIRS = {1: 2, 2: 4, 4: 4, 8: 4}
"""So many times the steps for states of several variables, as of argmax: joining those of threads costs more. (H200)"""

LEAST_STORING = 16
"""The elements that the threads of a row store next to each other, if a row has four times as many."""

LOOP_THREADS = 256
"""The threads of a block that reads a long row once: many small blocks keep more loads in flight."""

REREAD_THREADS = {1: 1024, 2: 1024, 4: 1024, 8: 512}
"""The threads of a block that rereads a row, by lanes: fewer rows are in flight, so they stay in the L2 cache."""

LOOP_UNROLL = 4


class RowRefusal(ScheduleRefusal):
    """Refusals of the row template."""

    TOO_LONG = "a row does not fit in the registers of a block"


@dataclass(frozen=True, slots=True)
class RowShape:
    """The distribution of a row: `group` threads, `steps` groups of lanes each; `sure` steps are surely in bounds."""

    group: int
    steps: int
    sure: int

    @property
    def threads(self) -> int:
        return max(self.group, ROWS_THREADS) if self.group <= WARP else self.group

    @property
    def rows(self) -> int:
        """The rows of a block."""
        return self.threads // self.group


def row_shape(region: Region, sizes: Sizes, lanes: int) -> RowShape | None:
    """Returns how to cache a row in registers, or None if it is too long; guards the length."""
    total = Positions(region.nest.reduced, lanes).total
    most = MOST_THREADS * max(1, MOST_WORDS // max(1, cached_words(region, lanes)))
    if not sizes.at_most(total, most, "a row fits in the registers of a block"):
        return None
    first_steps = FIRST_STEPS[lanes] * (STEPS_OF_PAIRS[lanes] if _joins_pairs(region) else 1)
    return share_row(total, sizes, first_steps, MOST_THREADS, LEAST_STORING // lanes if any(region.full) else 1)


def _joins_pairs(region: Region) -> bool:
    """Whether nothing is cached and a reduction has a state of several variables that join at once."""
    ops = [combining(node) for nodes in region.reductions for node in nodes]
    return not region.probe.cached and any(op.parts and op.term is None for op in ops)


def share_row(
    total: Extent, sizes: Sizes, first_steps: int, most_threads: int, least_threads: int = 1
) -> RowShape:  # fmt: skip
    """Chooses threads and steps by the power of two above a row's length; guards it.

    first_steps: the steps of a thread before a row gets more than `least_threads`; powers of two.
    """
    bound, exact = sizes.power_of_two_above(total, "every thread of a row has work", "the threads of a row")
    group = min(max(bound // min(first_steps, bound), min(least_threads, bound // 4)), most_threads)
    steps = bound // group
    return RowShape(group, steps, steps if exact else steps // 2)


def _is_innermost_reduced(region: Region) -> Verdict:
    if not region.nest.reduced:
        return RegionRefusal.NOTHING_REDUCED()
    return yes() if region.nest.loops[-1].reduced else RegionRefusal.INNERMOST_NOT_REDUCED()


def _accepts(problem: GpuProblem) -> Verdict:
    region, verdict = problem.region, _is_innermost_reduced(problem.region)
    if not verdict:
        return verdict
    shape = row_shape(region, problem.rewritten_sizes, problem.setting.lanes)
    return RowRefusal.TOO_LONG() if shape is None else yes(shape)


def _lower(problem: GpuProblem, shape: RowShape) -> Lowered:
    launch, derived = _launch(problem.region, problem.setting, shape)
    return problem.finish([launch], (), derived)


ROW = Template("row", _accepts, _lower)


def _accepts_long(problem: GpuProblem) -> Verdict:
    return _is_innermost_reduced(problem.region)


def _lower_long(problem: GpuProblem, decision: None) -> Lowered:
    launch, derived = _long_launch(problem.one_pass, problem.setting)
    return problem.finish([launch], (), derived)


LONG_ROW = Template("long row", _accepts_long, _lower_long)


def _launch(region: Region, setting: Setting, shape: RowShape) -> tuple[LaunchSpec, dict[Symbol, Extent]]:
    """Emits rows in registers: one launch for all phases, and the definitions of its integer parameters."""
    body, lanes, nest = new_body(region, setting), setting.lanes, region.nest
    positions = row_positions(region, lanes)
    rows, blocks = symbol("rows", minimum=1), symbol("blocks")
    row_count = product(loop.extent for loop in nest.parallel)
    derived = {symbol_of(blocks): ceildiv(row_count, shape.rows), symbol_of(rows): row_count}
    block = open_block(body, blocks)
    thread, variable = open_threads(body, shape.threads)
    inside: Expression | None = None
    row, slot = block, thread
    if shape.rows > 1:
        slot = bind_position(body, "slot", thread % shape.group, shape.group)
        place = bind_position(body, "place", block * shape.rows + thread // shape.group, blocks * shape.rows)
        inside = body.index.compare("lt", place, rows)
        # Threads past the last row use its coordinates, so that they read in bounds; they load no other elements.
        row = bind_position(body, "row", minimum(place, rows - 1), rows)
    bind_loops(body, nest.parallel, row)
    step = symbol("step", extent=shape.steps)
    walk = Steps(step, shape.steps, shape.sure, shape.group, slot, positions.total, inside)
    values = positions.values(body.lane)
    cached = hold(body, region, values, step, shape.steps)
    part = region.placed(values)

    def join(states: Sequence[State]) -> None:
        combine_threads(body, states, shape.group)

    run_phases(body, part, walk, positions, join, cached=cached)
    first = body.index.compare("eq", slot, 0)
    store_parallel_outputs(body, part, [first] if inside is None else [first, inside])
    launch = make_launch(
        body, f"{setting.name}_row", "cuda", [(block, blocks)], contract=setting.contract, threads=shape.threads,
        thread=variable,
    )  # fmt: skip
    return launch, derived


def _long_launch(region: Region, setting: Setting) -> tuple[LaunchSpec, dict[Symbol, Extent]]:
    """Emits one block per row, with a loop over the row for each phase."""
    body, nest = new_body(region, setting), region.nest
    threads = LOOP_THREADS
    if region.probe.cached:  # the row is reread from the L2 cache: loads keep it there, stores bypass the cache
        threads, body.streaming, body.streamed = REREAD_THREADS[setting.lanes], frozenset(), body.outputs
    positions = row_positions(region, setting.lanes)
    rows, groups = symbol("rows"), symbol("groups")
    derived = {symbol_of(rows): product(loop.extent for loop in nest.parallel), symbol_of(groups): positions.total}
    block = open_block(body, rows)
    thread, variable = open_threads(body, threads)
    bind_loops(body, nest.parallel, block)
    part = region.placed(positions.values(body.lane))
    walk = Strides(0, groups, thread, threads, LOOP_UNROLL)

    def join(states: Sequence[State]) -> None:
        combine_threads(body, states, threads)

    run_phases(body, part, walk, positions, join)
    store_parallel_outputs(body, part, [body.index.compare("eq", thread, 0)])
    launch = make_launch(
        body, f"{setting.name}_row", "cuda", [(block, rows)], contract=setting.contract, threads=threads,
        thread=variable,
    )  # fmt: skip
    return launch, derived
