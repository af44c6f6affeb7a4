"""The pointwise template for the GPU with transposed inputs: reads them through tiles in shared memory.

A block takes a tile of two spans of loops: the innermost loops, along which the output is contiguous, and the loop
along which the input is contiguous. It loads the input tile with coalesced accesses along the input's memory, stores it
in shared memory, and then computes with adjacent threads along the output's memory. All loads of a thread, those of the
other inputs too, are on their way together. The cost model chooses the sides of the tile: tiles that reach past the end
of a short span leave threads idle.

Must not know: CUDA C++.
"""

from __future__ import annotations

import itertools
import math
from functools import partial

from segments import Verdict
from tracefuse.ir.extents import Expression, Extent, Symbol, ceildiv, product, substitute, symbol, symbol_of, symbols
from tracefuse.kernel.kernel_ir import Barrier
from tracefuse.schedule.body import Body
from tracefuse.schedule.cost import Work
from tracefuse.schedule.gpu.gpu_frame import Setting, bind_loops, bind_position, new_body, open_block, open_threads
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_tile_walk import THREADS, TileSide, TileSpan, TileWalk
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.memory_orders import LEAST_EXTENT
from tracefuse.schedule.reduction_states import store_outputs
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.region_work import bytes_of_iteration
from tracefuse.schedule.scopes import Key
from tracefuse.schedule.template import Template
from tracefuse.schedule.tilings import Offer, Point, SizeClasses, Tiled, Tiling
from tracefuse.schedule.transposed import Far, Transposed, is_known, judge_tiles

SIDES = (64, 48, 40, 32)
"""The sides of a tile in elements."""

USUAL, USUAL_OF_LANES = (64, 32), (64, 64)
"""The usual tile: elements along the output and along the inputs, for single elements and for lanes. (H200)"""

THIN = (16, 128), (24, 128), (16, 256), (24, 256), (128, 16), (256, 16)
"""Tiles of lanes over a short span: those of SIDES would reach past its end. (H200)"""

FAR = Far(run_bytes=4, bytes=1 << 24, inner=1024)
"""Threads without tiles access runs of up to 4 bytes about as fast; in the L2 cache, they are up to 1.7 times as fast.
(H200)"""

SHORT = (2, 3, 4, 6, 8, 12, LEAST_EXTENT)
"""The sides of tiles over such a loop."""

LONG = (256, 512)
"""The other sides of these tiles."""

MOST_BYTES = 32 * 1024
"""The most shared memory of the tiles of a block, but for the usual ones."""

PREFETCHED_BYTES = 128
"""The most registers of a thread, in bytes, for inputs that are loaded while the tiles are on their way."""

JOINED = 256
"""Loops of the output are joined up to this extent, so that few tiles reach past the end of one; if both sides have
lanes, only up to LINE_BYTES."""

LINE_BYTES = 128
"""Shorter runs of the output are parts of lines of memory that other blocks read and write much later."""

EXTENT_EDGES = (*SHORT[:-1], LEAST_EXTENT - 1, LEAST_EXTENT, 24, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256)
"""The classes of the extents of both spans."""

PRICED_BYTES = 4e8
"""Tilings are priced for this many bytes: their order does not depend on the number of tiles."""

SLOT_INSTRUCTIONS, TILE_INSTRUCTIONS = 36, 140
"""About the instructions of a thread for an element that passes through a tile, and for a tile. (H200)"""

LANES_FACTOR = 1.3
"""A group of lanes takes so many times the instructions of an element. (H200)"""

DIVISION_INSTRUCTIONS = 16
"""More for a group if the groups along a side do not divide the threads. (H200)"""

FACTORED_LOOPS = 3
"""Offsets over more loops take many instructions in each step unless what is fixed is added before; over fewer, memory
bounds the kernel, and threads that take fewer instructions are up to 5 % slower. (H200)"""

SECTOR_BYTES = 32


