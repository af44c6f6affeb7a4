"""The row templates for the GPU: the innermost loop is reduced, and one group of threads works on a row.

In registers: each thread holds its part of the row, so that memory is read once however many phases there are. A short
row is the work of a part of a warp, several rows to a block; a longer one of a whole block. The steps of a thread are
unrolled, their number and the number of threads follow from the power of two above the row's length, which is guarded.
Looped: a row of any length, reread by each phase, from the L2 cache where it fits.

Must not know: CUDA C++, arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Extent, Symbol, ceildiv, minimum, product, symbol, symbol_of
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.kernel.kernel_ir import Expression
from tracefuse.schedule.body import Body
from tracefuse.schedule.cost import Work, price
from tracefuse.schedule.gpu.gpu_frame import (
    Setting,
    Steps,
    Strides,
    bind_loops,
    bind_position,
    new_body,
    open_block,
    open_threads,
    read_once,
)
from tracefuse.schedule.gpu.gpu_lanes import MOST_LANES
from tracefuse.schedule.gpu.gpu_phase import (
    RowPart,
    State,
    cached_words,
    combine_threads,
    hold,
    run_phases,
    store_parallel_outputs,
)
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_runs import ElementRun, ends_of_runs, row_accesses
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.reduction_states import state_types
from tracefuse.schedule.refusal_codes import RegionRefusal, ScheduleRefusal
from tracefuse.schedule.region_phases import Region, combining
from tracefuse.schedule.region_work import byte_classes, bytes_of_iteration, operations
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template
from tracefuse.schedule.tiling_choice import CLEARLY
from tracefuse.schedule.tilings import Offer, Point, Tiled, Tiling

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

THREADS_OF_ROW = tuple(2**k for k in range(10))
"""The threads of a row that the cost model chooses from."""

OTHER_THREADS = (64, 256)
"""Other numbers of threads of a block of several rows that the cost model chooses from."""

BYTE_EDGES = (1 << 24,)
"""The classes of a region's bytes: in the L2 cache, in memory."""

LINE_BYTES, SECTOR_BYTES = 128, 32
"""The contiguous bytes that a warp accesses at once, and of which memory writes a part no faster than all."""

RUNS_OF_SECTOR = 8
"""Storing a part of a sector takes as long as so many accesses to less than a line. (H200)"""

FUNCTION_WORDS = 10
"""A function of a row's results takes each of its threads as long as combining so many words per byte. (H200)"""

FLIGHT_BYTES = 128
"""The most bytes that a thread requests at once of rows that it does not keep. (gpu_prefetch.py)"""

LEAST_STORING = 16
"""The elements that the threads of a row store next to each other, if a row has four times as many."""

LOOP_THREADS = 256
"""The threads of a block that reads a long row once: many small blocks keep more loads in flight."""

REREAD_THREADS = {1: 1024, 2: 1024, 4: 1024, 8: 512}
"""The threads of a block that rereads a row, by lanes: fewer rows are in flight, so they stay in the L2 cache."""

REREAD_SHORT = 7
"""Half of the threads read a row of fewer groups for each, which would be little more than one turn. (H200)"""

LOOP_UNROLL, REREAD_UNROLL = {1: 8, 2: 8, 4: 4, 8: 4}, 4
"""The groups that a thread of a long row reads at a time, by lanes, and those of a row that is reread."""


class RowRefusal(ScheduleRefusal):
    """Refusals of the row template."""

    TOO_LONG = "a row does not fit in the registers of a block"


@dataclass(frozen=True, slots=True)
class RowShape:
    """The distribution of a row: `group` threads, `steps` groups of lanes each; `sure` steps are surely in bounds.

    block: the threads of a block that computes several rows. run: the runs of a row that begin anywhere in an access;
    ends: a bound on their elements that are in no whole access.
    """

    group: int
    steps: int
    sure: int
    block: int = ROWS_THREADS
    run: ElementRun | None = None
    ends: int = 0

    @property
    def threads(self) -> int:
        return max(self.group, self.block) if self.group <= WARP else self.group

    @property
    def rows(self) -> int:
        """The rows of a block."""
        return self.threads // self.group


