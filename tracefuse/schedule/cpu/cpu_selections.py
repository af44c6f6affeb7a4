"""Reductions on the CPU whose result is the position of one element, such as an argmax.

The state of such a reduction has several variables, of which LLVM vectorizes nothing. So lanes hold an extreme each and
where the group of elements starts that it is in. A group is one iteration of a loop, so that the lanes are vector
registers: a few elements for each lane, whose extreme alone meets the lane's. The last group overlaps the one before
it, since of equal elements the first counts. The extreme of the lanes is found among integers that are ordered as they
are: a maximum of floats that passes NaN on takes several dependent instructions for each halving of a vector. The first
group with it, and its place there, are reductions of one variable; the latter reads the group again.

Must not know: sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class LaneGroup:
    """The lanes of a group, the elements of each, and the fewest elements of a block that has such groups."""

    lanes: int
    depth: int
    least: int

    @property
    def size(self) -> int:
        return self.lanes * self.depth


GROUPS = {
    4: (LaneGroup(32, 4, 512), LaneGroup(32, 1, 32), LaneGroup(8, 1, 8)),
    8: (LaneGroup(16, 4, 512), LaneGroup(16, 1, 16), LaneGroup(8, 1, 8)),
}
"""The groups of a block, by the size of an element: the first that it is long enough for.

Two vectors of a few elements for each lane, of one, or one vector. After deeper groups, one of them is read again.
"""

_BETTER = {"maximum": "a > held", "minimum": "a < held"}
_BITS = {4: (int32, 31), 8: (int64, 63)}
"""The integers of the width of a float, and their shift that leaves the sign."""
_KEY_OF_NAN = {int32: (1 << 31) - 1, int64: (1 << 63) - 1}


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

    Of booleans in order, nothing improves a state once an element differs from the neutral one, and a block without
    such an element changes nothing.
    """
    extreme, (neutral, *_) = state.variables[0], state.neutral
    if extreme.dtype.kind != "bool" or len(region.nest.reduced) > 1:
        _select_block(body, region, state, inner, first, last)
        return
    with body.condition(call("eq", extreme, neutral)):
        best = Variable(body.fresh("best"), extreme.dtype)
        body.append(Declare(best, neutral))
        with body.loop(inner.index, last, "vector", start=first):
            ((element, *_),) = lifted(body, region, state.node)
            body.append(Accumulate(best, state.op.selects, element))
        with body.condition(call("ne", best, neutral)):
            _select_block(body, region, state, inner, first, last)


def _select_block(body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent) -> None:
    length, groups = last - first, GROUPS[max(state.variables[0].dtype.itemsize, 4)]
    if isinstance(length, int):
        group = next((group for group in groups if group.least <= length), None)
        _select(body, region, state, inner, first, last, group)
        return
    _select_by_length(body, region, state, inner, first, last, groups)


def _select_by_length(
    body: Body,
    region: Region,
    state: Accumulator,
    inner: Loop,
    first: Extent,
    last: Extent,
    groups: Sequence[LaneGroup],
) -> None:
    if not groups:
        _select(body, region, state, inner, first, last, None)
        return
    with body.condition(body.index.compare("le", groups[0].least, last - first)):
        _select(body, region, state, inner, first, last, groups[0])
    with body.otherwise():
        _select_by_length(body, region, state, inner, first, last, groups[1:])


def _select(
    body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent,
    group: LaneGroup | None,
) -> None:  # fmt: skip
    """Joins a block in groups, or one element at a time if that is None."""
    if group is None:
        with body.loop(inner.index, last, "vector", start=first):
            accumulate(body, region, state)
        return
    lanes = _Lanes(body, region, state, inner, group)
    lanes.fill()
    begin, start = symbol("begin", extent=SEARCHED), symbol("group", extent=inner.extent)
    with body.loop(begin, last - first, step=group.size):
        body.bind(start, body.index.code(minimum(begin, last - first - group.size)))
        lanes.absorb(first, start)
    chosen = symbol("chosen", extent=inner.extent)
    body.bind(chosen, call("add", body.index.code(first), convert(lanes.place(first), body.index.dtype)))
    (later,) = lifted(body, region.at_loop(inner.symbol, chosen), state.node)
    state.absorb(body, later, in_order=len(region.nest.reduced) == 1)


