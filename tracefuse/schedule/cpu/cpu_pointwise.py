"""The pointwise template for the CPU: no reduction; the innermost loop is vectorized.

A worker computes tiles of the innermost loop and of the loop around it. Loops are split where the conditions of
concatenations and pads change, so that each part is free of conditions.

Must not know: LLVM.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from segments import Verdict, yes
from tracefuse.ir.extents import (
    Extent,
    Symbol,
    ceildiv,
    divide_exactly,
    is_nonnegative,
    is_positive_divisor,
    maximum,
    minimum,
    symbol,
    symbols,
)
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_frame import (
    CpuProblem,
    new_body,
    open_tasks,
    symbol_extent,
    with_streams,
    work,
)  # fmt: skip
from tracefuse.schedule.cpu.cpu_pointwise_tilings import ALONE, ALONG_PLANES, ALONG_ROWS, offers
from tracefuse.schedule.cpu.cpu_row_blocks import TOGETHER, chunks_of, in_blocks, in_rows
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.reduction_states import store_outputs
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template
from tracefuse.schedule.tilings import Tiled, Tiling

MOST_PARTS = 9
"""The most parts into which the loops are split at the boundaries of concatenations and pads: of both axes of an image,
three by three."""

SHORT_ROW = 64
"""The longest row that is not split where the order of the ends of slices is not proved."""

MOST_OPS_IN_PARTS = 4096
"""The most ops in all parts of a loop: the number of parts times the ops of the region. Each nested pad adds a part."""


def _accepts(problem: CpuProblem) -> Verdict:
    return RegionRefusal.REDUCES() if problem.region.nest.reduced else yes()


def _lower(problem: CpuProblem, tiled: Tiled) -> Lowered:
    region = problem.region
    if tiled.tiling.get("along", ALONE):
        region = in_rows(region, problem.sizes) or region
    loops = region.nest.loops
    cuts = {loop.symbol: cut_points(region, loop, problem.sizes) for loop in loops}
    # The innermost loop restarts at every split point.
    region = with_streams(region, problem.sizes, cuts[loops[-1].symbol][1:-1] if loops else ())
    return problem.finish([_launch(problem, region, cuts, tiled.tiling)])


POINTWISE = Template("pointwise", _accepts, _lower, writes_in_place=True, offers=offers)


_Cuts: TypeAlias = Mapping[Symbol, Sequence[Extent]]
"""The points at which loops are split, with both ends, by the symbols of the loops."""


def _launch(problem: CpuProblem, region: Region, cuts: _Cuts, tiling: Tiling) -> LaunchSpec:
    """Emits tiles of the innermost loop, split where the conditions of concatenations and pads change."""
    return _Tiles(problem, region, cuts, tiling).launch()


class _Tiles:
    """Emits the tiles of the two inner loops into an empty body."""

    def __init__(self, problem: CpuProblem, region: Region, cuts: _Cuts, tiling: Tiling) -> None:
        self._problem, self._region, self._cuts, self._tiling = problem, region, cuts, tiling
        self._body, self._loops = new_body(region), region.nest.loops
        self._outputs = [output for phase in region.full for output in phase]
        self._inner = self._loops[-1] if self._loops else Loop(symbol("k", extent=1), 1, False)
        self._points = cuts.get(self._inner.symbol, (0, self._inner.extent))
        self._bounds: tuple[Extent, Extent] = (0, self._inner.extent)

    def launch(self) -> LaunchSpec:
        problem, region, body, loops = self._problem, self._region, self._body, self._loops
        width, height, along = self._tiling["tile"], self._tiling["rows"], self._tiling.get("along", ALONE)
        across = ceildiv(self._inner.extent, width)
        rows = loops[-2] if len(loops) > 1 else None
        down = 1 if rows is None else ceildiv(rows.extent, height)
        elements = self._inner.extent if rows is None else rows.extent * self._inner.extent
        tasks = loops[:-2] if along != ALONG_PLANES else (*loops[:-3], chunks_of(loops[ALONG_PLANES]))
        elements = elements if along != ALONG_PLANES else TOGETHER * elements
        with contextlib.ExitStack() as stack:
            grid, tile = stack.enter_context(open_tasks(body, problem.sizes, tasks, down * across, elements))
            first = (tile if rows is None else tile % across) * width
            self._bounds = first, minimum(first + width, self._inner.extent)
            if rows is None:
                self._emit_in_parts()
            else:
                start = tile // across * height
                self._emit_rows(rows, start, minimum(start + height, rows.extent), tasks[-1] if tasks else None)
        return make_launch(
            body, f"{problem.name}_pointwise", "cpu", [grid], work=work(region), contract=problem.contract
        )  # fmt: skip

    def _emit_rows(self, rows: Loop, start: Extent, end: Extent, chunks: Loop | None) -> None:
        """Emits the rows of a tile one by one or in blocks. chunks: the loop over blocks of planes."""
        region, body, along = self._region, self._body, self._tiling.get("along", ALONE)
        if along == ALONE:
            with body.loop(rows.index, end, start=start):
                self._emit_in_parts()
            return
        loop = self._loops[along]

        def emit(at: list[Extent]) -> None:
            parts = [region.at_loop(loop.symbol, place) for place in at]
            if along == ALONG_ROWS:
                self._emit_row(parts)
                return
            with body.loop(rows.index, end, start=start):
                self._emit_row(parts)

        if along == ALONG_ROWS:
            in_blocks(body, loop, start, end, self._tiling["rows"], emit)
            return
        assert chunks is not None
        plane = TOGETHER * chunks.index
        in_blocks(body, loop, plane, minimum(plane + TOGETHER, loop.extent), TOGETHER, emit)

    def _emit_in_parts(self) -> None:
        most = MOST_PARTS // (len(self._points) - 1)
        _in_parts(self._body, self._region, self._cuts, self._loops[:-1], most, lambda part: self._emit_row((part,)))

    def _emit_row(self, parts: Sequence[Region]) -> None:
        """Emits the elements of rows at once."""
        body, (first, last) = self._body, self._bounds
        for low, high in itertools.pairwise(self._points):
            index = symbol(f"{self._inner.symbol.name}i", extent=high - low)
            with body.loop(index, minimum(last, high) - low, "vector", start=maximum(first - low, 0)):
                for part in parts:
                    store_outputs(body, part.at_loop(self._inner.symbol, low + index), self._outputs)


def _in_parts(
    body: Body, region: Region, cuts: _Cuts, loops: Sequence[Loop], most: int, emit: Callable[[Region], None]
) -> None:  # fmt: skip
    """Emits the body for each part of the outer loops in which every condition is constant; at most `most` times."""
    if not loops:
        emit(region)
        return
    loop, rest = loops[0], loops[1:]
    points = cuts[loop.symbol]
    count = len(points) - 1
    if count == 1 or count > most:
        _in_parts(body, region, cuts, rest, most, emit)
        return

    def emit_from(place: int) -> None:
        low, high = points[place], points[place + 1]

        def emit_part() -> None:
            index = symbol(f"{loop.symbol.name}i", extent=high - low)
            body.bind(index, body.index.code(loop.index - low))
            _in_parts(body, region.at_loop(loop.symbol, low + index), cuts, rest, most // count, emit)

        if place == count - 1:
            emit_part()
            return
        with body.condition(body.index.compare("lt", loop.index, high)):
            emit_part()
        with body.otherwise():
            emit_from(place + 1)

    emit_from(0)


def cut_points(region: Region, loop: Loop, sizes: Sizes) -> list[Extent]:
    """Returns the points along `loop` where conditions change, in ascending order, with both ends.

    Between two adjacent points, every condition on this loop alone is constant. Returns only the two ends if the parts
    would exceed MOST_OPS_IN_PARTS; then each element evaluates the conditions. The order is proved, or holds for all
    but the least extents, as that of the ends of `y[1:-1]`, and guarded. The latter does not split short rows: their
    vectors take less than the starts of several loops.
    """
    points: list[Extent] = [0, loop.extent]
    is_row = loop is region.nest.loops[-1]

    def precedes(earlier: Extent, later: Extent) -> bool:
        if is_nonnegative(later - earlier):
            return True
        return _is_of_one_size(later - earlier) and not (
            (is_row and sizes.at_most(loop.extent, SHORT_ROW, "short rows are not split"))
            or sizes.at_most(later - earlier, -1, "the ends of a slice are not in order")
        )

    for test in region.probe.tests:
        if coefficient(test.index, loop.symbol) != 1:
            continue
        shift = test.index - loop.index
        for bound in (test.low - shift, test.high - shift):
            if any(s.extent is not None for s in symbols(bound)) or not precedes(bound, loop.extent):
                continue
            place = next((k for k, point in enumerate(points) if precedes(bound, point)), 0)
            if place and points[place] != bound and precedes(points[place - 1], bound):
                points.insert(place, bound)
    return points if (len(points) - 1) * len(region.fusion.nodes) <= MOST_OPS_IN_PARTS else [0, loop.extent]


def _is_of_one_size(rest: Extent) -> bool:
    """Returns whether a difference is one size less a constant, or the elements of so many rows."""
    for size in set(symbols(rest)):
        row = coefficient(rest, size)
        is_row = is_positive_divisor(row) and size not in set(symbols(row))
        if is_row and isinstance(divide_exactly(rest - row * symbol_extent(size), row), int):
            return True
    return False
