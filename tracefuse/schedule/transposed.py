"""Transposed reads: inputs whose memory order differs from the output's. Both targets read them through tiles.

Must not know: targets, kernel IR.
"""

from __future__ import annotations

from collections.abc import Sequence

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Expression, Extent, Symbol, product, symbols
from tracefuse.ir.fusion import Shape
from tracefuse.schedule.memory_orders import LEAST_EXTENT, MOST_TILES
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.refusal_codes import RegionRefusal, ScheduleRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.sizes import Sizes


class TransposeRefusal(ScheduleRefusal):
    """Refusals of the transpose template."""

    NOTHING_TRANSPOSED = "every input lies in memory in the order of the output"
    LOOP_TOO_SHORT = "a loop is too short for tiles"


def read_offsets(region: Region) -> list[tuple[int, Extent]]:
    """Returns (input, offset in elements) of every read, in terms of the loops."""
    result = []
    for number, coordinates in region.probe.reads:
        offset: Extent = 0
        for coordinate, stride in zip(coordinates, region.memory.strides[number], strict=True):
            offset = offset + coordinate * stride
        result.append((number, offset))
    return result


def is_known(region: Region, coordinates: Shape) -> bool:
    """Returns whether coordinates depend on the loops only, not on data."""
    loops = {loop.symbol for loop in region.nest.loops}
    return all(s.extent is None or s in loops for c in coordinates for s in symbols(c))


@dataclass(frozen=True, slots=True)
class Transposed:
    """Reads (input, coordinates) that are contiguous along `loop`, not along the innermost loops as the output is.

    inner: the loops along which a tile follows the output; several if the innermost one is too short. is_short: `loop`
    has fewer than LEAST_EXTENT elements.
    """

    loop: Loop
    reads: tuple[tuple[int, Shape], ...]
    inner: tuple[Loop, ...] = ()
    is_short: bool = False


def _transposed_reads(region: Region) -> Transposed | None:
    """Returns the reads to take through tiles, or None."""
    loops = region.nest.loops
    if len(loops) < 2 or region.nest.reduced:
        return None
    inner = loops[-1]
    by_loop: dict[Symbol, list[tuple[int, Shape]]] = {}
    for key, (_, offset) in zip(region.probe.reads, read_offsets(region), strict=True):
        if key not in region.probe.unconditional or not is_known(region, key[1]):
            continue
        if coefficient(offset, inner.symbol) in (0, 1):
            continue
        for loop in loops[:-1]:
            if coefficient(offset, loop.symbol) == 1 and is_linear(offset, (loop.symbol, inner.symbol)):
                by_loop.setdefault(loop.symbol, []).append(key)
                break
    if not by_loop:
        return None
    best = max(by_loop, key=lambda s: len(by_loop[s]))
    reads = tuple(dict.fromkeys(by_loop[best]))[:MOST_TILES]
    return Transposed(next(loop for loop in loops if loop.symbol == best), reads)


def is_linear(offset: Extent, indices: Sequence[Symbol]) -> bool:
    """Returns whether the offset is linear in the indices: none occurs inside a quotient or remainder."""
    rest = offset
    for index in indices:
        rest = rest - coefficient(offset, index) * Expression((((index,), 1),))
    return not any(s in indices for s in symbols(rest))


@dataclass(frozen=True, slots=True)
class Far:
    """When the iterations of a short loop read the same lines of memory, which have left the caches in between.

    run_bytes: more bytes that are adjacent along the loop. bytes: more that an iteration passes over. inner: the least
    extent of the innermost loop.
    """

    run_bytes: int
    bytes: int
    inner: int


def _reads_far(region: Region, transposed: Transposed, sizes: Sizes, far: Far) -> bool:
    """Whether tiles over a short loop pay; guards the sizes."""
    loops, loop = region.nest.loops, transposed.loop
    itemsize = min(region.fusion.values[number].dtype.itemsize for number, _ in transposed.reads)
    if far.run_bytes >= 2 * itemsize and sizes.at_most(loop.extent, far.run_bytes // itemsize, "a run of few bytes"):
        return False
    if sizes.at_most(loops[-1].extent, far.inner - 1, "a side of a tile is shorter than a block"):
        return False
    passed = product(other.extent for other in loops[loops.index(loop) :]) * itemsize
    return not sizes.at_most(passed, far.bytes, "the next iteration of a short loop reads what caches hold")


def judge_tiles(region: Region, sizes: Sizes, *, joined: int = 0, far: Far | None = None) -> Verdict:
    """Judges whether to read inputs through tiles; guards the sizes. The facts of a yes are a `Transposed`.

    joined: a tile extends over several loops of the output if the innermost has fewer elements. far: when a short loop
    of the inputs takes tiles, None for never.
    """
    if region.nest.reduced:
        return RegionRefusal.REDUCES()
    transposed = _transposed_reads(region)
    if transposed is None:
        return TransposeRefusal.NOTHING_TRANSPOSED()
    short = "a loop too short for tiles"
    *outer, innermost = region.nest.loops
    if sizes.at_most(transposed.loop.extent, LEAST_EXTENT - 1, short):
        if far is None or not _reads_far(region, transposed, sizes, far):
            return TransposeRefusal.LOOP_TOO_SHORT(extent=transposed.loop.extent)
        return yes(replace(transposed, inner=(innermost,), is_short=True))
    inner, extent = [innermost], innermost.extent
    while outer and outer[-1].symbol != transposed.loop.symbol and joined:
        if not sizes.at_most(extent, joined - 1, "a tile extends over several loops"):
            break
        inner.insert(0, outer.pop())
        extent = extent * inner[0].extent
    if sizes.at_most(extent, LEAST_EXTENT - 1, short):
        return TransposeRefusal.LOOP_TOO_SHORT(extent=extent)
    return yes(replace(transposed, inner=tuple(inner)))
