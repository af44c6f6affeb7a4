"""The tilings of the pointwise template for the CPU, and what each does, for the cost model.

Must not know: LLVM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from segments.lazy_dataclasses import replace
from tracefuse.schedule.cost import Work
from tracefuse.schedule.cpu.cpu_frame import BYTE_EDGES, CpuProblem, is_small
from tracefuse.schedule.cpu.cpu_row_blocks import (
    LINE_BYTES,
    PAGE,
    TOGETHER,
    RowWork,
    in_rows,
    shares_rows,
    work_of_rows,
)
from tracefuse.schedule.nest import coefficient
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.region_work import byte_classes, bytes_of_iteration, operations
from tracefuse.schedule.tilings import Offer, Point, SizeClasses, Tiling
from tracefuse.schedule.transposed import read_offsets

TILE = 4096
"""Elements of the innermost loop per tile: 16 KiB of float32 per array, half an L1 cache."""

ROWS = 32
"""Iterations of the next outer loop per tile: short rows share the index arithmetic of a tile."""

WIDE_TILES, FEW_ROWS = (4 * TILE, 16 * TILE), 2
"""The tiles of wide rows that the cost model may choose in place: as many elements, in fewer runs of memory."""

ALONG_ROWS, ALONG_PLANES, ALONE = -2, -3, 0
"""The loops along which rows are computed in blocks, by their places in the nest, and 0 for rows one by one."""


BLOCK_EDGES = (8 << 20, 16 << 20)
"""The classes of the bytes of a region in blocks: few enough that its lines are near in time, in the last cache, in
memory."""


def offers(problem: CpuProblem, decision: None) -> Offer:
    """Returns the tilings for a region: wide tiles of wide rows, and blocks of rows that read the same elements."""
    usual, in_one_loop = Tiling.of(tile=TILE, rows=ROWS), len(problem.region.nest.loops) < 2
    region = in_rows(problem.region, problem.sizes) or problem.region
    shared, loops = [place for place in (ALONG_ROWS, ALONG_PLANES) if shares_rows(region, place)], region.nest.loops
    if len(loops) < 2 or (in_one_loop and not shared):
        return Offer((usual,))
    is_narrow = problem.sizes.at_most(loops[-1].extent, TILE, "a tile holds a row")
    if (is_narrow and not shared) or is_small(problem):
        return Offer((usual,))
    wide = () if is_narrow or in_one_loop else [Tiling.of(tile=tile, rows=FEW_ROWS) for tile in WIDE_TILES]
    edges = (PAGE // _widest(region),) if is_narrow else (2 * TILE, *WIDE_TILES)
    blocks = [Tiling.of(tile=TILE, rows=ROWS, along=place, together=TOGETHER) for place in shared]
    repeated = _repeated(region)
    done = {ALONE: RowWork(repeated, repeated, tuple(operations(region, 1.0).items()))}
    if shared:
        done = {place: work_of_rows(region, place, TOGETHER) for place in shared}
        alone = work_of_rows(region, ALONG_ROWS, 1)
        # One loop over all rows is one stream of each array, which the prefetcher follows.
        done[ALONE] = replace(alone, kept=0.0) if in_one_loop else alone
    classes = (
        SizeClasses(loops[-1].extent, edges, "the tile of a row"),
        byte_classes(region, BLOCK_EDGES if shared else BYTE_EDGES),
    )
    return Offer((usual, *wide, *blocks), classes, partial(_work, region, done))


def _repeated(region: Region) -> int:
    """Returns the bytes of an element of the inputs that every row reads again, which a tile keeps near."""
    rows = region.nest.loops[-2].symbol
    return sum(
        region.fusion.values[number].dtype.itemsize
        for number, offset in read_offsets(region)
        if coefficient(offset, rows) == 0
    )


def _widest(region: Region) -> int:
    values = region.fusion.values
    return max(values[number].dtype.itemsize for number in (*region.fusion.tensor_inputs, *region.fusion.outputs))


def _work(region: Region, done: Mapping[int, RowWork], tiling: Tiling, point: Point) -> Work:
    """Returns what tiles do: each row of a tile is a run of each array.

    done: what rows do alone, and in blocks along a loop.
    """
    columns, moved = point
    elements = moved / bytes_of_iteration(region)
    tile, down = min(tiling["tile"], columns), min(tiling["rows"], max(elements / columns, 1.0))
    arrays = len({*region.fusion.tensor_inputs, *region.fusion.outputs})
    runs = elements / columns * math.ceil(columns / tile)
    along = tiling.get("along", ALONE)
    row, lines = done[along], moved / LINE_BYTES
    share_pages = along == ALONG_ROWS and columns * _widest(region) <= PAGE and moved > BLOCK_EDGES[0]
    return Work(
        moved, moved, row.loaded * elements, row.kept * tile,
        runs=lines if share_pages else 0.0, jumps=arrays * runs * (columns > tile),
        operations={kind: count * elements for kind, count in row.operations}, tasks=runs / down,
    )  # fmt: skip
