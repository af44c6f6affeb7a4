"""The row template for the GPU for short rows: a block stages rows in shared memory, and each thread reduces some.

Rows of a few elements lie next to each other in memory, so the rows of a block are one contiguous range. The block
copies the range with adjacent threads and wide accesses, each thread then works on one row at a time, and results over
all loops leave through shared memory in the same way. Without it, adjacent threads would access addresses that are a
row apart. The cost model chooses the rows of a thread.

Must not know: CUDA C++.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Extent, Symbol, ceildiv, minimum, product, symbol, symbol_of
from tracefuse.schedule.body import Body
from tracefuse.schedule.cost import Work
from tracefuse.schedule.gpu.gpu_frame import (
    WIDE_BYTES,
    Positions,
    Setting,
    Steps,
    Strides,
    Walk,
    bind_loops,
    bind_position,
    new_body,
    open_block,
    open_threads,
)
from tracefuse.schedule.gpu.gpu_lanes import every_output
from tracefuse.schedule.gpu.gpu_phase import (
    CachedKeys,
    State,
    cached_keys,
    places,
    run_phases,
    store_parallel_outputs,
)
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_row_copies import RowCopies, StagedRows
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.nest import coefficient
from tracefuse.schedule.refusal_codes import ScheduleRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.region_work import byte_classes, bytes_of_iteration, operations
from tracefuse.schedule.scopes import Key
from tracefuse.schedule.template import Template
from tracefuse.schedule.tilings import Offer, Point, Tiled, Tiling
from tracefuse.schedule.transposed import is_known, is_linear

THREADS = 128
"""The threads of a block."""

ROWS = (1, 2, 4)
"""The rows of a thread."""

LONGEST_ROW = 64
"""Longer rows are contiguous enough for a group of threads each."""

SHORTEST = 2
"""The shortest rows that are staged."""

READING = 0.5
"""The part of its time in which a block reads, about. (H200)"""

MOST_BYTES = 40 * 1024
"""The shared memory of a block, so that at least five blocks are resident on a multiprocessor."""

MOST_STEPS, MOST_HELD_WORDS = 32, 64
"""The longest row whose elements a thread goes through without a loop, and the most registers for their values."""

RESIDENT_THREADS, SHARED_BYTES = 2048, 227 * 1024
"""Of a multiprocessor."""

BYTE_EDGES = (1 << 24,)
"""The classes of a region's bytes: in the L2 cache, in memory."""


class RowTileRefusal(ScheduleRefusal):
    """Refusals of the row tile template."""

    OTHER_LOOPS_REDUCED = "the innermost loop alone is not what is reduced"
    NOTHING_TO_GAIN = "no array has rows one after the other that wide accesses do not serve"
    TOO_LONG = "a row is too long for one thread"
    TOO_SHORT = "a row is so short that a thread accesses it in memory"
    TOO_LARGE = "the rows of a block do not fit in shared memory"


@dataclass(frozen=True, slots=True)
class RowTile:
    """What passes through shared memory: input elements and outputs.

    columns: the most elements of a row. sure: the least. element_bytes: of an element of a row in all arrays.
    """

    reads: tuple[Key, ...]
    outputs: tuple[int, ...]
    columns: int
    sure: int
    element_bytes: int


