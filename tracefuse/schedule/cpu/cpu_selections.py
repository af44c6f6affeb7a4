"""Reductions on the CPU whose result is the position of one element, such as an argmax.

The state of such a reduction has several variables, of which LLVM vectorizes nothing. So lanes hold an extreme each and
the number of the group of elements that it is in. A group is one iteration of a loop, so that the lanes are vector
registers: a few elements for each lane, whose extreme alone meets the lane's. The last group overlaps the one before
it, since of equal elements the first counts. The extreme of the lanes is found among integers that are ordered as they
are: a maximum of floats that passes NaN on takes several dependent instructions for each halving of a vector. The first
group with it, and its place there, are reductions of one variable; the latter reads the group again. All numbers in
lanes are as wide as an element, since conversions between widths move parts of vectors.

A row is searched in blocks. Once nothing can improve the result, the blocks that are left are not read: after a NaN, or
after the first of booleans that differs from the neutral element.

Must not know: sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import bool_, int32, int64, uint8, uint16
from tracefuse.ir.extents import Extent, ceildiv, minimum, symbol
from tracefuse.kernel.kernel_ir import Accumulate, Allocate, Buffer, Declare, Expression, Load, Store, Variable, call
from tracefuse.kernel.scalar_code import apply, constant, convert
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_frame import FIXED
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.probe import weights
from tracefuse.schedule.reduction_states import Accumulator, accumulate, lifted
from tracefuse.schedule.region_phases import Region

SEARCHED_BYTES, _SEARCHED_BOOLEANS, _PLACED_BOOLEANS, _FIRST_BOOLEANS = 1 << 14, 2048, 128, 16
"""The size of a block, which stays in the L1 cache next to reductions of the same elements; the booleans of a block,
of a part of it in which the place of one is searched, and at its begin, which often have one.
"""

_EARLY_BOOLEANS = 256
"""The booleans at the begin of a row that are searched in parts at once: a block is read as a whole."""


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
    1: (LaneGroup(64, 4, 1024), LaneGroup(64, 1, 64), LaneGroup(8, 1, 8)),
    2: (LaneGroup(32, 8, 1024), LaneGroup(32, 1, 32), LaneGroup(8, 1, 8)),
    4: (LaneGroup(16, 4, 128), LaneGroup(8, 2, 32), LaneGroup(8, 1, 8)),
    8: (LaneGroup(8, 4, 64), LaneGroup(8, 1, 8)),
}
"""The groups of a block, by the size of an element: the first that it is long enough for.

