"""The row template for the GPU for short rows: a block stages whole rows in shared memory, and each thread reduces one.

Rows of a few elements lie next to each other in memory, so the rows of a block are one contiguous range. The block
copies the range with adjacent threads, each thread then works on one row, and results over all loops leave through
shared memory in the same way. Without it, adjacent threads would access addresses that are a row apart.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from segments import Verdict, yes
from tracefuse.ir.extents import Extent, Symbol, ceildiv, minimum, product, symbol, symbol_of
from tracefuse.kernel.kernel_ir import Allocate, Barrier, Buffer, Load
from tracefuse.kernel.scalar_code import convert
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import (
    WIDE_BYTES,
    Positions,
    Setting,
    Strides,
    bind_loops,
    bind_position,
    new_body,
    open_block,
    open_threads,
    when,
)
from tracefuse.schedule.gpu.gpu_lanes import every_output
from tracefuse.schedule.gpu.gpu_phase import State, run_phases, store_parallel_outputs
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.nest import coefficient
from tracefuse.schedule.phases import Region
from tracefuse.schedule.refusal_codes import ScheduleRefusal
from tracefuse.schedule.scopes import Key
from tracefuse.schedule.template import Template
from tracefuse.schedule.transposed import is_known, is_linear

THREADS = 128
"""The threads and the rows of a block."""

LONGEST_ROW = 64
"""Longer rows are contiguous enough for a group of threads each."""

SHORTEST_STORED, SHORTEST_READ = 5, 9
"""The shortest rows that are staged with and without outputs over all loops; caches serve shorter ones. (H200)"""

MOST_BYTES = 40 * 1024
"""The shared memory of a block, so that at least five blocks are resident on a multiprocessor."""

UNROLL = 8
"""The elements that a thread copies before it tests for the end of the rows."""


class RowTileRefusal(ScheduleRefusal):
    """Refusals of the row tile template."""

    OTHER_LOOPS_REDUCED = "the innermost loop alone is not what is reduced"
    NOTHING_TO_GAIN = "no array has rows one after the other that wide accesses do not serve"
    TOO_LONG = "a row is too long for one thread"
    TOO_SHORT = "a row is so short that a thread accesses it in memory"
    TOO_LARGE = "the rows of a block do not fit in shared memory"


@dataclass(frozen=True, slots=True)
class RowTile:
    """What passes through shared memory: input elements and outputs. columns: the most elements of a row."""

    reads: tuple[Key, ...]
    outputs: tuple[int, ...]
    columns: int


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
    shortest = SHORTEST_STORED if outputs else SHORTEST_READ
    if sizes.at_most(extent, shortest - 1, "a thread accesses the row in memory"):
        return RowTileRefusal.TOO_SHORT()
    columns, _ = sizes.power_of_two_above(extent, "a row fills its place", "rows of a block in shared memory")
    if columns * THREADS * sum(itemsizes) > MOST_BYTES:
        return RowTileRefusal.TOO_LARGE()
    return yes(RowTile(reads, outputs, columns))


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


def _lower(problem: GpuProblem, tile: RowTile) -> Lowered:
    launch, derived = _launch(problem.region, replace(problem.setting, lanes=1), tile)
    return problem.finish([launch], (), derived)


ROW_TILE = Template("row tile", _accepts, _lower)


class _RowCopies:
    """The copies between memory and shared memory: the elements of a block's rows, with adjacent threads."""

    def __init__(
        self, body: Body, region: Region, tile: RowTile, first: Extent, elements: Extent, thread: Extent
    ) -> None:
        self.body, self.region, self.tile = body, region, tile
        self.first, self.elements, self.thread = first, elements, thread
        self.position = symbol("element", extent=tile.columns * THREADS)
        self.buffers = [self._allocate(number) for number in (*(key[0] for key in tile.reads), *tile.outputs)]

    def _allocate(self, number: int) -> Buffer:
        buffer = Buffer(
            self.body.fresh(f"rows{number}"), self.body.fusion.values[number].dtype, "shared",
            self.tile.columns * THREADS,
        )  # fmt: skip
        self.body.append(Allocate(buffer))
        return buffer

    def _each(self, copies: Sequence[Callable[[], None]]) -> None:
        """Opens a loop over the elements of the rows; inside, the loops are at the element that is counted flat."""
        body, inner = self.body, self.region.nest.loops[-1]
        turn, part = symbol("turn", extent=self.tile.columns), symbol("part", extent=UNROLL)
        with body.loop(turn, ceildiv(inner.extent, UNROLL)), body.loop(part, UNROLL, "unroll"):
            flat = (turn * UNROLL + part) * THREADS + self.thread
            with when(body, [body.index.compare("lt", flat, self.elements)]):
                body.bind(self.position, body.index.code(flat))
                bind_loops(body, self.region.nest.parallel, self.first)
                body.bind(inner.index, body.index.code(self.position))
                for copy in copies:
                    copy()

    def fill(self) -> None:
        """Copies the inputs into shared memory."""

        def copy(key: Key, buffer: Buffer) -> None:
            self.body.to_cache[key] = (buffer, self.position)
            self.body.fetch(*key)

        if self.tile.reads:
            self._each([partial(copy, key, buffer) for key, buffer in zip(self.tile.reads, self.buffers, strict=False)])
            self.body.await_copies()
            self.body.to_cache.clear()
            self.body.append(Barrier())

    def drain(self) -> None:
        """Copies the outputs from shared memory."""

        def copy(output: int, buffer: Buffer) -> None:
            element = convert(Load(buffer, self.body.index.code(self.position)), buffer.dtype.compute)
            target = self.body.buffer_of(output, written=True)
            self.body.store(target, self.region.output_offset(output), (element,))

        if self.tile.outputs:
            self.body.append(Barrier())
            buffers = self.buffers[len(self.tile.reads) :]
            self._each(
                [partial(copy, output, buffer) for output, buffer in zip(self.tile.outputs, buffers, strict=True)]
            )

    def redirect(self, slot: Extent) -> None:
        """Makes reads and stores of the row in `slot` use shared memory."""
        inner = self.region.nest.loops[-1]
        places = [(buffer, slot * inner.extent + inner.index) for buffer in self.buffers]
        self.body.cached.update(zip(self.tile.reads, places, strict=False))
        self.body.staged.update(zip(self.tile.outputs, places[len(self.tile.reads) :], strict=True))