def _accepts(problem: GpuProblem) -> Verdict:
    region, nest = problem.region, problem.region.nest
    if len(nest.reduced) != 1 or not nest.loops[-1].reduced or not nest.parallel:
        return RowTileRefusal.OTHER_LOOPS_REDUCED()
    extent = nest.loops[-1].extent
    reads, outputs = _contiguous_reads(region), _contiguous_outputs(region)
    itemsizes = [region.fusion.values[n].dtype.itemsize for n in (*(key[0] for key in reads), *outputs)]
    if not itemsizes or problem.setting.lanes * min(itemsizes) >= WIDE_BYTES:
        return RowTileRefusal.NOTHING_TO_GAIN()
    sizes = problem.rewritten_sizes
    if not sizes.at_most(extent, LONGEST_ROW, "a thread computes a row"):
        return RowTileRefusal.TOO_LONG()
    if sizes.at_most(extent, SHORTEST - 1, "a thread accesses the row in memory"):
        return RowTileRefusal.TOO_SHORT()
    columns, exact = sizes.power_of_two_above(extent, "a row fills its place", "rows of a block in shared memory")
    if columns * THREADS * sum(itemsizes) > MOST_BYTES:
        return RowTileRefusal.TOO_LARGE()
    return yes(RowTile(reads, outputs, columns, columns if exact else columns // 2, sum(itemsizes)))


def _contiguous_reads(region: Region) -> tuple[Key, ...]:
    """Returns the input elements that lie row after row in memory."""
    result = []
    for number, coordinates in region.probe.reads:
        if (number, coordinates) not in region.probe.unconditional or not is_known(region, coordinates):
            continue
        offset: Extent = 0
        for coordinate, stride in zip(coordinates, region.memory.strides[number], strict=True):
            offset = offset + coordinate * stride
        if _is_contiguous(region, offset):
            result.append((number, coordinates))
    return tuple(result)


def _contiguous_outputs(region: Region) -> tuple[int, ...]:
    """Returns the outputs over all loops that lie row after row in memory."""
    full = [output for output in every_output(region) if output not in region.parallel_outputs]
    return tuple(output for output in full if _is_contiguous(region, region.output_offset(output)))


def _is_contiguous(region: Region, offset: Extent) -> bool:
    """Returns whether an offset counts the elements of all loops without a gap."""
    loops = region.nest.loops
    if not is_linear(offset, [loop.symbol for loop in loops]):
        return False
    expected: Extent = 1
    for loop in reversed(loops):
        if coefficient(offset, loop.symbol) != expected and loop.extent != 1:
            return False
        expected = expected * loop.extent
    return True


def _offers(problem: GpuProblem, tile: RowTile) -> Offer:
    """Offers several rows of a thread."""
    fitting = (rows for rows in ROWS if rows * tile.columns * THREADS * tile.element_bytes <= MOST_BYTES)
    region = problem.region
    tilings = tuple(Tiling.of(rows=rows) for rows in fitting)
    return Offer(tilings, (byte_classes(region, BYTE_EDGES),), partial(_work, region, tile))


def _work(region: Region, tile: RowTile, tiling: Tiling, point: Point) -> Work:
    """Returns what blocks with several rows of a thread do: they have more bytes in flight, if they fit."""
    if not tile.reads:  # the rows are read in memory, by as many threads
        return Work(point[0], point[0], tasks=point[0])
    (moved,) = point
    elements = moved / bytes_of_iteration(region)
    block = tiling["rows"] * tile.columns * THREADS * tile.element_bytes
    read = sum(region.fusion.values[number].dtype.itemsize for number, _ in tile.reads) / tile.element_bytes
    resident = min(RESIDENT_THREADS // THREADS, SHARED_BYTES // block)
    in_flight = resident * block * read * READING
    return Work(moved, moved, operations=operations(region, elements), tasks=elements, in_flight=in_flight)


def _lower(problem: GpuProblem, tiled: Tiled) -> Lowered:
    rows = tiled.tiling["rows"]
    launch, derived = _launch(problem.region, replace(problem.setting, lanes=1), tiled.decision, rows)
    return problem.finish([launch], (), derived)


ROW_TILE = Template("row tile", _accepts, _lower, offers=_offers)


def _walk(body: Body, region: Region, tile: RowTile) -> tuple[Walk, CachedKeys | None]:
    """Returns how a thread goes through a row, and the values that it keeps in registers from phase to phase."""
    inner = region.nest.loops[-1]
    if tile.columns > MOST_STEPS:
        return Strides(0, inner.extent, 0, 1, 4), None
    step = symbol("step", extent=tile.columns)
    cached = {key: phase for key, phase in cached_keys(region, {}).items() if key not in tile.reads}
    words = sum(-(-region.fusion.values[number].dtype.compute.itemsize // 4) for number, _ in cached)
    if words * tile.columns > MOST_HELD_WORDS:
        cached = {}
    body.to_cache.update(places(body, region, cached, step, tile.columns, "local"))
    return Steps(step, tile.columns, tile.sure, 1, 0, inner.extent), cached


def _launch(region: Region, setting: Setting, tile: RowTile, rows: int) -> tuple[LaunchSpec, dict[Symbol, Extent]]:
    """Returns the launch, and the definitions of its integer parameters."""
    body, nest = new_body(region, setting), region.nest
    body.streaming = frozenset()
    total, blocks, block_rows = symbol("rows", minimum=1), symbol("blocks"), THREADS * rows
    row_count, inner = product(loop.extent for loop in nest.parallel), nest.loops[-1]
    derived = {symbol_of(blocks): ceildiv(row_count, block_rows), symbol_of(total): row_count}
    block = open_block(body, blocks)
    thread, variable = open_threads(body, THREADS)
    first = bind_position(body, "first", block * block_rows, blocks * block_rows)
    present = bind_position(body, "present", minimum(total - first, block_rows), block_rows + 1)
    staged = StagedRows(tile.reads, tile.outputs, block_rows, tile.columns)
    copies = RowCopies(body, region, staged, first, present * inner.extent, thread, THREADS)
    copies.fill()
    walk, cached = _walk(body, region, tile)
    turn = symbol("row_of_thread", extent=rows)
    with body.loop(turn, rows) if rows > 1 else contextlib.nullcontext():
        row_of_thread = thread + (turn * THREADS if rows > 1 else 0)
        # Threads past the last row compute the last row too, and store nothing.
        slot = bind_position(body, "slot", minimum(row_of_thread, present - 1), block_rows)
        bind_loops(body, nest.parallel, bind_position(body, "row", first + slot, total))
        copies.redirect(slot)
        inside = [body.index.compare("lt", row_of_thread, present)]
        run_phases(body, region, walk, Positions(nest.reduced, 1), _keep_apart, cached=cached, stores=inside)
        store_parallel_outputs(body, region, inside)
    copies.drain()
    launch = make_launch(
        body, f"{setting.name}_row_tile", "cuda", [(block, blocks)], contract=setting.contract, threads=THREADS,
        thread=variable,
    )  # fmt: skip
    return launch, derived


def _keep_apart(states: Sequence[State]) -> None:
    """Combines nothing: a thread has its own row."""
