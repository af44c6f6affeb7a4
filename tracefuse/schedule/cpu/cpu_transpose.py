"""The pointwise template for the CPU with transposed inputs: reads them through tiles in local memory.

A worker takes tiles of two loops: the innermost loop, along which the output is contiguous, and the loop along which
the input is contiguous. It transposes the input tile, several cache lines per row, to a local buffer, and then
computes along the output's memory. Rows of a matrix are often a power of two apart, so few of them fit in a
set-associative cache at a time. With tiles, each line is read once, whole. Tiles are square, or longer along the
input's memory if the innermost loop is short. If it is too short for a tile, it is joined with those around it, and
rows of a tile, which then are not equally far apart, are copied to another local buffer first. If several inputs and no
other lie across, the worker computes along the inputs' memory instead, and transposes tiles of the fewer outputs.

Must not know: LLVM.
"""

from __future__ import annotations

from functools import partial

from segments import Verdict
from segments.lazy_dataclasses import replace
from tracefuse.ir.extents import Extent, ceildiv, minimum, product, substitute, symbol
from tracefuse.ir.row_major import delinearize
from tracefuse.kernel.kernel_ir import Allocate, Buffer, Load, Store, Transpose
from tracefuse.schedule.body import Body
from tracefuse.schedule.cost import Work
from tracefuse.schedule.cpu.cpu_frame import BYTE_EDGES, CpuProblem, is_small, new_body, open_grid, work
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.memory_orders import LEAST_EXTENT
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.reduction_states import store_output
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.region_work import byte_classes, bytes_of_iteration, operations
from tracefuse.schedule.scopes import Key
from tracefuse.schedule.template import Template
from tracefuse.schedule.tilings import Offer, Point, SizeClasses, Tiled, Tiling
from tracefuse.schedule.transposed import Transposed, is_known, is_linear, judge_tiles, read_offsets

ROW_BYTES = 256
"""Bytes per tile row, usually: four cache lines, the last of which may be shared with the next tile."""

SIDES = (16, 128)
"""The least and the largest side of a tile of such rows, in elements."""

OFFERED = (32, 64, 128, 256)
LEAST_ROW = 128
MOST_TILE = 1 << 16
"""Sides that the cost model may choose in place, of rows of LEAST_ROW bytes and tiles of MOST_TILE bytes."""

NARROW, LONG = (32, 64), 4
"""Tiles that it may choose for short innermost loops: so many rows of the input, each LONG times as long."""

TURNED_SIDE, TURNED_BYTES, MOST_TURNED = 32, 512, 256
"""Tiles of outputs that are transposed: so many rows of the inputs, the bytes of a row and the most elements."""

SIDE_EDGES = (31, 63, 127, 255)
REASON = "the side of a tile"
"""The classes of the two loops."""


def _accepts(problem: CpuProblem) -> Verdict:
    return judge_tiles(problem.region, problem.sizes, joined=LEAST_EXTENT)


