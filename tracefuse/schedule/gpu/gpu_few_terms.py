"""The template for sums of few terms that are read many times: pairwise distances, products of small matrices.

The innermost loop is parallel and the terms are few. A thread computes groups of adjacent results in several rows. What
the rows share, it reads once, into registers; all terms of a row are on their way together.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Sequence

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Extent, Symbol, ceildiv, minimum, product, symbol, symbol_of, symbols
from tracefuse.schedule.gpu.gpu_frame import (
    FewSteps,
    Positions,
    Setting,
    bind_loops,
    bind_position,
    new_body,
    open_block,
    open_threads,
)
from tracefuse.schedule.gpu.gpu_phase import State, reads_on_the_way, run_phases, store_parallel_outputs
from tracefuse.schedule.gpu.gpu_prefetch import prefetch, release_prefetched
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.refusal_codes import RegionRefusal, ScheduleRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.template import Template
from tracefuse.schedule.transposed import read_offsets

THREADS = 256
MOST_TERMS = 16
MOST_ROWS = 64
ROWS_OF_A_TERM = 4
"""The rows of a thread: so many for each term that it loads for them; fewer if the threads would not fill the GPU."""

SHORT_ROW = 64
MOST_SHORT_ROWS = 16
"""Of results with rows as short as SHORT_ROW, such as small matrices, a thread computes all rows or one."""

RESIDENT_THREADS = 2048
HELD_WORDS = 64
"""The most registers for what rows share; with more, a thread computes one result at a time instead of a group."""


class FewTermsRefusal(ScheduleRefusal):
    """Refusals of the template for few terms."""

    READ_ONCE = "an input is read along all loops"
    STORED = "an output has all loops"
    ONE_ROW = "all results are in one row"
    TOO_MANY = "a thread cannot hold the terms"
    NOTHING_SHARED = "rows share nothing, or are too few for every thread to have several"
    SHORT_ROWS = "adjacent threads compute adjacent short rows"


@dataclass(frozen=True, slots=True)
class FewTerms:
    """What a thread computes: `terms` terms of `rows` rows, of `lanes` adjacent results each."""

    terms: int
    rows: int
    lanes: int


def _accepts(problem: GpuProblem) -> Verdict:
    region, nest, sizes = problem.region, problem.region.nest, problem.rewritten_sizes
    if not nest.reduced:
        return RegionRefusal.NOTHING_REDUCED()
    if nest.loops[-1].reduced:
        return RegionRefusal.INNERMOST_REDUCED()
    if any(region.full):
        return FewTermsRefusal.STORED()
    if len(nest.parallel) < 2:
        return FewTermsRefusal.ONE_ROW()
    if any(all(coefficient(o, loop.symbol) != 0 for loop in nest.loops) for _, o in read_offsets(region)):
        return FewTermsRefusal.READ_ONCE()
    terms = product(loop.extent for loop in nest.reduced)
    if not sizes.at_most(terms, MOST_TERMS, "a thread holds the terms") or sizes.at_most(terms, 0, "no terms"):
        return FewTermsRefusal.TOO_MANY()
    shared = [n for n, o in read_offsets(region) if coefficient(o, nest.parallel[-2].symbol) == 0]
    if not _rows_suit(problem, nest.parallel):
        return FewTermsRefusal.SHORT_ROWS()
    # Tests of each term would take as long as the term.
    count = sizes.hint(terms)
    sizes.require(terms, "==", count, "a thread computes this number of terms")
    most = ROWS_OF_A_TERM * (1 << (count - 1).bit_length())
    rows = _rows(problem, nest.parallel[-2], max(16, min(most, MOST_ROWS)))
    if not shared or rows == 1:
        return FewTermsRefusal.NOTHING_SHARED()
    words = sum(-(-region.fusion.values[n].dtype.itemsize // 4) for n in shared) * count
    return yes(FewTerms(count, rows, problem.setting.lanes if words * problem.setting.lanes <= HELD_WORDS else 1))


def _rows_suit(problem: GpuProblem, parallel: Sequence[Loop]) -> bool:
    """Whether rows are long, or so short and few that a thread computes a column of a matrix without wide accesses."""
    sizes = problem.rewritten_sizes
    if not sizes.at_most(parallel[-1].extent, SHORT_ROW, "short rows"):
        return True
    if problem.setting.lanes > 1 or len(parallel) < 3:
        return False
    return sizes.at_most(parallel[-2].extent, MOST_SHORT_ROWS, "a thread computes all rows of a small matrix")


def _rows(problem: GpuProblem, loop: Loop, most: int) -> int:
    """Chooses the rows of a thread, a power of two, from guarded buckets of the sizes."""
    sizes, parallel = problem.rewritten_sizes, problem.region.nest.parallel
    rows = sizes.bucket(loop.extent, most, "the rows of a thread")
    groups = Positions(parallel, problem.setting.lanes).total
    fill = RESIDENT_THREADS * problem.chip.multiprocessors
    while rows > 1 and sizes.at_most(groups, rows * fill, "enough threads to fill the GPU"):
        rows //= 2
    return rows


def _lower(problem: GpuProblem, decision: FewTerms) -> Lowered:
    launch, derived = _launch(problem.region, replace(problem.setting, lanes=decision.lanes), decision)
    return problem.finish([launch], (), derived)


FEW_TERMS = Template("few terms", _accepts, _lower)


def _launch(region: Region, setting: Setting, decision: FewTerms) -> tuple[LaunchSpec, dict[Symbol, Extent]]:
    """Returns the launch, and the definitions of its integer parameters."""
    body = new_body(region, setting)
    *outer, row_loop, inner = region.nest.parallel
    columns = Positions((inner,), setting.lanes)
    outside, tiles = product(loop.extent for loop in outer), symbol("tiles", minimum=1)
    threads, blocks = symbol("threads", minimum=1), symbol("blocks", minimum=1)
    count = ceildiv(row_loop.extent, decision.rows)
    derived = {
        symbol_of(tiles): count,
        symbol_of(threads): outside * count * columns.total,
        symbol_of(blocks): ceildiv(outside * count * columns.total, THREADS),
    }
    block = open_block(body, blocks)
    thread, variable = open_threads(body, THREADS)
    place = bind_position(body, "place", block * THREADS + thread, blocks * THREADS)
    inside = body.index.compare("lt", place, threads)
    position = bind_position(body, "position", minimum(place, threads - 1), threads)
    rest = bind_position(body, "rest", position // columns.total, outside * tiles)
    columns.bind(body, position % columns.total)
    bind_loops(body, outer, rest // tiles)
    first = bind_position(body, "first", rest % tiles * decision.rows, row_loop.extent)
    part = region.placed(columns.values(body.lane))
    terms = Positions(region.nest.reduced, 1)
    walk = FewSteps(symbol("step", extent=decision.terms), decision.terms, decision.terms)
    reads = reads_on_the_way(body, part, 0, terms)
    keys = [key for key in reads if row_loop.symbol not in {s for c in key[1] for s in symbols(c)}]
    prefetch(body, keys, walk.step, walk.count, lambda load: walk.clamped(body, terms.binder(body), load))
    stop = minimum(first + decision.rows, row_loop.extent)
    with body.loop(row_loop.index, stop, start=first):
        run_phases(body, part, walk, terms, _keep_apart, width=body.lanes)
        store_parallel_outputs(body, part, [inside])
    release_prefetched(body, keys)
    launch = make_launch(
        body, f"{setting.name}_few_terms", "cuda", [(block, blocks)], contract=setting.contract, threads=THREADS,
        thread=variable,
    )  # fmt: skip
    return launch, derived


def _keep_apart(states: Sequence[State]) -> None:
    """Combines nothing: a thread has all terms of its results."""
