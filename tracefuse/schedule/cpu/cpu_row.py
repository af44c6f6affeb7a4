"""Templates for the CPU: how the phases of a region become loops of one core, cut into pieces for the workers.

pointwise: no reduction; the innermost loop is for the vector unit, a piece is a tile of it and of the loop around it.
row: the innermost loop is reduced; a piece is one iteration of the K loops, with the row in cache between phases.
column (cpu_column.py): the innermost loop is kept; a piece is a tile of columns with an accumulator each.
split (cpu_split.py): few K iterations and long R loops; chunks of R are pieces, finished by the next launch.

How a reduction is split depends on sizes alone, never on the number of workers.

Knows: phases, loops, kernel IR. Must not know: LLVM, arrays.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence

from tracefuse.dtypes import int64
from tracefuse.ir.extents import Extent, as_symbol, ceildiv, is_nonnegative, maximum, minimum, product, symbol, symbols
from tracefuse.ir.row_major import delinearize
from tracefuse.kernel.kernel_ir import Allocate, Buffer
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_lanes import reduce_loops
from tracefuse.schedule.launch_spec import LaunchSpec, make_launch
from tracefuse.schedule.nest import Loop, coefficient, position_in
from tracefuse.schedule.phases import Accumulator, Region, declare, finish, store_output, store_outputs

TILE = 4096
"""Elements of the innermost loop in one piece of a pointwise kernel: 16 KiB of float32 a stream, half an L1 cache."""

ROWS = 32
"""Iterations of the next loop in one piece: short rows share the arithmetic that finds a piece's place."""

MOST_PARTS = 8
"""A pointwise kernel is emitted at most so often for the parts between the ends of concatenations and pads."""

MOST_OPS_IN_PARTS = 4096
"""Ops in all parts of a loop together: parts times the ops of the region. Pads of pads have a part for each."""


def new_body(region: Region) -> Body:
    """An empty body: one element at a time, which LLVM's loop vectoriser widens; 64-bit indices."""
    memory = region.memory
    body = Body(
        region.fusion, memory.strides, int64, misaligned=memory.misaligned, shared=memory.shared, notes_positions=True
    )
    body.streamed = region.streamed
    return body


def work(region: Region) -> Extent:
    """Elements that the region's loops touch."""
    return product(loop.extent for loop in region.nest.loops)


def open_grid(body: Body, loops: Sequence[Loop], extra: Extent = 1) -> tuple[tuple[Extent, Extent], Extent]:
    """One parallel axis over `loops` and `extra` further iterations; binds the loops' indices.

    Returns (the axis' index, its extent), and the index among the further iterations.
    """
    total = product(loop.extent for loop in loops) * extra
    index = symbol("piece", extent=total)
    found = as_symbol(index)
    assert found is not None
    body.levels[0].introduces.add(found)
    body.index.bind(found, "piece")
    coordinates = delinearize(index, [*(loop.extent for loop in loops), extra])
    for loop, coordinate in zip(loops, coordinates, strict=False):
        body.bind(loop.index, body.index.code(coordinate))
    further = symbol("part", extent=extra)
    if extra == 1:
        return (index, total), 0
    body.bind(further, body.index.code(coordinates[-1]))
    return (index, total), further