def _launch(region: Region, setting: Setting, tile: RowTile) -> tuple[LaunchSpec, dict[Symbol, Extent]]:
    """Returns the launch, and the definitions of its integer parameters."""
    body, nest = new_body(region, setting), region.nest
    body.streaming = frozenset()
    rows, blocks = symbol("rows", minimum=1), symbol("blocks")
    row_count, inner = product(loop.extent for loop in nest.parallel), nest.loops[-1]
    derived = {symbol_of(blocks): ceildiv(row_count, THREADS), symbol_of(rows): row_count}
    block = open_block(body, blocks)
    thread, variable = open_threads(body, THREADS)
    first = bind_position(body, "first", block * THREADS, blocks * THREADS)
    present = bind_position(body, "present", minimum(rows - first, THREADS), THREADS + 1)
    copies = _RowCopies(body, region, tile, first, present * inner.extent, thread)
    copies.fill()
    # Threads past the last row compute the last row too, and store nothing.
    slot = bind_position(body, "slot", minimum(thread, present - 1), THREADS)
    bind_loops(body, nest.parallel, bind_position(body, "row", first + slot, rows))
    copies.redirect(slot)
    walk, positions = Strides(0, inner.extent, 0, 1, 4), Positions(nest.reduced, 1)
    inside = [body.index.compare("lt", thread, present)]
    run_phases(body, region, walk, positions, _keep_apart, stores=inside)
    store_parallel_outputs(body, region, inside)
    copies.drain()
    launch = make_launch(
        body, f"{setting.name}_row_tile", "cuda", [(block, blocks)], contract=setting.contract, threads=THREADS,
        thread=variable,
    )  # fmt: skip
    return launch, derived


def _keep_apart(states: Sequence[State]) -> None:
    """Combines nothing: a thread has its own row."""
