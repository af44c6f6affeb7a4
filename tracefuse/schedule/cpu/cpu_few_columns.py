"""The template for reductions over many rows of few columns on the CPU: vectors go across the columns of several rows.

A row of 2 to 64 elements fills no vectors. As many rows as fit in LANES elements follow one another in memory and form
one row of a wider matrix: each of its columns has an accumulator, and the accumulators of one column are joined after
the last row. The workers divide the rows into chunks. A launch computes the partial states of a phase, which every
chunk of the next launch combines in order. The last launch stores the remaining outputs.

Must not know: LLVM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import int64
from tracefuse.ir.extents import Extent, floordiv, maximum, minimum, product, substitute, symbol, symbols
from tracefuse.ir.fusion import Node, Shape
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.kernel.kernel_ir import Allocate, Buffer, Load, Store
from tracefuse.schedule.body import Body
from tracefuse.schedule.column_runs import ColumnRuns, column_runs
from tracefuse.schedule.cpu.cpu_chunks import LoopChunks, partial_buffers
from tracefuse.schedule.cpu.cpu_column_states import (
    TileColumns,
    Totals,
    accumulate_row,
    accumulate_rows,
    fill_states,
    finish_states,
    is_light,
    load_states,
    state_arrays,
    store_results,
    store_states,
)
from tracefuse.schedule.cpu.cpu_column_values import keep_column_values
from tracefuse.schedule.cpu.cpu_frame import CpuProblem, new_body, open_grid, work
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, Scratch, make_launch
from tracefuse.schedule.nest import Loop, position_in
from tracefuse.schedule.reduction_states import Accumulator, new_accumulator
from tracefuse.schedule.refusal_codes import RegionRefusal, ScheduleRefusal
from tracefuse.schedule.region_phases import Region, combining
from tracefuse.schedule.scopes import Key
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Template
from tracefuse.schedule.transposed import is_known

LANES = 128
"""The most elements of the rows that form one: 8 vectors of float32. They are read in the order of memory, one row
after another: several at once in one page would mislead the prefetcher."""

MOST_COLUMNS = 64
FEW_MATRICES = 16
LEAST_WORK, LEAST_ROWS = 1 << 14, 1 << 10
"""More columns fill vectors by themselves; more matrices keep the workers busy; less work in fewer rows is one launch,
in which the loop over each row costs little."""

MOST_OF_PHASES, LEAST_OF_PHASES = 1024, 1 << 19
"""The most columns of a region of several phases, which is one tile of columns otherwise and so runs on one worker; of
more than MOST_COLUMNS, a row is one of the wider matrix by itself. LEAST_OF_PHASES: its fewest elements."""

MOST_BESIDE_ROWS = (8, 4)
"""The most columns where an element meets a value of its row, which lanes of several rows gather: with expensive ops,
and without any. Beyond, a row that is read by itself takes .1 to .9 of the time (100,000 elements, one thread).
"""

MOST_OF_MANY, LEAST_OF_MANY = 8, 1 << 11
MOST_NARROW, LEAST_NARROW, NARROW_LANES = 4, 160, 32
"""Of more matrices: the most columns, and the fewest elements of a matrix; with fewer elements in narrower rows, where
each takes long, so that the joins of lanes take less."""

CHUNK = 1 << 15
MOST_CHUNKS = 64
"""A chunk has at least CHUNK elements, and there are at most MOST_CHUNKS of them."""


class FewColumnsRefusal(ScheduleRefusal):
    """Refusals of this template."""

    FILLS_VECTORS = "the innermost loop fills vectors, or there is little work"
    SEVERAL_LOOPS = "several loops are reduced"
    MANY_MATRICES = "there are matrices enough for the workers"


@dataclass(frozen=True, slots=True)
class _FewColumns:
    """The region with its runs of columns, and the most lanes of a group of rows."""

    runs: ColumnRuns
    lanes: int


def _accepts(problem: CpuProblem) -> Verdict:
    nest, sizes = problem.region.nest, problem.sizes
    if not nest.reduced:
        return RegionRefusal.NOTHING_REDUCED()
    runs = column_runs(problem.region, sizes)
    if runs is None:
        return RegionRefusal.INNERMOST_REDUCED()
    nest = runs.region.nest
    if len(nest.reduced) > 1 or not nest.loops[-2].reduced:
        return FewColumnsRefusal.SEVERAL_LOOPS()
    rows, columns = nest.loops[-2:]
    meets_rows = runs.run == 1 and _meets_rows(runs.region, rows, columns)
    matrices = product(loop.extent for loop in nest.loops[:-2])
    if not sizes.at_most(matrices, FEW_MATRICES, "few matrices are split over the workers"):
        return _many_matrices(runs, sizes, matrices) if not meets_rows else FewColumnsRefusal.MANY_MATRICES()
    most = MOST_BESIDE_ROWS[is_light(runs.region)] if meets_rows else MOST_COLUMNS
    elements = rows.extent * columns.extent
    # Of no columns, many rows are no work.
    much = maximum(elements - LEAST_WORK, minimum(rows.extent, elements) - LEAST_ROWS)
    bound = minimum(most - columns.extent, much)
    lanes = LANES
    if sizes.at_most(bound, -1, "rows of many columns fill vectors, and little work is one launch"):
        if meets_rows or not any(runs.region.full):
            return FewColumnsRefusal.FILLS_VECTORS(columns=columns.extent)
        bound = minimum(MOST_OF_PHASES - columns.extent, rows.extent * columns.extent - LEAST_OF_PHASES)
        if sizes.at_most(bound, -1, "the rows of several phases are not divided"):
            return FewColumnsRefusal.FILLS_VECTORS(columns=columns.extent)
        lanes = MOST_OF_PHASES
    return yes(_FewColumns(runs, lanes))


def _many_matrices(runs: ColumnRuns, sizes: Sizes, matrices: Extent) -> Verdict:
    """Judges matrices enough for the workers: their rows fill vectors together, if the joins of lanes are few."""
    rows, columns = runs.region.nest.loops[-2:]
    elements = rows.extent * columns.extent
    bound = minimum(MOST_OF_MANY - columns.extent, elements - LEAST_OF_MANY)
    if runs.run == 1 and not sizes.at_most(bound, -1, "rows of many matrices are read one by one"):
        return yes(_FewColumns(runs, LANES))
    bound = minimum(MOST_NARROW - columns.extent, elements - LEAST_NARROW)
    if runs.run == 1 and _is_slow(runs.region) and not sizes.at_most(bound, -1, "matrices have few rows"):
        return yes(_FewColumns(runs, NARROW_LANES))
    return FewColumnsRefusal.MANY_MATRICES(matrices=matrices)


def _is_slow(region: Region) -> bool:
    """Whether an element takes long: it is compared with its position, or its functions are expensive."""
    nodes = region.fusion.nodes
    parts = (part for phase in region.reductions for node in phase for part in combining(node).state_parts)
    return any(part.lift == "index" for part in parts) or any(
        isinstance(node.op, Pointwise) and node.op.expensive for node in nodes
    )


def _meets_rows(region: Region, rows: Loop, columns: Loop) -> bool:
    """Whether the region reads a value with an element for each row and none for each column."""
    return any(
        rows.symbol in read and columns.symbol not in read
        for read in ({s for c in coordinates for s in symbols(c)} for _, coordinates in region.probe.reads)
    )


def _lower(problem: CpuProblem, decision: _FewColumns) -> Lowered:
    """Emits one launch for each phase; the last one stores the remaining outputs."""
    region, most = decision.runs.region, decision.lanes
    rows, columns = region.nest.loops[-2:]
    if most > LANES:
        groups, chunks = rows.extent, LoopChunks.of(rows.extent, columns.extent, CHUNK, MOST_CHUNKS)
    else:
        groups = floordiv(rows.extent, floordiv(most, columns.extent))
        chunks = LoopChunks.of(groups, most, CHUNK, MOST_CHUNKS)
    split = _ColumnGroups(region, decision.runs.run, most, chunks, groups)
    name = f"{problem.name}_few_columns"
    launches = [_launch(split, phase, f"{name}_{phase}", problem.contract) for phase in range(len(region.full))]
    return problem.finish(launches, split.scratch, split.chunks.derived)


FEW_COLUMNS = Template("few_columns", _accepts, _lower)


@dataclass
class _ColumnGroups:
    """The groups of rows and their chunks, and the scratch buffers of the earlier phases."""

    region: Region
    run: Extent
    most: int
    chunks: LoopChunks
    groups: Extent
    scratch: list[Scratch] = field(default_factory=list)
    states: list[tuple[Node, tuple[int, ...]]] = field(default_factory=list)

    @property
    def rows(self) -> Loop:
        return self.region.nest.loops[-2]

    @property
    def inner(self) -> Loop:
        return self.region.nest.loops[-1]

    @property
    def outer(self) -> tuple[Loop, ...]:
        return self.region.nest.loops[:-2]

    @property
    def columns(self) -> TileColumns:
        return TileColumns(self.inner, 0, self.inner.extent, self.most, 1, self.run)

    @cached_property
    def in_group(self) -> Extent:
        """The number of rows that form one."""
        return 1 if self.most > LANES else symbol("in_group", minimum=1)

    @cached_property
    def group(self) -> Loop:
        """The loop over groups of rows."""
        return Loop(symbol("group", extent=self.groups), self.groups, True)

    @cached_property
    def lanes(self) -> Loop:
        """The loop over the elements of a group."""
        extent = self.in_group * self.inner.extent
        return Loop(symbol("lane", extent=extent), extent, False)

    @cached_property
    def grouped(self) -> Region:
        """The region over groups and their elements."""
        lane, columns = self.lanes.index, self.inner.extent
        row = self.group.index * self.in_group + lane // columns
        region = self.region.placed({self.rows.symbol: row, self.inner.symbol: lane % columns})
        return replace(region, nest=replace(region.nest, loops=(*self.outer, self.group, self.lanes)))

    def in_lanes(self, coordinates: Shape) -> Shape:
        """Returns coordinates over the columns in terms of the lanes."""
        return tuple(substitute(c, {self.inner.symbol: self.lanes.index % self.inner.extent}) for c in coordinates)

    def place(self, chunk: Extent) -> Extent:
        """Returns the index of the partial state of the current column and a chunk."""
        return (position_in(self.outer) * self.chunks.count + chunk) * self.inner.extent + self.inner.index


def _launch(split: _ColumnGroups, phase: int, name: str, contract: bool) -> LaunchSpec:
    region = split.region
    body = new_body(region)
    is_last = phase + 1 == len(region.full)
    chunked = not is_last or bool(region.full[phase])
    grid, chunk = open_grid(body, split.outer, split.chunks.count if chunked else 1)
    scratch = [pair for node, positions in split.states for pair in _combine(body, split, node, positions)]
    if is_last and region.parallel_outputs:
        once = body.condition(body.index.compare("eq", chunk, 0)) if chunked else contextlib.nullcontext()
        with once:
            store_results(body, region, split.columns)
    if chunked:
        for earlier in range(phase):
            keep_column_values(body, region, earlier, split.columns)
        if split.in_group != 1:
            body.bind(split.in_group, body.index.code(floordiv(split.most, split.inner.extent)))
        _copy_to_lanes(body, split)
        _tabulate_rows(body, split)
        scratch += _chunk(body, split, phase, chunk)
    return make_launch(body, name, "cpu", [grid], scratch=scratch, work=work(region), contract=contract)


def _combine(body: Body, split: _ColumnGroups, node: Node, positions: Sequence[int]) -> list[tuple[int, Buffer]]:
    """Defines the results of an earlier phase: combines the states of its chunks in order."""
    state, columns = new_accumulator(body, node, joins=True), split.columns
    arrays = state_arrays(body, state, "total", columns)
    fill_states(body, [(state, arrays)], columns)
    buffers = partial_buffers(state, positions[0], written=False)
    chunk = symbol("c", extent=split.chunks.count)

    def join() -> None:
        at = body.index.code(columns.place)
        later = load_states(buffers, body.index.code(split.place(chunk)))
        store_states(body, arrays, at, state.combined(load_states(arrays, at), later))

    with body.loop(chunk, split.chunks.count):
        columns.each(body, join)
    finish_states(body, split.region, state, arrays, columns)
    return list(zip(positions, buffers, strict=True))


def _copy_to_lanes(body: Body, split: _ColumnGroups) -> None:
    """Repeats the results of earlier phases, and the inputs that have no rows, for each row of a group."""
    across = split.lanes.index % split.inner.extent
    for (number, coordinates), (buffer, place) in list(body.cached.items()):
        if place != 0:
            del body.cached[number, coordinates]
            _repeat(body, split, (number, coordinates), buffer, across)
    for number, coordinates in dict.fromkeys(split.region.probe.reads):
        loop_symbols = {s for c in coordinates for s in symbols(c)}
        is_plain = is_known(split.region, coordinates) and (number, coordinates) in split.region.probe.unconditional
        if is_plain and split.inner.symbol in loop_symbols and split.rows.symbol not in loop_symbols:
            offset = body.offset(number, split.in_lanes(coordinates))
            _repeat(body, split, (number, coordinates), body.buffer_of(number), offset)


def _tabulate_rows(body: Body, split: _ColumnGroups) -> None:
    """Writes the row of each lane in its group to a table, if the region needs it: positions do, and values of rows."""
    nodes = [node for phase in split.region.reductions for node in phase]
    needs = any(part.lift == "index" for node in nodes for part in combining(node).state_parts)
    needs = needs or bool(split.region.probe.positions) or _meets_rows(split.region, split.rows, split.inner)
    if split.in_group == 1 or not needs:
        return
    table = Buffer(body.fresh("row_of_lane"), int64, "local", split.most)
    body.append(Allocate(table))
    lane, columns = split.lanes.index, split.inner.extent
    with body.loop(lane, split.lanes.extent):
        body.append(Store(table, body.index.code(lane), body.index.code(lane // columns)))
    body.index.tabulate(lane // columns, table, lane)


def _repeat(body: Body, split: _ColumnGroups, key: Key, source: Buffer, at: Extent) -> None:
    """Copies the elements of a value to the lanes of a group, where consumers find it. at: its place in `source`."""
    buffer = Buffer(body.fresh(f"lanes{key[0]}"), source.dtype, "local", split.most)
    body.append(Allocate(buffer))
    with body.loop(split.lanes.index, split.lanes.extent):
        body.append(Store(buffer, body.index.code(split.lanes.index), Load(source, body.index.code(at))))
    body.cached[key[0], split.in_lanes(key[1])] = (buffer, split.lanes.index)


def _chunk(body: Body, split: _ColumnGroups, phase: int, chunk: Extent) -> list[tuple[int, Buffer]]:
    """Emits the phase's pass over one chunk of groups, and stores its states. The last chunk has the remaining rows."""
    start, stop = split.chunks.bounds(chunk)
    lanes = TileColumns(split.lanes, 0, split.lanes.extent, split.most, 1)
    states = [new_accumulator(body, node, joins=True) for node in split.region.in_phase(phase)]
    totals = [(state, state_arrays(body, state, "total", lanes)) for state in states]
    accumulate_rows(body, split.grouped, phase, totals, lanes, start, stop)
    if split.in_group == 1:
        return [pair for total in totals for pair in _store_partial(body, split, total, chunk)]
    rest = symbol("rest", minimum=0)
    with body.condition(body.index.compare("eq", chunk, split.chunks.count - 1)):
        body.bind(rest, body.index.code((split.rows.extent - split.groups * split.in_group) * split.inner.extent))
        row = split.grouped.at_loop(split.group.symbol, split.groups)
        accumulate_row(body, row, phase, totals, replace(lanes, last=rest))
    _join_lanes(body, split, totals)
    return [pair for total in totals for pair in _store_partial(body, split, total, chunk)]


