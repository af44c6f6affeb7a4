"""Shared by the GPU templates: blocks and threads, and the walks of a thread over the reduction loops.

A walk visits a thread's share of the positions of the reduction loops, in groups of `lanes` adjacent elements. `Steps`
is unrolled, so the values of a step can stay in registers; `Strides` loops over any number of positions.

Must not know: sizes, CUDA C++.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent, Symbol, minimum, product, symbol, symbol_of
from tracefuse.kernel.kernel_ir import Buffer, Expression, Variable, call
from tracefuse.schedule.body import Body
from tracefuse.schedule.chip import Chip
from tracefuse.schedule.gpu.gpu_prefetch import choose_prefetched, prefetch, release_prefetched
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.scopes import Key
from tracefuse.schedule.transposed import read_offsets

WIDE_BYTES = 16
"""The widest access of a thread."""

Bind = Callable[[Extent], None]
Emit = Callable[[], None]
Around = Callable[[], contextlib.AbstractContextManager[None]]
no_scope: Around = contextlib.nullcontext


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of every template. index_dtype: int32 if all offsets fit. contract: allow fused multiply-add."""

    lanes: int
    index_dtype: DType
    contract: bool
    chip: Chip
    name: str


def new_body(region: Region, setting: Setting) -> Body:
    """Makes an empty body; outputs are aligned.

    Inputs that are read once bypass the L1 cache if the kernel only reduces and every access is wide. On an H200, loads
    beside stores of full outputs are up to 10 % faster through the cache, and narrow loads need it for the rest of a
    sector.
    """
    memory = region.memory
    body = Body(
        region.fusion, memory.strides, setting.index_dtype, lanes=setting.lanes,
        aligned=memory.aligned | (frozenset(region.fusion.outputs) - memory.placed), misaligned=memory.misaligned,
        shared=memory.shared,
    )  # fmt: skip
    body.joins_groups = body.index.inverts = True
    body.position_dtype = setting.index_dtype
    if not any(region.full):
        body.streaming = frozenset(
            number for number in read_once(region)
            if setting.lanes * region.fusion.values[number].dtype.itemsize >= WIDE_BYTES
        )  # fmt: skip
    return body


def read_once(region: Region) -> frozenset[int]:
    """Returns the inputs whose elements are each read once: at one place in the kernel and by one thread."""
    counts: dict[int, int] = {}
    complete: set[int] = set()
    for number, offset in read_offsets(region):
        counts[number] = counts.get(number, 0) + 1
        if all(coefficient(offset, loop.symbol) != 0 for loop in region.nest.loops):
            complete.add(number)
    return frozenset(number for number in complete if counts[number] == 1)


def open_block(body: Body, extent: Extent) -> Extent:
    """Returns the index of the grid axis, over `extent` blocks."""
    index = symbol("block", extent=extent)
    body.levels[0].introduces.add(symbol_of(index))
    body.index.bind(symbol_of(index), "block")
    return index


def open_threads(body: Body, count: int) -> tuple[Extent, Variable]:
    """Returns the number of a thread in its block, as an index and as a kernel variable."""
    index = symbol("thread", extent=count)
    body.levels[0].introduces.add(symbol_of(index))
    return index, body.index.bind(symbol_of(index), "thread")


