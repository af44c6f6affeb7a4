"""Tiles of two spans of loops in shared memory, which the threads of a block fill along one and read along the other.

The positions of a tile are numbered along either span, and thread t visits the positions t, t + THREADS and so on, so
the sides of a tile need not be powers of two. Loads past the end of a span read its last element again: a thread then
has all its loads on their way, without a branch between them.

Must not know: sizes, CUDA C++.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, Symbol, ceildiv, minimum, product, substitute, symbol, symbols
from tracefuse.kernel.kernel_ir import Allocate, Barrier, Buffer, Expression, Load, Store
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import bind_loops, bind_position, when
from tracefuse.schedule.gpu.gpu_prefetch import lanes_of
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.scopes import Key

THREADS = 256


@dataclass(frozen=True, slots=True)
class TileSpan:
    """Loops whose positions a side of a tile counts, the innermost last, in groups of `lanes` along that one."""

    loops: tuple[Loop, ...]
    lanes: int

    @property
    def extent(self) -> Extent:
        return product(loop.extent for loop in self.loops)

    @property
    def groups(self) -> Extent:
        return self.extent // self.lanes

    @property
    def group(self) -> Extent:
        """The symbol that counts the groups of lanes of the innermost loop."""
        return symbol(f"{self.loops[-1].symbol.name}g", extent=self.loops[-1].extent // self.lanes)

    def values(self, body: Body) -> dict[Symbol, Extent]:
        """Returns the index of the loop in groups of lanes; empty with one lane."""
        return {} if self.lanes == 1 else {self.loops[-1].symbol: self.group * self.lanes + body.lane}


@dataclass(slots=True)
class TileSide:
    """A side of a tile: `length` positions of a span from `start` on.

    tables: in shared memory, the index of each loop at each position, if the span has several loops: they take many
    divisions, which the threads of the block share.
    """

    span: TileSpan
    length: int
    start: Extent
    tables: list[Buffer] = field(default_factory=list)

    def tabulate(self, body: Body, thread: Extent) -> None:
        """Fills the tables. A barrier must follow."""
        if len(self.span.loops) == 1:
            return
        for loop in self.span.loops:
            name = body.fresh(f"{loop.symbol.name}s")
            self.tables.append(Buffer(name, body.index.dtype, "shared", self.length, positions=True))
            body.append(Allocate(self.tables[-1]))
        with when(body, [body.index.compare("lt", thread, self.length)]):
            position = minimum(self.start + thread, self.span.extent - 1)
            bind_loops(body, self.span.loops, bind_position(body, "joined", position, self.span.extent))
            for loop, table in zip(self.span.loops, self.tables, strict=True):
                body.append(Store(table, body.index.code(thread), body.index.code(loop.index)))

    def bind_place(self, body: Body, place: Extent, exists: bool = False) -> None:
        """Binds the loops' indices at a place in the tile; past the end of the span, at its last position.

        exists: the place is not past the end.
        """
        if self.tables:
            for loop, table in zip(self.span.loops, self.tables, strict=True):
                body.bind(loop.index, Load(table, body.index.code(place)))
        else:
            position = self.start + place
            bind_loops(body, self.span.loops, position if exists else minimum(position, self.span.extent - 1))

    def bind_group(self, body: Body, group: Extent) -> None:
        """Binds the loops' indices at a group of lanes of the tile; past the end of the span, at its last group."""
        if self.span.lanes == 1:
            self.bind_place(body, group)
        elif self.tables:
            *outer, inner = zip(self.span.loops, self.tables, strict=True)
            place = body.index.code(group * self.span.lanes)
            for loop, table in outer:
                body.bind(loop.index, Load(table, place))
            first = symbol(body.fresh("first"), extent=inner[0].extent)
            body.bind(first, Load(inner[1], place))
            body.bind(self.span.group, body.index.code(first // self.span.lanes))
        else:
            last = self.span.groups - 1
            body.bind(self.span.group, body.index.code(minimum(self.first_group + group, last)))

    @property
    def first_group(self) -> Extent:
        return self.start // self.span.lanes


class TileWalk:
    """The threads of a block over a tile. inner: the side that the output follows; other: that of the inputs."""

    def __init__(self, body: Body, inner: TileSide, other: TileSide, thread: Extent) -> None:
        self.body, self.inner, self.other, self.thread = body, inner, other, thread
        self.pitch = inner.length | 1  # an odd number of words, so that a column access has no bank conflicts
        for side in (inner, other):
            side.tabulate(body, thread)
        if inner.tables or other.tables:
            body.append(Barrier())

    def steps(self, along: TileSide) -> int:
        """Returns the groups of lanes that a thread visits along a side."""
        return -(-self.inner.length * self.other.length // along.span.lanes // THREADS)

    def step(self, along: TileSide) -> Extent:
        """The symbol that numbers the groups of a thread."""
        return symbol("step", extent=self.steps(along))

    @contextlib.contextmanager
    def _lanes(self, along: TileSide) -> Iterator[int]:
        """Emits the lanes of a side."""
        before, self.body.lanes = self.body.lanes, along.span.lanes
        yield self.body.lanes
        self.body.lanes = before

    def shared(self, number: int) -> Buffer:
        """Allocates shared memory for a tile of an input."""
        dtype = self.body.fusion.values[number].dtype.compute
        buffer = Buffer(self.body.fresh(f"tile{number}"), dtype, "shared", self.other.length * self.pitch)
        self.body.append(Allocate(buffer))
        return buffer

    @contextlib.contextmanager
    def each(self, along: TileSide, rows: TileSide, *, storing: bool = False) -> Iterator[tuple[Extent, Extent]]:
        """Opens a loop over a thread's positions, with adjacent threads along `along`; yields (group, row) in the tile.

        storing: skips what is past the end of a span. Otherwise the thread has no conditions on its positions.
        """
        body, groups, steps, step = self.body, along.length // along.span.lanes, self.steps(along), self.step(along)
        with contextlib.ExitStack() as inside:
            inside.enter_context(self._lanes(along))
            inside.enter_context(body.kept_inside())
            across: Extent
            if self._keeps_group(along):
                across = bind_position(body, "across", self.thread % groups, groups)
                first = bind_position(body, "down", self.thread // groups, THREADS // groups)
                along.bind_group(body, across)
                inside.enter_context(body.loop(step, steps, "unroll"))
                down = first + step * (THREADS // groups)
            else:
                inside.enter_context(body.loop(step, steps, "unroll"))
                place = self.thread + step * THREADS
                across = bind_position(body, "across", place % groups, groups)
                down = bind_position(body, "down", place // groups, ceildiv(steps * THREADS, groups))
                along.bind_group(body, across)
            if storing:
                tests = [
                    body.index.compare("lt", along.first_group + across, along.span.groups),
                    body.index.compare("lt", rows.start + down, rows.span.extent),
                    *self._inside(down, along, rows),
                ]
                inside.enter_context(when(body, tests))
            bounded = storing or self._is_full(along) or not rows.tables
            rows.bind_place(body, down if bounded else minimum(down, rows.length - 1), storing)
            yield across, down

    def _keeps_group(self, along: TileSide) -> bool:
        """Returns whether a thread has the same place along a side in every step."""
        return THREADS % (along.length // along.span.lanes) == 0

    def _is_full(self, along: TileSide) -> bool:
        """Returns whether every thread has a group of the tile in every step."""
        return self.inner.length * self.other.length == self.steps(along) * THREADS * along.span.lanes

    def _inside(self, down: Extent, along: TileSide, rows: TileSide) -> list[Expression]:
        return [] if self._is_full(along) else [self.body.index.compare("lt", down, rows.length)]

    def fill(self, tiles: Sequence[tuple[Key, Buffer]]) -> None:
        """Loads the inputs and stores them in the tiles."""
        body, values = self.body, self.other.span.values(self.body)
        with self.each(self.other, self.inner) as (across, down):
            for (number, coordinates), buffer in tiles:
                lanes = body.value(number, tuple(substitute(c, values) for c in coordinates))
                with when(body, self._inside(down, self.other, self.inner)):
                    for lane, element in enumerate(body.spread(lanes)):
                        at = (across * self.other.span.lanes + lane) * self.pitch + down
                        body.append(Store(buffer, body.index.code(at), element))

    def lanes_of(self, key: Key, along: TileSide) -> int:
        """Returns the number of lanes of a group along a side that read different elements."""
        with self._lanes(along):
            return lanes_of(self.body, key[1])

    def prefetch(self, keys: Sequence[Key], along: TileSide, rows: TileSide) -> None:
        """Loads input elements at all positions of a thread into registers."""
        if not keys:
            return
        moving = {loop.symbol for loop in rows.span.loops}
        for key in keys:
            dtype, lanes = self.body.fusion.values[key[0]].dtype, self.lanes_of(key, along)
            moves = not self._keeps_group(along) or not moving.isdisjoint(s for c in key[1] for s in symbols(c))
            buffer = Buffer(self.body.fresh(f"x{key[0]}"), dtype, "local", (self.steps(along) if moves else 1) * lanes)
            self.body.append(Allocate(buffer))
            place = self.step(along) * lanes if moves else 0
            self.body.to_cache[key] = (buffer, place + (self.body.lane if lanes > 1 else 0))
        with self.each(along, rows):
            for key in keys:
                self.body.value(*key)
        self.body.cached.update({key: self.body.to_cache.pop(key) for key in keys})

    def store(self, tiles: Sequence[tuple[Key, Buffer]], emit: Callable[[], None]) -> None:
        """Emits along the output; reads of what is held go to the tiles."""
        values: Mapping[Symbol, Extent] = self.inner.span.values(self.body)
        with self.each(self.inner, self.other, storing=True) as (across, down):
            for (number, coordinates), buffer in tiles:
                lanes = self.inner.span.lanes
                at = down * self.pitch + across * lanes + (self.body.lane if lanes > 1 else 0)
                self.body.cached[(number, tuple(substitute(c, values) for c in coordinates))] = (buffer, at)
            emit()