def _join_lanes(body: Body, split: _ColumnGroups, totals: Totals) -> None:
    """Joins the states of each column, which the rows of a group have, into that of the first row."""
    row, columns = symbol("row", extent=split.in_group), split.columns

    def join() -> None:
        at = body.index.code(columns.place)
        later = body.index.code(row * split.inner.extent + columns.place)
        for state, arrays in totals:
            combined = state.combined(load_states(arrays, at), load_states(arrays, later))
            store_states(body, arrays, at, combined)

    if totals:
        with body.loop(row, split.in_group, start=1):
            columns.each(body, join)


def _store_partial(
    body: Body, split: _ColumnGroups, total: tuple[Accumulator, tuple[Buffer, ...]], chunk: Extent
) -> list[tuple[int, Buffer]]:
    state, arrays = total
    positions = tuple(range(len(split.scratch), len(split.scratch) + len(arrays)))
    size = product(loop.extent for loop in split.region.nest.parallel) * split.chunks.count
    split.scratch += [Scratch(v.dtype, size) for v in state.variables]
    split.states.append((state.node, positions))
    buffers = partial_buffers(state, positions[0], written=True)

    def store() -> None:
        states_at_column = load_states(arrays, body.index.code(split.columns.place))
        store_states(body, buffers, body.index.code(split.place(chunk)), states_at_column)

    split.columns.each(body, store)
    return list(zip(positions, buffers, strict=True))