def bind_loops(body: Body, loops: Sequence[Loop], position: Extent) -> None:
    """Binds the loops' indices to the coordinates of a row-major position, innermost first."""
    wide = [loop for loop in loops if loop.extent != 1]
    for loop in loops:
        if loop.extent == 1:
            body.bind(loop.index, body.index.code(0))
    for count in range(len(wide) - 1, -1, -1):
        loop = wide[count]
        if count == 0:
            body.bind(loop.index, body.index.code(position))
            return
        body.bind(loop.index, body.index.code(position % loop.extent))
        outer = product(outside.extent for outside in wide[:count])
        position = (
            bind_position(body, "outer", position // loop.extent, outer) if count > 1 else position // loop.extent
        )


def bind_position(body: Body, name: str, value: Extent, extent: Extent) -> Extent:
    """Binds an integer below `extent` to a new variable; returns its index."""
    index = symbol(name, extent=extent)
    body.bind(index, body.index.code(value))
    return index


# ---------------------------------------------------------------------------------------------------------------------
# the positions of the reduction loops


@dataclass(frozen=True, slots=True)
class Positions:
    """The iteration space of some loops, in groups of `lanes` adjacent elements of the last loop.

    joined: several loops have one index, the position, in place of one each. `values` must replace the loops' indices
    everywhere.
    """

    loops: tuple[Loop, ...]
    lanes: int
    joined: bool = False

    @property
    def inner(self) -> Extent:
        """The number of groups of the innermost loop."""
        return self.loops[-1].extent // self.lanes

    @property
    def group(self) -> Extent:
        """The symbol that counts the groups of the innermost loop."""
        return symbol(f"{self.loops[-1].symbol.name}g", extent=self.inner)

    @property
    def total(self) -> Extent:
        return product(loop.extent for loop in self.loops[:-1]) * self.inner

    @property
    def moving(self) -> frozenset[Symbol]:
        """The symbols that `bind` binds."""
        if self._has_one_index:
            return frozenset((symbol_of(self._position),))
        last = self.loops[-1].index if self.lanes == 1 else self.group
        return frozenset((*(loop.symbol for loop in self.loops[:-1]), symbol_of(last)))

    def values(self, lane: Extent) -> dict[Symbol, Extent]:
        """Returns the innermost loop's index in terms of a group and a lane; empty with one lane.

        With one index for all loops, returns that of each loop in terms of it.
        """
        if self._has_one_index:
            return self._in_position(lane)
        if self.lanes == 1:
            return {}
        return {self.loops[-1].symbol: self.group * self.lanes + lane}

    def bind(self, body: Body, position: Extent) -> None:
        """Binds the loops' indices for the group at `position`."""
        if self._has_one_index:
            body.bind(self._position, body.index.code(position))
            return
        if len(self.loops) > 1:
            position = bind_position(body, "position", position, self.total)
        if self.lanes == 1:
            bind_loops(body, self.loops, position)
        else:
            bind_loops(body, [*self.loops[:-1], Loop(self.group, self.inner, True)], position)

    @property
    def _has_one_index(self) -> bool:
        return self.joined and len(self.loops) > 1

    @property
    def _position(self) -> Extent:
        return symbol("position", extent=self.total)

    def _in_position(self, lane: Extent) -> dict[Symbol, Extent]:
        last, rest = self.loops[-1], self._position // self.inner
        values = {last.symbol: self._position % self.inner * self.lanes + (lane if self.lanes > 1 else 0)}
        for count, loop in enumerate(reversed(self.loops[:-1]), 1):
            values[loop.symbol] = rest if count == len(self.loops) - 1 else rest % loop.extent
            rest = rest // loop.extent
        return values

    def binder(self, body: Body) -> Bind:
        """`bind` for one body."""
        return lambda position: self.bind(body, position)


def row_positions(region: Region, lanes: int) -> Positions:
    """Returns the positions of the reduced loops; with one index if an input is contiguous along all of them.

    That input is then read without a division.
    """
    loops = region.nest.reduced
    return Positions(loops, lanes, any(_is_contiguous(offset, loops) for _, offset in read_offsets(region)))


def _is_contiguous(offset: Extent, loops: Sequence[Loop]) -> bool:
    expected: Extent = 1
    for loop in reversed(loops):
        if coefficient(offset, loop.symbol) != expected:
            return False
        expected = expected * loop.extent
    return True


class Walk(Protocol):
    """The sequence of positions that a thread visits."""

    def each(
        self, body: Body, bind: Bind, emit: Emit, prefetched: Sequence[Key] = (), around: Around = no_scope
    ) -> None:  # fmt: skip
        """Opens loops, binds each position and emits.

        prefetched: input elements to load for several positions before the first is processed. around: opens a scope
        around each group of positions that a loop processes at a time.
        """
        ...


@dataclass(frozen=True, slots=True)
class Steps:
    """Positions step * stride + start for `count` steps, unrolled; the first `sure` of them are below `total`.

    inside: a condition on every step, about the block and the thread.
    """

    step: Extent
    count: int
    sure: int
    stride: Extent
    start: Extent
    total: Extent
    inside: Expression | None = None

    def each(
        self, body: Body, bind: Bind, emit: Emit, prefetched: Sequence[Key] = (), around: Around = no_scope
    ) -> None:  # fmt: skip
        # A compiler does not move narrow loads before the conditional work of earlier steps.
        keys = choose_prefetched(body, prefetched, self.count, narrow=body.lanes == 1)
        prefetch(body, keys, self.step, self.count, lambda load: self._load(body, bind, load))
        self._each(body, bind, emit)
        release_prefetched(body, keys)

    def _load(self, body: Body, bind: Bind, load: Emit) -> None:
        """Loads of a row of a block do not branch if they are narrow: beyond the end, they read the last position."""
        if body.lanes > 1 or self.inside is not None:
            self._each(body, bind, load)
            return
        for first, last in ((0, self.sure), (self.sure, self.count)):
            if first == last:
                continue
            with body.loop(self.step, last, "unroll", start=first):
                position = self.step * self.stride + self.start
                if first >= self.sure:
                    position = bind_position(body, "inside", minimum(position, self.total - 1), self.total)
                bind(position)
                load()

    def _each(self, body: Body, bind: Bind, emit: Emit) -> None:
        for first, last in ((0, self.sure), (self.sure, self.count)):
            if first == last:
                continue
            with body.loop(self.step, last, "unroll", start=first):
                position = self.step * self.stride + self.start
                tests = [] if self.inside is None else [self.inside]
                if first >= self.sure:
                    tests.append(body.index.compare("lt", position, self.total))
                with when(body, tests, [symbol_of(self.step)]):
                    bind(position)
                    emit()


@dataclass(frozen=True, slots=True)
class FewSteps:
    """Positions 0 to `total` - 1, of which there are more than `count` // 2 and at most `count`, unrolled.

    All loads come first; those beyond the end read the last position again.
    """

    step: Extent
    count: int
    total: Extent

    def each(
        self, body: Body, bind: Bind, emit: Emit, prefetched: Sequence[Key] = (), around: Around = no_scope
    ) -> None:  # fmt: skip
        keys = choose_prefetched(body, prefetched, self.count, narrow=True)
        prefetch(body, keys, self.step, self.count, lambda load: self.clamped(body, bind, load))
        least = self.count if self.total == self.count else self.count // 2 + 1
        Steps(self.step, self.count, least, 1, 0, self.total).each(body, bind, emit)
        release_prefetched(body, keys)

    def clamped(self, body: Body, bind: Bind, emit: Emit) -> None:
        """Visits `count` positions, of which those beyond the end are the last one."""
        with body.loop(self.step, self.count, "unroll"):
            bind(bind_position(body, "term", minimum(self.step, self.total - 1), self.total))
            emit()


@dataclass(frozen=True, slots=True)
class Strides:
    """Positions first + start, first + start + stride, ... below `stop`, `unroll` of them at a time.

    slot: an index for the position from `first` on. narrow: prefetches narrow loads too, which a compiler does not move
    before the stores of earlier positions. short: there are so few positions that those after the last whole turn take
    a good part of the time. Their loads come first, too, and those beyond the end read the last position.
    """

    first: Extent
    stop: Extent
    start: Extent
    stride: Extent
    unroll: int
    slot: Extent | None = None
    narrow: bool = False
    short: bool = False

    def each(
        self, body: Body, bind: Bind, emit: Emit, prefetched: Sequence[Key] = (), around: Around = no_scope
    ) -> None:  # fmt: skip
        def visit(position: Extent, emit: Emit) -> None:
            if self.slot is not None:
                body.bind(self.slot, body.index.code(position - self.first))
            bind(position)
            emit()

        def parts(emit: Emit) -> None:
            with body.loop(part, self.unroll, "unroll"):
                visit(self.first + (turn * self.unroll + part) * self.stride + self.start, emit)

        full_turns = (self.stop - self.first) // (self.stride * self.unroll)
        if not isinstance(self.stride, int):  # a division by an argument is not repeated in every turn
            full_turns = bind_position(body, "turns", full_turns, self.stop + 1)
        turn, part = symbol("turn", extent=full_turns), symbol("part", extent=self.unroll)
        keys = choose_prefetched(body, prefetched, self.unroll, narrow=self.narrow)
        with body.loop(turn, full_turns):
            prefetch(body, keys, part, self.unroll, parts)
            with around():
                parts(emit)
        release_prefetched(body, keys)
        begin = self.first + full_turns * (self.stride * self.unroll) + self.start
        if self.short:
            begin = bind_position(body, "begin", begin, self.stop + self.stride)
            count = self.unroll if self.stride != 1 else self.unroll - 1  # of a turn that not all threads complete
            step = symbol("step", extent=count)
            Steps(step, count, 0, self.stride, begin, self.stop).each(body, bind, emit, prefetched)
            return
        rest = symbol("rest", extent=self.stop)
        with body.loop(rest, self.stop, start=begin, step=self.stride):
            visit(rest, emit)


@dataclass(frozen=True, slots=True)
class Portions:
    """Several walks in sequence, each with separate places for cached values."""

    parts: Sequence[tuple[Walk, Mapping[Key, tuple[Buffer, Extent]]]]

    def each(
        self, body: Body, bind: Bind, emit: Emit, prefetched: Sequence[Key] = (), around: Around = no_scope
    ) -> None:  # fmt: skip
        for walk, places in self.parts:
            body.to_cache.update(places)
            body.cached.update({key: places[key] for key in body.cached.keys() & places.keys()})
            if any(buffer.space == "shared" for buffer, _ in places.values()):
                body.await_copies()
            walk.each(body, bind, emit, prefetched, around)


def when(
    body: Body, tests: Sequence[Expression], about: Collection[Symbol] = ()
) -> contextlib.AbstractContextManager[None]:
    """Opens `if` on the conjunction of the tests; no condition if there are none."""
    if not tests:
        return contextlib.nullcontext()
    condition = tests[0]
    for test in tests[1:]:
        condition = call("and", condition, test)
    return body.condition(condition, about)
