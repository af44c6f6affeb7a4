"""Reductions on the CPU whose result is the position of one element, such as an argmax, in blocks of a long loop.

The state of such a reduction has several variables, of which LLVM vectorizes nothing. The extreme of a block is a
reduction of one variable, which LLVM does vectorize. A second vector loop searches a block for the first element that
equals its extreme. If the blocks follow one another, the running state keeps the first block with the extreme, and that
block alone is searched, after all of them; else each block that improves the state is searched, and the state of the
element joins the running state.

Must not know: sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracefuse.dtypes import bool_, int32
from tracefuse.ir.extents import Extent, minimum, symbol
from tracefuse.kernel.kernel_ir import Accumulate, Assign, Declare, Expression, Variable, call
from tracefuse.kernel.scalar_code import apply, constant, convert
from tracefuse.schedule.body import Body
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.phases import Accumulator, Region, State, lifted
from tracefuse.schedule.probe import weights

SEARCHED = 512
"""The most elements of a block: enough to fill vectors, and few enough to stay in the L1 cache for the search."""

_IMPROVES_IN_ORDER = "(both != a) & (a == a)"
_IMPROVES = "(both == best) | (best != best)"
_IS_FIRST = "(a == best) | (a != a)"


@dataclass(frozen=True, slots=True)
class BestBlock:
    """A running state over blocks in order: its extreme, and the index at which the first block with it starts."""

    state: Accumulator
    start: Variable

    def finish(self, body: Body, region: Region, inner: Loop, last: Extent) -> None:
        """Sets the state to that of the element, which it searches. last: the end of the last block."""
        first = symbol("found", extent=inner.extent)
        body.bind(first, self.start)
        best = self.state.variables[0]
        later = _first_equal(body, region, inner, self.state, best, first, minimum(first + SEARCHED, last))
        for variable, value in zip(self.state.variables, body.name("first", later), strict=True):
            body.append(Assign(variable, value))


@dataclass(frozen=True, slots=True)
class BlockExtreme:
    """A running state, the extreme of the current block, and the best block, if blocks follow one another."""

    state: Accumulator
    best: Variable
    block: BestBlock | None

    def accumulate(self, body: Body, region: Region) -> None:
        """Combines the element at the current indices into the block's extreme."""
        body.append(Accumulate(self.best, self.state.op.selects, _element(body, region, self.state)))

    def join(self, body: Body, region: Region, inner: Loop, first: Extent, last: Extent) -> None:
        """Joins the block from `first` to `last` of the loop `inner`, if it improves the state."""
        state, best = self.state, self.best
        running = state.variables[0]
        (combined,) = body.name("both", (call(state.op.selects, running, best),))
        names = {"a": running, "both": combined, "best": best}
        if self.block is not None:
            improves = apply(_IMPROVES_IN_ORDER, names, bool_)
            start = call("select", improves, body.index.code(first), self.block.start)
            body.append(Assign(self.block.start, start))
            body.append(Assign(running, combined))
            return
        with body.condition(apply(_IMPROVES, names, bool_)):
            state.absorb(body, _first_equal(body, region, inner, state, best, first, last))


def _first_equal(
    body: Body, region: Region, inner: Loop, state: Accumulator, best: Variable, first: Extent, last: Extent
) -> State:
    """Searches a block for its first element that equals `best`, or NaN if that is NaN; returns its state."""
    place = Variable(body.fresh("place"), int32)
    body.append(Declare(place, constant(SEARCHED, int32)))
    with body.loop(inner.index, last, "vector", start=first):
        is_first = apply(_IS_FIRST, {"a": _element(body, region, state), "best": best}, bool_)
        at = convert(body.index.code(inner.index - first), int32)
        body.append(Accumulate(place, "minimum", call("select", is_first, at, constant(SEARCHED, int32))))
    chosen = symbol("chosen", extent=inner.extent)
    body.bind(chosen, call("add", body.index.code(first), convert(place, body.index.dtype)))
    (later,) = lifted(body, region.at_loop(inner.symbol, chosen), state.node)
    return later


def is_selected(region: Region, state: Accumulator) -> bool:
    """Whether a state is that of its first extreme element, and elements are cheap enough to compute twice."""
    operand = state.node.operands[0]
    is_ordered = state.variables[0].dtype.is_floating or state.variables[0].dtype.is_integer
    return bool(state.op.selects) and is_ordered and isinstance(operand, int) and not weights(region.fusion)[operand]


def open_best_block(body: Body, region: Region, state: Accumulator, start: Extent) -> BestBlock | None:
    """Declares the best block of a running state; None if there are several loops, whose blocks do not follow."""
    if len(region.nest.reduced) > 1:
        return None
    variable = Variable(body.fresh("start"), body.index.dtype)
    body.append(Declare(variable, body.index.code(start)))
    return BestBlock(state, variable)


def open_selection(body: Body, state: Accumulator, block: BestBlock | None) -> BlockExtreme:
    """Declares the extreme of a block, initialized to the neutral element."""
    best = Variable(body.fresh("best"), state.variables[0].dtype)
    body.append(Declare(best, state.neutral[0]))
    return BlockExtreme(state, best, block)


def _element(body: Body, region: Region, state: Accumulator) -> Expression:
    ((element, *_),) = lifted(body, region, state.node)
    return element