class _Lanes:
    """The lanes of a block: an extreme of numbers, the start of its group, and the start of the first group with NaN.

    The elements of a lane in a group are as far apart as there are lanes. Starts are counted from the block.
    """

    def __init__(self, body: Body, region: Region, state: Accumulator, inner: Loop, group: LaneGroup) -> None:
        self._body, self._region, self._state, self._inner = body, region, state, inner
        self._lanes, self._depth, self._selects = group.lanes, group.depth, state.op.selects
        self._dtype = dtype = state.variables[0].dtype
        name = f"lanes{state.node.outputs[0]}"
        types = (dtype, int32, int32) if dtype.is_floating else (dtype, int32)
        self._buffers = [Buffer(body.fresh(name), part, "local", group.lanes) for part in types]
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
            elements = [self._element(first + start + lane + k * self._lanes) for k in range(self._depth)]
            extreme, *rest = elements
            for element in rest:
                extreme = call("select", self._better(element, extreme), element, extreme)
                (extreme,) = body.name("extreme", (extreme,))
            at, begin = body.index.code(lane), convert(body.index.code(start), int32)
            current = [body.name("held", (Load(buffer, at),))[0] for buffer in self._buffers]
            (better,) = body.name("better", (self._better(extreme, current[0]),))
            values = [call("select", better, extreme, current[0]), call("select", better, begin, current[1])]
            for earliest in current[2:]:
                is_nan = functools.reduce(lambda a, b: call("or", a, b), [call("isnan", e) for e in elements])
                values.append(call("select", is_nan, call("minimum", earliest, begin), earliest))
            self._store(at, *values)

    def _element(self, position: Extent) -> Expression:
        """Returns the element at a position of the loop."""
        body, index = self._body, symbol(self._body.fresh("r"), extent=self._inner.extent)
        body.bind(index, body.index.code(position))
        ((element, *_),) = lifted(body, self._region.at_loop(self._inner.symbol, index), self._state.node)
        (element,) = body.name("element", (element,))
        return element

    def _better(self, element: Expression, held: Expression) -> Expression:
        return apply(_BETTER[self._selects], {"a": element, "held": held}, bool_)

    def place(self, first: Extent) -> Expression:
        """Returns the position in the block of the first NaN, or else of the first element that is the extreme."""
        body, top = self._body, self._top()
        begins = [Variable(body.fresh(name), int32) for name in ("place", "nan")[: len(self._buffers) - 1]]
        for begin in begins:
            body.append(Declare(begin, _NOWHERE))
        lane = symbol("lane", extent=self._lanes)
        with body.loop(lane, self._lanes, "vector"):
            more = convert(body.index.code(lane), int32) if self._depth == 1 else constant(0, int32)
            held = [Load(buffer, body.index.code(lane)) for buffer in self._buffers]
            is_top = call("eq", self._key_of(held[0]), top)
            place = call("select", is_top, call("add", held[1], more), _NOWHERE)
            for begin, value in zip(begins, (place, *(call("add", nan, more) for nan in held[2:])), strict=True):
                body.append(Accumulate(begin, "minimum", value))
        chosen: Expression = begins[0]
        if len(begins) > 1:
            chosen = call("select", call("lt", begins[1], _NOWHERE), begins[1], begins[0])
        return chosen if self._depth == 1 else self._place_in_group(first, chosen, top, begins[1:])

    def _place_in_group(
        self, first: Extent, group: Expression, top: Expression, nan: Sequence[Variable]
    ) -> Expression:  # fmt: skip
        """Returns the first position with the key `top`, or of a NaN if there is one, from the start of a group on."""
        body, size = self._body, self._lanes * self._depth
        start, place = symbol("start", extent=SEARCHED), symbol("element", extent=size)
        body.bind(start, convert(group, body.index.dtype))
        found = Variable(body.fresh("found"), int32)
        body.append(Declare(found, _NOWHERE))
        for begin in nan:
            top = call("select", call("lt", begin, _NOWHERE), constant(_KEY_OF_NAN[top.dtype], top.dtype), top)
        (wanted,) = body.name("wanted", (self._number_of(top),))
        with body.loop(place, size, "vector"):
            element = self._element(first + start + place)
            is_first = call("eq", element, wanted)
            if nan:
                is_first = call("or", is_first, call("isnan", element))
            position = convert(body.index.code(start + place), int32)
            body.append(Accumulate(found, "minimum", call("select", is_first, position, _NOWHERE)))
        return found

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

    def _number_of(self, key: Expression) -> Expression:
        """Returns the number that has a key; of zeros, the positive one."""
        if not self._dtype.is_floating:
            return key
        sign = _BITS[self._dtype.itemsize][1]
        magnitude = constant((1 << sign) - 1, key.dtype)
        bits = call("xor", key, call("and", call("shr", key, constant(sign, key.dtype)), magnitude))
        return call("bitcast", bits, dtype=self._dtype)
