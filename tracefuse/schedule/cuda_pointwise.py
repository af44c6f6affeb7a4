"""The pointwise template for the GPU: a thread takes groups of neighbouring elements of the innermost loop.

One flat grid; a block whose groups all exist takes them without a test, so that their loads go out together. Where all
arrays are read in order from their start, any number of elements has wide accesses: what is left over after the last
whole group is done one by one.

Knows: regions without a reduction, loops, kernel IR. Must not know: CUDA's notation, arrays.
"""

from __future__ import annotations

from tracefuse.extents import Extent, Symbol, ceildiv, symbol
from tracefuse.schedule.body import Body
from tracefuse.schedule.cuda_frame import Positions, Setting, bind_loops, new_body, open_block, open_threads, symbol_of
from tracefuse.schedule.cuda_lanes import is_flat, read_offsets
from tracefuse.schedule.launches import LaunchSpec, make_launch
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.phases import Region, store_output

THREADS = 256
"""Threads of a block: eight blocks fill a multiprocessor."""

FLIGHT_BYTES = 32
"""A thread reads at least this much before it waits."""

MOST_GROUPS = 4


def lower_pointwise(region: Region, setting: Setting) -> tuple[LaunchSpec, dict[Symbol, Extent]]:
    """The launch, and what its integer parameters are."""
    body, lanes = new_body(region, setting), setting.lanes
    loops = region.nest.loops or (Loop(symbol("k", extent=1), 1, False),)
    positions = Positions(loops, lanes)
    count = _groups_of_thread(region, lanes)
    total, blocks = symbol("groups"), symbol("blocks")
    derived = {symbol_of(total): positions.total}
    block = open_block(body, blocks)
    thread, variable = open_threads(body, THREADS)
    part = region.placed(positions.values(body.lane))
    step = symbol("step", extent=count)
    place = block * (THREADS * count) + step * THREADS + thread
    whole = body.index.compare("le", (block + 1) * (THREADS * count), total)
    if count > 1:
        with body.condition(whole), body.loop(step, count, "unroll"):
            _emit(body, part, positions, place)
        with body.condition(body.index.compare("lt", total, (block + 1) * (THREADS * count))), body.loop(step, count):
            _guarded(body, part, positions, place, total)
    else:
        _guarded(body, part, positions, block * THREADS + thread, total)
    elements: Extent = positions.total * lanes
    if lanes > 1 and is_flat(region):
        elements = loops[0].extent
        _rest(body, region, loops[0], total * lanes, block, thread)
    derived[symbol_of(blocks)] = ceildiv(elements, THREADS * count * lanes)
    launch = make_launch(
        body, f"{setting.name}_pointwise", "cuda", [(block, blocks)], contract=setting.contract, threads=THREADS,
        thread=variable,
    )  # fmt: skip
    return launch, derived


def _groups_of_thread(region: Region, lanes: int) -> int:
    """Groups that one thread takes, so that enough bytes are on their way."""
    loops = region.nest.loops
    if not loops:
        return 1
    full = {n for n, offset in read_offsets(region) if all(coefficient(offset, k.symbol) != 0 for k in loops)}
    read = lanes * sum(region.fusion.values[n].dtype.itemsize for n in full)
    count = 1
    while count < MOST_GROUPS and read and read * count < FLIGHT_BYTES:
        count *= 2
    return count


def _emit(body: Body, part: Region, positions: Positions, place: Extent) -> None:
    positions.bind(body, place)
    for output in part.full[0]:
        store_output(body, part, output)


def _guarded(body: Body, part: Region, positions: Positions, place: Extent, total: Extent) -> None:
    with body.condition(body.index.compare("lt", place, total)):
        _emit(body, part, positions, place)


def _rest(body: Body, region: Region, loop: Loop, start: Extent, block: Extent, thread: Extent) -> None:
    """The elements after the last whole group, one a thread of the first block."""
    narrow = body.narrow()
    with narrow.condition(narrow.index.compare("lt", start + block * THREADS + thread, loop.extent)):
        bind_loops(narrow, [loop], start + thread)
        for output in region.full[0]:
            store_output(narrow, region, output)