def row_shape(region: Region, sizes: Sizes, lanes: int, run: ElementRun | None = None) -> RowShape | None:
    """Returns how to cache a row in registers, or None if it is too long; guards the length.

    run: see RowShape.
    """
    total = row_accesses(region, lanes, run).total
    most = MOST_THREADS * max(1, MOST_WORDS // max(1, cached_words(region, lanes)))
    if not sizes.at_most(total, most, "a row fits in the registers of a block"):
        return None
    first_steps = FIRST_STEPS[lanes] * (STEPS_OF_PAIRS[lanes] if _joins_pairs(region) else 1)
    shape = share_row(total, sizes, first_steps, MOST_THREADS, LEAST_STORING // lanes if any(region.full) else 1)
    return shape if run is None else replace(shape, run=run, ends=run.bound_ends(sizes))


def _held(problem: GpuProblem) -> tuple[Setting, ElementRun | None]:
    """Returns the setting for rows in registers, and their runs: threads have too few for pairs of float64. (H200)"""
    pairs = problem.run is not None and problem.run.lanes == 2
    return (problem.setting, None) if pairs else (problem.row_setting, problem.run)


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
    setting, run = _held(problem)
    shape = row_shape(region, problem.rewritten_sizes, setting.lanes, run)
    return RowRefusal.TOO_LONG() if shape is None else yes(shape)


def _offers(problem: GpuProblem, usual: RowShape) -> Offer:
    """Offers other numbers of threads of a row, and of a block.

    The former, and with it the order of the reductions, follows from the length of a row alone.
    """
    region, lanes = problem.region, _held(problem)[0].lanes
    work = partial(_work, region, lanes, usual)
    most_steps = max(1, MOST_WORDS // cached_words(region, lanes))
    if not region.probe.cached:
        widest = max((region.fusion.values[number].dtype.itemsize for number in read_once(region)), default=1)
        most_steps = min(most_steps, max(1, FLIGHT_BYTES // (lanes * widest)))
    bound = usual.group * usual.steps
    groups = [usual.group]
    groups += [g for g in THREADS_OF_ROW if g != usual.group and g <= bound <= g * most_steps]
    rates, memory = problem.tilings.rates, (float(8 * BYTE_EDGES[-1]),)
    prices = {g: price(work(_tiling(g, max(g, ROWS_THREADS)), memory), rates).total for g in groups}
    cheapest = min(groups, key=prices.__getitem__)
    if prices[cheapest] < CLEARLY * prices[usual.group]:
        groups.sort(key=lambda g: g != cheapest)
    tilings = [_tiling(g, threads) for g in groups for threads in _blocks(g)]
    return Offer(tuple(tilings), (byte_classes(region, BYTE_EDGES),), work)


def _blocks(group: int) -> tuple[int, ...]:
    """Returns the threads of a block that suit rows of `group` threads."""
    return (ROWS_THREADS, *OTHER_THREADS) if group <= WARP else (group,)


def _tiling(group: int, threads: int) -> Tiling:
    return Tiling.of(order=group, group=group, threads=threads)


def _work(region: Region, lanes: int, usual: RowShape, tiling: Tiling, point: Point) -> Work:
    """Returns what the threads of rows do.

    The more threads a row has, the longer the contiguous memory that they access at a time; but the more states are
    combined, and the more blocks start.
    """
    (moved,) = point
    group, positions = tiling["group"], usual.group * usual.steps
    elements = moved / bytes_of_iteration(region)
    filled = 1.0 if usual.sure == usual.steps else 0.75  # the mean of lengths between two powers of two
    rows = elements / (positions * lanes * filled)
    shape = RowShape(group, positions // group, 0, tiling["threads"])
    nodes = [node for nodes in region.reductions for node in nodes]
    words = sum(-(-dtype.itemsize // 4) for node in nodes for dtype in state_types(node))
    combined = words * math.log2(group) + FUNCTION_WORDS * _function_bytes_of_row(region)
    return Work(
        moved, moved, operations=operations(region, elements), tasks=elements,
        runs=0.0 if group == positions else elements * _runs_of_element(region, group, lanes),
        blocks=rows / shape.rows, warps=shape.threads / WARP, combinations=rows * group * combined,
    )  # fmt: skip


def _function_bytes_of_row(region: Region) -> int:
    """Returns the bytes of the expensive values with one element for a row, which every thread of the row computes."""
    fusion = region.fusion

    def axes(number: int) -> int:
        return sum(extent != 1 for extent in fusion.shape_of(number))

    rank = max((axes(number) for number in fusion.tensor_inputs), default=0)
    numbers = (node.outputs[0] for node in fusion.nodes if isinstance(node.op, Pointwise) and node.op.expensive)
    return sum(
        fusion.values[n].dtype.compute.itemsize for n in numbers if fusion.values[n].is_tensor and axes(n) < rank
    )


def _runs_of_element(region: Region, group: int, lanes: int) -> float:
    """Returns the accesses of a row by its threads to less than LINE_BYTES, for each element of all loops.

    group: the threads of a row, which does not have them all at once.
    """
    count = 0.0
    values, stored = region.fusion.values, {output for phase in region.full for output in phase}
    for number in read_once(region):
        count += max(0.0, 1 / (group * lanes) - values[number].dtype.itemsize / LINE_BYTES)
    for number in stored:
        itemsize = values[number].dtype.itemsize
        run = group * lanes * itemsize
        partial_sectors = itemsize / run if lanes == 1 else itemsize / SECTOR_BYTES if run < SECTOR_BYTES else 0.0
        count += RUNS_OF_SECTOR * partial_sectors
    return count


def _lower(problem: GpuProblem, tiled: Tiled) -> Lowered:
    usual: RowShape = tiled.decision
    group, steps = tiled.tiling["group"], usual.group * usual.steps // tiled.tiling["group"]
    sure = steps if usual.sure == usual.steps else steps // 2
    shape = replace(usual, group=group, steps=steps, sure=sure, block=tiled.tiling["threads"])
    launch, derived = _launch(problem.region, _held(problem)[0], shape)
    return problem.finish([launch], (), derived)


ROW = Template("row", _accepts, _lower, offers=_offers)


def _accepts_long(problem: GpuProblem) -> Verdict:
    region, lanes, verdict = problem.one_pass, problem.row_setting.lanes, _is_innermost_reduced(problem.region)
    if not verdict:
        return verdict
    if not region.probe.cached:
        return yes(LOOP_THREADS)
    threads = REREAD_THREADS[lanes]
    total = row_accesses(region, lanes, problem.run).total
    short = lanes == MOST_LANES and problem.rewritten_sizes.at_most(total, REREAD_SHORT * threads, "a row of few turns")
    return yes(threads // 2 if short else threads)


def _lower_long(problem: GpuProblem, threads: int) -> Lowered:
    launch, derived = _long_launch(problem.one_pass, problem.row_setting, threads, problem.run)
    return problem.finish([launch], (), derived)


LONG_ROW = Template("long row", _accepts_long, _lower_long)


def _launch(region: Region, setting: Setting, shape: RowShape) -> tuple[LaunchSpec, dict[Symbol, Extent]]:
    """Emits rows in registers: one launch for all phases, and the definitions of its integer parameters."""
    body, lanes, nest = new_body(region, setting), setting.lanes, region.nest
    positions = row_accesses(region, lanes, shape.run)
    rows, blocks = symbol("rows", minimum=1), symbol("blocks")
    row_count = product(loop.extent for loop in nest.parallel)
    derived = {symbol_of(blocks): ceildiv(row_count, shape.rows), symbol_of(rows): row_count}
    derived |= {} if shape.run is None else shape.run.derived
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

    rest = None if shape.run is None else _held_ends(body, region, shape, shape.run, walk)
    run_phases(body, part, walk, positions, join, cached=cached, rest=rest)
    first = body.index.compare("eq", slot, 0)
    store_parallel_outputs(body, part, [first] if inside is None else [first, inside])
    launch = make_launch(
        body, f"{setting.name}_row", "cuda", [(block, blocks)], contract=setting.contract, threads=shape.threads,
        thread=variable,
    )  # fmt: skip
    return launch, derived


def _held_ends(body: Body, region: Region, shape: RowShape, run: ElementRun, walk: Steps) -> RowPart:
    """Returns the elements of a row in no whole access, held in registers. walk: that of the whole accesses."""
    count = -(-shape.ends // shape.group)
    step = symbol("end_step", extent=count)
    ends = ends_of_runs(
        body, region, run, lambda total: replace(walk, step=step, count=count, sure=0, total=total)
    )  # fmt: skip
    return replace(ends, cached=hold(ends.body, region, ends.positions.values(ends.body.lane), step, count))


def _long_launch(
    region: Region, setting: Setting, threads: int, run: ElementRun | None
) -> tuple[LaunchSpec, dict[Symbol, Extent]]:
    """Emits one block of `threads` threads per row, with a loop over the row for each phase."""
    body, nest = new_body(region, setting), region.nest
    unroll = LOOP_UNROLL[setting.lanes]
    if region.probe.cached:  # the row is reread from the L2 cache: loads keep it there, stores bypass the cache
        unroll = REREAD_UNROLL
        body.streaming, body.streamed = frozenset(), body.outputs
    positions = row_accesses(region, setting.lanes, run)
    rows, groups = symbol("rows"), symbol("groups")
    derived = {symbol_of(rows): product(loop.extent for loop in nest.parallel), symbol_of(groups): positions.total}
    derived |= {} if run is None else run.derived
    block = open_block(body, rows)
    thread, variable = open_threads(body, threads)
    bind_loops(body, nest.parallel, block)
    part = region.placed(positions.values(body.lane))
    walk = Strides(0, groups, thread, threads, unroll)

    def join(states: Sequence[State]) -> None:
        combine_threads(body, states, threads)

    rest = None
    if run is not None:
        rest = ends_of_runs(body, region, run, lambda total: Strides(0, total, thread, threads, 1))
    run_phases(body, part, walk, positions, join, rest=rest)
    store_parallel_outputs(body, part, [body.index.compare("eq", thread, 0)])
    launch = make_launch(
        body, f"{setting.name}_row", "cuda", [(block, rows)], contract=setting.contract, threads=threads,
        thread=variable,
    )  # fmt: skip
    return launch, derived