def _offers(problem: CpuProblem, transposed: Transposed) -> Offer:
    """Offers tiles of several sides: longer rows of memory against tiles that leave the first cache."""
    region, transposed = _joined(problem.region, transposed)
    width = _widest(region, transposed)
    usual = min(max(ROW_BYTES // width, SIDES[0]), SIDES[1])
    if _turns_outputs(region, transposed):
        return Offer((Tiling.of(side=TURNED_SIDE, along=min(TURNED_BYTES // width, MOST_TURNED)),))
    if is_small(problem):
        return Offer((Tiling.of(side=usual, along=usual),))
    squares = [(side, side) for side in OFFERED if side != usual and side * width >= LEAST_ROW]
    narrow = [(side, side * LONG) for side in NARROW]
    sides = [(usual, usual), *(s for s in (*squares, *narrow) if s[0] * s[1] * width <= MOST_TILE)]
    classes = (
        SizeClasses(region.nest.loops[-1].extent, SIDE_EDGES, REASON),
        SizeClasses(transposed.loop.extent, SIDE_EDGES, REASON),
        byte_classes(region, BYTE_EDGES),
    )
    return Offer(
        tuple(Tiling.of(side=side, along=along) for side, along in sides), classes, partial(_work, region, transposed)
    )


def _work(region: Region, transposed: Transposed, tiling: Tiling, point: Point) -> Work:
    """Returns what tiles of some sides do: each row of a tile is a run of memory, in the tensors of either order."""
    columns, rows, moved = point
    elements, width = moved / bytes_of_iteration(region), _widest(region, transposed)
    side, along = min(tiling["side"], columns), min(tiling["along"], rows)
    reads = len(transposed.reads)
    contiguous = len({*region.fusion.tensor_inputs, *region.fusion.outputs}) - len({n for n, _ in transposed.reads})
    runs = elements * (reads / along + contiguous / side)
    tile_bytes = reads * along * side * width
    return Work(
        moved, moved, 2 * reads * width * elements, tile_bytes, runs, operations=operations(region, elements),
        tasks=elements / (along * side),
    )  # fmt: skip


def _lower(problem: CpuProblem, tiled: Tiled) -> Lowered:
    region, transposed = _joined(problem.streaming(), tiled.decision)
    name = f"{problem.name}_transpose"
    return problem.finish([_launch(region, transposed, tiled.tiling, name, problem.contract)])


def _joined(region: Region, transposed: Transposed) -> tuple[Region, Transposed]:
    """Returns both with one innermost loop in place of several along which a tile follows the output."""
    if len(transposed.inner) < 2:
        return region, transposed
    extents = [loop.extent for loop in transposed.inner]
    inner = Loop(symbol("joined", extent=product(extents)), product(extents), False)
    places = zip(transposed.inner, delinearize(inner.index, extents), strict=True)
    values = {loop.symbol: place for loop, place in places}
    loops = (*(loop for loop in region.nest.loops if loop not in transposed.inner), inner)
    region = region.placed(values)
    reads = tuple((number, tuple(substitute(c, values) for c in at)) for number, at in transposed.reads)
    return replace(region, nest=replace(region.nest, loops=loops)), replace(transposed, reads=reads, inner=(inner,))


TRANSPOSE = Template("transpose", _accepts, _lower, offers=_offers)


def _launch(region: Region, transposed: Transposed, tiling: Tiling, name: str, contract: bool) -> LaunchSpec:
    """Emits tiles of the two loops, for each iteration of the other loops."""
    body, inner, other = new_body(region), region.nest.loops[-1], transposed.loop
    side, along = tiling["side"], tiling["along"]
    rest = [loop for loop in region.nest.loops if loop not in (inner, other)]
    across, down = ceildiv(inner.extent, side), ceildiv(other.extent, along)
    grid, tile = open_grid(body, rest, down * across)
    turns_outputs = _turns_outputs(region, transposed)
    row, column = (tile % down, tile // down) if turns_outputs else (tile // across, tile % across)
    first_down = _bound(body, "down", row * along, other.extent)
    first_across = _bound(body, "across", column * side, inner.extent)
    last_down = _bound(body, "down_end", minimum(first_down + along, other.extent), other.extent + 1)
    last_across = _bound(body, "across_end", minimum(first_across + side, inner.extent), inner.extent + 1)
    rows, columns = body.index.code(last_across - first_across), body.index.code(last_down - first_down)
    if turns_outputs:
        _turn_outputs(body, region, transposed, tiling, (first_down, last_down), (first_across, last_across))
        return make_launch(body, name, "cpu", [grid], work=work(region), contract=contract)
    for key in transposed.reads:
        turned, offset = _tile(body, key[0], side * along, "tile"), body.offset(*key)
        if is_linear(offset, (inner.symbol,)):
            start = body.index.code(substitute(offset, {inner.symbol: first_across, other.symbol: first_down}))
            pitch = body.index.code(coefficient(offset, inner.symbol))
            body.append(Transpose(turned, side, body.buffer_of(key[0]), pitch, rows, columns, start=start))
        else:
            copied = _tile(body, key[0], side * along, "rows")
            with body.loop(inner.index, last_across, start=first_across):
                place = (inner.index - first_across) * along + (other.index - first_down)
                _copy_row(body, other, (first_down, last_down), key, copied, place)
            body.append(Transpose(turned, side, copied, along, rows, columns))
        body.cached[key] = (turned, (other.index - first_down) * side + (inner.index - first_across))
    outer = body.loop(other.index, last_down, start=first_down)
    with outer, body.loop(inner.index, last_across, "vector", start=first_across):
        for output in (output for phase in region.full for output in phase):
            store_output(body, region, output)
    return make_launch(body, name, "cpu", [grid], work=work(region), contract=contract)


def _turns_outputs(region: Region, transposed: Transposed) -> bool:
    """Whether to compute along the inputs' memory: more inputs than outputs lie across, and no read is slower then."""
    inner, other = region.nest.loops[-1], transposed.loop
    outputs = dict.fromkeys(region.fusion.outputs)
    if len(outputs) >= len(transposed.reads) or region.memory.shared or len(transposed.inner) > 1:
        return False
    offsets = [offset for _, offset in read_offsets(region)]
    return (
        all(is_known(region, coordinates) for _, coordinates in region.probe.reads)
        and all(coefficient(offset, other.symbol) in (0, 1) for offset in offsets)
        and all(is_linear(offset, (other.symbol, inner.symbol)) for offset in offsets)
        and all(coefficient(region.output_offset(output), inner.symbol) == 1 for output in outputs)
    )


def _turn_outputs(
    body: Body, region: Region, transposed: Transposed, tiling: Tiling, down: tuple[Extent, Extent],
    across: tuple[Extent, Extent],
) -> None:  # fmt: skip
    """Computes a tile along the inputs' memory, and transposes the outputs. down, across: the bounds of both loops."""
    inner, other = region.nest.loops[-1], transposed.loop
    side, along = tiling["side"], tiling["along"]
    place = (inner.index - across[0]) * along + (other.index - down[0])
    outputs = [output for phase in region.full for output in phase]
    for output in outputs:
        body.staged[output] = _tile(body, output, side * along, "rows"), place
    lines = body.loop(inner.index, across[1], start=across[0])
    with lines, body.loop(other.index, down[1], "vector", start=down[0]):
        for output in outputs:
            store_output(body, region, output)
    rows, columns = body.index.code(across[1] - across[0]), body.index.code(down[1] - down[0])
    turned = {output: _tile(body, output, side * along, "tile") for output in outputs}
    for output, tile in turned.items():
        body.append(Transpose(tile, side, body.staged[output][0], along, rows, columns))
    lines = body.loop(other.index, down[1], start=down[0])
    with lines, body.loop(inner.index, across[1], "vector", start=across[0]):
        for output, tile in turned.items():
            element = Load(tile, body.index.code((other.index - down[0]) * side + (inner.index - across[0])))
            target, index = body.buffer_of(output, written=True), body.index.code(region.output_offset(output))
            cache = "streaming" if output in body.streamed else "default"
            body.append(Store(target, index, element, cache=cache))


def _widest(region: Region, transposed: Transposed) -> int:
    """Returns the bytes of an element of the widest input that is read through tiles."""
    return max(region.fusion.values[number].dtype.itemsize for number, _ in transposed.reads)


def _tile(body: Body, number: int, size: int, stem: str) -> Buffer:
    """Allocates local memory for a tile of an input, in the input's dtype."""
    buffer = Buffer(body.fresh(f"{stem}{number}"), body.fusion.values[number].dtype, "local", size)
    body.append(Allocate(buffer))
    return buffer


def _bound(body: Body, name: str, value: Extent, extent: Extent) -> Extent:
    index = symbol(name, extent=extent)
    body.bind(index, body.index.code(value))
    return index


def _copy_row(body: Body, loop: Loop, bounds: tuple[Extent, Extent], key: Key, buffer: Buffer, place: Extent) -> None:
    """Copies one contiguous row of an input's tile."""
    number, coordinates = key
    with body.loop(loop.index, bounds[1], "vector", start=bounds[0]):
        element = Load(body.buffer_of(number), body.index.code(body.offset(number, coordinates)))
        body.append(Store(buffer, body.index.code(place), element))
