"""The launch of the row_column template over the rows, which writes column states to scratch memory.

A block iterates over rows, and each thread keeps the states of its own columns in registers across rows. Rows are
prefetched through a ring in shared memory, of which each thread fills and reads its own part: while the block computes
a row, the next rows are in flight. A thread keeps in registers the values that asynchronous copies cannot load, that
are expensive to recompute, or that all rows share.

Must not know: sizes, CUDA C++.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, minimum, substitute, symbol, symbols
from tracefuse.ir.fusion import Shape as IndexShape
from tracefuse.kernel.kernel_ir import Allocate, AwaitCopies, Barrier, Buffer, EndBatch, Expression, Load, Store
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import (
    Positions,
    Setting,
    Steps,
    bind_loops,
    bind_position,
    new_body,
    open_block,
    open_threads,
    read_once,
    when,
)
from tracefuse.schedule.gpu.gpu_lanes import MOST_LANES
from tracefuse.schedule.gpu.gpu_phase import CachedKeys, accumulate_phase, combine_threads, hold, store_parallel_outputs
from tracefuse.schedule.gpu.gpu_row import RowShape
from tracefuse.schedule.gpu.gpu_split import SCRATCH_ALIGNMENT, Partials
from tracefuse.schedule.launch_spec import LaunchSpec, Scratch, make_launch
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.reduction_states import Accumulator, finish, lifted, new_accumulator
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.scopes import Key

Ring: TypeAlias = tuple[tuple[int, IndexShape], ...]
"""The inputs, with their coordinates, that are prefetched through shared memory."""


@dataclass(frozen=True, slots=True)
class RowsShape:
    """The distribution of rows: a group of threads per row, and `resident` threads per multiprocessor.

    ring: the inputs prefetched through shared memory; slots: the slots of the ring, one per turn.
    """

    row: RowShape
    resident: int
    ring: Ring
    slots: int

    @property
    def blocks(self) -> int:
        """Resident blocks per multiprocessor."""
        return max(1, self.resident // self.row.threads)


Columns: TypeAlias = Sequence[tuple[Accumulator, tuple[Buffer, ...]]]
"""The column states of one thread: an array of registers for each part of a state."""


class RowsLaunch:
    """Emits the launch over the rows.

    rows: the number of rows; turns: the number of groups of rows that a block computes at once; blocks: the number of
    blocks that divide the turns.
    """

    def __init__(
        self, region: Region, setting: Setting, shape: RowsShape, partials: Partials, rows: Extent, turns: Extent,
        blocks: Extent,
    ) -> None:  # fmt: skip
        self.region, self.setting, self.shape, self.partials = region, setting, shape, partials
        self.rows, self.turns, self.blocks = rows, turns, blocks
        self.body = new_body(region, setting)
        if setting.lanes == MOST_LANES:
            self.body.streaming = read_once(region)  # a fifth faster for halves, a tenth slower for float32 (H200)
        self.positions = Positions(region.nest.reduced, setting.lanes)
        self.step = symbol("step", extent=shape.row.steps)
        self.slot: Extent = 0
        self.down: Extent = 0

    def emit(self) -> LaunchSpec:
        body, row = self.body, self.shape.row
        block = open_block(body, self.blocks)
        thread, variable = open_threads(body, row.threads)
        self.slot = thread
        if row.rows > 1:
            self.slot = bind_position(body, "slot", thread % row.group, row.group)
            self.down = bind_position(body, "down", thread // row.group, row.rows)
        first, stop = self._turns(block)
        columns, ring = self._columns(), self._ring(thread)
        cached = dict(hold(body, self.region, self.positions.values(body.lane), self.step, row.steps))
        for key, _, _ in ring:
            body.to_cache.pop(key, None)
            cached.pop(key, None)
        self._load_for_all(cached)
        turn = symbol("turn", extent=self.turns)
        for slot in range(self.shape.slots):
            self._fetch(ring, first + slot, stop, slot)
        with body.loop(turn, stop, start=first):
            self._row(turn, first, stop, columns, ring, cached)
        if row.rows > 1:
            self._join(columns)
        written = self._leave(columns, block)
        return make_launch(
            body, f"{self.setting.name}_rows", "cuda", [(block, self.blocks)], scratch=written,
            contract=self.setting.contract, threads=row.threads, thread=variable,
            blocks_per_multiprocessor=self.shape.blocks,
        )  # fmt: skip

    def _turns(self, block: Extent) -> tuple[Extent, Extent]:
        """Returns the first turn of a block and the one after its last; counts differ by at most one."""
        each, more = self.turns // self.blocks, self.turns % self.blocks
        limits = (block * each + minimum(block, more), (block + 1) * each + minimum(block + 1, more))
        first, stop = (
            bind_position(self.body, name, limit, self.turns + 1)
            for name, limit in zip(("first", "stop"), limits, strict=True)
        )
        return first, stop

    def _columns(self) -> Columns:
        """Allocates registers for the states of a thread's columns, initialized to the neutral element."""
        body, size = self.body, self.shape.row.steps * self.body.lanes
        columns = []
        for node in (node for phase in self.region.columns for node in phase):
            accumulator = new_accumulator(body, node)
            name = f"column{node.outputs[0]}"
            buffers = tuple(Buffer(body.fresh(name), v.dtype, "local", size) for v in accumulator.variables)
            for buffer in buffers:
                body.append(Allocate(buffer))
            columns.append((accumulator, buffers))
        element = symbol("element", extent=size)
        with body.loop(element, size, "unroll"):
            for accumulator, buffers in columns:
                _store(body, buffers, body.index.code(element), accumulator.neutral)
        return columns

    def _place(self, turn: Extent) -> tuple[Extent, Expression | None]:
        """Returns the row of a thread's group in a turn, and whether it exists (None if it always does)."""
        if self.shape.row.rows == 1:
            return turn, None
        body = self.body
        place = bind_position(body, "place", turn * self.shape.row.rows + self.down, self.turns * self.shape.row.rows)
        inside = body.index.compare("lt", place, self.rows)
        return bind_position(body, "row", minimum(place, self.rows - 1), self.rows), inside

    def _walk(self, inside: Expression | None) -> Steps:
        row = self.shape.row
        return Steps(self.step, row.steps, row.sure, row.group, self.slot, self.positions.total, inside)

    def _load_for_all(self, cached: dict[Key, int]) -> None:
        """Loads the values that all rows share once, and removes them from the values that a row caches."""
        body, rows = self.body, {loop.symbol for loop in self.region.nest.parallel}
        same = [key for key in cached if key[0] in self.region.fusion.inputs]
        same = [key for key in same if rows.isdisjoint(s for c in key[1] for s in symbols(c))]

        def load() -> None:
            for key in same:
                body.value(*key)

        if same:
            self._walk(None).each(body, self.positions.binder(body), load)
        for key in same:
            body.cached[key] = body.to_cache[key]
            del cached[key]

    def _row(
        self, turn: Extent, first: Extent, stop: Extent, columns: Columns, ring: Fetched, cached: CachedKeys
    ) -> None:  # fmt: skip
        """Emits one turn: all phases of a row, then the prefetch of a later row into the freed slot."""
        body, row, slots = self.body, self.shape.row, self.shape.slots
        at, inside = self._place(turn)
        bind_loops(body, self.region.nest.parallel, at)
        values = self.positions.values(body.lane)
        part, walk = self.region.placed(values), self._walk(inside)
        slot: Extent = 0
        if slots:
            slot = bind_position(body, "slot_of_row", (turn - first) % slots, slots)
            body.append(AwaitCopies(slots - 1))
        for key, buffer, place in ring:
            body.cached[key] = (buffer, place(slot))
        by_node = {accumulator.node.outputs[0]: (accumulator, buffers) for accumulator, buffers in columns}

        def absorb(phase: int) -> None:
            for node in part.columns[phase]:
                self._absorb(part, *by_node[node.outputs[0]])

        for phase in range(len(part.full)):
            states = accumulate_phase(body, part, phase, walk, self.positions, cached=cached, also=absorb)
            combine_threads(body, states, row.group)
            for state in states:
                finish(body, part, *state)
        is_first_slot = body.index.compare("eq", self.slot, 0)
        store_parallel_outputs(body, part, [is_first_slot] if inside is None else [is_first_slot, inside])
        self._fetch(ring, turn + slots, stop, slot)

    def _absorb(self, part: Region, accumulator: Accumulator, buffers: tuple[Buffer, ...]) -> None:
        """Accumulates the elements at a thread's position into the states of their columns."""
        body = self.body
        for lane, element in enumerate(lifted(body, part, accumulator.node)):
            at = body.index.code(self.step * body.lanes + lane)
            earlier = tuple(Load(buffer, at) for buffer in buffers)
            _store(body, buffers, at, accumulator.combined(earlier, body.name("later", element)))

    # --- the prefetched rows ----------------------------------------------------------------------------------------

    def _ring(self, thread: Extent) -> Fetched:
        """Allocates the ring; returns each input's key, buffer, and the place of the thread's elements by slot."""
        body, row = self.body, self.shape.row
        values = self.positions.values(body.lane)
        lane = body.lane if body.lanes > 1 else 0

        def place(slot: Extent) -> Extent:
            return ((slot * row.steps + self.step) * row.threads + thread) * body.lanes + lane

        fetched = []
        for number, coordinates in self.shape.ring:
            size = self.shape.slots * row.steps * row.threads * body.lanes
            buffer = Buffer(body.fresh(f"ring{number}"), self.region.fusion.values[number].dtype, "shared", size)
            body.append(Allocate(buffer))
            fetched.append(((number, tuple(substitute(c, values) for c in coordinates)), buffer, place))
        return fetched

    def _fetch(self, ring: Fetched, turn: Extent, stop: Extent, slot: Extent) -> None:
        """Starts the copies of a turn's row to a slot of the ring, if the turn exists."""
        if not ring:
            return
        body, nest = self.body, self.region.nest
        with body.condition(body.index.compare("lt", turn, stop)):
            at, inside = self._place(turn)
            loops = [
                Loop(symbol(f"{loop.symbol.name}n", extent=loop.extent), loop.extent, False) for loop in nest.parallel
            ]
            renamed = {loop.symbol: loop_here.index for loop, loop_here in zip(nest.parallel, loops, strict=True)}
            bind_loops(body, loops, at)

            def start() -> None:
                for (number, coordinates), buffer, place in ring:
                    at = tuple(substitute(c, renamed) for c in coordinates)
                    body.start_copy(number, at, buffer, place(slot))

            self._walk(inside).each(body, self.positions.binder(body), start)
        body.append(EndBatch())

    # --- the end ----------------------------------------------------------------------------------------------------

    def _join(self, columns: Columns) -> None:
        """Combines the states of the rows of a block, in row order; the threads of the first row hold the result."""
        body, row = self.body, self.shape.row
        size, width = row.steps * body.lanes, row.group * row.steps * body.lanes
        element = symbol("element", extent=size)
        shared = []
        for _, buffers in columns:
            state_buffers = tuple(Buffer(body.fresh("states"), b.dtype, "shared", row.rows * width) for b in buffers)
            for buffer in state_buffers:
                body.append(Allocate(buffer))
            shared.append(state_buffers)
        with body.loop(element, size, "unroll"):
            place = body.index.code(self.down * width + element * row.group + self.slot)
            for (_, buffers), state_buffers in zip(columns, shared, strict=True):
                _store(body, state_buffers, place, tuple(Load(b, body.index.code(element)) for b in buffers))
        body.append(Barrier())
        other = symbol("other", extent=row.rows)
        with body.loop(other, row.rows, start=1), body.loop(element, size, "unroll"):
            place, at = body.index.code(other * width + element * row.group + self.slot), body.index.code(element)
            for (accumulator, buffers), state_buffers in zip(columns, shared, strict=True):
                later = body.name("later", tuple(Load(b, place) for b in state_buffers))
                _store(body, buffers, at, accumulator.combined(tuple(Load(b, at) for b in buffers), later))

    def _leave(self, columns: Columns, block: Extent) -> list[tuple[int, Buffer]]:
        """Stores the states of a block in scratch memory; returns the scratch parameters of the launch."""
        body, partials = self.body, self.partials
        written, stores = [], []
        for accumulator, buffers in columns:
            first = len(partials.scratch)
            for part, states in enumerate(buffers):
                buffer = Buffer(f"partial{first + part}", states.dtype, written=True, alignment=SCRATCH_ALIGNMENT)
                partials.scratch.append(Scratch(states.dtype, partials.count * self.blocks))
                written.append((first + part, buffer))
                stores.append((buffer, states))
            partials.states.append((accumulator.node, tuple(range(first, len(partials.scratch)))))
        tests = [] if self.down == 0 else [body.index.compare("eq", self.down, 0)]
        column = symbol("column", extent=self.positions.total)

        def bind(position: Extent) -> None:
            body.bind(column, body.index.code(position))

        def store() -> None:
            lane = body.lane if body.lanes > 1 else 0
            place = block * partials.count + column * body.lanes + lane
            for buffer, states in stores:
                places = (self.step * body.lanes + k for k in range(body.lanes))
                body.store(buffer, place, tuple(Load(states, body.index.code(at)) for at in places), aligned=True)

        with when(body, tests):
            self._walk(None).each(body, bind, store)
        return written


Fetched: TypeAlias = Sequence[tuple[Key, Buffer, Callable[[Extent], Extent]]]
"""The prefetched inputs: the key, the buffer, and the place in the buffer by slot."""


def _store(body: Body, buffers: Sequence[Buffer], at: Expression, state: Sequence[Expression]) -> None:
    """Stores a state, which may be computed from the buffers themselves."""
    named = body.name("both", tuple(state)) if len(state) > 1 else state
    for buffer, value in zip(buffers, named, strict=True):
        body.append(Store(buffer, at, value))