The lanes are one or two vectors, so that the elements of a group and the lanes fit in registers.
"""

_NUMBERS = {1: uint8, 2: uint16, 4: int32, 8: int64}
"""The types of the numbers of groups and of places in groups, by the size of an element."""

_NOWHERE = {uint8: (1 << 8) - 1, uint16: (1 << 16) - 1, int32: (1 << 31) - 1, int64: (1 << 31) - 1}

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


def searched_elements(region: Region, state: Accumulator) -> int:
    """Returns the most elements of a block of a state that `is_selected`."""
    if _is_first_of_booleans(region, state):
        return _SEARCHED_BOOLEANS
    return SEARCHED_BYTES // state.variables[0].dtype.itemsize


def _is_first_of_booleans(region: Region, state: Accumulator) -> bool:
    return state.variables[0].dtype.kind == "bool" and len(region.nest.reduced) == 1


def select_block(body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent) -> None:
    """Joins the elements from `first` to `last` of the loop `inner`, a block, to a running state."""
    extreme = state.variables[0]
    if _is_first_of_booleans(region, state):
        _select_boolean(body, region, state, inner, first, last)
    elif extreme.dtype.is_floating and len(region.nest.reduced) == 1:
        with body.condition(call("eq", extreme, extreme)):
            _select_block(body, region, state, inner, first, last)
    else:
        _select_block(body, region, state, inner, first, last)


def _select_boolean(body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent) -> None:
    """Joins the first boolean of a block that differs from the neutral one, unless the state has such an element."""
    extreme, neutral, length = state.variables[0], state.neutral[0], last - first
    with body.condition(call("eq", extreme, neutral)):
        _try_first_booleans(body, region, state, inner, first, last)
    if not isinstance(length, int) or length > _EARLY_BOOLEANS:
        with (
            body.condition(call("eq", extreme, neutral)),
            body.condition(body.index.compare("le", first, 0)),
            body.condition(body.index.compare("lt", _EARLY_BOOLEANS, length)),
        ):
            _place_booleans(body, region, state, inner, first, first + _EARLY_BOOLEANS)
    with body.condition(call("eq", extreme, neutral)):
        best = Variable(body.fresh("best"), extreme.dtype)
        body.append(Declare(best, neutral))
        with body.loop(inner.index, last, "vector", start=first):
            ((element, *_),) = lifted(body, region, state.node)
            body.append(Accumulate(best, state.op.selects, element))
        with body.condition(call("ne", best, neutral)):
            _place_booleans(body, region, state, inner, first, last)


def _place_booleans(body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent) -> None:
    """Joins the first boolean that differs from the neutral one, in parts, unless the state has such an element."""
    extreme, neutral = state.variables[0], state.neutral[0]
    begin = symbol("begin", extent=inner.extent)
    with (
        body.loop(begin, last, start=first, step=_PLACED_BOOLEANS),
        body.condition(call("eq", extreme, neutral)),
    ):
        lanes = _Lanes(body, region, state, inner, GROUPS[1][0].lanes)
        count = minimum(last - begin, _PLACED_BOOLEANS)
        found = lanes.first_place(begin, count, lambda element: call("ne", element, neutral))
        with body.condition(call("ne", found, lanes.nowhere)):
            lanes.join(begin, found)


def _try_first_booleans(
    body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent
) -> None:
    """Joins the first boolean that differs from the neutral one if it begins a block: one vector of them."""
    neutral, length = state.neutral[0], last - first
    if isinstance(length, int) and length < _FIRST_BOOLEANS:
        return
    lanes = _Lanes(body, region, state, inner, GROUPS[1][0].lanes)
    with body.condition(body.index.compare("le", _FIRST_BOOLEANS, length)):
        found = lanes.first_place(first, _FIRST_BOOLEANS, lambda element: call("ne", element, neutral))
        with body.condition(call("ne", found, lanes.nowhere)):
            lanes.join(first, found)


def _select_block(body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent) -> None:
    length, groups = last - first, GROUPS[state.variables[0].dtype.itemsize]
    if region.masks and isinstance(length, int) and length <= FIXED and state.variables[0].dtype.itemsize in _BITS:
        _Lanes(body, region, state, inner, length).select_known(first, last)
        return
    if isinstance(length, int):
        _select(body, region, state, inner, first, last, [g for g in groups if g.least <= length][:1])
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
        _select(body, region, state, inner, first, last, ())
        return
    alike = [group for group in groups if group.lanes == groups[0].lanes]
    with body.condition(body.index.compare("le", alike[-1].least, last - first)):
        _select(body, region, state, inner, first, last, alike)
    with body.otherwise():
        _select_by_length(body, region, state, inner, first, last, groups[len(alike) :])


def _select(
    body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent,
    groups: Sequence[LaneGroup],
) -> None:  # fmt: skip
    """Joins a block in the first of the groups that it is long enough for, or one element at a time without any."""
    if not groups:
        with body.loop(inner.index, last, "vector", start=first):
            accumulate(body, region, state)
        return
    lanes = _Lanes(body, region, state, inner, groups[0].lanes)
    lanes.fill()

    def absorb(group: LaneGroup) -> None:
        ordinal = symbol("group", extent=SEARCHED_BYTES)
        with body.loop(ordinal, ceildiv(last - first, group.size)):
            lanes.absorb(group, first, ordinal, last - first)

    _by_length(body, last - first, groups, absorb)
    lanes.select(groups, first, last - first)


def _by_length(body: Body, length: Extent, groups: Sequence[LaneGroup], emit: Callable[[LaneGroup], None]) -> None:
    """Emits code for the first group that a block is long enough for; it is for the last."""
    group, *shorter = groups
    if not shorter:
        emit(group)
        return
    with body.condition(body.index.compare("le", group.least, length)):
        emit(group)
    with body.otherwise():
        _by_length(body, length, shorter, emit)


def _start(group: LaneGroup, ordinal: Extent, length: Extent) -> Extent:
    """Returns the first element of a group, counted from the block."""
    return minimum(ordinal * group.size, length - group.size)


class _Lanes:
    """The lanes of a block: an extreme of numbers, the number of its group, and whether any element is NaN.

    The elements of a lane in a group are as far apart as there are lanes.
    """

    def __init__(self, body: Body, region: Region, state: Accumulator, inner: Loop, lanes: int) -> None:
        self._body, self._region, self._state, self._inner = body, region, state, inner
        self._lanes, self._selects = lanes, state.op.selects
        self._dtype = dtype = state.variables[0].dtype
        self._number = number = _NUMBERS[dtype.itemsize]
        self.nowhere = constant(_NOWHERE[number], number)
        name = f"lanes{state.node.outputs[0]}"
        types = (dtype, number, number) if dtype.is_floating else (dtype, number)
        self._buffers = [Buffer(body.fresh(name), part, "local", lanes) for part in types]

    def _store(self, at: Expression, *values: Expression) -> None:
        for buffer, value in zip(self._buffers, values, strict=False):
            self._body.append(Store(buffer, at, value))

    def fill(self) -> None:
        """Initializes the lanes to the neutral element, without a NaN."""
        for buffer in self._buffers:
            self._body.append(Allocate(buffer))
        lane, zero = symbol("lane", extent=self._lanes), constant(0, self._number)
        with self._body.loop(lane, self._lanes, "vector"):
            self._store(self._body.index.code(lane), self._state.neutral[0], zero, zero)

    def absorb(self, group: LaneGroup, first: Extent, ordinal: Extent, length: Extent) -> None:
        """Combines a group of the block that begins at `first` with the lanes."""
        body, lane = self._body, symbol("lane", extent=self._lanes)
        start = symbol("start", extent=self._inner.extent)
        body.bind(start, body.index.code(first + _start(group, ordinal, length)))
        with body.loop(lane, self._lanes, "vector"):
            elements = [self._element(start + lane + k * self._lanes) for k in range(group.depth)]
            extreme, *rest = elements
            for element in rest:
                extreme = call("select", self._better(element, extreme), element, extreme)
                (extreme,) = body.name("extreme", (extreme,))
            at, number = body.index.code(lane), convert(body.index.code(ordinal), self._number)
            current = [body.name("held", (Load(buffer, at),))[0] for buffer in self._buffers]
            (better,) = body.name("better", (self._better(extreme, current[0]),))
            values = [call("select", better, extreme, current[0]), call("select", better, number, current[1])]
            for seen in current[2:]:
                is_nan = functools.reduce(lambda a, b: call("or", a, b), [call("isnan", e) for e in elements])
                values.append(
                    call("or", seen, call("select", is_nan, constant(-1, seen.dtype), constant(0, seen.dtype)))
                )
            self._store(at, *values)

    def select_known(self, first: Extent, last: Extent) -> None:
        """Joins a short block of a known length: the extreme of its elements, then the first place of that.

        Both are loops with one variable, whose iterations are a few vectors.
        """
        body, inner, extreme = self._body, self._inner, self._state.neutral[0]
        top, found = Variable(body.fresh("top"), extreme.dtype), Variable(body.fresh("found"), self._number)
        body.append(Declare(top, extreme))
        with body.loop(inner.index, last, "vector", start=first):
            ((element, *_),) = lifted(body, self._region, self._state.node)
            body.append(Accumulate(top, self._selects, element))
        body.append(Declare(found, self.nowhere))
        with body.loop(inner.index, last, "vector", start=first):
            ((element, *_),) = lifted(body, self._region, self._state.node)
            (element,) = body.name("element", (element,))
            is_top = call("eq", element, top)
            if self._dtype.is_floating:
                is_top = call("or", is_top, call("isnan", element))  # if there is one, no element equals the extreme
            number = convert(body.index.code(inner.index), self._number)
            body.append(Accumulate(found, "minimum", call("select", is_top, number, self.nowhere)))
        self.join(0, found)

    def _element(self, position: Extent) -> Expression:
        """Returns the element at a position of the loop."""
        body, index = self._body, symbol(self._body.fresh("r"), extent=self._inner.extent)
        body.bind(index, body.index.code(position))
        ((element, *_),) = lifted(body, self._region.at_loop(self._inner.symbol, index), self._state.node)
        (element,) = body.name("element", (element,))
        return element

    def _better(self, element: Expression, held: Expression) -> Expression:
        return apply(_BETTER[self._selects], {"a": element, "held": held}, bool_)

    def select(self, groups: Sequence[LaneGroup], first: Extent, length: Extent) -> None:
        """Joins the first NaN of the block to the state, or else the first element that is the extreme."""
        body = self._body
        if not self._dtype.is_floating:
            self._select_extreme(groups, first, length)
            return
        nan = self._over_lanes("nan", constant(0, self._number), "or", lambda held: held[2])
        with body.condition(call("ne", nan, constant(0, self._number))):
            self.join(first, self._first_nan(first, length))
        with body.otherwise():
            self._select_extreme(groups, first, length)

    def _over_lanes(
        self, name: str, initial: Expression, operation: str, value: Callable[[list[Expression]], Expression]
    ) -> Variable:
        """Reduces a value of what the lanes hold."""
        body, lane = self._body, symbol("lane", extent=self._lanes)
        result = Variable(body.fresh(name), initial.dtype)
        body.append(Declare(result, initial))
        with body.loop(lane, self._lanes, "vector"):
            held: list[Expression] = [Load(buffer, body.index.code(lane)) for buffer in self._buffers]
            body.append(Accumulate(result, operation, value(held)))
        return result

    def _select_extreme(self, groups: Sequence[LaneGroup], first: Extent, length: Extent) -> None:
        body = self._body
        neutral = self._key_of(self._state.neutral[0])
        top = self._over_lanes("top", neutral, self._selects, lambda held: self._key_of(held[0]))
        chosen = self._over_lanes(
            "place", self.nowhere, "minimum",
            lambda held: call("select", call("eq", self._key_of(held[0]), top), held[1], self.nowhere),
        )  # fmt: skip
        ordinal, start = symbol("chosen_group", extent=SEARCHED_BYTES), symbol("start", extent=self._inner.extent)
        body.bind(ordinal, convert(chosen, body.index.dtype))
        (wanted,) = body.name("wanted", (self._number_of(top),))

        def find(group: LaneGroup) -> None:
            body.bind(start, body.index.code(first + _start(group, ordinal, length)))
            self.join(start, self.first_place(start, group.size, lambda element: call("eq", element, wanted)))

        _by_length(body, length, groups, find)

    def _first_nan(self, first: Extent, length: Extent) -> Expression:
        return self.first_place(first, length, lambda element: call("isnan", element))

    def first_place(self, start: Extent, count: Extent, test: Callable[[Expression], Expression]) -> Variable:
        """Returns the place of the first of `count` elements from `start` on that passes a test."""
        body, place = self._body, symbol("element", extent=SEARCHED_BYTES)
        found = Variable(body.fresh("found"), self._number)
        body.append(Declare(found, self.nowhere))
        with body.loop(place, count, "vector"):
            number = convert(body.index.code(place), self._number)
            passes = test(self._element(start + place))
            body.append(Accumulate(found, "minimum", call("select", passes, number, self.nowhere)))
        return found

    def join(self, start: Extent, place: Expression) -> None:
        """Joins the element at a place from `start` on to the state."""
        body, chosen = self._body, symbol("chosen", extent=self._inner.extent)
        body.bind(chosen, call("add", body.index.code(start), convert(place, body.index.dtype)))
        (later,) = lifted(body, self._region.at_loop(self._inner.symbol, chosen), self._state.node)
        self._state.absorb(body, later, in_order=len(self._region.nest.reduced) == 1)

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
