"""The pointwise template for the GPU with transposed inputs: reads them through tiles in shared memory.

A block takes a square tile of two spans of loops: the innermost loops, along which the output is contiguous, and the
loop along which the input is contiguous. It loads the input tile with coalesced accesses along the input's memory,
stores it in shared memory, and then computes with adjacent threads along the output's memory. All loads of a thread,
those of the other inputs too, are on their way together.

Must not know: CUDA C++.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from segments import Verdict
from tracefuse.ir.extents import Expression, Extent, Symbol, ceildiv, product, substitute, symbol, symbol_of, symbols
from tracefuse.kernel.kernel_ir import Allocate, Barrier, Buffer, Store
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import (
    Setting,
    bind_loops,
    bind_position,
    new_body,
    open_block,
    open_threads,
    when,
)
from tracefuse.schedule.gpu.gpu_prefetch import lanes_of
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.memory_orders import LEAST_EXTENT
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.phases import Region, store_output
from tracefuse.schedule.scopes import Key
from tracefuse.schedule.template import Template
from tracefuse.schedule.transposed import Transposed, is_known, judge_tiles

THREADS = 256
SIDE = {1: 32, 2: 64, 4: 64, 8: 64}
"""The side of a tile in elements, by lanes."""

LEAST_ITEMSIZE, NARROW_SIDE = 4, 64
"""Single elements of fewer bytes are stored to tiles as they are loaded, and the side of their tiles. (H200)"""

PREFETCHED_BYTES = 128
"""The most registers of a thread, in bytes, for inputs that are loaded while the tiles are on their way."""

JOINED = 256
"""Loops of the output are joined up to this extent, so that few tiles reach past the end of one; with lanes, which
joined loops do not have, only if the innermost is too short for tiles."""


def tile_lanes(transposed: Transposed, lanes: int) -> int:
    """Returns the lanes of both spans: those of the innermost loop if it is alone and they divide the other extent."""
    if len(transposed.inner) > 1:
        return 1
    extent = transposed.loop.extent
    terms = extent.terms if isinstance(extent, Expression) else (((), extent),)
    return lanes if all(factor % lanes == 0 for _, factor in terms) else 1


@dataclass(frozen=True, slots=True)
class _Span:
    """Loops whose positions a side of a tile counts, the innermost last, in groups of `lanes`; one loop with lanes."""

    loops: tuple[Loop, ...]
    lanes: int

    @property
    def extent(self) -> Extent:
        return product(loop.extent for loop in self.loops)

    @property
    def group(self) -> Extent:
        """The symbol that counts the groups of lanes."""
        return symbol(f"{self.loops[-1].symbol.name}g", extent=self.extent // self.lanes)

    def values(self, body: Body) -> dict[Symbol, Extent]:
        """Returns the index of the loop in groups of lanes; empty with one lane."""
        return {} if self.lanes == 1 else {self.loops[-1].symbol: self.group * self.lanes + body.lane}

    def bind_position(self, body: Body, position: Extent) -> None:
        """Binds the loops' indices to a position."""
        if len(self.loops) > 1:
            position = bind_position(body, "joined", position, self.extent)
        bind_loops(body, self.loops, position)

    def bind_group(self, body: Body, group: Extent) -> None:
        """Binds the loops' indices to a group of lanes."""
        if self.lanes == 1:
            self.bind_position(body, group)
        else:
            body.bind(self.group, body.index.code(group))


