"""The template for the GPU that reduces both ways: over the rows, and over the columns what is made of the rows.

A block goes on from row to row, and each thread keeps the states of its own columns in registers all the while: at the
end every block leaves one state a column in scratch memory. A second launch combines these in the order of the rows,
and stores what is made of the results. Rows come through a ring in shared memory, of which each thread fills and reads
a part of its own: while a row is worked on, the next ones are on their way. What no such copy can fetch, what is dear
to compute again and what is the same for all rows, a thread holds in registers.

How many blocks there are follows from the number of rows and of multiprocessors, so the bits of a result do not depend
on what else the GPU does.

Knows: phases, walks, kernel IR. Must not know: CUDA's notation, arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tracefuse.ir.extents import Extent, Symbol, ceildiv, maximum, minimum, product, substitute, symbol, symbols
from tracefuse.ir.fusion import Shape as IndexShape
from tracefuse.kernel.kernel_ir import Allocate, AwaitCopies, Barrier, Buffer, EndBatch, Expression, Load, Store
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_column import Tile, finish_columns
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
    symbol_of,
    when,
)
from tracefuse.schedule.gpu.gpu_phase import Kept, accumulate_phase, combine_threads, hold, kept_dtype, store_kept
from tracefuse.schedule.gpu.gpu_row import RowShape
from tracefuse.schedule.gpu.gpu_split import SCRATCH_ALIGNMENT, Chunks, Partials
from tracefuse.schedule.launch_spec import LaunchSpec, Scratch, make_launch
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.phases import Accumulator, Region, finish, lifted, new_accumulator, state_types
from tracefuse.schedule.scopes import Key
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.transposed import is_known

THREADS = 512
"""Threads of a block that works on one row, at most."""

RESIDENT = 1024
"""Threads of a multiprocessor: 64 registers each."""

MOST_WORDS = 40
"""Registers of a thread for what it holds of a row and of its columns, where so many threads are resident."""

RING_BYTES = 96 * 1024
"""Shared memory of a block for rows on their way: every GPU that has such copies has as much, most have it twice."""

MOST_SLOTS = 2
"""Rows of a block in the ring: more brought nothing."""

LEAST_ROWS = 4
"""A block takes at least so many rows: what it leaves in scratch memory is then little beside what it reads."""

MOST_RESIDENT_WORDS = 88
"""The same with half as many threads; beyond that a row is too long for this template."""

FIRST_STEPS = {1: 4, 2: 4, 4: 2, 8: 1}
"""Steps of a thread before more threads are taken, by lanes."""

FINISH = Tile(8, 32)
FINISH_UNROLL = 4
"""The second launch: few columns a block, so that there are many blocks, and loads on their way in each thread."""


Ring: TypeAlias = tuple[tuple[int, IndexShape], ...]
"""The inputs, with their coordinates, that come through shared memory."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How rows are shared out: a group of threads works on one, and `resident` threads are on a multiprocessor.

    ring: what comes through shared memory; slots: of the ring, for a turn each.
    """

    row: RowShape
    resident: int
    ring: Ring
    slots: int

    @property
    def blocks(self) -> int:
        """Blocks of a multiprocessor."""
        return max(1, self.resident // self.row.threads)


def row_column_shape(region: Region, sizes: Sizes, setting: Setting) -> Shape | None:
    """How to work on a row, or None where memory lies otherwise or the row is too long."""
    loops, lanes = region.nest.loops, setting.lanes
    if [loop.reduced for loop in loops] != sorted(loop.reduced for loop in loops) or not loops[-1].reduced:
        return None
    total = Positions(region.nest.reduced, lanes).total
    ring = ring_of(region, setting)
    row_bytes = sum(region.fusion.values[number].dtype.itemsize * lanes for number, _ in ring)
    if ring and not sizes.at_most(total, max(1, RING_BYTES // row_bytes), "a row fits in shared memory"):
        ring = ()
    held = [number for number, at in region.probe.kept if (number, at) not in ring]
    words = sum(-(-kept_dtype(region, number).itemsize * lanes // 4) for number in held) + _state_words(region, lanes)
    most = THREADS << (max(1, MOST_RESIDENT_WORDS // words).bit_length() - 1)
    if words > MOST_RESIDENT_WORDS or not sizes.at_most(total, most, "a row and its columns fit in the registers"):
        return None
    row = _row_shape(total, sizes, lanes, words)
    block_bytes = row_bytes * row.steps * row.threads
    slots = min(MOST_SLOTS, RING_BYTES // block_bytes) if ring else 0
    resident = RESIDENT if row.steps * words <= MOST_WORDS else RESIDENT // 2
    return Shape(row, resident, ring if slots else (), slots)


def _row_shape(total: Extent, sizes: Sizes, lanes: int, words: int) -> RowShape:
    """Threads and steps by the power of two above a row's length, which is guarded."""
    bound = 1 << max(sizes.hint(total) - 1, 0).bit_length()
    exact = sizes.hint(total) == bound
    if exact:
        sizes.require(total, "==", bound, "every thread of a row has work")
    else:
        sizes.at_most(total, bound - 1, "the threads of a row")
        sizes.at_most(total, bound // 2, "the threads of a row")
    steps = min(FIRST_STEPS[lanes], bound)
    while steps > 1 and steps * words > MOST_WORDS:
        steps //= 2
    group = min(bound // steps, THREADS)
    steps = bound // group
    return RowShape(group, steps, steps if exact else steps // 2)


def ring_of(region: Region, setting: Setting) -> Ring:
    """The inputs that are read once along all loops, in accesses that can be started and awaited."""
    body = new_body(region, setting)
    values, once = Positions(region.nest.reduced, setting.lanes).values(body.lane), read_once(region)
    found = []
    for number, coordinates in region.probe.reads:
        at = tuple(substitute(c, values) for c in coordinates)
        known = (number, coordinates) in region.probe.unconditional and is_known(region, coordinates)
        if known and number in once and body.can_start(number, at):
            found.append((number, coordinates))
    return tuple(found)


def _state_words(region: Region, lanes: int) -> int:
    """Registers that the columns' states of one step take."""
    nodes = (node for phase in region.columns for node in phase)
    return sum(-(-v.itemsize // 4) * lanes for node in nodes for v in state_types(node))


Columns: TypeAlias = Sequence[tuple[Accumulator, tuple[Buffer, ...]]]
"""The columns' states of one thread: an array of registers for each part."""


def lower_row_column(
    region: Region, finishing: Region, setting: Setting, sizes: Sizes, shape: Shape
) -> tuple[tuple[LaunchSpec, ...], tuple[Scratch, ...], dict[Symbol, Extent]]:
    """The launch over the rows, and the one that finishes the columns. finishing: the region of the second."""
    nest = region.nest
    rows, turns, blocks = symbol("rows", minimum=1), symbol("turns"), symbol("blocks", minimum=1)
    count = product(loop.extent for loop in nest.kept)
    needed = ceildiv(count, shape.row.rows)
    wanted = minimum(shape.blocks * setting.chip.multiprocessors, ceildiv(needed, LEAST_ROWS))
    derived = {symbol_of(rows): count, symbol_of(turns): needed, symbol_of(blocks): maximum(wanted, 1)}
    partials = Partials(product(loop.extent for loop in nest.reduced))
    first = _Rows(region, setting, shape, partials, rows, turns, blocks).launch()
    groups, tiles = Positions(finishing.nest.kept, setting.lanes).total, symbol("tiles", minimum=1)
    across = FINISH.across
    while across > 1 and sizes.hint(groups) <= across // 2:
        across //= 2
    if across < FINISH.across:
        sizes.at_most(groups, across, "the threads across the columns")
    if across > 1:
        sizes.at_most(groups, across // 2, "the threads across the columns")
    tile = Tile(across, FINISH.across * FINISH.down // across)
    derived[symbol_of(tiles)] = ceildiv(groups, across)
    chunks = Chunks(turns, blocks, 1, {})
    second = finish_columns(finishing, setting, tile, tiles, chunks, partials, FINISH_UNROLL)
    return (first, second), tuple(partials.scratch), derived


class _Rows:
    """The launch over the rows while it is emitted.

    rows: how many there are; turns: how often a block's worth of them; blocks: how many blocks share the turns.
    """

    def __init__(
        self, region: Region, setting: Setting, shape: Shape, partials: Partials, rows: Extent, turns: Extent,
        blocks: Extent,
    ) -> None:  # fmt: skip
        self.region, self.setting, self.shape, self.partials = region, setting, shape, partials
        self.rows, self.turns, self.blocks = rows, turns, blocks
        self.body = new_body(region, setting)
        self.positions = Positions(region.nest.reduced, setting.lanes)
        self.step = symbol("step", extent=shape.row.steps)
        self.slot: Extent = 0
        self.down: Extent = 0

    def launch(self) -> LaunchSpec:
        body, row = self.body, self.shape.row
        block = open_block(body, self.blocks)
        thread, variable = open_threads(body, row.threads)
        self.slot = thread
        if row.rows > 1:
            self.slot = bind_position(body, "slot", thread % row.group, row.group)
            self.down = bind_position(body, "down", thread // row.group, row.rows)
        first, stop = self._turns(block)
        columns, ring = self._columns(), self._ring(thread)
        kept = dict(hold(body, self.region, self.positions.values(body.lane), self.step, row.steps))
        for key, _, _ in ring:
            body.to_cache.pop(key, None)
            kept.pop(key, None)
        self._load_for_all(kept)
        turn = symbol("turn", extent=self.turns)
        for slot in range(self.shape.slots):
            self._fetch(ring, first + slot, stop, slot)
        with body.loop(turn, stop, start=first):
            self._row(turn, first, stop, columns, ring, kept)
        if row.rows > 1:
            self._join(columns)
        written = self._leave(columns, block)
        return make_launch(
            body, f"{self.setting.name}_rows", "cuda", [(block, self.blocks)], scratch=written,
            contract=self.setting.contract, threads=row.threads, thread=variable,
            blocks_per_multiprocessor=self.shape.blocks,
        )  # fmt: skip

    def _turns(self, block: Extent) -> tuple[Extent, Extent]:
        """The first turn of a block, and the one after its last: as many for each block, or one more."""
        each, more = self.turns // self.blocks, self.turns % self.blocks
        limits = (block * each + minimum(block, more), (block + 1) * each + minimum(block + 1, more))
        first, stop = (
            bind_position(self.body, name, limit, self.turns + 1)
            for name, limit in zip(("first", "stop"), limits, strict=True)
        )
        return first, stop

    def _columns(self) -> Columns:
        """Registers for the states of a thread's columns, at their neutral element."""
        body, size = self.body, self.shape.row.steps * self.body.lanes
        found = []
        for node in (node for phase in self.region.columns for node in phase):
            accumulator = new_accumulator(body, node)
            name = f"column{node.outputs[0]}"
            buffers = tuple(Buffer(body.fresh(name), v.dtype, "local", size) for v in accumulator.variables)
            for buffer in buffers:
                body.append(Allocate(buffer))
            found.append((accumulator, buffers))
        element = symbol("element", extent=size)
        with body.loop(element, size, "unroll"):
            for accumulator, buffers in found:
                _store(body, buffers, body.index.code(element), accumulator.neutral)
        return found

    def _place(self, turn: Extent) -> tuple[Extent, Expression | None]:
        """The row of a thread's group in a turn, and whether there is one."""
        if self.shape.row.rows == 1:
            return turn, None
        body = self.body
        place = bind_position(body, "place", turn * self.shape.row.rows + self.down, self.turns * self.shape.row.rows)
        inside = body.index.compare("lt", place, self.rows)
        return bind_position(body, "row", minimum(place, self.rows - 1), self.rows), inside

    def _walk(self, inside: Expression | None) -> Steps:
        row = self.shape.row
        return Steps(self.step, row.steps, row.sure, row.group, self.slot, self.positions.total, inside)

    def _load_for_all(self, kept: dict[Key, int]) -> None:
        """Loads what is the same for all rows once, and takes it out of what a row keeps."""
        body, rows = self.body, {loop.symbol for loop in self.region.nest.kept}
        same = [key for key in kept if key[0] in self.region.fusion.inputs]
        same = [key for key in same if rows.isdisjoint(s for c in key[1] for s in symbols(c))]

        def load() -> None:
            for key in same:
                body.value(*key)

        if same:
            self._walk(None).each(body, self.positions.binder(body), load)
        for key in same:
            body.cached[key] = body.to_cache[key]
            del kept[key]

    def _row(
        self, turn: Extent, first: Extent, stop: Extent, columns: Columns, ring: Fetched, kept: Kept
    ) -> None:  # fmt: skip
        """One turn: all phases of a row, after which its slot of the ring is free for another."""
        body, row, slots = self.body, self.shape.row, self.shape.slots
        at, inside = self._place(turn)
        bind_loops(body, self.region.nest.kept, at)
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
            states = accumulate_phase(body, part, phase, walk, self.positions, kept=kept, also=absorb)
            combine_threads(body, states, row.group)
            for state in states:
                finish(body, part, *state)
        own = body.index.compare("eq", self.slot, 0)
        store_kept(body, part, [own] if inside is None else [own, inside])
        self._fetch(ring, turn + slots, stop, slot)

    def _absorb(self, part: Region, accumulator: Accumulator, buffers: tuple[Buffer, ...]) -> None:
        """Combines the elements at a thread's position into the states of their columns."""
        body = self.body
        for lane, element in enumerate(lifted(body, part, accumulator.node)):
            at = body.index.code(self.step * body.lanes + lane)
            earlier = tuple(Load(buffer, at) for buffer in buffers)
            _store(body, buffers, at, accumulator.combined(earlier, body.name("later", element)))

    # --- the rows on their way --------------------------------------------------------------------------------------

    def _ring(self, thread: Extent) -> Fetched:
        """The ring: for each of its inputs the key, the buffer, and where a slot has the thread's elements."""
        body, row = self.body, self.shape.row
        values = self.positions.values(body.lane)
        lane = body.lane if body.lanes > 1 else 0

        def place(slot: Extent) -> Extent:
            return ((slot * row.steps + self.step) * row.threads + thread) * body.lanes + lane

        found = []
        for number, coordinates in self.shape.ring:
            size = self.shape.slots * row.steps * row.threads * body.lanes
            buffer = Buffer(body.fresh(f"ring{number}"), self.region.fusion.values[number].dtype, "shared", size)
            body.append(Allocate(buffer))
            found.append(((number, tuple(substitute(c, values) for c in coordinates)), buffer, place))
        return found

    def _fetch(self, ring: Fetched, turn: Extent, stop: Extent, slot: Extent) -> None:
        """Starts the copies of a turn's row, where there is such a turn, to a slot of the ring."""
        if not ring:
            return
        body, nest = self.body, self.region.nest
        with body.condition(body.index.compare("lt", turn, stop)):
            at, inside = self._place(turn)
            loops = [Loop(symbol(f"{loop.symbol.name}n", extent=loop.extent), loop.extent, False) for loop in nest.kept]
            renamed = {loop.symbol: own.index for loop, own in zip(nest.kept, loops, strict=True)}
            bind_loops(body, loops, at)

            def start() -> None:
                for (number, coordinates), buffer, place in ring:
                    at = tuple(substitute(c, renamed) for c in coordinates)
                    body.start_copy(number, at, buffer, place(slot))

            self._walk(inside).each(body, self.positions.binder(body), start)
        body.append(EndBatch())

    # --- the end ----------------------------------------------------------------------------------------------------

    def _join(self, columns: Columns) -> None:
        """Combines the states of the rows of a block, in the order of the rows, in the threads of the first."""
        body, row = self.body, self.shape.row
        size, width = row.steps * body.lanes, row.group * row.steps * body.lanes
        element = symbol("element", extent=size)
        shared = []
        for _, buffers in columns:
            own = tuple(Buffer(body.fresh("states"), b.dtype, "shared", row.rows * width) for b in buffers)
            for buffer in own:
                body.append(Allocate(buffer))
            shared.append(own)
        with body.loop(element, size, "unroll"):
            place = body.index.code(self.down * width + element * row.group + self.slot)
            for (_, buffers), own in zip(columns, shared, strict=True):
                _store(body, own, place, tuple(Load(b, body.index.code(element)) for b in buffers))
        body.append(Barrier())
        other = symbol("other", extent=row.rows)
        with body.loop(other, row.rows, start=1), body.loop(element, size, "unroll"):
            place, at = body.index.code(other * width + element * row.group + self.slot), body.index.code(element)
            for (accumulator, buffers), own in zip(columns, shared, strict=True):
                later = body.name("later", tuple(Load(b, place) for b in own))
                _store(body, buffers, at, accumulator.combined(tuple(Load(b, at) for b in buffers), later))

    def _leave(self, columns: Columns, block: Extent) -> list[tuple[int, Buffer]]:
        """Stores the states of a block in scratch memory; the scratch parameters of the launch."""
        body, partials = self.body, self.partials
        written, stores = [], []
        for accumulator, buffers in columns:
            first = len(partials.scratch)
            for part, own in enumerate(buffers):
                buffer = Buffer(f"partial{first + part}", own.dtype, written=True, alignment=SCRATCH_ALIGNMENT)
                partials.scratch.append(Scratch(own.dtype, partials.count * self.blocks))
                written.append((first + part, buffer))
                stores.append((buffer, own))
            partials.states.append((accumulator.node, tuple(range(first, len(partials.scratch)))))
        tests = [] if self.down == 0 else [body.index.compare("eq", self.down, 0)]
        column = symbol("column", extent=self.positions.total)

        def bind(position: Extent) -> None:
            body.bind(column, body.index.code(position))

        def store() -> None:
            lane = body.lane if body.lanes > 1 else 0
            place = block * partials.count + column * body.lanes + lane
            for buffer, own in stores:
                places = (self.step * body.lanes + k for k in range(body.lanes))
                body.store(buffer, place, tuple(Load(own, body.index.code(at)) for at in places), aligned=True)

        with when(body, tests):
            self._walk(None).each(body, bind, store)
        return written


Fetched: TypeAlias = Sequence[tuple[Key, Buffer, Callable[[Extent], Extent]]]
"""What comes through the ring: key, buffer, and the place in it by the slot."""


def _store(body: Body, buffers: Sequence[Buffer], at: Expression, state: Sequence[Expression]) -> None:
    """Stores a state that may be computed from what the buffers hold."""
    named = body.name("both", tuple(state)) if len(state) > 1 else state
    for buffer, value in zip(buffers, named, strict=True):
        body.append(Store(buffer, at, value))