def lower_pointwise(region: Region, name: str, contract: bool) -> LaunchSpec:
    """No reduction: tiles of the innermost loop, cut where the conditions of concatenations and pads change."""
    body, nest = new_body(region), region.nest
    outputs = [output for phase in region.full for output in phase]
    inner = nest.loops[-1] if nest.loops else Loop(symbol("k", extent=1), 1, False)
    across = ceildiv(inner.extent, TILE)
    rows = nest.loops[-2] if len(nest.loops) > 1 else None
    down = 1 if rows is None else ceildiv(rows.extent, ROWS)
    grid, tile = open_grid(body, nest.loops[:-2], down * across)
    points = cut_points(region, inner)
    first = (tile if rows is None else tile % across) * TILE
    last = minimum(first + TILE, inner.extent)

    def emit(part: Region) -> None:
        for low, high in itertools.pairwise(points):
            index = symbol(f"{inner.symbol.name}i", extent=high - low)
            piece = part.at_loop(inner.symbol, low + index)
            with body.loop(index, minimum(last, high) - low, "vector", start=maximum(first - low, 0)):
                store_outputs(body, piece, outputs)

    with contextlib.ExitStack() as stack:
        if rows is not None:
            start = tile // across * ROWS
            stack.enter_context(body.loop(rows.index, minimum(start + ROWS, rows.extent), start=start))
        _in_parts(body, region, nest.loops[:-1], MOST_PARTS // (len(points) - 1), emit)
    return make_launch(body, name, "cpu", [grid], work=work(region), contract=contract)


def _in_parts(body: Body, region: Region, loops: Sequence[Loop], most: int, emit: Callable[[Region], None]) -> None:
    """Emits once for each part of the outer loops in which every condition has one answer; at most `most` in all."""
    if not loops:
        emit(region)
        return
    loop, rest = loops[0], loops[1:]
    points = cut_points(region, loop)
    count = len(points) - 1
    if count == 1 or count > most:
        _in_parts(body, region, rest, most, emit)
        return

    def emit_from(place: int) -> None:
        low, high = points[place], points[place + 1]

        def emit_part() -> None:
            index = symbol(f"{loop.symbol.name}i", extent=high - low)
            body.bind(index, body.index.code(loop.index - low))
            _in_parts(body, region.at_loop(loop.symbol, low + index), rest, most // count, emit)

        if place == count - 1:
            emit_part()
            return
        with body.condition(body.index.compare("lt", loop.index, high)):
            emit_part()
        with body.otherwise():
            emit_from(place + 1)

    emit_from(0)


def cut_points(region: Region, loop: Loop) -> list[Extent]:
    """Where conditions change along `loop`, in proved order, both ends included.

    Between two neighbouring points every condition that is about this loop alone has one answer. There are only the
    ends where the parts would be more code than a kernel should have: elements then choose one by one.
    """
    points: list[Extent] = [0, loop.extent]
    for test in region.probe.tests:
        if coefficient(test.index, loop.symbol) != 1:
            continue
        shift = test.index - loop.index
        for bound in (test.low - shift, test.high - shift):
            if any(s.extent is not None for s in symbols(bound)) or not is_nonnegative(loop.extent - bound):
                continue
            place = next((k for k, point in enumerate(points) if is_nonnegative(point - bound)), 0)
            if place and points[place] != bound and is_nonnegative(bound - points[place - 1]):
                points.insert(place, bound)
    return points if (len(points) - 1) * len(region.fusion.nodes) <= MOST_OPS_IN_PARTS else [0, loop.extent]


def lower_row(region: Region, name: str, contract: bool, keep: bool) -> LaunchSpec:
    """The innermost loop is reduced: a piece is a row, phase after phase; `keep` keeps values between phases."""
    body, nest = new_body(region), region.nest
    grid, _ = open_grid(body, nest.kept)
    if keep:
        _keep_rows(body, region)
    for phase in range(len(region.full)):
        states = [declare(body, region, node) for node in region.in_phase(phase)]
        run_phase(body, region, phase, states, nest.reduced)
        for state in states:
            finish(body, region, state)
    for output in region.kept:
        store_output(body, region, output)
    return make_launch(body, name, "cpu", [grid], work=work(region), contract=contract)


def run_phase(body: Body, region: Region, phase: int, states: Sequence[Accumulator], loops: Sequence[Loop]) -> None:
    """One pass: accumulates what the phase reduces and stores the full outputs that it knows."""
    if not states and not region.full[phase]:
        return

    reduce_loops(body, region, phase, states, loops)
    body.cached.update({k: v for k, v in body.to_cache.items() if region.probe.kept.get(k) == phase})


def _keep_rows(body: Body, region: Region) -> None:
    """Gives every value that a later phase reads again a row of local memory."""
    loops = region.nest.reduced
    for number, coordinates in region.probe.kept:
        dtype = region.fusion.values[number].dtype.compute
        size = body.index.code(product(loop.extent for loop in loops))
        buffer = Buffer(body.fresh(f"row{number}"), dtype, "local", size)
        body.append(Allocate(buffer))
        body.to_cache[(number, coordinates)] = (buffer, position_in(loops))
