"""The templates for short inner loops on the CPU: they are unrolled inside a loop over rows, which is vectorized.

A loop of 2 to 8 elements leaves a vector loop nothing but its remainder. Unrolled, with extents that are guarded and so
are constants of the kernel, the accesses of adjacent rows have constant strides, and LLVM packs them into vectors.
Short loops may be reduced, as in a softmax over 3 classes or in products of small matrices. A short loop along which an
input is contiguous is moved inside, as that over the channels of an image whose planes are the result: each element of
the input is then read once, in order.

Of reductions, a short loop whose elements fill a vector is the vector loop itself, as in products of 8x8 matrices of
float64: it reads and writes rows of the right matrix and of the result, and needs no packing.

Must not know: LLVM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, ceildiv, is_nonnegative, minimum, product, substitute, symbol, symbols
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_frame import CpuProblem, fix, new_body, open_tasks, work
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.reduction_states import accumulate, declare, finish, store_output, store_outputs
from tracefuse.schedule.refusal_codes import RegionRefusal, ScheduleRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template
from tracefuse.schedule.transposed import read_offsets

SHORT = 8
"""The most elements of a short loop. Each length is a kernel of its own."""

MOST_MOVED = 7
MOST_UNROLLED = 64
MOST_CODE = 1024
"""The most iterations of all short loops together: without a reduction, in which a wider loop fills a vector by itself,
and with one. MOST_CODE: of them times the ops of the region."""

LEAST_WORK = 4096
"""The least elements for which a kernel for one length pays."""

TILE = 1024
"""Rows of a tile."""

REASON = "short loops are unrolled"

PACKED_BYTES = 4
"""The fewest bytes of an element of which those of a repeated row are packed in vectors; narrower ones are shuffled."""

VECTOR_BYTES = 64
"""The bytes of a vector that a short loop fills by itself."""


class ShortLoopsRefusal(ScheduleRefusal):
    """Refusals of this template."""

    NOT_SHORT = "the innermost loop is not short, or there is little work"
    FEW_ROWS = "no long loop is outside of the short loops"
    REDUCED_OUTSIDE = "a loop outside of the short loops is reduced"
    TOO_MUCH_CODE = "the unrolled loops have too much code"


@dataclass(frozen=True, slots=True)
class _Rows:
    """The loop over rows, the loops outside of it, and the short loops inside.

    Of the short loops at most one is not reduced, and another that repeats its elements.
    """

    outer: tuple[Loop, ...]
    rows: Loop
    short: tuple[Loop, ...]


def _accepts(problem: CpuProblem) -> Verdict:
    if problem.region.nest.reduced:
        return RegionRefusal.REDUCES()
    loops = _short_inside(problem.region, problem.sizes)
    verdict = _loops_of(problem, MOST_MOVED if loops is problem.region.nest.loops else SHORT, loops)
    rows = verdict.facts
    if not isinstance(rows, _Rows) or not problem.sizes.at_most(rows.rows.extent, SHORT, "few rows"):
        return verdict
    return _repeated(problem, rows)


def _repeated(problem: CpuProblem, loops: _Rows) -> Verdict:
    """Judges whether a few rows are unrolled as well: they repeat the elements of one, as in a tile of short rows."""
    sizes, offsets = problem.sizes, [offset for _, offset in read_offsets(problem.region)]
    if not loops.outer or any(coefficient(offset, loops.rows.symbol) != 0 for offset in offsets):
        return ShortLoopsRefusal.FEW_ROWS()
    *outer, rows = loops.outer
    short = (loops.rows, *loops.short)
    count = product(loop.extent for loop in short)
    if sizes.at_most(rows.extent, SHORT, "few rows") or not sizes.at_most(count, MOST_UNROLLED, REASON):
        return ShortLoopsRefusal.FEW_ROWS()
    return yes(_Rows(tuple(outer), rows, short))


def _accepts_rows(problem: CpuProblem) -> Verdict:
    nest = problem.region.nest
    return _loops_of(problem, MOST_UNROLLED, nest.loops) if nest.reduced else RegionRefusal.NOTHING_REDUCED()


def _short_inside(region: Region, sizes: Sizes) -> Sequence[Loop]:
    """Returns the loops; a short one along which an input is contiguous is the innermost if no short one is."""
    loops = region.nest.loops
    if len(loops) < 2:
        return loops
    inner = loops[-1]
    offsets = [offset for _, offset in read_offsets(region) if coefficient(offset, inner.symbol) not in (0, 1, -1)]
    moved = [loop for loop in loops[:-1] if any(coefficient(offset, loop.symbol) == 1 for offset in offsets)]
    if not moved or sizes.at_most(inner.extent, SHORT, REASON):
        return loops
    short = next((loop for loop in moved if sizes.at_most(loop.extent, SHORT, REASON)), None)
    return loops if short is None else (*(loop for loop in loops if loop is not short), short)


def _loops_of(problem: CpuProblem, most: int, loops: Sequence[Loop]) -> Verdict:
    """Judges whether the inner ones of `loops` are short, with at most `most` iterations together."""
    region, sizes = problem.region, problem.sizes
    if len(loops) < 2 or not _pays(region, loops[-1], sizes):
        return ShortLoopsRefusal.NOT_SHORT()
    outer, short = list(loops), list[Loop]()
    count: Extent = 1
    while outer and (outer[-1].reduced or all(loop.reduced for loop in short)):
        longer = count * outer[-1].extent
        if not (sizes.at_most(outer[-1].extent, SHORT, REASON) and sizes.at_most(longer, most, REASON)):
            break
        count = longer
        short.insert(0, outer.pop())
    if not short:
        return ShortLoopsRefusal.NOT_SHORT()
    if not outer:
        return ShortLoopsRefusal.FEW_ROWS()
    if any(loop.reduced for loop in outer):
        return ShortLoopsRefusal.REDUCED_OUTSIDE()
    code = sizes.hint(count) * len(region.fusion.nodes)
    if code > MOST_CODE:
        return ShortLoopsRefusal.TOO_MUCH_CODE(code=code)
    return yes(_Rows(tuple(outer[:-1]), outer[-1], tuple(short)))


def _pays(region: Region, inner: Loop, sizes: Sizes) -> bool:
    """Whether the loop `inner` is short and there is much work: one guard, so that most sizes share its answer."""
    bound = minimum(SHORT - inner.extent, work(region) - LEAST_WORK)
    return not sizes.at_most(bound, -1, "the innermost loop fills vectors, or there is little work")


def _lower(problem: CpuProblem, loops: _Rows) -> Lowered:
    few_rows = problem.sizes.at_most(loops.rows.extent, SHORT, "few rows")
    constant = (*loops.short, *((loops.rows,) if few_rows else ()))
    known = {s: fix(problem.sizes, s, REASON) for loop in constant for s in symbols(loop.extent)}
    body = new_body(problem.region)
    body.index.known.update(known)
    return problem.finish([_launch(problem, body, loops)])


SHORT_LOOPS = Template("short_loops", _accepts, _lower, writes_in_place=True)
SHORT_ROWS = Template("short_rows", _accepts_rows, _lower)


def _launch(problem: CpuProblem, body: Body, loops: _Rows) -> LaunchSpec:
    """Emits a tile of rows for each iteration of the grid."""
    region, rows, extent = problem.region, loops.rows, substitute(loops.rows.extent, body.index.known)
    kept = [loop for loop in loops.short if not loop.reduced]
    elements = product(loop.extent for loop in (rows, *loops.short))
    with open_tasks(body, problem.sizes, loops.outer, ceildiv(extent, TILE), elements) as (grid, tile):
        first: Extent = 0
        if tile != 0:
            first = symbol("first", extent=extent)
            body.bind(first, body.index.code(tile * TILE))
        bounds = minimum(first + TILE, extent)
        if region.nest.reduced and _fill_vectors(body, region, kept):
            with body.loop(rows.index, bounds, start=first), body.loop(kept[0].index, kept[0].extent, "vector"):
                _row(body, region)
        else:
            kind = "serial" if _packs_rows(body, region, kept) else "vector"
            with body.loop(rows.index, bounds, kind, start=first), _unrolled(body, kept):
                _row(body, region)
    name = f"{problem.name}_short"
    return make_launch(body, name, "cpu", [grid], work=work(region), contract=problem.contract)


def _packs_rows(body: Body, region: Region, kept: Sequence[Loop]) -> bool:
    """Whether the elements of one row fill vectors: those of 4 bytes and more of short rows that are repeated.

    Vectors over rows would be stored with strides of a repeated row, in up to 50 times the time of a copy.
    """
    extents = [substitute(loop.extent, body.index.known) for loop in kept]
    if len(kept) < 2 or extents[-1] == SHORT or not isinstance(product(extents), int):
        return False
    types = [region.fusion.values[output].dtype for output in region.fusion.outputs]
    parts = 2 if all(dtype.is_complex for dtype in types) else 1  # that a kernel stores one by one
    least = min(dtype.itemsize for dtype in types)
    return least >= PACKED_BYTES and is_nonnegative(product(extents) * parts - SHORT)


def _fill_vectors(body: Body, region: Region, kept: Sequence[Loop]) -> bool:
    """Whether the one short loop that is not reduced fills vectors of every result, and results follow it in memory."""
    if len(kept) != 1:
        return False
    extent = substitute(kept[0].extent, body.index.known)
    outputs = region.fusion.outputs
    return isinstance(extent, int) and all(
        extent * region.fusion.values[output].dtype.itemsize % VECTOR_BYTES == 0
        and coefficient(region.output_offset(output), kept[0].symbol) == 1
        for output in outputs
    )


@contextlib.contextmanager
def _unrolled(body: Body, loops: Sequence[Loop]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for loop in loops:
            stack.enter_context(body.loop(loop.index, loop.extent, "unroll"))
        yield


def _row(body: Body, region: Region) -> None:
    """Emits the phases of a row, each a pass over its unrolled reduction loops."""
    for phase in range(len(region.full)):
        states = [declare(body, node) for node in region.in_phase(phase)]
        with _unrolled(body, region.nest.reduced):
            for state in states:
                accumulate(body, region, state)
            store_outputs(body, region, region.full[phase])
        for state in states:
            finish(body, region, state)
    for output in region.parallel_outputs:
        store_output(body, region, output)
