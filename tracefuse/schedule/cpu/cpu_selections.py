"""Reductions on the CPU whose result is the position of one element, such as an argmax.

The state of such a reduction has several variables, of which LLVM vectorizes nothing. So lanes hold an extreme each and
where the group of elements starts that it is in. A group is one iteration of a loop, so that the lanes are vector
registers; the last group overlaps the one before it, since of equal elements the first counts. The extreme of the lanes
is found among integers that are ordered as they are: a maximum of floats that passes NaN on takes several dependent
instructions for each halving of a vector. The first group with it, and its place there, are reductions of one variable.

Must not know: sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracefuse.dtypes import bool_, int32, int64
from tracefuse.ir.extents import Extent, minimum, symbol
from tracefuse.kernel.kernel_ir import Accumulate, Allocate, Buffer, Declare, Expression, Load, Store, Variable, call
from tracefuse.kernel.scalar_code import apply, constant, convert
from tracefuse.schedule.body import Body
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.phases import Accumulator, Region, accumulate, lifted
from tracefuse.schedule.probe import weights

SEARCHED = 2048
"""The most elements of a block: few enough to stay in the L1 cache, next to reductions of the same elements."""


_NOWHERE = constant(SEARCHED, int32)

LANES = {4: (32, 8), 8: (16, 8)}
"""Elements of a group, by the size of an element: two vectors for blocks of as many elements or more, else one."""

_BETTER = {"maximum": "a > held", "minimum": "a < held"}
_BITS = {4: (int32, 31), 8: (int64, 63)}
"""The integers of the width of a float, and their shift that leaves the sign."""


def is_selected(region: Region, state: Accumulator, *, alone: bool) -> bool:
    """Whether the lanes of a state are groups of elements.

    alone: no other reduction or output needs the elements; else they are computed twice, and have to be cheap.
    """
    operand = state.node.operands[0]
    if not (state.op.selects and isinstance(operand, int)):
        return False
    dtype = state.variables[0].dtype
    is_ordered = dtype.kind == "bool" or dtype.is_integer or (dtype.is_floating and dtype.itemsize in _BITS)
    return is_ordered and (alone or not weights(region.fusion)[operand])


def select_block(body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent) -> None:
    """Joins the elements from `first` to `last` of the loop `inner`, a block, to a running state.

    Of booleans in order, nothing improves a state once an element differs from the neutral one.
    """
    extreme, (neutral, *_) = state.variables[0], state.neutral
    if extreme.dtype.kind == "bool" and len(region.nest.reduced) == 1:
        with body.condition(call("eq", extreme, neutral)):
            _select_block(body, region, state, inner, first, last)
    else:
        _select_block(body, region, state, inner, first, last)


def _select_block(body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent) -> None:
    length, counts = last - first, LANES[max(state.variables[0].dtype.itemsize, 4)]
    if isinstance(length, int):
        lanes = next((lanes for lanes in counts if lanes <= length), None)
        _select(body, region, state, inner, first, last, lanes)
        return
    _select_by_length(body, region, state, inner, first, last, counts)


def _select_by_length(
    body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent, counts: Sequence[int]
) -> None:
    if not counts:
        _select(body, region, state, inner, first, last, None)
        return
    with body.condition(body.index.compare("le", counts[0], last - first)):
        _select(body, region, state, inner, first, last, counts[0])
    with body.otherwise():
        _select_by_length(body, region, state, inner, first, last, counts[1:])


def _select(
    body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent, lanes: int | None
) -> None:
    """Joins a block in groups of `lanes` elements, or one element at a time if that is None."""
    if lanes is None:
        with body.loop(inner.index, last, "vector", start=first):
            accumulate(body, region, state)
        return
    groups = _Groups(body, region, state, inner, lanes)
    groups.fill()
    begin, start = symbol("begin", extent=SEARCHED), symbol("group", extent=inner.extent)
    with body.loop(begin, last - first, step=lanes):
        body.bind(start, body.index.code(minimum(begin, last - first - lanes)))
        groups.absorb(first, start)
    chosen = symbol("chosen", extent=inner.extent)
    body.bind(chosen, call("add", body.index.code(first), convert(groups.place(), body.index.dtype)))
    (later,) = lifted(body, region.at_loop(inner.symbol, chosen), state.node)
    state.absorb(body, later, in_order=len(region.nest.reduced) == 1)


class _Groups:
    """The lanes of a block: an extreme of numbers, the start of its group, and the start of the first group with NaN.

    Starts are counted from the block.
    """

    def __init__(self, body: Body, region: Region, state: Accumulator, inner: Loop, lanes: int) -> None:
        self._body, self._region, self._state, self._inner = body, region, state, inner
        self._lanes, self._selects, dtype = lanes, state.op.selects, state.variables[0].dtype
        name = f"lanes{state.node.outputs[0]}"
        types = (dtype, int32, int32) if dtype.is_floating else (dtype, int32)
        self._buffers = [Buffer(body.fresh(name), part, "local", lanes) for part in types]
        for buffer in self._buffers:
            body.append(Allocate(buffer))

    def _store(self, at: Expression, *values: Expression) -> None:
        for buffer, value in zip(self._buffers, values, strict=False):
            self._body.append(Store(buffer, at, value))

    def fill(self) -> None:
        """Initializes the lanes to the neutral element, without a NaN."""
        lane = symbol("lane", extent=self._lanes)
        with self._body.loop(lane, self._lanes, "vector"):
            self._store(self._body.index.code(lane), self._state.neutral[0], constant(0, int32), _NOWHERE)

    def absorb(self, first: Extent, start: Extent) -> None:
        """Combines the group `start` elements after the beginning `first` of the block with the lanes."""
        body, lane = self._body, symbol("lane", extent=self._lanes)
        with body.loop(lane, self._lanes, "vector"):
            body.bind(self._inner.index, body.index.code(first + start + lane))
            ((element, *_),) = lifted(body, self._region, self._state.node)
            (element,) = body.name("element", (element,))
            at, begin = body.index.code(lane), convert(body.index.code(start), int32)
            current = [body.name("held", (Load(buffer, at),))[0] for buffer in self._buffers]
            better = apply(_BETTER[self._selects], {"a": element, "held": current[0]}, bool_)
            (better,) = body.name("better", (better,))
            values = [call("select", better, element, current[0]), call("select", better, begin, current[1])]
            for earliest in current[2:]:
                values.append(call("select", call("isnan", element), call("minimum", earliest, begin), earliest))
            self._store(at, *values)

    def place(self) -> Expression:
        """Returns the position in the block of the first NaN, or else of the first element that is the extreme."""
        body, top, dtype = self._body, self._top(), self._state.variables[0].dtype
        place, nan = (Variable(body.fresh(name), int32) for name in ("place", "nan"))
        lane = symbol("lane", extent=self._lanes)
        for variable in (place, nan)[: 2 if dtype.is_floating else 1]:
            body.append(Declare(variable, _NOWHERE))
        with body.loop(lane, self._lanes, "vector"):
            at = body.index.code(lane)
            starts = [Load(buffer, at) for buffer in self._buffers[1:]]
            places = [call("add", start, convert(at, int32)) for start in starts]
            is_top = call("eq", self._key_of(Load(self._buffers[0], at)), top)
            body.append(Accumulate(place, "minimum", call("select", is_top, places[0], _NOWHERE)))
            for later in places[1:]:
                body.append(Accumulate(nan, "minimum", later))
        if not dtype.is_floating:
            return place
        return call("select", call("lt", nan, _NOWHERE), nan, place)

    def _top(self) -> Variable:
        """Returns the key of the extreme."""
        body, neutral = self._body, self._key_of(self._state.neutral[0])
        top, lane = Variable(body.fresh("top"), neutral.dtype), symbol("lane", extent=self._lanes)
        body.append(Declare(top, neutral))
        with body.loop(lane, self._lanes, "vector"):
            extreme = Load(self._buffers[0], body.index.code(lane))
            body.append(Accumulate(top, self._selects, self._key_of(extreme)))
        return top

    def _key_of(self, extreme: Expression) -> Expression:
        """Returns an integer that is ordered as numbers are; zeros are equal."""
        if not extreme.dtype.is_floating:
            return extreme
        dtype, sign = _BITS[extreme.dtype.itemsize]
        bits = call("bitcast", call("add", extreme, constant(0.0, extreme.dtype)), dtype=dtype)
        magnitude = constant((1 << sign) - 1, dtype)
        return call("xor", bits, call("and", call("shr", bits, constant(sign, dtype)), magnitude))