def lanes_along(transposed: Transposed, lanes: int) -> int:
    """Returns the lanes along the inputs: the most that divide the extent of their loop."""
    extent = transposed.loop.extent
    terms = extent.terms if isinstance(extent, Expression) else (((), extent),)
    while any(factor % lanes for _, factor in terms):
        lanes //= 2
    return lanes


def _accepts(problem: GpuProblem) -> Verdict:
    region, sizes, lanes = problem.region, problem.rewritten_sizes, problem.setting.lanes
    line = LINE_BYTES // min((region.fusion.values[n].dtype.itemsize for n in region.full[0]), default=1)
    verdict = judge_tiles(region, sizes, joined=JOINED if lanes == 1 else max(LEAST_EXTENT, line), far=FAR)
    if lanes == 1 or not isinstance(verdict.facts, Transposed) or lanes_along(verdict.facts, lanes) > 1:
        return verdict
    if verdict.facts.is_short:
        return verdict
    return judge_tiles(region, sizes, joined=JOINED)


def _offers(problem: GpuProblem, transposed: Transposed) -> Offer:
    """Offers tiles of several sides."""
    region, across = problem.region, problem.setting.lanes
    along = lanes_along(transposed, across)
    element = sum(region.fusion.values[number].dtype.compute.itemsize for number, _ in transposed.reads)
    usual, sides = USUAL if across == 1 else USUAL_OF_LANES, itertools.product(SIDES, SIDES)
    if transposed.is_short:
        usual, sides = (LONG[0], SHORT[-1]), itertools.product(LONG, SHORT)
    alternatives = (
        (a, b) for a, b in (*sides, *(THIN if along > 1 and not transposed.is_short else ()))
        if a * b * element <= MOST_BYTES and b % along == 0
        and (THREADS % (a // across) == 0 or THREADS % (b // along) == 0)
    )  # fmt: skip
    shapes = dict.fromkeys([usual, *alternatives])
    classes = tuple(
        SizeClasses(extent, EXTENT_EDGES, "tiles cover the loops")
        for extent in (product(loop.extent for loop in transposed.inner), transposed.loop.extent)
    )
    tilings = tuple(Tiling.of(across=across, down=down) for across, down in shapes)
    return Offer(tilings, classes, partial(_work, region, _itemsize(region, transposed), (across, along)))


def _itemsize(region: Region, transposed: Transposed) -> int:
    """Returns the least itemsize of the inputs that pass through tiles."""
    return min(region.fusion.values[number].dtype.itemsize for number, _ in transposed.reads)


def _work(region: Region, itemsize: int, lanes: tuple[int, int], tiling: Tiling, point: Point) -> Work:
    """Returns what tiles do: those that reach past the end of a span, and sectors of memory that two tiles share."""
    covered = _covered(point[0], tiling["across"]) * _covered(point[1], tiling["down"])
    elements = covered * PRICED_BYTES / bytes_of_iteration(region)
    instructions = 0.0
    for side, width in zip((tiling["across"], tiling["down"]), lanes, strict=True):
        steps = math.ceil(tiling["across"] * tiling["down"] / width / THREADS)
        divided = DIVISION_INSTRUCTIONS * (THREADS % (side // width) != 0)
        each = (SLOT_INSTRUCTIONS + TILE_INSTRUCTIONS / steps) / 2 + divided
        instructions += elements / width * each * (1 if width == 1 else LANES_FACTOR)
    # A tile over all of a span shares no sector with a tile beside it.
    ends = sum(1 / side for side, extent in ((tiling["across"], point[0]), (tiling["down"], point[1])) if side < extent)
    shared = 1 + 0.25 * SECTOR_BYTES / itemsize * ends
    return Work(
        PRICED_BYTES * shared, PRICED_BYTES, operations={"plain": instructions},
        tasks=PRICED_BYTES,
    )  # fmt: skip


def _covered(extent: float, side: int) -> float:
    """Returns the positions of the tiles of an extent over the extent; for long extents, an average."""
    return (math.ceil(extent / side) if extent <= EXTENT_EDGES[-1] else extent / side + 0.5) * side / extent


def _lower(problem: GpuProblem, tiled: Tiled) -> Lowered:
    launch, derived = _launch(problem.region, problem.setting, tiled.decision, tiled.tiling)
    return problem.finish([launch], (), derived)


TRANSPOSE = Template("transpose", _accepts, _lower, offers=_offers)


def _prefetched(body: Body, region: Region, walk: TileWalk, transposed: Transposed) -> list[Key]:
    """Returns the elements of inputs outside the tiles that all positions read, as far as registers hold them."""
    inner = walk.inner.span
    values, moving = inner.values(body), {loop.symbol for loop in (*inner.loops, transposed.loop)}
    free, keys = PREFETCHED_BYTES, []
    for number, coordinates in region.probe.reads:
        key = (number, coordinates)
        if key in transposed.reads or key not in region.probe.unconditional or not is_known(region, coordinates):
            continue
        if moving.isdisjoint(s for c in coordinates for s in symbols(c)):
            continue
        placed = (number, tuple(substitute(c, values) for c in coordinates))
        size = walk.steps(walk.inner) * walk.lanes_of(placed, walk.inner) * body.fusion.values[number].dtype.itemsize
        if size <= free:
            free -= size
            keys.append(placed)
    return keys


def _launch(
    region: Region, setting: Setting, transposed: Transposed, tiling: Tiling
) -> tuple[LaunchSpec, dict[Symbol, Extent]]:  # fmt: skip
    """Returns the launch, and the definitions of its integer parameters."""
    lanes = lanes_along(transposed, setting.lanes)
    body = new_body(region, setting)
    body.hoists_offsets = lanes == 1 and len(region.nest.loops) > FACTORED_LOOPS
    other, inner = TileSpan((transposed.loop,), lanes), TileSpan(transposed.inner, setting.lanes)
    if lanes != setting.lanes:  # buffers are declared with the alignment of the widest access
        for number in (*(number for number, _ in region.probe.reads), *region.full[0]):
            body.buffer_of(number, written=number in region.full[0])
    inside = {loop.symbol for loop in (*other.loops, *inner.loops)}
    outside = [loop for loop in region.nest.loops if loop.symbol not in inside]
    tiles, wide, blocks = symbol("tiles", minimum=1), symbol("tiles_across", minimum=1), symbol("blocks")
    counts = ceildiv(other.extent, tiling["down"]), ceildiv(inner.extent, tiling["across"])
    derived = {
        symbol_of(wide): counts[1],
        symbol_of(tiles): counts[0],
        symbol_of(blocks): product(k.extent for k in outside) * counts[0] * counts[1],
    }
    block = open_block(body, blocks)
    thread, variable = open_threads(body, THREADS)
    column = bind_position(body, "tile_column", block % wide, wide)
    rest = bind_position(body, "tiles_before", block // wide, blocks)
    row = bind_position(body, "tile_row", rest % tiles, tiles)
    bind_loops(body, outside, bind_position(body, "place", rest // tiles, product(k.extent for k in outside)))
    across = TileSide(inner, tiling["across"], column * tiling["across"])
    walk = TileWalk(body, across, TileSide(other, tiling["down"], row * tiling["down"]), thread)
    tile_buffers = [(key, walk.shared(key[0])) for key in transposed.reads]
    values = other.values(body)
    tiled = [(number, tuple(substitute(c, values) for c in at)) for number, at in transposed.reads]
    walk.prefetch(tiled, walk.other, walk.inner)
    walk.prefetch(_prefetched(body, region, walk, transposed), walk.inner, walk.other)
    walk.fill(tile_buffers)
    body.append(Barrier())
    part = region.placed(inner.values(body))
    walk.store(tile_buffers, lambda: store_outputs(body, part, part.full[0]))
    launch = make_launch(
        body, f"{setting.name}_transpose", "cuda", [(block, blocks)], contract=setting.contract, threads=THREADS,
        thread=variable,
    )  # fmt: skip
    return launch, derived
