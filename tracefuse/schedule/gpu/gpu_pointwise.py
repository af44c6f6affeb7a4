"""The pointwise template for the GPU: a thread takes groups of adjacent elements of the innermost loop.

Flat grid: the groups are numbered through all loops, and adjacent threads take adjacent groups. Tiled grid, if whole
tiles divide the innermost loop: a thread takes the same group of several rows, so values that the rows share are read
once, and the row index is computed once per block. A block whose groups all exist needs no bounds test and issues all
loads first. Where data decide which element of a row is read, the grid is flat: the elements of a block then come from
few rows, which the L1 cache holds. If the outermost loop repeats what is read, as in `np.tile`, the groups are numbered
through the other loops, and a thread stores each repetition of what it read once. If all arrays are contiguous from
their start, accesses are wide for any number of elements: the remainder after the last whole group is computed one
element at a time.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, Symbol, ceildiv, product, substitute, symbol, symbol_of, symbols
from tracefuse.kernel.kernel_ir import Allocate, Buffer
from tracefuse.schedule.body import Body
from tracefuse.schedule.cost import Work
from tracefuse.schedule.gpu.gpu_frame import (
    Positions,
    Setting,
    bind_loops,
    bind_position,
    new_body,
    no_scope,
    open_block,
    open_threads,
    when,
)
from tracefuse.schedule.gpu.gpu_lanes import is_flat
from tracefuse.schedule.gpu.gpu_prefetch import lanes_of
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_repetitions import repeated_loop
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.reduction_states import store_outputs
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.region_work import byte_classes, bytes_of_iteration, operations
from tracefuse.schedule.scopes import Key
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template
from tracefuse.schedule.tilings import Offer, Point, Tiled, Tiling
from tracefuse.schedule.transposed import is_known, read_offsets

THREADS = 256
"""Threads per block, usually: eight blocks fill a multiprocessor."""

OTHER_THREADS = (128, 512)
"""Other numbers that the cost model may choose."""

RESIDENT_THREADS = 2048
"""Threads of a multiprocessor."""

BYTE_EDGES = (1 << 24,)
"""The classes of a region's bytes: in the L2 cache, in memory."""

BLOCKS = 8
"""Resident blocks per multiprocessor to aim for if a thread takes several groups."""

LEAST_ACROSS = 8
"""The least number of adjacent threads along a row of a tiled block: 128 contiguous bytes."""

LEAST_TILES = 4
"""A tiled grid has at least so many blocks along the rows, of which the last may be nearly empty."""

MOST_UNGUARDED = 4
"""With no more rows of threads in a block, a tiled grid serves any number of rows."""

FLIGHT_BYTES = 32
"""The least number of bytes that a thread has in flight."""

ROWS_FLIGHT_BYTES = {1: 32, 2: 32, 4: 32, 8: 64}
"""The same for a tiled grid, by lanes: more groups per thread amortize the values that the rows share."""

HELD_BYTES = 128
"""The most bytes of registers for the loads that a thread has in flight."""

MOST_GROUPS = 4


@dataclass(frozen=True, slots=True)
class _Grid:
    """The groups of a thread.

    step: the symbol that numbers the `steps` groups. bind: binds the loops for the current group, which is `place` of
    `total`. end: the first place after the block. moving: the loops whose indices change with the step.
    """

    steps: int
    step: Extent
    bind: Callable[[], None]
    place: Extent
    end: Extent
    total: Extent
    moving: frozenset[Symbol]


@dataclass(frozen=True, slots=True)
class _Emission:
    """What the groups of a launch have in common. part: the region at the coordinates of a group's elements.

    repeats: the loop in which a thread stores what it read once, if any.
    """

    body: Body
    region: Region
    part: Region
    positions: Positions
    repeats: Loop | None


def _accepts(problem: GpuProblem) -> Verdict:
    return RegionRefusal.REDUCES() if problem.region.nest.reduced else yes()


