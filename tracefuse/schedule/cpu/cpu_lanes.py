"""The reduction loops of a row on the CPU, in a form that LLVM vectorizes.

LLVM vectorizes a reduction with one variable, such as a sum or a maximum. It does not vectorize a state of several
variables. For those, local arrays hold LANES states, each for every LANES-th element, which are combined after the
loops. The remainder of the innermost loop is accumulated into a single state. Positions of extremes are searched in
blocks instead (`cpu_selections.py`), and narrow integers are added in blocks (`cpu_narrow_sums.py`). Blocks after one
that settles the result of a logical reduction are not read.

A running sum of floats loses a digit for every few thousand terms, so sums add blocks of the innermost loop, and the
sums of the blocks in float64.

Must not know: sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import bool_
from tracefuse.ir.extents import Extent, floordiv, minimum, substitute, symbol, symbols
from tracefuse.kernel.kernel_ir import Allocate, Buffer, Load, Store, call
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_narrow_sums import add_block, is_narrow, narrow_elements
from tracefuse.schedule.cpu.cpu_selections import is_selected, searched_elements, select_block
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.reduction_states import Accumulator, accumulate, declare, lifted, store_output
from tracefuse.schedule.region_phases import Region

LANES = 32
"""The number of states: two vectors of float32, so that consecutive steps are independent."""

BLOCK = 2048
STRIDED_BLOCK = 64
"""The most elements of a partial sum: of contiguous ones, which 32 or more lanes add, and of others, which one adds.

At most 64 terms meet one running sum, so that a float32 sum errs by about 1e-6 at most.
"""


def reduce_loops(
    body: Body, region: Region, phase: int, states: Sequence[Accumulator], loops: Sequence[Loop], *,
    first: Extent = 0, last: Extent | None = None,
) -> None:  # fmt: skip
    """Emits one pass over the loops: accumulates the phase's reductions and stores its full outputs.

    states: accumulators that join partial states. first, last: the bounds of the outermost loop; by default all of it.
    """
    fixed = dict(region.fixed)
    loops = [replace(loop, extent=substitute(loop.extent, fixed)) for loop in loops]
    alone = len(states) == 1 and not region.full[phase]
    in_blocks = [kind for state in states if loops and (kind := _block_kind(region, state, alone=alone))]
    apart = [kind.state for kind in in_blocks]
    composite = [state for state in states if len(state.variables) > 1 and state not in apart]
    spread = {state.node.outputs[0]: _arrays(body, state) for state in composite}
    bounds = [(first if k == 0 else 0, loop.extent if k or last is None else last) for k, loop in enumerate(loops)]
    long = body.index.compare("le", LANES, bounds[-1][1] - bounds[-1][0]) if spread and loops else None
    if long is not None:
        with body.condition(long):
            for state in states:
                _fill(body, state, spread.get(state.node.outputs[0], ()))
    with contextlib.ExitStack() as stack:
        for loop, (start, stop) in zip(loops[:-1], bounds, strict=False):
            stack.enter_context(body.loop(loop.index, stop, start=start))
        if loops:
            _reduce_blocks(body, region, phase, states, in_blocks, spread, loops[-1], *bounds[-1])
        else:
            _element(body, region, phase, states, spread)
    if long is not None:
        with body.condition(long):
            for state in states:
                _join(body, state, spread.get(state.node.outputs[0], ()))


_Arrays: TypeAlias = Mapping[int, tuple[Buffer, ...]]
"""The lanes' states of the reductions with several variables, by the number of the result."""


def _element(
    body: Body, region: Region, phase: int, states: Sequence[Accumulator], spread: _Arrays, lane: Extent | None = None
) -> None:
    """Accumulates the element at the current indices and stores the full outputs there."""
    for state in states:
        lane_states = spread.get(state.node.outputs[0])
        if lane is None or lane_states is None:
            accumulate(body, region, state)
        else:
            _absorb(body, region, state, lane_states, lane)
    for output in region.full[phase]:
        store_output(body, region, output)


@dataclass(frozen=True, slots=True)
class _InBlocks:
    """A state that joins blocks of the innermost loop by `join`, of at most `elements` elements."""

    state: Accumulator
    elements: int
    join: Callable[[Body, Region, Accumulator, Loop, Extent, Extent], None]


def _block_kind(region: Region, state: Accumulator, *, alone: bool) -> _InBlocks | None:
    if is_selected(region, state, alone=alone):
        return _InBlocks(state, searched_elements(region, state), select_block)
    if is_narrow(region, state, alone=alone):
        return _InBlocks(state, narrow_elements(region, state), add_block)
    if alone and _may_settle(state):
        return _InBlocks(state, BLOCK, _settle_block)
    return None


def _may_settle(state: Accumulator) -> bool:
    """Whether one element may settle the result: of booleans, one that differs from the neutral element."""
    return bool(state.op.combine) and state.variables[0].dtype is bool_


def _settle_block(body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent) -> None:
    """Joins a block to a state that no earlier block has settled."""
    unsettled = call("eq", state.variables[0], state.neutral[0])
    with body.condition(unsettled), body.loop(inner.index, last, "vector", start=first):
        accumulate(body, region, state)


