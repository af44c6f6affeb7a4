"""Shared by the CPU templates: the problem, an empty body, and the grid.

The grid is one parallel axis, whose iterations the workers divide among themselves.

Must not know: LLVM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import int64
from tracefuse.ir.extents import (
    Expression,
    Extent,
    Symbol,
    ceildiv,
    floordiv,
    maximum,
    minimum,
    product,
    substitute,
    symbol,
    symbol_of,
    symbols,
)  # fmt: skip
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.row_major import delinearize
from tracefuse.kernel import kernel_ir as ir
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_streaming import streamed_outputs
from tracefuse.schedule.loop_facts import Facts, with_factors
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.probe import weights
from tracefuse.schedule.region_phases import Region, build_region
from tracefuse.schedule.region_work import moved_bytes
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Problem
from tracefuse.schedule.transposed import read_offsets

SMALL_BYTES = 1 << 18
"""Kernels that move fewer bytes have the usual tiling: starting them takes most of their time."""

BYTE_EDGES = (1 << 21, 16 << 20)
"""The classes of a larger region's bytes: in the caches of the cores, in the last cache, in memory."""


FIXED, FIXED_TERMS, LEAST_FIXED = 64, 32, 1 << 15
"""The longest innermost loop, the most terms of results beside one another, and the fewest elements, for which a kernel
for one length pays."""

SHORT_STRIDES, LEAST_STRIDED = (-1, 2, 3, 4), 1 << 13
"""The strides of inputs, in elements, for which kernels are compiled, and the most elements for which they are not."""


@dataclass(frozen=True)
class CpuProblem(Problem):
    """A segment as the CPU templates see it."""

    @cached_property
    def region(self) -> Region:
        """The region; a row caches expensive values between phases."""
        assert isinstance(self.facts, Facts)
        facts = with_factors(self.facts)
        is_expensive = _is_expensive(self.fusion)
        region = build_region(self.fusion, facts, self.memory, self.sizes, is_expensive, joins_tested=True)
        region = replace(region, masks=self.tilings.rates.masks)
        region = _with_short_rows(region, self.sizes, self.tilings.generic)
        return _with_short_strides(region, self.sizes)

    def streaming(self, starts: Sequence[Extent] = ()) -> Region:
        """Returns the region with its streamed outputs. starts: further start indices of its innermost loop."""
        return with_streams(self.region, self.sizes, starts)


def with_streams(region: Region, sizes: Sizes, starts: Sequence[Extent] = ()) -> Region:
    """Returns a region with its streamed outputs. starts: further start indices of its innermost loop."""
    if not region.nest.loops:
        return region
    return replace(region, streamed=streamed_outputs(region, region.nest.loops[-1], sizes, starts))


def _is_expensive(fusion: Fusion) -> Callable[[int], bool]:
    weight = weights(fusion)
    return lambda number: weight[number] > 0


def new_body(region: Region) -> Body:
    """Makes an empty body with one lane, since LLVM's loop vectorizer widens loops, and 64-bit indices."""
    memory = region.memory
    body = Body(
        region.fusion, memory.strides, int64, misaligned=memory.misaligned, shared=memory.shared, checks_positions=True
    )
    body.streamed = region.streamed
    body.index.known.update(region.fixed)
    return body


def _with_short_rows(region: Region, sizes: Sizes, generic: bool) -> Region:
    """Returns the region with the sizes of its innermost loop fixed if it is short and there is much work.

    So are those of reduced loops outside of it, if they have few iterations. generic: only of reduced loops, so that
    the order of a sum does not depend on earlier calls.
    """
    loops, fixed = region.nest.loops, dict[Symbol, int]()
    if loops and (loops[-1].reduced or not generic):
        fixed.update(fixed_extents(sizes, loops[-1].extent, work(region)))
    if region.nest.reduced and not loops[-1].reduced:
        terms = product(loop.extent for loop in region.nest.reduced)
        unless = "a result has many terms, or there is little work"
        fixed.update(fixed_extents(sizes, terms, work(region), unless, FIXED_TERMS))
    return replace(region, fixed=tuple(fixed.items()))


def _with_short_strides(region: Region, sizes: Sizes) -> Region:
    """Returns the region with the short strides fixed with which the innermost loop reads inputs, as of `x[::2]`.

    LLVM loads whole vectors and picks every second to fourth element; elements of any stride are loaded one by one.
    """
    if not region.nest.loops:
        return region
    steps = [coefficient(offset, region.nest.loops[-1].symbol) for _, offset in read_offsets(region)]
    strides = [s for step in steps for s in symbols(step) if s.id is None and step == symbol_extent(s)]
    if not strides or sizes.at_most(work(region), LEAST_STRIDED, "strides of little work are not known"):
        return region
    reason = "short strides are constant"
    long = [s for s in strides if not sizes.at_most(symbol_extent(s), max(SHORT_STRIDES), reason)]
    short = [s for s in strides if s not in long and sizes.hint(symbol_extent(s)) in SHORT_STRIDES]
    return replace(region, fixed=(*region.fixed, *((s, fix(sizes, s, reason)) for s in dict.fromkeys(short))))


