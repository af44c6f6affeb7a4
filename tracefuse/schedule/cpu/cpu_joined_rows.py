"""The pointwise template for rows of few elements on the CPU, some of whose operands are the same in every row.

In `x * row` for rows of 20 elements, a vector loop over a row mostly runs its remainder; so it does in the product of
(n, 7, 5) and (7, 1). The rows of the other operands follow one another in memory: several of them form one long row.
The operands that all rows share are first repeated in local memory, once for each of its rows.

Must not know: LLVM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Extent, Symbol, ceildiv, minimum, product, substitute, symbol
from tracefuse.ir.row_major import delinearize, linearize
from tracefuse.kernel.kernel_ir import Allocate, Buffer, Load, Store
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_frame import CpuProblem, new_body, open_grid, work
from tracefuse.schedule.cpu.cpu_streaming import streamed_outputs
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.reduction_states import store_outputs
from tracefuse.schedule.refusal_codes import RegionRefusal, ScheduleRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.scopes import Key
from tracefuse.schedule.template import Template
from tracefuse.schedule.transposed import is_known, is_linear, read_offsets

JOINED = 16
"""Rows that form one: their elements fill vectors, and lines of the caches if they have 4 bytes or more."""

MOST_ELEMENTS = 96
"""The most elements of a row: longer ones fill vectors by themselves, but for a small part."""

LEAST_WORK = 1 << 12
"""The least elements for which repeating operands pays."""

GROUPS = 32
"""Long rows of a task."""


class JoinedRowsRefusal(ScheduleRefusal):
    """Refusals of this template."""

    NOT_ADJACENT = "no operand is the same in rows of other operands that follow one another in memory"
    FILLS_VECTORS = "rows fill vectors by themselves, or there is little work"


@dataclass(frozen=True, slots=True)
class _ShortRows:
    """The loop over rows, the loops outside of it and those of a row; the reads that are the same in all rows."""

    outer: tuple[Loop, ...]
    rows: Loop
    inner: tuple[Loop, ...]
    repeated: tuple[Key, ...]

    @property
    def length(self) -> Extent:
        return product(loop.extent for loop in self.inner)

    @property
    def position(self) -> Extent:
        """The position of the current element in its row."""
        return linearize([loop.index for loop in self.inner], [loop.extent for loop in self.inner])


def _accepts(problem: CpuProblem) -> Verdict:
    region, sizes = problem.region, problem.sizes
    if region.nest.reduced:
        return RegionRefusal.REDUCES()
    rows = next((r for k in reversed(range(len(region.nest.loops) - 1)) if (r := _rows_at(region, k))), None)
    if rows is None:
        return JoinedRowsRefusal.NOT_ADJACENT()
    bound = minimum(MOST_ELEMENTS - rows.length, rows.rows.extent * rows.length - LEAST_WORK)
    if sizes.at_most(bound, -1, "rows of many elements fill vectors, and little work is one loop"):
        return JoinedRowsRefusal.FILLS_VECTORS(elements=rows.length)
    return yes(rows)


def _rows_at(region: Region, place: int) -> _ShortRows | None:
    """Returns the rows that the loop at `place` counts, if they follow one another and share an operand."""
    loops = region.nest.loops
    rows = _ShortRows(loops[:place], loops[place], loops[place + 1 :], ())
    if region.probe.tests or region.probe.positions:
        return None
    if not all(_follows(region.output_offset(output), rows) for output in region.fusion.outputs):
        return None
    repeated = []
    for key, (_, offset) in zip(region.probe.reads, read_offsets(region), strict=True):
        if key not in region.probe.unconditional or not is_known(region, key[1]):
            return None
        if _follows(offset, rows):
            continue
        if coefficient(offset, rows.rows.symbol) != 0 or not _is_linear(offset, rows):
            return None
        if any(coefficient(offset, loop.symbol) != 0 for loop in rows.inner):
            repeated.append(key)
    return replace(rows, repeated=tuple(dict.fromkeys(repeated))) if repeated else None


def _is_linear(offset: Extent, rows: _ShortRows) -> bool:
    return is_linear(offset, [loop.symbol for loop in (rows.rows, *rows.inner)])


def _follows(offset: Extent, rows: _ShortRows) -> bool:
    """Whether the elements of a row, and the rows, follow one another in memory."""
    step: Extent = 1
    for loop in reversed((rows.rows, *rows.inner)):
        if coefficient(offset, loop.symbol) != step:
            return False
        step = step * loop.extent
    return _is_linear(offset, rows)


def _lower(problem: CpuProblem, rows: _ShortRows) -> Lowered:
    region, groups, lanes = problem.region, ceildiv(rows.rows.extent, JOINED), rows.length * JOINED
    group = Loop(symbol("group", extent=groups), groups, False)
    lane = Loop(symbol("lane", extent=lanes), lanes, False)
    coordinates = delinearize(lane.index, [JOINED, *(loop.extent for loop in rows.inner)])
    values = {loop.symbol: at for loop, at in zip(rows.inner, coordinates[1:], strict=True)}
    values[rows.rows.symbol] = group.index * JOINED + coordinates[0]
    joined = region.placed(values)
    joined = replace(joined, nest=replace(joined.nest, loops=(*rows.outer, group, lane)))
    joined = replace(joined, streamed=streamed_outputs(joined, lane, problem.sizes))
    launch = _launch(joined, rows, group, lane, values, f"{problem.name}_joined_rows", problem.contract)
    return problem.finish([launch])


JOINED_ROWS = Template("joined_rows", _accepts, _lower, writes_in_place=True)


def _launch(
    region: Region, rows: _ShortRows, group: Loop, lane: Loop, values: Mapping[Symbol, Extent], name: str,
    contract: bool,
) -> LaunchSpec:  # fmt: skip
    """Emits a task of GROUPS long rows. values: the indices of the loops over rows and of a row, at a lane."""
    body = new_body(region)
    grid, task = open_grid(body, rows.outer, ceildiv(group.extent, GROUPS))
    for number, coordinates in rows.repeated:
        buffer = _repeat(body, rows, (number, coordinates), lane.extent)
        body.cached[number, tuple(substitute(c, values) for c in coordinates)] = (buffer, lane.index)
    first = task * GROUPS
    outputs = [output for phase in region.full for output in phase]
    with body.loop(group.index, minimum(first + GROUPS, group.extent), start=first):
        last = minimum(lane.extent, (rows.rows.extent - group.index * JOINED) * rows.length)
        with body.loop(lane.index, last, "vector"):
            store_outputs(body, region, outputs)
    return make_launch(body, name, "cpu", [grid], work=work(region), contract=contract)


def _repeat(body: Body, rows: _ShortRows, key: Key, lanes: Extent) -> Buffer:
    """Copies the elements of an operand that all rows share, for each row of a long one, to local memory."""
    number, coordinates = key
    source, row = body.buffer_of(number), symbol("row", extent=JOINED)
    buffer = Buffer(body.fresh(f"repeated{number}"), source.dtype, "local", JOINED * MOST_ELEMENTS)
    body.append(Allocate(buffer))
    offset = body.offset(number, coordinates)
    with contextlib.ExitStack() as stack:
        stack.enter_context(body.loop(row, JOINED))
        for loop in rows.inner[:-1]:
            stack.enter_context(body.loop(loop.index, loop.extent))
        stack.enter_context(body.loop(rows.inner[-1].index, rows.inner[-1].extent, "vector"))
        at = body.index.code(row * rows.length + rows.position)
        body.append(Store(buffer, at, Load(source, body.index.code(offset))))
    return buffer
