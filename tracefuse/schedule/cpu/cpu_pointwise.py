"""The pointwise template for the CPU: no reduction; the innermost loop is vectorized.

A worker computes tiles of the innermost loop and of the loop around it. Loops are split where the conditions of
concatenations and pads change, so that each part is free of conditions.

Must not know: LLVM.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
from tracefuse.schedule.cost import Work
from tracefuse.schedule.cpu.cpu_frame import (
    BYTE_EDGES,
    CpuProblem,
    is_small,
    new_body,
    open_tasks,
    symbol_extent,
    work,
)  # fmt: skip
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.reduction_states import store_outputs
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.region_work import byte_classes, bytes_of_iteration, operations
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template
from tracefuse.schedule.tilings import Offer, Point, SizeClasses, Tiled, Tiling
from tracefuse.schedule.transposed import read_offsets

TILE = 4096
"""Elements of the innermost loop per tile: 16 KiB of float32 per array, half an L1 cache."""

ROWS = 32
"""Iterations of the next outer loop per tile: short rows share the index arithmetic of a tile."""

WIDE_TILES, FEW_ROWS = (4 * TILE, 16 * TILE), 2
"""The tiles of wide rows that the cost model may choose in place: as many elements, in fewer runs of memory."""

MOST_PARTS = 9
"""The most parts into which the loops are split at the boundaries of concatenations and pads: of both axes of an image,
three by three."""

SHORT_ROW = 64
"""The longest row that is not split where the order of the ends of slices is not proved."""

MOST_OPS_IN_PARTS = 4096
"""The most ops in all parts of a loop: the number of parts times the ops of the region. Each nested pad adds a part."""


def _accepts(problem: CpuProblem) -> Verdict:
    return RegionRefusal.REDUCES() if problem.region.nest.reduced else yes()


def _offers(problem: CpuProblem, decision: None) -> Offer:
    region, loops = problem.region, problem.region.nest.loops
    usual = Tiling.of(tile=TILE, rows=ROWS)
    if len(loops) < 2 or problem.sizes.at_most(loops[-1].extent, TILE, "a tile holds a row") or is_small(problem):
        return Offer((usual,))
    wide = (Tiling.of(tile=tile, rows=FEW_ROWS) for tile in WIDE_TILES)
    classes = (
        SizeClasses(loops[-1].extent, (2 * TILE, *WIDE_TILES), "the tile of a row"),
        byte_classes(region, BYTE_EDGES),
    )
    repeated = sum(
        region.fusion.values[number].dtype.itemsize
        for number, offset in read_offsets(region)
        if coefficient(offset, loops[-2].symbol) == 0
    )
    return Offer((usual, *wide), classes, partial(_work, region, repeated))


def _work(region: Region, repeated: int, tiling: Tiling, point: Point) -> Work:
    """Returns what tiles do: each row of a tile is a run of each array.

    repeated: the bytes of an element of the inputs that every row reads again, which a tile keeps near.
    """
    columns, moved = point
    elements = moved / bytes_of_iteration(region)
    tile, down = min(tiling["tile"], columns), min(tiling["rows"], max(elements / columns, 1.0))
    arrays = len({*region.fusion.tensor_inputs, *region.fusion.outputs})
    runs = elements / columns * math.ceil(columns / tile)
    return Work(
        moved, moved, repeated * elements, repeated * tile, jumps=arrays * runs,
        operations=operations(region, elements), tasks=runs / down,
    )  # fmt: skip


def _lower(problem: CpuProblem, tiled: Tiled) -> Lowered:
    region, loops = problem.region, problem.region.nest.loops
    cuts = {loop.symbol: cut_points(region, loop, problem.sizes) for loop in loops}
    # The innermost loop restarts at every split point.
    region = problem.streaming(cuts[loops[-1].symbol][1:-1] if loops else ())
    return problem.finish([_launch(problem, region, cuts, tiled.tiling)])


POINTWISE = Template("pointwise", _accepts, _lower, writes_in_place=True, offers=_offers)


_Cuts: TypeAlias = Mapping[Symbol, Sequence[Extent]]
"""The points at which loops are split, with both ends, by the symbols of the loops."""


def _launch(problem: CpuProblem, region: Region, cuts: _Cuts, tiling: Tiling) -> LaunchSpec:
    """Emits tiles of the innermost loop, split where the conditions of concatenations and pads change."""
    width, height = tiling["tile"], tiling["rows"]
    body, nest = new_body(region), region.nest
    outputs = [output for phase in region.full for output in phase]
    inner = nest.loops[-1] if nest.loops else Loop(symbol("k", extent=1), 1, False)
    across = ceildiv(inner.extent, width)
    rows = nest.loops[-2] if len(nest.loops) > 1 else None
    down = 1 if rows is None else ceildiv(rows.extent, height)
    points = cuts.get(inner.symbol, (0, inner.extent))
    elements = inner.extent if rows is None else rows.extent * inner.extent

    def emit(part: Region) -> None:
        for low, high in itertools.pairwise(points):
            index = symbol(f"{inner.symbol.name}i", extent=high - low)
            tile_part = part.at_loop(inner.symbol, low + index)
            with body.loop(index, minimum(last, high) - low, "vector", start=maximum(first - low, 0)):
                store_outputs(body, tile_part, outputs)

    with contextlib.ExitStack() as stack:
        grid, tile = stack.enter_context(
            open_tasks(body, problem.sizes, nest.loops[:-2], down * across, elements)
        )  # fmt: skip
        first = (tile if rows is None else tile % across) * width
        last = minimum(first + width, inner.extent)
        if rows is not None:
            start = tile // across * height
            stack.enter_context(body.loop(rows.index, minimum(start + height, rows.extent), start=start))
        _in_parts(body, region, cuts, nest.loops[:-1], MOST_PARTS // (len(points) - 1), emit)
    name = f"{problem.name}_pointwise"
    return make_launch(body, name, "cpu", [grid], work=work(region), contract=problem.contract)


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
