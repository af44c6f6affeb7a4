"""Several rows at once, where adjacent rows read the same elements or compute the same values, as those of stencils do.

A loop over one row loads the rows above and below again for each row, and vectors that do not start at a cache line
load two lines each: that takes most of the time of a stencil whose rows are in the caches. A block of rows loads each
once. The rows of a block follow one another, or lie in adjacent planes, which the first cache does not hold.

A block reads and writes its rows beside one another. Short ones share a page, in which the processor's prefetcher
follows one or two streams: beyond a core's cache, blocks of short rows pay only where they save much arithmetic.

Must not know: LLVM.
"""

from __future__ import annotations

from collections.abc import Callable

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Extent, ceildiv, divide_exactly, floordiv, substitute, symbol, symbols
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.kernel.kernel_ir import CACHE_LINE
from tracefuse.schedule.body import Body
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.probe import Probe
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.transposed import is_linear, read_offsets

TOGETHER = 4
"""The rows of a block."""

MOST_OPS = 64
"""The most ops of a region whose rows are computed in blocks: the code of a block is that of as many rows."""

LEAST_ROW = 256
"""The fewest elements of a row into which a loop over all rows is split."""

PAGE = 4096
"""The bytes of a page of memory."""

LINE_BYTES = CACHE_LINE
"""The bytes of a line of the caches."""

NEXT_CACHE = 2.5
"""How many bytes of the first cache are loaded in the time of one of the next cache."""


@dataclass(frozen=True, slots=True)
class RowWork:
    """What rows at once do for each of their elements.

    loaded: the bytes that they load, near or far. kept: those of the rows among them that the next row loads again.
    operations: their ops by class.
    """

    loaded: float
    kept: float
    operations: tuple[tuple[str, float], ...]


def shares_rows(region: Region, place: int) -> bool:
    """Returns whether rows that are adjacent along a loop read the same elements, and can be computed in blocks.

    place: of the loop in the nest.
    """
    loops, probe = region.nest.loops, region.probe
    if len(loops) < -place or len(region.fusion.nodes) > MOST_OPS or region.memory.shared:
        return False
    if probe.tests or probe.indirect:
        return False
    along, inner, reads = loops[place], loops[-1].symbol, set(probe.reads)
    adjacent = [
        key for key, (_, offset) in zip(probe.reads, read_offsets(region), strict=True)
        if coefficient(offset, inner) == 1 and is_linear(offset, (along.symbol, inner))
    ]  # fmt: skip
    return any(
        (number, tuple(substitute(c, {along.symbol: along.index + step}) for c in at)) in reads
        for number, at in adjacent
        if any(coefficient(c, along.symbol) for c in at)
        for step in range(1, TOGETHER)
    )


def in_rows(region: Region, sizes: Sizes) -> Region | None:
    """Returns a region of one loop with a loop over rows and one over a row, if it reads elements that are rows apart.

    Filters along an axis outside of a row have one loop, since all of their offsets are those of its index.
    """
    if len(region.nest.loops) != 1 or region.probe.tests or region.probe.indirect:
        return None
    (loop,), offsets = region.nest.loops, read_offsets(region)
    for number in dict.fromkeys(number for number, _ in offsets):
        places = {offset for other, offset in offsets if other == number and coefficient(offset, loop.symbol) == 1}
        for row in region.memory.strides[number][:-1] if len(places) > 1 else ():
            is_apart = any(place + row * step in places for place in places for step in range(1, TOGETHER))
            count = divide_exactly(loop.extent, row) if is_apart else None
            if count is None or sizes.at_most(row, LEAST_ROW - 1, "rows are too short for blocks"):
                continue
            return _split(region, loop, count, row)
    return None


def _split(region: Region, loop: Loop, count: Extent, row: Extent) -> Region:
    """Returns a region with its only loop split into `count` rows of `row` elements."""
    parts = tuple(
        Loop(symbol(f"{loop.symbol.name}{suffix}", extent=extent), extent, False)
        for suffix, extent in (("a", count), ("b", row))
    )
    values = {loop.symbol: parts[0].index * row + parts[1].index}
    placed, probe = region.placed(values), Probe(region.fusion, ())
    for output in region.fusion.outputs:
        probe.visit(output, placed.coordinates(output))
    return replace(placed, nest=replace(placed.nest, loops=parts), probe=probe)


def work_of_rows(region: Region, place: int, count: int) -> RowWork:
    """Returns what `count` rows at once do, which are adjacent along the loop at `place` in the nest."""
    probe, fusion, loops = Probe(region.fusion, ()), region.fusion, region.nest.loops
    along = loops[place]
    for row in range(count):
        part = region.at_loop(along.symbol, along.index + row)
        for output in fusion.outputs:
            probe.visit(output, part.coordinates(output))
    producers, operations = fusion.producers, dict[str, float]()
    for number, _ in probe.walked:
        node = producers.get(number)
        if node is not None and isinstance(node.op, Pointwise):
            kind = "function" if node.op.expensive else "plain"
            wide = fusion.values[number].dtype.compute.itemsize / 4
            operations[kind] = operations.get(kind, 0.0) + wide / count

    planes = _bytes(region, probe, loops[-3]) if len(loops) > 2 else 0
    shares_planes = along is not loops[-2]
    kept = _bytes(region, probe, loops[-2]) if count == 1 else 0
    loaded = sum(fusion.values[number].dtype.itemsize for number, _ in probe.reads) / count
    far = NEXT_CACHE * planes / (count if shares_planes else 1)
    return RowWork(loaded + far, kept, tuple(operations.items()))


def _bytes(region: Region, probe: Probe, loop: Loop) -> int:
    """Returns the bytes of an element of each input at each place along a loop at which it is read."""
    places = {(number, tuple(c for c in at if loop.symbol in symbols(c))) for number, at in probe.reads}
    return sum(region.fusion.values[number].dtype.itemsize for number, _ in places)


def chunks_of(loop: Loop) -> Loop:
    """Returns a loop over the blocks of a loop, of which the last may have fewer iterations."""
    count = ceildiv(loop.extent, TOGETHER)
    return Loop(symbol(f"{loop.symbol.name}_block", extent=count), count, False)


def in_blocks(
    body: Body, loop: Loop, start: Extent, end: Extent, most: int, emit: Callable[[list[Extent]], None]
) -> None:
    """Emits blocks of the iterations of a loop from `start` to `end`, at most `most`, then the rest one by one.

    emit: is called with the indices of the iterations of a block.
    """
    count = floordiv(end - start, TOGETHER)
    block = symbol("block", extent=ceildiv(most, TOGETHER))
    with body.loop(block, count):
        first = start + TOGETHER * block
        emit([first + row for row in range(TOGETHER)])
    with body.loop(loop.index, end, start=start + TOGETHER * count):
        emit([loop.index])
