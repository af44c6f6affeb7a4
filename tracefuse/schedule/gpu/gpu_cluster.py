"""The row template for rows too long for one block: a thread block cluster holds a row, so memory is read once.

Each block of a cluster takes a contiguous share of the row. The values that later phases reread stay with the threads
that loaded them: the first steps in registers, the rest in shared memory, into which they are copied directly. A
phase's states are combined within each block. Every block then writes its states to the shared memory of all blocks of
the cluster, and combines the states there in block order.

The template takes rows that the other templates would read from memory in each phase. The choice depends on the sizes
and the chip.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Extent, Symbol, ceildiv, minimum, product, symbol, symbol_of
from tracefuse.kernel.kernel_ir import Allocate, Barrier, Buffer, Store
from tracefuse.schedule.body import Body
from tracefuse.schedule.chip import BLOCK_BYTES, Chip
from tracefuse.schedule.gpu.gpu_cached_values import worth_holding
from tracefuse.schedule.gpu.gpu_column_runs import reads_parts_of_lines
from tracefuse.schedule.gpu.gpu_frame import (
    WIDE_BYTES,
    Portions,
    Setting,
    Steps,
    Strides,
    bind_loops,
    bind_position,
    new_body,
    open_block,
    open_threads,
    when,
)
from tracefuse.schedule.gpu.gpu_lanes import SHORT_RUN
from tracefuse.schedule.gpu.gpu_phase import (
    CachedKeys,
    RowPart,
    State,
    cached_dtype,
    cached_keys,
    combine_shared,
    combine_threads,
    parts_of_all_lanes,
    places,
    run_phases,
    store_parallel_outputs,
)
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_runs import LEAST_ACCESSES, ElementRun, ends_of_runs, row_accesses
from tracefuse.schedule.gpu.gpu_split import FEW_ROWS
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.refusal_codes import RegionRefusal, ScheduleRefusal
from tracefuse.schedule.region_phases import Region, build_region, combining
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template

UNROLL = 4

RESIDENT = {4: (256, 0), 3: (256, 32), 2: (512, 16), 1: (1024, 16)}
"""Threads per block, and registers per thread for cached values, by resident blocks per multiprocessor. More resident
blocks overlap the reads of one row with the writes of another."""

SMALL_CLUSTERS = (2, 4)
"""Cluster sizes, in blocks, to try before the largest one, for many short rows."""

EXCHANGE_BYTES = 2048
"""Shared memory reserved for the states that threads and blocks exchange."""

LONG_ROW = 160 * 1024
"""If there are many rows, only rows of halves of more bytes use clusters: rows in flight would evict each other from
L2. Shorter rows also do for a mean and a variance: with all elements at hand, they take less arithmetic than in one
pass. Rows of wider elements take longer to read twice than to hold. (H200)"""

WHOLE_TURNS = 4096, 8192
"""But not rows of float32 that a block has in whole turns of the first number of positions, up to the second one."""

HALF_BYTES = 2


class ClusterRefusal(ScheduleRefusal):
    """Refusals of the cluster template."""

    READ_ONCE = "a row is read once"
    NO_CLUSTERS = "the GPU has no clusters"
    NOTHING_KEPT = "a later phase needs nothing of a row"
    TOO_FEW_ROWS = "there are too few rows to fill the GPU with clusters"
    FITS_IN_L2 = "the L2 cache holds a row beside others"
    TOO_LONG = "a cluster does not hold a row"
    SHORT_RUNS = "a row consists of short runs of elements"


@dataclass(frozen=True, slots=True)
class Share:
    """The distribution of a row over a cluster of `blocks` blocks of `threads` threads.

    Each thread holds `steps` positions in registers, and each block holds `capacity` positions in shared memory.
    `resident` such blocks fit a multiprocessor. least: the least number of positions of a block. ends: the elements in
    shared memory that are in no whole access of a run.
    """

    blocks: int
    threads: int
    steps: int
    capacity: int
    resident: int
    least: int = 0
    ends: int = 0

    @property
    def most(self) -> int:
        """The longest row that fits, in positions."""
        return self.blocks * (self.steps * self.threads + self.capacity)


def _accepts(problem: GpuProblem) -> Verdict:
    if not problem.region.nest.reduced or not problem.region.nest.loops[-1].reduced:
        return RegionRefusal.INNERMOST_NOT_REDUCED()
    if not problem.one_pass.probe.cached:
        return ClusterRefusal.READ_ONCE()
    if reads_parts_of_lines(problem):
        return ClusterRefusal.SHORT_RUNS()
    sizes = problem.rewritten_sizes
    region = build_region(
        problem.region.fusion,
        problem.region.facts,
        problem.region.memory,
        sizes,
        worth_holding(problem.region.fusion),
        short_run=SHORT_RUN,
    )
    nodes = (node for nodes in problem.one_pass.reductions for node in nodes)
    counts = any(any(parts_of_all_lanes(combining(node))) for node in nodes)
    verdict = _judge_share(region, sizes, problem.row_setting, problem.run, counts=counts)
    return yes((region, verdict.facts)) if verdict else verdict


def _lower(problem: GpuProblem, decision: tuple[Region, Share]) -> Lowered:
    launch, derived = _launch(decision[0], problem.row_setting, decision[1], problem.run)
    return problem.finish([launch], (), derived)


CLUSTER = Template("cluster", _accepts, _lower)


def _judge_share(region: Region, sizes: Sizes, setting: Setting, run: ElementRun | None, *, counts: bool) -> Verdict:
    """Chooses the Share of a row; no if another template is better, or if no cluster can hold the row.

    run: the runs of a row that begin anywhere in an access. counts: a reduction is a mean and a variance.
    """
    cached = cached_keys(region, {})
    if setting.chip.cluster == 1:
        return ClusterRefusal.NO_CLUSTERS()
    if not cached:
        return ClusterRefusal.NOTHING_KEPT()
    each = sum(cached_dtype(region, number).itemsize for number, _ in cached) * setting.lanes
    rows, total = (
        product(loop.extent for loop in region.nest.parallel),
        row_accesses(region, setting.lanes, run).total,
    )
    if sizes.at_most(rows * setting.chip.cluster, setting.chip.multiprocessors - 1, "rows too few for clusters"):
        return ClusterRefusal.TOO_FEW_ROWS(rows=rows)
    few = sizes.at_most(rows, FEW_ROWS * setting.chip.multiprocessors, "long rows too few to fill the GPU are split")
    if not few and not counts and _is_read_again(total, each, setting.lanes, sizes):
        return ClusterRefusal.FITS_IN_L2(positions=total)
    longer = 0
    for share in _shares(setting.chip, each, run):
        if not sizes.at_most(total, share.most, "the blocks of a cluster hold a row"):
            longer = share.most
            continue
        filled = share.resident * setting.chip.multiprocessors
        small = share.blocks < setting.chip.cluster
        if small and sizes.at_most(rows * share.blocks, filled - 1, "larger clusters fill the GPU"):
            continue
        # Shares are rounded up, so the last block may have fewer positions than the others.
        return yes(replace(share, least=max(0, longer // share.blocks - share.blocks)))
    return ClusterRefusal.TOO_LONG(positions=total)


def _is_read_again(total: Extent, each: int, lanes: int, sizes: Sizes) -> bool:
    """Whether it is faster to read many rows of `total` positions again. each: the bytes of a position."""
    if each // lanes <= HALF_BYTES:
        return sizes.at_most(total, LONG_ROW // each, "a row that the L2 cache holds beside others")
    return (
        each == WIDE_BYTES
        and lanes == WIDE_BYTES // 4
        and (
            sizes.at_most(total, WHOLE_TURNS[-1], "a row of few turns of a block")
            and sizes.is_multiple(total, WHOLE_TURNS[0], "a row of whole turns of a block")
        )
    )


def _shares(chip: Chip, each: int, run: ElementRun | None) -> Iterator[Share]:
    """Yields shares for increasingly long rows. each: bytes per position."""
    for resident, (threads, registers) in RESIDENT.items():
        steps = registers // -(-each // 4)
        free = chip.shared_bytes // resident - BLOCK_BYTES - EXCHANGE_BYTES
        capacity, ends = (free // each, 0) if run is None else _capacities(free, each, steps * threads, run)
        for blocks in SMALL_CLUSTERS if resident == max(RESIDENT) else ():
            yield Share(blocks, threads, steps, capacity, resident, ends=ends)
        yield Share(chip.cluster, threads, steps, capacity, resident, ends=ends)


def _capacities(free: int, each: int, held: int, run: ElementRun) -> tuple[int, int]:
    """Divides `free` bytes: returns the positions in shared memory, and the elements in no whole access.

    held: the positions in registers.
    """
    size, least = each // run.lanes, LEAST_ACCESSES - 1
    if not run.outer:
        return (free - run.most_ends * size) // each, run.most_ends
    # A run has at least `least` whole accesses and at most most_ends other elements.
    capacity = ((free - size) * least - held * run.most_ends * size) // (each * least + run.most_ends * size)
    return capacity, -(-(held + capacity) * run.most_ends // least)


def _portions(
    body: Body, region: Region, share: Share, cached: CachedKeys, thread: Extent,
    bounds: tuple[Extent, Extent, Extent],
) -> Portions:  # fmt: skip
    """Returns the positions of a block in two portions: those cached in registers, and those in shared memory.

    bounds: the first position, the end, and the number of positions of the row.
    """
    first, stop, total = bounds
    step, slot = symbol("step", extent=share.steps), symbol("slot", extent=share.capacity)
    beyond = first
    if share.steps:
        beyond = bind_position(body, "beyond", minimum(first + share.steps * share.threads, stop), total + 1)
    strides = Strides(beyond, stop, thread, share.threads, UNROLL, slot)
    in_shared_memory = places(body, region, cached, slot, share.capacity, "shared")
    if not share.steps:
        return Portions([(strides, in_shared_memory)])
    sure = min(share.steps, share.least // share.threads)
    steps = Steps(step, share.steps, sure, share.threads, first + thread, stop)
    return Portions([(steps, places(body, region, cached, step, share.steps, "local")), (strides, in_shared_memory)])


def _share_of_ends(
    body: Body, region: Region, run: ElementRun, share: Share, rank: Extent, thread: Extent
) -> RowPart:  # fmt: skip
    """Returns the share that a block has of the elements in no whole access, in shared memory."""
    slot = symbol("end_slot", extent=share.ends)

    def walk(total: Extent) -> Strides:
        length = ceildiv(total, share.blocks)
        first = bind_position(body, "first_end", minimum(rank * length, total), total + 1)
        stop = bind_position(body, "stop_end", minimum(first + length, total), total + 1)
        return Strides(first, stop, thread, share.threads, 1, slot)

    ends = ends_of_runs(body, region, run, walk)
    cached = cached_keys(region, ends.positions.values(ends.body.lane))
    ends.body.to_cache.update(places(ends.body, region, cached, slot, share.ends, "shared"))
    return replace(ends, cached=cached)


def _launch(
    region: Region, setting: Setting, share: Share, run: ElementRun | None
) -> tuple[LaunchSpec, dict[Symbol, Extent]]:  # fmt: skip
    """Returns one launch for all phases, and the definitions of its integer parameters."""
    body, nest = new_body(region, setting), region.nest
    positions = row_accesses(region, setting.lanes, run)
    rows, total, block_share = symbol("rows"), symbol("positions"), symbol("share")
    derived = {
        symbol_of(rows): product(loop.extent for loop in nest.parallel),
        symbol_of(total): positions.total,
        symbol_of(block_share): ceildiv(positions.total, share.blocks),
        **({} if run is None else run.derived),
    }
    block = open_block(body, rows * share.blocks)
    thread, variable = open_threads(body, share.threads)
    rank = bind_position(body, "rank", block % share.blocks, share.blocks)
    bind_loops(body, nest.parallel, bind_position(body, "row", block // share.blocks, rows))
    first = bind_position(body, "first", minimum(rank * block_share, total), total + 1)
    stop = bind_position(body, "stop", minimum(first + block_share, total), total + 1)
    values = positions.values(body.lane)
    cached, part = cached_keys(region, values), region.placed(values)
    portions = _portions(body, region, share, cached, thread, (first, stop, total))

    def join(states: Sequence[State]) -> None:
        combine_threads(body, states, share.threads)
        _exchange(body, states, share.blocks, thread, rank)

    rest = None if run is None else _share_of_ends(body, region, run, share, rank, thread)
    run_phases(body, part, portions, positions, join, cached=cached, rest=rest)
    first_of_all = [body.index.compare("eq", thread, 0), body.index.compare("eq", rank, 0)]
    store_parallel_outputs(body, part, first_of_all)
    launch = make_launch(
        body, f"{setting.name}_cluster", "cuda", [(block, rows * share.blocks)], contract=setting.contract,
        threads=share.threads, thread=variable, blocks_per_multiprocessor=share.resident, cluster=share.blocks,
    )  # fmt: skip
    return launch, derived


def _exchange(body: Body, states: Sequence[State], blocks: int, thread: Extent, rank: Extent) -> None:
    """Combines the states of the blocks of a cluster through distributed shared memory.

    Thread k writes its block's states to the shared memory of block k. Then every block combines its own copy.
    """
    block_states = []
    for accumulator in (a for state in states for a in state):
        buffers = [Buffer(body.fresh("states"), v.dtype, "shared", blocks) for v in accumulator.variables]
        for buffer in buffers:
            body.append(Allocate(buffer))
        block_states.append((accumulator, buffers))
    if not block_states:
        return
    with when(body, [body.index.compare("lt", thread, blocks)]):
        for accumulator, buffers in block_states:
            for buffer, variable in zip(buffers, accumulator.variables, strict=True):
                body.append(Store(buffer, body.index.code(rank), variable, block=body.index.code(thread)))
    body.append(Barrier(cluster=True))
    for accumulator, buffers in block_states:
        combine_shared(body, accumulator, buffers, blocks, lambda place: place)