class _Square:
    """The threads of a block over a square tile: groups of lanes across, and several rows at once."""

    def __init__(self, body: Body, side: int, lanes: int, thread: Extent) -> None:
        self.body, self.side, self.lanes = body, side, lanes
        groups = side // lanes
        self.rows = THREADS // groups
        self.pitch = side + 1  # an odd number of words, so that a column access has no bank conflicts
        self.step = symbol("step", extent=side // self.rows)
        self.across = bind_position(body, "across", thread % groups, groups)
        self.down = bind_position(body, "down", thread // groups, self.rows)

    def shared(self, number: int) -> Buffer:
        """Allocates shared memory for a tile of an input."""
        dtype = self.body.fusion.values[number].dtype.compute
        buffer = Buffer(self.body.fresh(f"tile{number}"), dtype, "shared", self.side * self.pitch)
        self.body.append(Allocate(buffer))
        return buffer

    @contextlib.contextmanager
    def each(self, along: _Span, rows: _Span, tile: Extent, tile_of_rows: Extent) -> Iterator[Extent]:
        """Opens a loop over the tile with adjacent threads along `along`; yields the row's place in the tile."""
        body = self.body
        place = self.down + self.step * self.rows
        group = tile * (self.side // self.lanes) + self.across
        row = tile_of_rows * self.side + place
        with body.loop(self.step, self.side // self.rows, "unroll"), contextlib.ExitStack() as inside:
            exists = [
                body.index.compare("lt", group, along.extent // self.lanes),
                body.index.compare("lt", row, rows.extent),
            ]
            inside.enter_context(when(body, exists))
            along.bind_group(body, group)
            rows.bind_position(body, row)
            yield place

    def fill(self, held: Sequence[tuple[Key, Buffer]], values: Mapping[Symbol, Extent], place: Extent) -> None:
        """Loads the inputs at the loops' `values` and stores them in the tiles."""
        for (number, coordinates), buffer in held:
            lanes = self.body.value(number, tuple(substitute(c, values) for c in coordinates))
            for lane, element in enumerate(self.body.spread(lanes)):
                at = (self.across * self.lanes + lane) * self.pitch + place
                self.body.append(Store(buffer, self.body.index.code(at), element))

    def prefetch(self, keys: Sequence[Key], each: Callable[[], contextlib.AbstractContextManager[Extent]]) -> None:
        """Loads input elements at all positions of a thread, which `each` opens a loop over, into registers."""
        if not keys:
            return
        for key in keys:
            dtype, lanes = self.body.fusion.values[key[0]].dtype, lanes_of(self.body, key[1])
            count = self.side // self.rows * lanes
            buffer = Buffer(self.body.fresh(f"x{key[0]}"), dtype, "local", count)
            self.body.append(Allocate(buffer))
            self.body.to_cache[key] = (buffer, self.step * lanes + (self.body.lane if lanes > 1 else 0))
        with each():
            for key in keys:
                self.body.value(*key)
        self.body.cached.update({key: self.body.to_cache.pop(key) for key in keys})

    def read(self, held: Sequence[tuple[Key, Buffer]], values: Mapping[Symbol, Extent], place: Extent) -> None:
        """Redirects later reads at the loops' `values` to the tiles."""
        for (number, coordinates), buffer in held:
            at = place * self.pitch + self.across * self.lanes + (self.body.lane if self.lanes > 1 else 0)
            self.body.cached[(number, tuple(substitute(c, values) for c in coordinates))] = (buffer, at)


def _accepts(problem: GpuProblem) -> Verdict:
    joined = JOINED if problem.setting.lanes == 1 else LEAST_EXTENT
    return judge_tiles(problem.region, problem.rewritten_sizes, joined=joined)


def _lower(problem: GpuProblem, transposed: Transposed) -> Lowered:
    launch, derived = _launch(problem.region, problem.setting, transposed)
    return problem.finish([launch], (), derived)


TRANSPOSE = Template("transpose", _accepts, _lower)


def _prefetched(body: Body, region: Region, inner: _Span, square: _Square, transposed: Transposed) -> list[Key]:
    """Returns the elements of inputs outside the tiles that all positions read, as far as registers hold them."""
    values, moving = inner.values(body), {loop.symbol for loop in (*inner.loops, transposed.loop)}
    free, keys = PREFETCHED_BYTES, []
    for number, coordinates in region.probe.reads:
        key = (number, coordinates)
        if key in transposed.reads or key not in region.probe.unconditional or not is_known(region, coordinates):
            continue
        if moving.isdisjoint(s for c in coordinates for s in symbols(c)):
            continue
        placed = (number, tuple(substitute(c, values) for c in coordinates))
        size = square.side // square.rows * lanes_of(body, placed[1]) * body.fusion.values[number].dtype.itemsize
        if size <= free:
            free -= size
            keys.append(placed)
    return keys


def _launch(region: Region, setting: Setting, transposed: Transposed) -> tuple[LaunchSpec, dict[Symbol, Extent]]:
    """Returns the launch, and the definitions of its integer parameters."""
    lanes = tile_lanes(transposed, setting.lanes)
    body = new_body(region, replace(setting, lanes=lanes))
    other, inner = _Span((transposed.loop,), lanes), _Span(transposed.inner, lanes)
    inside = {loop.symbol for loop in (*other.loops, *inner.loops)}
    outside = [loop for loop in region.nest.loops if loop.symbol not in inside]
    itemsizes = [region.fusion.values[number].dtype.itemsize for number, _ in transposed.reads]
    through_registers = lanes > 1 or min(itemsizes) >= LEAST_ITEMSIZE
    side = SIDE[lanes] if through_registers else NARROW_SIDE
    tiles, wide, blocks = symbol("tiles", minimum=1), symbol("tiles_across", minimum=1), symbol("blocks")
    derived = {
        symbol_of(wide): ceildiv(inner.extent, side),
        symbol_of(tiles): ceildiv(other.extent, side),
        symbol_of(blocks): product(k.extent for k in outside)
        * ceildiv(other.extent, side)
        * ceildiv(inner.extent, side),
    }
    block = open_block(body, blocks)
    thread, variable = open_threads(body, THREADS)
    square = _Square(body, side, lanes, thread)
    column = bind_position(body, "tile_column", block % wide, wide)
    rest = bind_position(body, "tiles_before", block // wide, blocks)
    row = bind_position(body, "tile_row", rest % tiles, tiles)
    bind_loops(body, outside, bind_position(body, "place", rest // tiles, product(k.extent for k in outside)))
    held = [(key, square.shared(key[0])) for key in transposed.reads]
    part = region.placed(inner.values(body))
    if through_registers:
        tiled = [(number, tuple(substitute(c, other.values(body)) for c in at)) for number, at in transposed.reads]
        square.prefetch(tiled, lambda: square.each(other, inner, row, column))
        keys = _prefetched(body, region, inner, square, transposed)
        square.prefetch(keys, lambda: square.each(inner, other, column, row))
    with square.each(other, inner, row, column) as place:
        square.fill(held, other.values(body), place)
    body.append(Barrier())
    with square.each(inner, other, column, row) as place:
        square.read(held, inner.values(body), place)
        for output in part.full[0]:
            store_output(body, part, output)
    launch = make_launch(
        body, f"{setting.name}_transpose", "cuda", [(block, blocks)], contract=setting.contract, threads=THREADS,
        thread=variable,
    )  # fmt: skip
    return launch, derived