def _reduce_blocks(
    body: Body, region: Region, phase: int, states: Sequence[Accumulator], in_blocks: Sequence[_InBlocks],
    spread: _Arrays, inner: Loop, start: Extent, stop: Extent,
) -> None:  # fmt: skip
    """Loops over the innermost loop; sums of floats begin anew in each block and join their totals after it."""
    sums = [state for state in states if state.adds_floats]
    apart = [kind.state for kind in in_blocks]
    others = [state for state in states if state not in apart]
    if not sums and not in_blocks:
        _reduce_innermost(body, region, phase, states, spread, inner, start, stop)
        return
    lengths = [kind.elements for kind in in_blocks]
    if sums:
        lengths.append(BLOCK if _is_contiguous(region, inner) else STRIDED_BLOCK)
    elif others or region.full[phase]:
        lengths.append(BLOCK)
    length = min(lengths)
    first, last = start, stop
    with contextlib.ExitStack() as stack:
        if not isinstance(inner.extent, int) or inner.extent > length:
            first, last = symbol("block", extent=inner.extent), symbol("end", extent=inner.extent + 1)
            stack.enter_context(body.loop(first, stop, start=start, step=length))
            body.bind(last, body.index.code(minimum(first + length, stop)))
        parts = {id(state): declare(body, state.node) for state in sums}
        if others or region.full[phase]:
            accumulators = [parts.get(id(state), state) for state in others]
            _reduce_innermost(body, region, phase, accumulators, spread, inner, first, last)
        for state in sums:
            state.absorb(body, parts[id(state)].variables)
        for kind in in_blocks:
            kind.join(body, region, kind.state, inner, first, last)


def _reduce_innermost(
    body: Body, region: Region, phase: int, states: Sequence[Accumulator], spread: _Arrays, inner: Loop,
    start: Extent, stop: Extent,
) -> None:  # fmt: skip
    if spread:
        base, lane = symbol("base", extent=inner.extent), symbol("lane", extent=LANES)
        with body.loop(base, stop - (LANES - 1), start=start, step=LANES), body.loop(lane, LANES, "vector"):
            body.bind(inner.index, body.index.code(base + lane))
            _element(body, region, phase, states, spread, lane)
        start = start + floordiv(stop - start, LANES) * LANES
    with body.loop(inner.index, stop, "serial" if spread else "vector", start=start):
        _element(body, region, phase, states, spread)


def _is_contiguous(region: Region, inner: Loop) -> bool:
    """Whether every read advances by at most one element with the loop, so that LLVM adds several lanes at once."""
    for number, coordinates in region.probe.reads:
        strides = region.memory.strides[number]
        for coordinate, stride in zip(coordinates, strides, strict=True):
            if inner.symbol in symbols(coordinate) and coefficient(coordinate * stride, inner.symbol) not in (1, -1):
                return False
    return True


def _arrays(body: Body, state: Accumulator) -> tuple[Buffer, ...]:
    """Allocates LANES states: one array for each part."""
    name = f"lanes{state.node.outputs[0]}"
    buffers = tuple(Buffer(body.fresh(name), v.dtype, "local", LANES) for v in state.variables)
    for buffer in buffers:
        body.append(Allocate(buffer))
    return buffers


def _fill(body: Body, state: Accumulator, buffers: Sequence[Buffer]) -> None:
    """Initializes the lanes' states to the neutral element."""
    lane = symbol("lane", extent=LANES)
    with body.loop(lane, LANES, "vector"):
        for buffer, value in zip(buffers, state.neutral, strict=False):
            body.append(Store(buffer, body.index.code(lane), value))


def _absorb(body: Body, region: Region, state: Accumulator, buffers: tuple[Buffer, ...], lane: Extent) -> None:
    """Combines the element at the current indices into its lane's state."""
    at = body.index.code(lane)
    (element,) = lifted(body, region, state.node)
    current = body.name("held", tuple(Load(buffer, at) for buffer in buffers))
    combined = body.name("both", state.combined(current, body.name("later", element)))
    for buffer, value in zip(buffers, combined, strict=True):
        body.append(Store(buffer, at, value))


def _join(body: Body, state: Accumulator, buffers: Sequence[Buffer]) -> None:
    """Combines the lanes' states pairwise, and the result into the declared state."""
    if not buffers:
        return
    half = LANES // 2
    while half:
        lane = symbol("lane", extent=half)
        with body.loop(lane, half, "vector"):
            low, high = body.index.code(lane), body.index.code(lane + half)
            earlier = body.name("held", tuple(Load(buffer, low) for buffer in buffers))
            later = body.name("later", tuple(Load(buffer, high) for buffer in buffers))
            for buffer, value in zip(buffers, body.name("both", state.combined(earlier, later)), strict=True):
                body.append(Store(buffer, low, value))
        half //= 2
    state.absorb(body, tuple(Load(buffer, body.index.code(0)) for buffer in buffers))
