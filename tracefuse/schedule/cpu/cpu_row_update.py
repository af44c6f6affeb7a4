"""The row update template for the CPU: the table is copied, then its rows are combined with others, in their order.

A task has some rows and columns of the table and walks over all positions, so that a row of the table meets its rows in
the order of their positions, whatever the workers do. Of a block of positions, it computes the rows of the table, and
the elements of a single column, in a vector loop first, and then lists the positions of its own rows.

Must not know: LLVM.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TypeAlias, cast

from segments import Verdict, yes
from segments.lazy_dataclasses import replace
from tracefuse.dtypes import DType, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from tracefuse.ir.extents import Extent, ceildiv, floordiv, minimum, product, substitute, symbol
from tracefuse.ir.fusion import Node
from tracefuse.ir.row_major import delinearize
from tracefuse.kernel.kernel_ir import (
    CACHE_LINE,
    Accumulate,
    Allocate,
    Assign,
    Buffer,
    Constant,
    Declare,
    Expression,
    Load,
    Prefetch,
    Store,
    Variable,
    call,
)
from tracefuse.kernel.scalar_code import apply, convert
from tracefuse.ops.roles import COPY
from tracefuse.schedule.body import Body
from tracefuse.schedule.choose import choose_for
from tracefuse.schedule.cpu.cpu_frame import CpuProblem, fixed_extents, open_grid
from tracefuse.schedule.launch_spec import ERROR_FLAG, LaunchSpec, Lowered, make_launch
from tracefuse.schedule.merge_rule import facts_of
from tracefuse.schedule.row_column_sides import rule_of, with_ends
from tracefuse.schedule.row_update_facts import RowUpdateFacts
from tracefuse.schedule.template import Template

COLUMNS = 1 << 12
"""Columns of a task: adjacent elements of a row that are combined in one vectorized loop."""

BLOCK = 512
"""The positions of a block: its rows and elements stay in the first cache."""

SHORT, UNROLLED = 16, 4
"""The most columns of rows of which an iteration combines several, and how many."""

AHEAD, MOST_LINES, NEAR = 16, 4, 1 << 20
"""By how many positions the rows of a table of more than so many bytes are asked for, and the most lines of each."""

CHECKED = 1 << 14
"""The positions that a task tests."""

LEAST_COLUMNS = 8
"""The fewest columns for which the workers divide the rows of the table: each of them lists all positions."""

NARROW, MOST_NARROW = (int8, int16, int32, uint8, uint16), 2**31 - 1
"""The types of positions that fit 32 bits, and the most rows whose numbers do."""


Bounds: TypeAlias = tuple[Extent, Extent]
"""The first index, and the one after the last."""


def _accepts(problem: CpuProblem) -> Verdict:
    return yes()


def _lower(problem: CpuProblem, decision: None) -> Lowered:
    facts = problem.facts
    assert isinstance(facts, RowUpdateFacts)
    memory = problem.memory
    in_place = facts.table in memory.shared
    copy = Lowered("", ()) if in_place else _copied(problem, facts)
    # A caller's array changes only if no position is the caller's error.
    checked = in_place or facts.result in memory.supplied
    if in_place and _is_one_element(problem, facts):
        launches: tuple[LaunchSpec, ...] = (_update_one(problem, facts),)
    else:
        first = (_check(problem, facts),) if checked else ()
        launches = (*first, *copy.launches, _update(problem, facts, checked))
    guards = tuple(dict.fromkeys((*problem.sizes.guards, *copy.guards)))
    return replace(copy, template="", launches=launches, guards=guards)


ROW_UPDATE: Template[CpuProblem] = Template("row_update", _accepts, _lower, takes=RowUpdateFacts, writes_in_place=True)


def _copied(problem: CpuProblem, facts: RowUpdateFacts) -> Lowered:
    """Lowers the copy of the table to the result."""
    original, dtype = problem.fusion, problem.fusion.values[facts.result].dtype
    copy = Node(COPY, (facts.table,), {}, dtype, (facts.result,), facts.node.where)
    first = with_ends(original, (), (facts.table,))
    values = {**first.values, facts.result: original.values[facts.result]}
    fusion = replace(first, values=values, nodes=(*first.nodes, copy), outputs=(facts.result,))
    part = problem.part(fusion, facts_of(rule_of(fusion)), problem.memory, f"{problem.name}_table")
    return choose_for(part).emit()


def _new_body(problem: CpuProblem) -> Body:
    memory = problem.memory
    return Body(
        problem.fusion, memory.strides, int64, misaligned=memory.misaligned, shared=memory.shared,
        checks_positions=True,
    )  # fmt: skip


def _is_one_element(problem: CpuProblem, facts: RowUpdateFacts) -> bool:
    shape = problem.fusion.shape_of
    return shape(facts.index) == (1,) and product(shape(facts.result)[facts.axes :]) == 1


def _update_one(problem: CpuProblem, facts: RowUpdateFacts) -> LaunchSpec:
    """Emits the combination of one element, as of `x[i] = y` in a loop: it changes only if its position is one."""
    body, fusion = _new_body(problem), problem.fusion
    grid, _ = open_grid(body, (), 1)
    (element,) = body.value(facts.rows, (0,) * len(fusion.shape_of(facts.rows)))
    rows = product(fusion.shape_of(facts.result)[: facts.axes])
    position, outside = _inside(body, facts, _signed(body.value(facts.index, (0,))[0]), rows)
    row = symbol(body.fresh("row"), extent=rows)
    body.bind(row, position)
    with body.condition(call("and", _is_fine(), call("not", outside))):
        _combine_element(problem, body, facts, row, 0, element)
    return make_launch(body, f"{problem.name}_element", "cpu", [grid], work=1, contract=problem.contract)


def _is_fine() -> Expression:
    """Returns the test whether no launch before has found a position outside of its array."""
    return call("eq", Load(ERROR_FLAG, Constant(0, int64)), Constant(0, int64))


def _check(problem: CpuProblem, facts: RowUpdateFacts) -> LaunchSpec:
    """Emits a test of all positions."""
    body = _new_body(problem)
    (count,), rows = problem.fusion.shape_of(facts.index), product(problem.fusion.shape_of(facts.result)[: facts.axes])
    grid, task = open_grid(body, (), ceildiv(count, CHECKED))
    place = symbol("position", extent=count)
    first = _bound(body, "first", task * CHECKED, count)
    with body.loop(place, minimum(first + CHECKED, count), start=first):
        _inside(body, facts, _signed(body.value(facts.index, (place,))[0]), rows)
    return make_launch(body, f"{problem.name}_check", "cpu", [grid], work=count, contract=problem.contract)


def _update(problem: CpuProblem, facts: RowUpdateFacts, checked: bool) -> LaunchSpec:
    """Emits the combination of rows. checked: not if the error flag is set."""
    fusion, body = problem.fusion, _new_body(problem)
    table, (count,) = fusion.shape_of(facts.result), fusion.shape_of(facts.index)
    columns, rows = product(table[facts.axes :]), product(table[: facts.axes])
    fixed = fixed_extents(problem.sizes, columns, count * columns)
    body.index.known.update(fixed)
    columns = substitute(columns, fixed)
    few = problem.sizes.at_most(columns, LEAST_COLUMNS - 1, "rows of few columns are updated by one worker")
    ranges = 1 if few else problem.tilings.rates.workers
    across = ceildiv(columns, COLUMNS)
    grid, task = open_grid(body, (), across * ranges)
    # Bound here: LLVM does not move them out of the loop over the positions.
    first = _bound(body, "first_column", task % across * COLUMNS, columns)
    last = _bound(body, "last_column", minimum(first + COLUMNS, columns), columns + 1)
    each = ceildiv(rows, ranges)
    own = None if ranges == 1 else (low := _bound(body, "first_row", task // across * each, rows * 2), low + each)
    block = symbol("block", extent=count)
    with body.condition(_is_fine()) if checked else nullcontext(), body.loop(block, count, step=BLOCK):
        stop = _bound(body, "stop", minimum(block + BLOCK, count), count + 1)
        _update_block(problem, body, facts, (block, stop), (first, last), own)
    name = f"{problem.name}_rows"
    return make_launch(body, name, "cpu", [grid], work=count * columns, contract=problem.contract)


def _update_block(
    problem: CpuProblem, body: Body, facts: RowUpdateFacts, block: Bounds, columns: Bounds, own: Bounds | None
) -> None:
    """Emits the combination of the rows at a block of positions. own: the rows of the table that the task has.

    One comparison tells whether a block has positions that are negative, so large without a sign, or out of range. If
    it has none, they are read again where they are: a processor mistakes stores to the table for stores to a list at
    the same place of another page, and waits for them.
    """
    fusion, count = problem.fusion, block[1] - block[0]
    is_read_again = own is None and facts.index in fusion.tensor_inputs
    width = product(fusion.shape_of(facts.result)[facts.axes :])
    elements = None
    if width == 1 and facts.rows not in fusion.tensor_inputs:
        elements = _local(body, "elements", fusion.values[facts.rows].dtype.compute)
    positions = _positions(problem, facts)
    rows = _local(body, "rows", positions)
    is_outside = _list_positions(problem, body, facts, block, None if is_read_again else rows, elements)
    listed = symbol("listed", extent=BLOCK)
    row_count = product(fusion.shape_of(facts.result)[: facts.axes])
    with body.condition(is_outside):
        with body.loop(listed, count, "vector"):
            at = body.index.code(listed)
            place = block[0] + listed
            position = body.value(facts.index, (place,))[0] if is_read_again else Load(rows, at)
            row, _ = _inside(body, facts, _signed(position), row_count)
            body.append(Store(rows, at, convert(row, positions)))
        if is_read_again:
            _combine_rows(problem, body, facts, block, columns, (rows, None, count), elements)
    if is_read_again:
        with body.otherwise():
            _combine_rows(problem, body, facts, block, columns, (None, None, count), elements)
        return
    own_rows = (None, count) if own is None else _list_own(body, rows, count, own)
    _combine_rows(problem, body, facts, block, columns, (rows, *own_rows), elements)


def _combine_rows(
    problem: CpuProblem, body: Body, facts: RowUpdateFacts, block: Bounds, columns: Bounds,
    listed: tuple[Buffer | None, Buffer | None, Extent], elements: Buffer | None,
) -> None:  # fmt: skip
    """Emits the combination of the rows at the positions of a block.

    listed: the rows of all positions, if they are listed; which positions the task has, if not all; how many it has.
    """
    fusion, (rows, chosen, end) = problem.fusion, listed
    table, (count,) = fusion.shape_of(facts.result), fusion.shape_of(facts.index)
    inner_shape, row_count = table[facts.axes :], product(table[: facts.axes])
    width = product(inner_shape)

    def row_at(number: Extent) -> tuple[Extent, Expression, Expression]:
        """Emits the place of a listed position; returns it, its place in the block, and the row of the table there."""
        at = body.index.code(number) if chosen is None else Load(chosen, body.index.code(number))
        place = symbol(body.fresh("place"), extent=count)
        body.bind(place, call("add", body.index.code(block[0]), at))
        return place, at, body.value(facts.index, (place,))[0] if rows is None else Load(rows, at)

    ahead = _elements_ahead(problem, facts, columns[1])

    def combine(number: Extent) -> None:
        if ahead:
            _prefetch_row(problem, body, facts, row_at(minimum(number + AHEAD, end - 1))[2], ahead)
        row, (place, at, position) = symbol(body.fresh("row"), extent=row_count), row_at(number)
        body.bind(row, convert(position, body.index.dtype))
        if width == 1:
            element = Load(elements, at) if elements else body.value(facts.rows, (place, *(0 for _ in inner_shape)))[0]
            _combine_element(problem, body, facts, row, 0, element)
            return
        column = symbol("column", extent=width)
        with body.loop(column, columns[1], "vector", start=columns[0]):
            inner = delinearize(column, inner_shape)
            _combine_element(problem, body, facts, row, column, body.value(facts.rows, (place, *inner))[0])

    number, unrolled = symbol("listed", extent=BLOCK), floordiv(end, UNROLLED) * UNROLLED
    is_short = isinstance(columns[1], int) and columns[1] <= SHORT
    if is_short:
        with body.loop(number, unrolled, step=UNROLLED):
            for step in range(UNROLLED):
                combine(number + step)
    with body.loop(number, end, start=unrolled if is_short else 0):
        combine(number)


def _elements_ahead(problem: CpuProblem, facts: RowUpdateFacts, columns: Extent) -> int:
    """Returns how many elements of a row of the table are asked for before it is updated; 0 if the table is near."""
    table, itemsize = problem.fusion.shape_of(facts.result), problem.fusion.values[facts.result].dtype.itemsize
    if product(table[facts.axes :]) == 1 or problem.sizes.at_most(product(table) * itemsize, NEAR, "the table is near"):
        return 0
    most = MOST_LINES * CACHE_LINE // itemsize
    return min(columns, most) if isinstance(columns, int) else most


def _prefetch_row(problem: CpuProblem, body: Body, facts: RowUpdateFacts, position: Expression, elements: int) -> None:
    row = symbol(body.fresh("row_ahead"), extent=product(problem.fusion.shape_of(facts.result)[: facts.axes]))
    body.bind(row, convert(position, body.index.dtype))
    offset = _offset(problem, facts, row, 0)
    body.append(Prefetch(body.buffer_of(facts.result, written=True), body.index.code(offset), True, elements))


def _positions(problem: CpuProblem, facts: RowUpdateFacts) -> DType:
    """Returns the type of listed rows."""
    count = product(problem.fusion.shape_of(facts.result)[: facts.axes])
    is_narrow = problem.fusion.values[facts.index].dtype in NARROW
    return int32 if is_narrow and problem.sizes.at_most(count, MOST_NARROW, "rows fit 32 bits") else int64


def _list_positions(
    problem: CpuProblem, body: Body, facts: RowUpdateFacts, block: Bounds, rows: Buffer | None, elements: Buffer | None
) -> Expression:
    """Emits the lists of a block's positions in `rows`, and of what is combined in `elements`.

    Returns whether a position is negative or out of range.
    """
    table, (start, stop) = problem.fusion.shape_of(facts.result), block
    place = symbol("position", extent=problem.fusion.shape_of(facts.index)[0])
    signed = _positions(problem, facts)
    unsigned = uint32 if signed is int32 else uint64
    largest = Variable(body.fresh("largest"), unsigned)
    body.append(Declare(largest, Constant(0, unsigned)))
    with body.loop(place, stop, "vector", start=start):
        at = body.index.code(place - start)
        position = convert(_signed(body.value(facts.index, (place,))[0]), signed)
        body.append(Accumulate(largest, "maximum", convert(position, unsigned)))
        if rows is not None:
            body.append(Store(rows, at, position))
        if elements is not None:
            others = (0 for _ in table[facts.axes :])
            body.append(Store(elements, at, body.value(facts.rows, (place, *others))[0]))
    return call("le", convert(body.index.code(product(table[: facts.axes])), unsigned), largest)


def _list_own(body: Body, rows: Buffer, count: Extent, own: Bounds) -> tuple[Buffer, Extent]:
    """Emits the list of the positions of a block whose rows the task has; returns the list and their number.

    Without a branch, which half of the positions would mispredict.
    """
    chosen, listed = _local(body, "own", int64), Variable(body.fresh("listed"), int64)
    body.append(Declare(listed, Constant(0, int64)))
    place, end = symbol("candidate", extent=BLOCK), symbol(body.fresh("end"), extent=BLOCK + 1)
    low, high = (body.index.code(bound) for bound in own)
    with body.loop(place, count):
        at = body.index.code(place)
        body.append(Store(chosen, listed, at))
        row = convert(Load(rows, at), int64)
        is_own = call("and", call("le", low, row), call("lt", row, high))
        body.append(Assign(listed, call("add", listed, convert(is_own, int64))))
    body.bind(end, listed)
    return chosen, end


def _local(body: Body, name: str, dtype: DType) -> Buffer:
    """Allocates local memory for an element of each position of a block."""
    buffer = Buffer(body.fresh(name), dtype, "local", BLOCK)
    body.append(Allocate(buffer))
    return buffer


def _inside(
    body: Body, facts: RowUpdateFacts, position: Expression, rows: Extent
) -> tuple[Expression, Expression]:  # fmt: skip
    """Emits the row that an update goes to, and whether its position is out of range, which is reported.

    A negative position wraps once, then it is clamped.
    """
    limit, zero = convert(body.index.code(rows), int64), Constant(0, int64)
    (position,) = body.name("position", (position,))
    is_beyond = call("or", call("lt", position, call("neg", limit)), call("ge", position, limit))
    (outside,) = body.name("outside", (is_beyond,))
    body.report(facts.node, outside, body.levels[-1])
    wrapped = call("select", call("lt", position, zero), call("add", position, limit), position)
    return call("minimum", call("maximum", wrapped, zero), call("sub", limit, Constant(1, int64))), outside


def _signed(position: Expression) -> Expression:
    """Converts a position to int64; unsigned ones above its range are out of range for every table."""
    if position.dtype is uint64:
        position = call("minimum", position, Constant(2**63 - 1, uint64))
    return convert(position, int64)


def _bound(body: Body, name: str, value: Extent, extent: Extent) -> Extent:
    """Binds an integer of the task to a variable. extent: above all its values."""
    if isinstance(value, int):
        return value
    bound = symbol(name, extent=extent)
    body.bind(bound, body.index.code(value))
    return bound


def _combine_element(
    problem: CpuProblem, body: Body, facts: RowUpdateFacts, row: Extent, column: Extent, element: Expression
) -> None:
    """Emits the combination of one element of the table with `element`."""
    kind, buffer = facts.node.compute, body.buffer_of(facts.result, written=True)
    offset = _offset(problem, facts, row, column)
    if facts.combine is not None:
        (before,) = body.name("before", (convert(Load(buffer, body.index.code(offset)), kind.compute),))
        element = _combined(body, facts, before, element)
    body.append(Store(buffer, body.index.code(offset), convert(element, buffer.dtype)))


def _offset(problem: CpuProblem, facts: RowUpdateFacts, row: Extent, column: Extent) -> Extent:
    """Returns where an element of the table is in memory."""
    table, offset = problem.fusion.shape_of(facts.result), cast("Extent", 0)
    coordinates = (*delinearize(row, table[: facts.axes]), *delinearize(column, table[facts.axes :]))
    strides = problem.memory.output_strides(problem.fusion, facts.result)
    for coordinate, stride in zip(coordinates, strides, strict=True):
        offset = offset + coordinate * stride
    return offset


def _combined(body: Body, facts: RowUpdateFacts, before: Expression, element: Expression) -> Expression:
    op, kind = facts.combine, facts.node.compute
    assert op is not None
    dtype = op.arithmetic(kind)
    terms = {"a": convert(before, dtype), "b": convert(element, dtype)}
    return apply(op.code(kind), terms, dtype, lambda name, value: body.name(name, (value,))[0])
