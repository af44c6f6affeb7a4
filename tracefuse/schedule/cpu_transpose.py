"""The pointwise template for the CPU where an input lies in another order than the output: tiles through local memory.

A piece is a square tile of two loops: the innermost one, along which the output lies in memory, and the one along which
the input does. The input's tile is read along the input's memory, a cache line at a time, and left in local memory;
then the elements are computed along the output's.

Knows: regions without a reduction, loops, kernel IR. Must not know: LLVM, arrays.
"""

from __future__ import annotations

from tracefuse.extents import Extent, ceildiv, minimum, symbol
from tracefuse.kernel.ir import Allocate, Buffer, Store
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu import new_body, open_grid, work
from tracefuse.schedule.launches import LaunchSpec, make_launch
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.phases import Region, store_output
from tracefuse.schedule.transposed import Transposed

SIDE = 32
"""Elements of a tile's side: 4 KiB of float32, and whole cache lines along both memories."""

PITCH = SIDE + 1
"""Elements from one row of a tile to the next: odd, so that a column lies in different sets of the cache."""


def lower_transpose(region: Region, transposed: Transposed, name: str, contract: bool) -> LaunchSpec:
    """Tiles of the two loops; the other loops are pieces of their own."""
    body, inner, other = new_body(region), region.nest.loops[-1], transposed.loop
    rest = [loop for loop in region.nest.loops if loop not in (inner, other)]
    across, down = ceildiv(inner.extent, SIDE), ceildiv(other.extent, SIDE)
    grid, tile = open_grid(body, rest, down * across)
    first_down = _bound(body, "down", tile // across * SIDE, other.extent)
    first_across = _bound(body, "across", tile % across * SIDE, inner.extent)
    last_down = _bound(body, "down_end", minimum(first_down + SIDE, other.extent), other.extent + 1)
    last_across = _bound(body, "across_end", minimum(first_across + SIDE, inner.extent), inner.extent + 1)
    for number, coordinates in transposed.reads:
        place = (other.index - first_down) * PITCH + (inner.index - first_across)
        dtype = region.fusion.values[number].dtype.compute
        buffer = Buffer(body.fresh(f"tile{number}"), dtype, "local", SIDE * PITCH)
        body.append(Allocate(buffer))
        with body.loop(inner.index, last_across, start=first_across):
            _copied(body, other, (first_down, last_down), (number, coordinates), buffer, place)
        body.cached[(number, coordinates)] = (buffer, place)
    rows = body.loop(other.index, last_down, start=first_down)
    with rows, body.loop(inner.index, last_across, "vector", start=first_across):
        for output in (output for phase in region.full for output in phase):
            store_output(body, region, output)
    return make_launch(body, name, "cpu", [grid], work=work(region), contract=contract)


def _bound(body: Body, name: str, value: Extent, extent: Extent) -> Extent:
    index = symbol(name, extent=extent)
    body.bind(index, body.index.code(value))
    return index


def _copied(
    body: Body, loop: Loop, bounds: tuple[Extent, Extent], key: tuple[int, tuple[Extent, ...]], buffer: Buffer,
    place: Extent,
) -> None:  # fmt: skip
    """One row of an input's tile, along its memory."""
    with body.loop(loop.index, bounds[1], "vector", start=bounds[0]):
        (element,) = body.value(*key)
        body.append(Store(buffer, body.index.code(place), element))