def _offers(problem: GpuProblem, decision: None) -> Offer:
    """Offers other numbers of threads of a block, and of groups that a thread has in flight."""
    region, lanes = problem.region, problem.setting.lanes
    tiled = _groups_of_thread(region, lanes, ROWS_FLIGHT_BYTES[lanes])
    positions, sizes = Positions(_loops(region), lanes), problem.rewritten_sizes
    across = 0 if _reads_rows_by_data(region) else _tile(positions, sizes, tiled)
    usual = tiled if across else _groups_of_thread(region, lanes, FLIGHT_BYTES)
    shapes = dict.fromkeys(
        (threads, count)
        for threads in (THREADS, *OTHER_THREADS)
        for count in (usual, usual // 2, usual * 2)
        if across <= threads and 1 <= count <= MOST_GROUPS
    )
    tilings = tuple(Tiling.of(threads=threads, groups=count, across=across) for threads, count in shapes)
    return Offer(tilings, (byte_classes(region, BYTE_EDGES),), partial(_work, region, lanes))


def _reads_rows_by_data(region: Region) -> bool:
    """Returns whether data decide which element of a row of memory is read."""
    return any(
        stride == 1 and not is_known(region, (coordinate,))
        for number, coordinates in region.probe.reads
        for coordinate, stride in zip(coordinates, region.memory.strides[number], strict=True)
    )


def _work(region: Region, lanes: int, tiling: Tiling, point: Point) -> Work:
    """Returns what blocks of some shape do: the more groups of a thread, the more bytes in flight."""
    (moved,) = point
    group = lanes * bytes_of_iteration(region)
    elements = moved / bytes_of_iteration(region)
    return Work(
        moved, moved, operations=operations(region, elements), tasks=elements,
        in_flight=RESIDENT_THREADS * tiling["groups"] * group,
    )  # fmt: skip


def _loops(region: Region) -> tuple[Loop, ...]:
    return region.nest.loops or (Loop(symbol("k", extent=1), 1, False),)


def _lower(problem: GpuProblem, tiled: Tiled) -> Lowered:
    repeats = repeated_loop(problem.region, problem.setting.lanes, problem.rewritten_sizes)
    launch, derived = _launch(problem.region, problem.setting, tiled.tiling, repeats)
    return problem.finish([launch], (), derived)


POINTWISE = Template("pointwise", _accepts, _lower, writes_in_place=True, offers=_offers)


def _launch(
    region: Region, setting: Setting, tiling: Tiling, repeats: Loop | None
) -> tuple[LaunchSpec, dict[Symbol, Extent]]:
    """Returns the launch, and the definitions of its integer parameters."""
    body, lanes = new_body(region, setting), setting.lanes
    loops, threads = _loops(region)[0 if repeats is None else 1 :], tiling["threads"]
    positions = Positions(loops, lanes)
    across, count = tiling["across"] if repeats is None else 0, tiling["groups"]
    total, blocks = symbol("rows" if across else "groups"), symbol("blocks")
    block = open_block(body, blocks)
    thread, variable = open_threads(body, threads)
    part = region.placed(positions.values(body.lane))
    elements: Extent = positions.total * lanes
    if across:
        rows = product(loop.extent for loop in loops[:-1])
        tiles = positions.inner // across
        rows_of_block = count * (threads // across)
        derived = {symbol_of(total): rows, symbol_of(blocks): ceildiv(rows, rows_of_block) * tiles}
        grid = _rows(body, positions, block, thread, across, threads // across, tiles, count, total)
    else:
        if lanes > 1 and is_flat(region):
            elements = loops[0].extent
        derived = {symbol_of(total): positions.total, symbol_of(blocks): ceildiv(elements, threads * count * lanes)}
        grid = _flat(body, positions, block, thread, threads, count, total)
    _emit(_Emission(body, region, part, positions, repeats), grid)
    if not across and lanes > 1 and is_flat(region):
        _rest(body, region, loops[0], total * lanes, block * threads, thread)
    launch = make_launch(
        body, f"{setting.name}_pointwise", "cuda", [(block, blocks)], contract=setting.contract,
        threads=threads, thread=variable,
        blocks_per_multiprocessor=BLOCKS * THREADS // threads if grid.steps > 1 else None,
    )  # fmt: skip
    return launch, derived


def _tile(positions: Positions, sizes: Sizes, groups: int) -> int:
    """Returns the number of adjacent threads along a row, or 0 if no allowed number divides a row or rows are few.

    groups: of a thread, in rows of their own.
    """
    if len(positions.loops) < 2:
        return 0
    across = THREADS
    while across > LEAST_ACROSS and sizes.hint(positions.inner) % across:
        across //= 2
    if not sizes.is_multiple(positions.inner, across, "a row is made of whole tiles"):
        return 0
    rows, down = product(loop.extent for loop in positions.loops[:-1]), THREADS // across
    if not isinstance(rows, int) and down <= MOST_UNGUARDED:
        return across
    few = sizes.at_most(rows, LEAST_TILES * groups * down - 1, "too few rows to fill blocks of many")
    return 0 if few else across


def _groups_of_thread(region: Region, lanes: int, wanted: int) -> int:
    """Returns the number of groups per thread that keeps `wanted` bytes in flight."""
    loops = region.nest.loops
    if not loops:
        return 1
    moving = [(n, offset) for n, offset in read_offsets(region) if coefficient(offset, loops[-1].symbol) != 0]
    full = {n for n, offset in moving if all(coefficient(offset, k.symbol) != 0 for k in loops)}
    read = lanes * sum(region.fusion.values[n].dtype.itemsize for n in full)
    bytes_per_group = lanes * _bytes_held(region, lanes)
    count = 1
    while count < MOST_GROUPS and read * count < wanted and 2 * count * bytes_per_group <= HELD_BYTES:
        count *= 2
    return count


def _bytes_held(region: Region, lanes: int) -> float:
    """Returns the bytes that a thread loads for an element, along the innermost loop.

    A single element that only some positions read is one of at least two, between which its coordinates choose.
    """
    total = 0.0
    for key, (number, offset) in zip(region.probe.reads, read_offsets(region), strict=True):
        if coefficient(offset, region.nest.loops[-1].symbol) != 0:
            share = 1.0 if lanes > 1 or key in region.probe.unconditional else 0.5
            total += share * region.fusion.values[number].dtype.itemsize
    return total


def _flat(
    body: Body, positions: Positions, block: Extent, thread: Extent, threads: int, count: int, total: Extent
) -> _Grid:
    step = symbol("step", extent=count)
    place = block * (threads * count) + step * threads + thread
    end = (block + 1) * (threads * count)
    moving = frozenset(loop.symbol for loop in positions.loops)
    return _Grid(count, step, lambda: positions.bind(body, place), place, end, total, moving)


def _rows(
    body: Body, positions: Positions, block: Extent, thread: Extent, across: int, down: int, tiles: Extent,
    count: int, total: Extent,
) -> _Grid:  # fmt: skip
    step = symbol("step", extent=count)
    start = bind_position(body, "start", block // tiles * (count * down), total + count * down)
    first = start if down == 1 else bind_position(body, "first", start + thread // across, total + count * down)
    group = block % tiles * across + (thread if down == 1 else thread % across)
    inner = positions.loops[-1] if positions.lanes == 1 else Loop(positions.group, positions.inner, False)
    body.bind(inner.index, body.index.code(group))
    outer = positions.loops[:-1]
    place = first + step * down

    def bind() -> None:
        bind_loops(body, outer, place if len(outer) == 1 else bind_position(body, "row", place, total))

    moving = frozenset(loop.symbol for loop in outer)
    return _Grid(count, step, bind, place, start + count * down, total, moving)


def _emit(emission: _Emission, grid: _Grid) -> None:
    """Emits the groups of a thread: all loads first if the whole block exists, else one group at a time.

    Where conditions or data decide what is read, all groups are computed before the first store: a compiler moves no
    load from behind a store.
    """
    body, part, repeats = emission.body, emission.part, emission.repeats
    values = emission.positions.values(body.lane)
    certain = [(n, tuple(substitute(c, values) for c in at)) for n, at in _certain_reads(emission.region)]

    def store() -> None:
        for key in certain:
            if repeats is None or all(repeats.symbol not in symbols(c) for c in key[1]):
                body.value(*key)
        with no_scope() if repeats is None else body.loop(repeats.index, repeats.extent, "unroll"):
            store_outputs(body, part, part.full[0])

    if grid.steps > 1:
        with body.condition(body.index.compare("le", grid.end, grid.total)):
            _load_all(emission, grid)
            if repeats is None:
                _compute_all(body, emission.region, part, grid)
            with body.loop(grid.step, grid.steps, "unroll"):
                grid.bind()
                store()
        body.to_cache.clear()
        body.cached.clear()
    short = body.index.compare("lt", grid.total, grid.end)
    with when(body, [short] if grid.steps > 1 else []), body.loop(grid.step, grid.steps):
        exists = body.index.compare("lt", grid.place, grid.total)
        with body.condition(exists):
            grid.bind()
            store()


def _certain_reads(region: Region) -> list[Key]:
    """Returns the unconditional reads at coordinates that do not depend on data."""
    return [
        (number, coordinates)
        for number, coordinates in region.probe.reads
        if (number, coordinates) in region.probe.unconditional and is_known(region, coordinates)
    ]


def _load_all(emission: _Emission, grid: _Grid) -> None:
    """Loads the unconditional reads of all steps before the first step computes."""
    body, region = emission.body, emission.region
    values = emission.positions.values(body.lane)
    for number, coordinates in _certain_reads(region):
        if not any(s in grid.moving for c in coordinates for s in symbols(c)):
            continue
        key = (number, tuple(substitute(c, values) for c in coordinates))
        dtype, lanes = region.fusion.values[number].dtype, lanes_of(body, key[1])
        buffer = Buffer(body.fresh(f"x{number}"), dtype, "local", grid.steps * lanes)
        body.append(Allocate(buffer))
        body.to_cache[key] = (buffer, grid.step * lanes + (body.lane if lanes > 1 else 0))
    if body.to_cache:
        with body.loop(grid.step, grid.steps, "unroll"):
            grid.bind()
            for key in body.to_cache:
                body.value(*key)
        body.cached.update(body.to_cache)


def _compute_all(body: Body, region: Region, part: Region, grid: _Grid) -> None:
    """Computes the outputs of all steps before the first store, if registers hold them and loads are not all known."""
    values, outputs = region.fusion.values, part.full[0]
    width = grid.steps * body.lanes
    if len(_certain_reads(region)) == len(region.probe.reads):
        return
    if width * sum(values[number].dtype.compute.itemsize for number in outputs) > HELD_BYTES:
        return
    keys = [(number, part.coordinates(number)) for number in outputs]
    places = {}
    for key in keys:
        buffer = Buffer(body.fresh(f"y{key[0]}"), values[key[0]].dtype.compute, "local", width)
        body.append(Allocate(buffer))
        places[key] = (buffer, grid.step * body.lanes + (body.lane if body.lanes > 1 else 0))
    body.to_cache.update(places)
    with body.loop(grid.step, grid.steps, "unroll"):
        grid.bind()
        for key in keys:
            body.value(*key)
    body.cached.update(places)


def _rest(body: Body, region: Region, loop: Loop, start: Extent, before: Extent, thread: Extent) -> None:
    """Emits the elements after the last whole group, one per thread. before: the threads of earlier blocks."""
    narrow = body.narrow()
    with narrow.condition(narrow.index.compare("lt", start + before + thread, loop.extent)):
        bind_loops(narrow, [loop], start + thread)
        store_outputs(narrow, region, region.full[0])
