"""Reductions on the CPU whose result is the position of one element, such as an argmax.

The state of such a reduction has several variables, of which LLVM vectorizes nothing. So lanes hold an extreme each and
where the group of elements starts that it is in. A group is one iteration of a loop, so that the lanes are vector
registers; the last group overlaps the one before it, since of equal elements the first counts. The extreme of the lanes
is found among integers that are ordered as they are: a maximum of floats that passes NaN on takes several dependent
instructions for each halving of a vector. The first group with it, and its place there, are reductions of one variable.

Must not know: sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracefuse.dtypes import bool_, int32, int64
from tracefuse.ir.extents import Extent, minimum, symbol
from tracefuse.kernel.kernel_ir import Accumulate, Allocate, Buffer, Declare, Expression, Load, Store, Variable, call
from tracefuse.kernel.scalar_code import apply, constant, convert
from tracefuse.schedule.body import Body
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.phases import Accumulator, Region, State, accumulate, lifted
from tracefuse.schedule.probe import weights

SEARCHED = 2048
"""The most elements of a block: few enough to stay in the L1 cache, next to reductions of the same elements."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """The shape of groups: for blocks of `least` elements or more, `lanes` lanes of `elements` elements each."""

    least: int
    lanes: int
    elements: int

    @property
    def length(self) -> int:
        return self.lanes * self.elements


_SHAPES = (_Shape(512, 32, 4), _Shape(32, 32, 1), _Shape(8, 8, 1))
"""Two vectors of float32, whose steps are independent. In long blocks, lanes are updated for every fourth element; the
place within a group is searched then, which costs as much as a group."""

_BETTER = {"maximum": "a > held", "minimum": "a < held"}
_MORE = {"maximum": "~(a <= held) & (held == held)", "minimum": "~(a >= held) & (held == held)"}
_BITS = {4: (int32, 31), 8: (int64, 63)}
"""The integers of the width of a float, and their shift that leaves the sign."""
_NAN_ORDER = {"maximum": (1 << 63) - 1, "minimum": -1 << 63}


def is_selected(region: Region, state: Accumulator, *, alone: bool) -> bool:
    """Whether the lanes of a state are groups of elements.

    alone: no other reduction or output needs the elements; else they are computed twice, and have to be cheap.
    """
    operand = state.node.operands[0]
    if not (state.op.selects and isinstance(operand, int)):
        return False
    dtype = state.variables[0].dtype
    is_ordered = dtype.is_integer or (dtype.is_floating and dtype.itemsize in _BITS)
    return is_ordered and (alone or not weights(region.fusion)[operand])


def select_block(body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent) -> None:
    """Joins the elements from `first` to `last` of the loop `inner`, a block, to a running state."""
    length = last - first
    if isinstance(length, int):
        shape = next((shape for shape in _SHAPES if shape.least <= length), None)
        _select(body, region, state, inner, first, last, shape)
        return
    _select_by_length(body, region, state, inner, first, last, _SHAPES)


def _select_by_length(
    body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent,
    shapes: Sequence[_Shape],
) -> None:  # fmt: skip
    if not shapes:
        _select(body, region, state, inner, first, last, None)
        return
    with body.condition(body.index.compare("le", shapes[0].least, last - first)):
        _select(body, region, state, inner, first, last, shapes[0])
    with body.otherwise():
        _select_by_length(body, region, state, inner, first, last, shapes[1:])


def _select(
    body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent,
    shape: _Shape | None,
) -> None:  # fmt: skip
    """Joins a block in groups of a shape, or one element at a time if that is None."""
    if shape is None:
        with body.loop(inner.index, last, "serial", start=first):
            accumulate(body, region, state)
        return
    groups = _Groups(body, region, state, inner, shape)
    groups.fill()
    begin, start = symbol("begin", extent=SEARCHED), symbol("group", extent=inner.extent)
    with body.loop(begin, last - first, step=shape.length):
        body.bind(start, body.index.code(first + minimum(begin, last - first - shape.length)))
        groups.absorb(first, start)
    state.absorb(body, groups.first_extreme(first), in_order=len(region.nest.reduced) == 1)


class _Groups:
    """The lanes of a block: for each an extreme, and where the group with it starts, counted from the block."""

    def __init__(self, body: Body, region: Region, state: Accumulator, inner: Loop, shape: _Shape) -> None:
        self._body, self._region, self._state, self._inner = body, region, state, inner
        self._shape, self._lanes, self._selects = shape, shape.lanes, state.op.selects
        dtype = state.variables[0].dtype
        name = f"lanes{state.node.outputs[0]}"
        self._extremes = Buffer(body.fresh(name), dtype, "local", shape.lanes)
        self._starts = Buffer(body.fresh(name), int32, "local", shape.lanes)
        for buffer in (self._extremes, self._starts):
            body.append(Allocate(buffer))

    def _store(self, at: Expression, extreme: Expression, start: Expression) -> None:
        self._body.append(Store(self._extremes, at, extreme))
        self._body.append(Store(self._starts, at, start))

    def _element(self, at: Extent) -> Expression:
        ((element, *_),) = lifted(self._body, self._region.at_loop(self._inner.symbol, at), self._state.node)
        return element

    def fill(self) -> None:
        """Initializes the lanes to the neutral element."""
        lane = symbol("lane", extent=self._lanes)
        with self._body.loop(lane, self._lanes, "vector"):
            self._store(self._body.index.code(lane), self._state.neutral[0], constant(0, int32))

    def absorb(self, first: Extent, start: Extent) -> None:
        """Combines the group at `start`, in the block at `first`, with the lanes."""
        body, lane = self._body, symbol("lane", extent=self._lanes)
        with body.loop(lane, self._lanes, "vector"):
            elements = [self._element(start + lane + k * self._lanes) for k in range(self._shape.elements)]
            extreme, at = self._extreme(elements), body.index.code(lane)
            (held,) = body.name("held", (Load(self._extremes, at),))
            (more,) = body.name("more", (apply(_MORE[self._selects], {"a": extreme, "held": held}, bool_),))
            begin = convert(body.index.code(start - first), int32)
            starts = call("select", more, begin, Load(self._starts, at))
            self._store(at, call("select", more, extreme, held), starts)

    def _extreme(self, elements: Sequence[Expression]) -> Expression:
        """Returns the extreme of a lane's elements in a group, NaN if one is."""
        body = self._body
        extreme, *others = (body.name("element", (element,))[0] for element in elements)
        if not others:
            return extreme
        is_nan = call("isnan", extreme)
        for other in others:
            is_nan = call("or", is_nan, call("isnan", other))
            better = apply(_BETTER[self._selects], {"a": other, "held": extreme}, bool_)
            (extreme,) = body.name("extreme", (call("select", better, other, extreme),))
        if not extreme.dtype.is_floating:
            return extreme
        nan = constant(math.nan, extreme.dtype)
        return body.name("extreme", (call("select", is_nan, nan, extreme),))[0]

    def first_extreme(self, first: Extent) -> State:
        """Returns the state of the first element of the block at `first` that is the extreme."""
        body, top = self._body, self._top()

        def start_of(at: Extent) -> tuple[Expression, Expression]:
            index = body.index.code(at)
            start: Expression = Load(self._starts, index)
            if self._shape.elements == 1:
                start = call("add", start, convert(index, int32))
            return self._key(index), start

        start = self._least(top, self._lanes, start_of)
        if self._shape.elements > 1:
            group = symbol("group", extent=self._inner.extent)
            body.bind(group, call("add", body.index.code(first), convert(start, body.index.dtype)))

            def place_of(at: Extent) -> tuple[Expression, Expression]:
                return self._key_of(self._element(group + at)), convert(body.index.code(at), int32)

            start = self._least(top, self._shape.length, place_of)
            first = group
        chosen = symbol("chosen", extent=self._inner.extent)
        body.bind(chosen, call("add", body.index.code(first), convert(start, body.index.dtype)))
        (later,) = lifted(body, self._region.at_loop(self._inner.symbol, chosen), self._state.node)
        return later

    def _least(self, top: Variable, count: int, pair: Callable[[Extent], tuple[Expression, Expression]]) -> Variable:
        """Returns the least number among those pairs of a key and a number, one for each index, whose key is `top`."""
        body, least, at = self._body, Variable(self._body.fresh("least"), int32), symbol("at", extent=count)
        body.append(Declare(least, constant(SEARCHED, int32)))
        with body.loop(at, count, "vector"):
            key, number = pair(at)
            number = call("select", call("eq", key, top), number, constant(SEARCHED, int32))
            body.append(Accumulate(least, "minimum", number))
        return least

    def _top(self) -> Variable:
        """Returns the key of the block's extreme."""
        body, neutral = self._body, self._key_of(self._state.neutral[0])
        top, lane = Variable(body.fresh("top"), neutral.dtype), symbol("lane", extent=self._lanes)
        body.append(Declare(top, neutral))
        with body.loop(lane, self._lanes, "vector"):
            body.append(Accumulate(top, self._selects, self._key(body.index.code(lane))))
        return top

    def _key(self, at: Expression) -> Expression:
        return self._key_of(Load(self._extremes, at))

    def _key_of(self, extreme: Expression) -> Expression:
        """Returns an integer that is ordered as the extremes are: zeros are equal, NaN is beyond all others."""
        if not extreme.dtype.is_floating:
            return extreme
        dtype, sign = _BITS[extreme.dtype.itemsize]
        bits = call("bitcast", call("add", extreme, constant(0.0, extreme.dtype)), dtype=dtype)
        magnitude = constant((1 << sign) - 1, dtype)
        ordered = call("xor", bits, call("and", call("shr", bits, constant(sign, dtype)), magnitude))
        beyond = constant(_NAN_ORDER[self._selects] >> (63 - sign), dtype)
        return call("select", call("isnan", extreme), beyond, ordered)
