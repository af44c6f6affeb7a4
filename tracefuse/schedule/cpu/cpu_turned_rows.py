"""The template for rows of few elements on the CPU: tiles of rows are transposed, and vectors go across the rows.

A vector loop over 9 to 64 elements mostly runs its scalar remainder, and a sum within a vector takes as long as several
vectors. In a transposed tile, the elements at one position of many rows are adjacent: each lane of a vector has a row
of its own, so that nothing remains and nothing is summed across lanes. The same holds for a reduction in the middle of
short axes, as of (n, 32, 5) over its second axis.

A row is copied to and from its tile in vectors that extend into the next row, which follows in memory; the elements
beyond are copied again with that row.

Must not know: LLVM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, ceildiv, floordiv, maximum, minimum, product, symbol
from tracefuse.ir.row_major import linearize
from tracefuse.kernel.kernel_ir import Allocate, Buffer, Load, Store, Transpose
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_column_states import (
    TileColumns,
    accumulate_few_rows,
    finish_states,
    state_arrays,
)
from tracefuse.schedule.cpu.cpu_column_values import keep_column_values
from tracefuse.schedule.cpu.cpu_frame import FIXED, CpuProblem, new_body, open_grid, work
from tracefuse.schedule.cpu.cpu_short_loops import MOST_UNROLLED, SHORT
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.probe import weights
from tracefuse.schedule.reduction_states import new_accumulator, state_types, store_output
from tracefuse.schedule.refusal_codes import RegionRefusal, ScheduleRefusal
from tracefuse.schedule.region_phases import Region, combining
from tracefuse.schedule.scopes import Key
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template
from tracefuse.schedule.transposed import is_known, is_linear, read_offsets

BLOCK = 16
"""Rows and columns are moved in multiples of so many; see `Transpose`."""

MOST_REDUCED, MOST_STORED, MOST_MIXED = 64, 48, 256
MOST_WIDE_STORED = 28
"""The most elements of a row that is all reduced to results that need vectors across rows; of one that has results of
every element, which are transposed as well; and of one whose innermost loop is short and not reduced. A vector of
elements of 8 bytes leaves a shorter remainder: of those, the most of a row with results of every element."""

SHORT_INNER, SHORT_STORED = 5, 8
"""The most elements of an innermost loop that is not reduced, without and with results of every element: longer ones
fill vectors."""

FEW_LANES, HALF_VECTOR = 16, 8
"""Rows of at most FEW_LANES elements, or of no multiple of HALF_VECTOR, run scalar code if vectors go along them."""

PITCHES = (80, 272)
TILES = (64, 32)
"""The elements from one row of a tile to the next, for rows that fit, and the rows of a tile: its buffers stay in the
caches of a core. Pitches are no powers of two, so that rows do not compete for the same cache sets."""

LEAST_ROWS = 256
REASON = "rows of few elements are transposed"


class TurnedRowsRefusal(ScheduleRefusal):
    """Refusals of this template."""

    NO_ROWS = "no loop is outside of the reduction"
    FILLS_VECTORS = "the innermost loop fills vectors, or there are few rows"
    UNROLLED = "short loops are unrolled"
    CHEAP = "the ops are cheaper than transposing their operands"
    NOT_ADJACENT = "an input or output does not have its rows one after the other in memory"


@dataclass(frozen=True, slots=True)
class _TurnedLoops:
    """The loop over rows, the loops outside of it and inside, and the reads that are transposed."""

    outer: tuple[Loop, ...]
    rows: Loop
    inner: tuple[Loop, ...]
    reads: tuple[Key, ...]
    is_wide: bool

    @property
    def pitch(self) -> int:
        return PITCHES[self.is_wide]

    @property
    def tile(self) -> int:
        return TILES[self.is_wide]


def _accepts(problem: CpuProblem) -> Verdict:
    region, sizes = problem.region, problem.sizes
    loops = region.nest.loops
    first = next((k for k, loop in enumerate(loops) if loop.reduced), 0)
    if not region.nest.reduced:
        return RegionRefusal.NOTHING_REDUCED()
    if not first:
        return TurnedRowsRefusal.NO_ROWS()
    rows, inner = loops[first - 1], loops[first:]
    most = _longest(region)
    if not most:
        return TurnedRowsRefusal.CHEAP()
    length = product(loop.extent for loop in inner)
    fits = most - length
    if not inner[-1].reduced:
        fits = minimum(fits, (SHORT_STORED if any(region.full) else SHORT_INNER) - inner[-1].extent)
    if sizes.at_most(minimum(fits, rows.extent - LEAST_ROWS), -1, "rows fill vectors by themselves, or are few"):
        return TurnedRowsRefusal.FILLS_VECTORS()
    if _is_unrolled(region, inner, length, sizes):
        return TurnedRowsRefusal.UNROLLED()
    if len(inner) == 1 and inner[0].reduced and _is_masked(problem, length):
        return TurnedRowsRefusal.FILLS_VECTORS()
    if any(region.full) and inner[-1].reduced and _fills_vectors(length, sizes):
        return TurnedRowsRefusal.FILLS_VECTORS()
    reads = _transposed_reads(region, rows, inner)
    if reads is None or not all(_is_stored_in_rows(region, output, rows, inner) for output in region.fusion.outputs):
        return TurnedRowsRefusal.NOT_ADJACENT()
    is_wide = not sizes.at_most(length, PITCHES[0] - BLOCK + 1, REASON)
    return yes(_TurnedLoops(loops[: first - 1], rows, inner, reads, is_wide))


def _longest(region: Region) -> int:
    """Returns the most elements of a row for which transposing its operands pays; 0 if it never does."""
    if not region.nest.loops[-1].reduced:
        return MOST_MIXED
    is_wide = _has_wide_elements(region)
    if any(weights(region.fusion).values()):
        return (MOST_WIDE_STORED if is_wide else MOST_STORED) if any(region.full) else MOST_REDUCED
    nodes = [node for phase in region.reductions for node in phase]
    states = [state_types(node) for node in nodes if not combining(node).selects]  # positions are searched in rows
    stores_states = len(region.reductions) > 1 or any(len(types) > 1 for types in states)
    return MOST_STORED if stores_states and not any(region.full) and not is_wide else 0


def _has_wide_elements(region: Region) -> bool:
    fusion = region.fusion
    return any(fusion.values[number].dtype.compute.itemsize > 4 for number in fusion.tensor_inputs)


def _fills_vectors(length: Extent, sizes: Sizes) -> bool:
    """Whether vectors along a row leave no remainder."""
    return not sizes.at_most(length, FEW_LANES, "a row is one vector") and sizes.is_multiple(
        length, HALF_VECTOR, "rows of vectors are not transposed"
    )


def _is_masked(problem: CpuProblem, length: Extent) -> bool:
    """Whether a row has a known length and the processor masks its last vector, which leaves nothing scalar.

    It is not if functions wait for the sum of a row: their code is so long that the rows after it wait, too.
    """
    reason = "rows of vectors, the last one masked, are not transposed"
    region = problem.region
    if not region.masks or _functions_wait(region):
        return False
    return problem.sizes.at_most(length, FIXED, reason)


def _functions_wait(region: Region) -> bool:
    """Whether results of reductions alone are functions of sums, or sums of functions of other results of the row."""
    weight = weights(region.fusion)
    if any(region.full):
        return False
    repeated = len(region.reductions) > 1 and any(weight.values())
    return repeated or any(weight[output] for output in region.parallel_outputs)


def _is_unrolled(region: Region, inner: Sequence[Loop], length: Extent, sizes: Sizes) -> bool:
    """Whether unrolling the inner loops (`cpu_short_loops.py`) is better; stores of several short loops are not."""
    reason = "short loops are unrolled"
    if any(region.full):
        return sizes.at_most(length, SHORT, reason)
    longest: Extent = 0
    for loop in inner:
        longest = maximum(longest, loop.extent)
    return sizes.at_most(maximum(longest - SHORT, length - MOST_UNROLLED), 0, reason)


def _transposed_reads(region: Region, rows: Loop, inner: Sequence[Loop]) -> tuple[Key, ...] | None:
    """Returns the reads of rows that follow one another in memory; None if a read has another order."""
    result = []
    for key, (number, offset) in zip(region.probe.reads, read_offsets(region), strict=True):
        if key not in region.probe.unconditional or not is_known(region, key[1]):
            return None
        if not is_linear(offset, [rows.symbol, *(loop.symbol for loop in inner)]):
            return None
        run, step = _run(offset, inner), coefficient(offset, rows.symbol)
        if step == 0 or (step == 1 and not run):
            continue
        if not _is_in_rows(offset, rows, run) or region.fusion.values[number].dtype.is_complex:
            return None
        result.append(key)
    return tuple(dict.fromkeys(result))


def _run(offset: Extent, inner: Sequence[Loop]) -> tuple[Loop, ...]:
    """Returns the inner loops on which an offset depends."""
    return tuple(loop for loop in inner if coefficient(offset, loop.symbol) != 0)


def _is_in_rows(offset: Extent, rows: Loop, run: Sequence[Loop]) -> bool:
    """Returns whether the loops are contiguous in row-major order, and so are the rows."""
    step: Extent = 1
    for loop in reversed((rows, *run)):
        if coefficient(offset, loop.symbol) != step:
            return False
        step = step * loop.extent
    return True


def _is_stored_in_rows(region: Region, output: int, rows: Loop, inner: Sequence[Loop]) -> bool:
    offset = region.output_offset(output)
    every = [rows.symbol, *(loop.symbol for loop in inner)]
    is_plain = is_linear(offset, every) and not region.fusion.values[output].dtype.is_complex
    return is_plain and _is_in_rows(offset, rows, _run(offset, inner))


def _lower(problem: CpuProblem, loops: _TurnedLoops) -> Lowered:
    name = f"{problem.name}_turned_rows"
    return problem.finish([_launch(problem.region, loops, name, problem.contract)])


TURNED_ROWS = Template("turned_rows", _accepts, _lower)


@dataclass(frozen=True, slots=True)
class _Tile:
    """The rows of a tile that is being emitted: their columns, in the sense of a transposed tile, and their number."""

    loops: _TurnedLoops
    columns: TileColumns
    count: Extent

    def place(self, run: Sequence[Loop]) -> Extent:
        """Returns the place of the current element in a transposed tile of the loops `run`."""
        return _position(run) * self.loops.tile + self.columns.place

    def buffer(self, body: Body, number: int, stem: str, rows: int, pitch: int) -> Buffer:
        """Allocates local memory for the elements of a tile."""
        buffer = Buffer(body.fresh(f"{stem}{number}"), body.fusion.values[number].dtype, "local", rows * pitch)
        body.append(Allocate(buffer))
        return buffer

    def copy_rows(self, body: Body, length: Extent, copy: Callable[[Extent, Extent], None]) -> None:
        """Emits `copy(row, element)` for each element of each row, in blocks of BLOCK as far as rows follow."""
        row, element = symbol("row", extent=self.loops.tile), symbol("e", extent=self.loops.pitch)
        block, lane = symbol("block", extent=self.loops.pitch), symbol("lane", extent=BLOCK)
        with body.loop(row, self.count):
            stop = symbol("stop", extent=self.loops.pitch + 1)
            body.bind(stop, body.index.code(minimum(ceildiv(length, BLOCK) * BLOCK, (self.count - row) * length)))
            with body.loop(block, stop - (BLOCK - 1), step=BLOCK), body.loop(lane, BLOCK, "vector"):
                copy(row, block + lane)
            with body.loop(element, stop, start=floordiv(stop, BLOCK) * BLOCK):
                copy(row, element)


def _position(run: Sequence[Loop]) -> Extent:
    return linearize([loop.index for loop in run], [loop.extent for loop in run])


def _launch(region: Region, loops: _TurnedLoops, name: str, contract: bool) -> LaunchSpec:
    """Emits tiles of rows: transposes their inputs, runs phase after phase, and transposes their outputs."""
    body, rows = new_body(region), loops.rows
    grid, part = open_grid(body, loops.outer, ceildiv(rows.extent, loops.tile))
    first, last = symbol("first", extent=rows.extent), symbol("last", extent=rows.extent + 1)
    body.bind(first, body.index.code(part * loops.tile))
    body.bind(last, body.index.code(minimum(first + loops.tile, rows.extent)))
    tile = _Tile(loops, TileColumns(rows, first, last, loops.tile, 1), last - first)
    for key in loops.reads:
        _transpose_input(body, tile, key)
    staged = [output for output in region.fusion.outputs if _run(region.output_offset(output), loops.inner)]
    for output in dict.fromkeys(staged):
        place = tile.place(_run(region.output_offset(output), loops.inner))
        body.staged[output] = (tile.buffer(body, output, "turned", loops.pitch, loops.tile), place)
    _cache_values(body, region, tile)
    with contextlib.ExitStack() as stack:
        for loop in loops.inner:
            if not loop.reduced:
                stack.enter_context(body.loop(loop.index, loop.extent))
        _run_phases(body, region, tile)
    for output in dict.fromkeys(staged):
        _transpose_output(body, region, tile, output)
    return make_launch(body, name, "cpu", [grid], work=work(region), contract=contract)


def _run_phases(body: Body, region: Region, tile: _Tile) -> None:
    """Emits the phases for one index of the inner loops that are not reduced."""
    for phase in range(len(region.full)):
        states = [new_accumulator(body, node) for node in region.in_phase(phase)]
        totals = [(state, state_arrays(body, state, "total", tile.columns)) for state in states]
        accumulate_few_rows(body, region, phase, totals, tile.columns)
        body.cached.update({k: v for k, v in body.to_cache.items() if region.probe.cached.get(k) == phase})
        for state, arrays in totals:
            finish_states(body, region, state, arrays, tile.columns)
        keep_column_values(body, region, phase, tile.columns)

    def store() -> None:
        for output in region.parallel_outputs:
            store_output(body, region, output)

    if region.parallel_outputs:
        tile.columns.each(body, store)


def _cache_values(body: Body, region: Region, tile: _Tile) -> None:
    """Allocates a transposed tile for every value that a later phase rereads."""
    loops = tile.loops
    for number, coordinates in region.probe.cached:
        dtype = region.fusion.values[number].dtype.compute
        buffer = Buffer(body.fresh(f"row{number}"), dtype, "local", loops.pitch * loops.tile)
        body.append(Allocate(buffer))
        body.to_cache[(number, coordinates)] = (buffer, tile.place(loops.inner))


def _transpose_input(body: Body, tile: _Tile, key: Key) -> None:
    """Copies the rows of an input to a tile, and transposes it."""
    number, coordinates = key
    offset = body.offset(number, coordinates)
    run = _run(offset, tile.loops.inner)
    length = product(loop.extent for loop in run)
    start = offset - _position((tile.loops.rows, *run)) + tile.columns.first * length
    along = tile.buffer(body, number, "rows", tile.loops.tile, tile.loops.pitch)
    turned = tile.buffer(body, number, "turned", tile.loops.pitch, tile.loops.tile)

    def copy(row: Extent, element: Extent) -> None:
        read = Load(body.buffer_of(number), body.index.code(start + row * length + element))
        body.append(Store(along, body.index.code(row * tile.loops.pitch + element), read))

    tile.copy_rows(body, length, copy)
    sizes = (body.index.code(tile.count), body.index.code(length))
    body.append(Transpose(turned, tile.loops.tile, along, tile.loops.pitch, *sizes))
    body.cached[key] = (turned, tile.place(run))


def _transpose_output(body: Body, region: Region, tile: _Tile, output: int) -> None:
    """Transposes a tile of an output, and copies its rows to memory."""
    offset = region.output_offset(output)
    run = _run(offset, tile.loops.inner)
    length = product(loop.extent for loop in run)
    start = offset - _position((tile.loops.rows, *run)) + tile.columns.first * length
    along = tile.buffer(body, output, "rows", tile.loops.tile, tile.loops.pitch)
    sizes = (body.index.code(length), body.index.code(tile.count))
    body.append(Transpose(along, tile.loops.pitch, body.staged[output][0], tile.loops.tile, *sizes))

    def copy(row: Extent, element: Extent) -> None:
        read = Load(along, body.index.code(row * tile.loops.pitch + element))
        target = body.buffer_of(output, written=True)
        body.append(Store(target, body.index.code(start + row * length + element), read))

    tile.copy_rows(body, length, copy)
