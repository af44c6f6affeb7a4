"""Reductions on the CPU whose result is the position of one element, such as an argmax, in blocks of a long loop.

The state of such a reduction has several variables, of which LLVM vectorizes nothing. The extreme of a block is a
reduction of one variable, which LLVM does vectorize. Only where a block improves the state, a second vector loop
searches the block for the first element that equals its extreme; the state of that element joins the running state.

Must not know: sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracefuse.dtypes import bool_, int32
from tracefuse.ir.extents import Extent, symbol
from tracefuse.kernel.kernel_ir import Accumulate, Declare, Expression, Variable, call
from tracefuse.kernel.scalar_code import apply, constant, convert
from tracefuse.schedule.body import Body
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.phases import Accumulator, Region, lifted
from tracefuse.schedule.probe import weights

SEARCHED = 512
"""The most elements of a block: enough to fill vectors, and few enough to stay in the L1 cache for the search."""

_IMPROVES_IN_ORDER = "(both != a) & (a == a)"
_IMPROVES = "(both == best) | (best != best)"
_IS_FIRST = "(a == best) | (a != a)"


@dataclass(frozen=True, slots=True)
class BlockExtreme:
    """A running state, and the extreme of the current block."""

    state: Accumulator
    best: Variable

    def accumulate(self, body: Body, region: Region) -> None:
        """Combines the element at the current indices into the block's extreme."""
        body.append(Accumulate(self.best, self.state.op.selects, _element(body, region, self.state)))

    def join(self, body: Body, region: Region, inner: Loop, first: Extent, last: Extent) -> None:
        """Joins the block from `first` to `last` of the loop `inner`, if it improves the state."""
        state, best = self.state, self.best
        running = state.variables[0]
        in_order = len(region.nest.reduced) == 1
        (both,) = body.name("both", (call(state.op.selects, running, best),))
        names = {"a": running, "both": both, "best": best}
        with body.condition(apply(_IMPROVES_IN_ORDER if in_order else _IMPROVES, names, bool_)):
            place = Variable(body.fresh("place"), int32)
            body.append(Declare(place, constant(SEARCHED, int32)))
            with body.loop(inner.index, last, "vector", start=first):
                is_first = apply(_IS_FIRST, {"a": _element(body, region, state), "best": best}, bool_)
                at = convert(body.index.code(inner.index - first), int32)
                body.append(Accumulate(place, "minimum", call("select", is_first, at, constant(SEARCHED, int32))))
            chosen = symbol("chosen", extent=inner.extent)
            body.bind(chosen, call("add", body.index.code(first), convert(place, body.index.dtype)))
            (later,) = lifted(body, region.at_loop(inner.symbol, chosen), state.node)
            state.absorb(body, later, in_order=in_order)


def is_selected(region: Region, state: Accumulator) -> bool:
    """Whether a state is that of its first extreme element, and elements are cheap enough to compute twice."""
    operand = state.node.operands[0]
    is_ordered = state.variables[0].dtype.is_floating or state.variables[0].dtype.is_integer
    return bool(state.op.selects) and is_ordered and isinstance(operand, int) and not weights(region.fusion)[operand]


def open_selection(body: Body, state: Accumulator) -> BlockExtreme:
    """Declares the extreme of a block, initialized to the neutral element."""
    best = Variable(body.fresh("best"), state.variables[0].dtype)
    body.append(Declare(best, state.neutral[0]))
    return BlockExtreme(state, best)


def _element(body: Body, region: Region, state: Accumulator) -> Expression:
    ((element, *_),) = lifted(body, region, state.node)
    return element