def fixed_extents(
    sizes: Sizes, inner: Extent, elements: Extent,
    unless: str = "the innermost loop is long, or there is little work", most: int = FIXED,
) -> dict[Symbol, int]:  # fmt: skip
    """Returns the sizes that the extent of a short innermost loop of much work consists of.

    Guards them, or that there is no such loop. With constant bounds LLVM vectorizes such a loop in vectors of its
    length, as for static sizes; of a loop of any length, only the remainder would run.
    """
    if isinstance(inner, int):
        return {}
    bound = minimum(most - inner, elements - LEAST_FIXED)
    if sizes.at_most(bound, -1, unless):
        return {}
    return {s: fix(sizes, s, "short inner loops have constant bounds") for s in symbols(inner)}


def fix(sizes: Sizes, size: Symbol, reason: str) -> int:
    """Returns the value of a size, which it guards."""
    extent = symbol_extent(size)
    value = sizes.hint(extent)
    sizes.require(extent, "==", value, reason)
    return value


def symbol_extent(size: Symbol) -> Expression:
    """Returns a size as an extent."""
    return Expression((((size,), 1),))


def is_small(problem: CpuProblem) -> bool:
    """Whether starting a kernel takes most of its time; guards its bytes."""
    return problem.sizes.at_most(moved_bytes(problem.region), SMALL_BYTES, "a small kernel has the usual tiling")


def work(region: Region) -> Extent:
    """Returns the number of iterations of the region's loops."""
    return product(loop.extent for loop in region.nest.loops)


def store_at(problem: CpuProblem, body: Body, number: int, coordinates: Sequence[Extent], value: ir.Expression) -> None:
    """Emits the store of one element of an output, at its coordinates."""
    offset = problem.memory.starts.get(number, 0)
    for coordinate, stride in zip(coordinates, problem.memory.output_strides(problem.fusion, number), strict=True):
        offset = offset + coordinate * stride
    body.store(body.buffer_of(number, written=True), offset, (value,))


def open_grid(body: Body, loops: Sequence[Loop], extra: Extent = 1) -> tuple[tuple[Extent, Extent], Extent]:
    """Opens one parallel axis over `loops` and `extra` further iterations; binds the loops' indices.

    Returns (index, extent) of the axis, and the index among the further iterations.
    """
    extra = substitute(extra, body.index.known)  # of one iteration there is no index, so what depends on it is constant
    total = product(loop.extent for loop in loops) * extra
    index = symbol("task", extent=total)
    task = symbol_of(index)
    body.levels[0].introduces.add(task)
    body.index.bind(task, "task")
    coordinates = delinearize(index, [*(loop.extent for loop in loops), extra])
    for loop, coordinate in zip(loops, coordinates, strict=False):
        body.bind(loop.index, body.index.code(coordinate))
    further = symbol("part", extent=extra)
    if extra == 1:
        return (index, total), 0
    body.bind(further, body.index.code(coordinates[-1]))
    return (index, total), further


LEAST_TASK = 1 << 10
"""The fewest elements of a task. Fewer take less time than the divisions that turn its number into indices."""


@contextlib.contextmanager
def open_tasks(
    body: Body, sizes: Sizes, loops: Sequence[Loop], extra: Extent, elements: Extent
) -> Iterator[tuple[tuple[Extent, Extent], Extent]]:
    """Opens a grid as `open_grid` does, whose tasks loop over inner ones of `loops` if there are few elements inside.

    elements: those of all further iterations together. Yields (index, extent) of the axis, and the index among the
    further iterations.
    """
    outer, inside, most = list(loops), list[Loop](), LEAST_TASK - 1
    while outer and sizes.at_most(elements, most, "a task has several rows"):
        inside.insert(0, outer.pop())
        if not outer or not sizes.at_most(elements * inside[0].extent, most, "a task has several rows"):
            break
        elements = elements * inside[0].extent
    if not inside:
        yield open_grid(body, loops, extra)
        return
    step = floordiv(most, maximum(elements, 1)) + 1
    grid, tile = open_grid(body, outer, ceildiv(inside[0].extent, step))
    further: Extent = symbol("inner_part", extent=extra)
    with contextlib.ExitStack() as stack:
        bounds = minimum(tile * step + step, inside[0].extent)
        stack.enter_context(body.loop(inside[0].index, bounds, start=tile * step))
        for loop in inside[1:]:
            stack.enter_context(body.loop(loop.index, loop.extent))
        if substitute(extra, body.index.known) == 1:
            further = 0
        else:
            stack.enter_context(body.loop(further, extra))
        yield grid, further
