"""One phase of a region on a GPU: a thread's loads, accumulators, stores, and the values that it caches.

Walks distribute the positions over the threads; templates combine the threads' states.

Must not know: sizes, CUDA C++.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent, Symbol, substitute, symbol, symbols
from tracefuse.ir.op_kinds import Reduction
from tracefuse.kernel.kernel_ir import (
    Allocate,
    Assign,
    Buffer,
    Combiner,
    Expression,
    GroupReduce,
    Let,
    Load,
    Variable,
    call,
)
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import Positions, Walk, when
from tracefuse.schedule.reduction_states import Accumulator, accumulate, declare, finish, lifted, store_output
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.scopes import Key
from tracefuse.schedule.transposed import is_known

State: TypeAlias = tuple[Accumulator, ...]
"""The state of a reduction in one thread: one for all lanes of a row, or one for each lane of a group of columns."""

CachedKeys: TypeAlias = Mapping[Key, int]
"""The values that a thread caches, with the phase that computes each."""

Join: TypeAlias = Callable[[Sequence[State]], None]

Values: TypeAlias = tuple[Expression, ...]

Joined: TypeAlias = tuple[tuple[Variable, ...], Callable[[Values, Values], Values]]
"""Variables, and the function that combines two threads' values of them."""


def cached_dtype(region: Region, number: int) -> DType:
    """Returns the dtype of a cached value: inputs keep their dtype, others are in their arithmetic type."""
    dtype = region.fusion.values[number].dtype
    return dtype if number in region.fusion.inputs else dtype.compute


def cached_words(region: Region, lanes: int) -> int:
    """Returns the peak number of 32-bit registers for the cached values of one step of a thread."""
    probe, peak = region.probe, 0
    for phase in range(len(region.full)):
        live = [number for (number, at), first in probe.cached.items() if first <= phase < probe.last[(number, at)]]
        peak = max(peak, sum(cached_dtype(region, number).itemsize * lanes for number in live))
    return max(-(-peak // 4), lanes)


def hold(body: Body, region: Region, values: Mapping[Symbol, Extent], step: Extent, steps: int) -> CachedKeys:
    """Allocates registers for every value that a later phase rereads: a group of lanes for each step.

    values: replacements of the loop indices.
    """
    cached = cached_keys(region, values)
    body.to_cache.update(places(body, region, cached, step, steps, "local"))
    return cached


def cached_keys(region: Region, values: Mapping[Symbol, Extent]) -> CachedKeys:
    """Returns the values that later phases reread, with their coordinates."""
    return {
        (number, tuple(substitute(c, values) for c in coordinates)): first
        for (number, coordinates), first in region.probe.cached.items()
        if is_known(region, coordinates)
    }


def places(
    body: Body, region: Region, cached: CachedKeys, index: Extent, count: int, space: str
) -> dict[Key, tuple[Buffer, Extent]]:
    """Allocates `count` groups of lanes for each cached value; returns the place of group `index`."""
    allocated: dict[Key, tuple[Buffer, Extent]] = {}
    for key in cached:
        buffer = Buffer(body.fresh(f"held{key[0]}"), cached_dtype(region, key[0]), space, count * body.lanes)
        body.append(Allocate(buffer))
        allocated[key] = (buffer, index * body.lanes + (body.lane if body.lanes > 1 else 0))
    return allocated


@dataclass(frozen=True, slots=True)
class RowPart:
    """A part of a row: the positions of a walk, the region at them, the body that emits them, and what it caches."""

    body: Body
    region: Region
    walk: Walk
    positions: Positions
    cached: CachedKeys = field(default_factory=dict)


def accumulate_phase(
    body: Body, region: Region, phase: int, walk: Walk, positions: Positions, *, width: int = 1,
    cached: CachedKeys | None = None, stores: Sequence[Expression] = (), without: Container[int] = (),
    also: Callable[[int], None] | None = None, rest: RowPart | None = None,
) -> list[State]:  # fmt: skip
    """One pass over a thread's positions: the states of what the phase reduces; full outputs are stored.

    Loads come first, so that they are on their way together: of what is held all, of the rest those of some positions.
    width: accumulators of a state. stores: conditions on storing. without: reductions that need no state of their own.
    also: what else is done with a phase's elements. rest: positions that follow, accumulated into the same states.
    """
    parts = [RowPart(body, region, walk, positions, cached or {}), *([] if rest is None else [rest])]
    for part in parts:
        _load_held(part, phase)
    nodes = [node for node in region.in_phase(phase) if node.outputs[0] not in without]
    states = [tuple(declare(body, node) for _ in range(width)) for node in nodes]
    for part in parts:
        if states or region.full[phase] or region.columns[phase]:
            _accumulate_part(part, phase, states, stores, also)
        part.body.cached.update((key, part.body.to_cache[key]) for key, first in part.cached.items() if first == phase)
    return states


def _load_held(part: RowPart, phase: int) -> None:
    """Loads the inputs that a phase reads first and a later one reads again."""
    body = part.body
    loaded = [key for key, first in part.cached.items() if first == phase and key[0] in part.region.fusion.inputs]

    def load() -> None:
        for key in loaded:
            body.fetch(*key)

    if loaded:
        part.walk.each(body, part.positions.binder(body), load)
        body.cached.update((key, body.to_cache[key]) for key in loaded)


def _accumulate_part(
    part: RowPart, phase: int, states: Sequence[State], stores: Sequence[Expression], also: Callable[[int], None] | None
) -> None:
    """Accumulates the elements of a phase at the positions of a part, and stores its full outputs."""
    body, region, positions, active = part.body, part.region, part.positions, list(states)

    def work() -> None:
        for key in reads:
            body.value(*key)
        for state in active:
            accumulate_lanes(body, region, state)
        if also is not None:
            also(phase)
        _store_full(body, region, phase, stores)

    reads = reads_on_the_way(body, region, phase, positions)
    fetched = [key for key in reads if is_of_one_row(body, region, key, positions)]
    part.walk.each(body, positions.binder(body), work, fetched, lambda: _apart(body, region, states, active))


def reads_on_the_way(body: Body, region: Region, phase: int, positions: Positions) -> list[Key]:
    """Returns the input elements that a phase reads at every position."""
    moving = positions.moving
    return [
        (number, at)
        for number, at in region.reads_of(phase, body.cached)
        if not moving.isdisjoint(s for c in at for s in symbols(c))
    ]


def is_of_one_row(body: Body, region: Region, key: Key, positions: Positions) -> bool:
    """Returns whether each row reads different elements; elements that all rows read are soon in the caches."""
    indices = {s for c in key[1] for s in symbols(c) if s.extent is not None}
    return not indices <= positions.moving | {body.lane_symbol} or all(
        loop.extent == 1 for loop in region.nest.parallel
    )


def run_phases(
    body: Body, region: Region, walk: Walk, positions: Positions, join: Join, *, width: int = 1,
    cached: CachedKeys | None = None, stores: Sequence[Expression] = (), rest: RowPart | None = None,
) -> None:  # fmt: skip
    """Emits all phases in one launch; combines the states of each phase before the next one reads the results.

    rest: as of accumulate_phase.
    """
    for phase in range(len(region.full)):
        contained, makers = region.contained(phase), region.fusion.producers
        states = accumulate_phase(
            body,
            region,
            phase,
            walk,
            positions,
            width=width,
            cached=cached,
            stores=stores,
            without=contained,
            rest=rest,
        )
        join(states)
        known = {state[0].node.outputs[0]: state for state in states}
        for number, (other, part) in contained.items():
            lanes = known[other.outputs[0]]
            known[number] = tuple(Accumulator(makers[number], (lane.variables[part],)) for lane in lanes)
        for node in region.in_phase(phase):
            finish(body, region, *known[node.outputs[0]])


def accumulate_lanes(body: Body, region: Region, state: State) -> None:
    """Accumulates the elements at the current loop indices: into one state, or each lane into its own."""
    if len(state) == 1:
        accumulate(body, region, state[0])
        return
    elements, in_order = lifted(body, region, state[0].node), len(region.nest.reduced) == 1
    if state[0].op.combine:
        for lane, element in zip(state, elements, strict=True):
            lane.absorb(body, element)
        return
    _absorb_lanes(body, state, [body.name("later", element) for element in elements], in_order)


@contextlib.contextmanager
def _apart(body: Body, region: Region, states: Sequence[State], active: list[State]) -> Iterator[None]:
    """Replaces states that count elements by new ones, and combines these with `states` at the end.

    Over an unrolled loop the counts of new states are constants, and so are the quotients of counts.
    """
    for k, state in enumerate(states):
        if any(parts_of_all_lanes(state[0].op)):
            active[k] = tuple(declare(body, lane.node) for lane in state)
    yield
    for k, state in enumerate(states):
        if active[k] is not state:
            _absorb_lanes(body, state, [lane.variables for lane in active[k]], len(region.nest.reduced) == 1)
            active[k] = state


def _absorb_lanes(body: Body, state: State, later: Sequence[Values], in_order: bool) -> None:
    """Combines the state of each lane with a later one.

    Equal expressions, such as a division by the number of elements so far, are computed once for all lanes.
    """
    shared, combined = parts_of_all_lanes(state[0].op), []
    for lane, values in zip(state, later, strict=True):
        pairs = [
            (state[0].variables[k], later[0][k]) if same else (lane.variables[k], values[k])
            for k, same in enumerate(shared)
        ]
        earlier, after = zip(*pairs, strict=True)
        combined.append(body.name("both", lane.combined(earlier, after, in_order=in_order)))
    for lane, values in zip(state, combined, strict=True):
        for variable, value in zip(lane.variables, values, strict=True):
            body.append(Assign(variable, value))


def parts_of_all_lanes(op: Reduction) -> list[bool]:
    """For each part of a state, whether it depends on the number of elements alone, so that lanes have equal values."""
    return [
        part.lift.isdigit() and set(re.findall(r"[a-z_]\w*", part.combine)) <= {part.name, f"later_{part.name}"}
        for part in op.state_parts
    ]


def _store_full(body: Body, region: Region, phase: int, tests: Sequence[Expression]) -> None:
    for output in region.full[phase]:
        body.value(output, region.coordinates(output))
    if region.full[phase]:
        with when(body, tests):
            for output in region.full[phase]:
                store_output(body, region, output)


def store_parallel_outputs(body: Body, region: Region, tests: Sequence[Expression]) -> None:
    """Stores the outputs over the parallel loops if the tests hold."""
    if region.parallel_outputs:
        with when(body, tests):
            for output in region.parallel_outputs:
                store_output(body, region, output)


def combine_threads(body: Body, states: Sequence[State], group: int) -> None:
    """Combines the states of `group` adjacent threads; all of them get the result.

    For a sum of terms over a first part, the first parts are combined first. Each thread then rescales its sum once,
    and the sums are added.
    """
    accumulators = [accumulator for state in states for accumulator in state]
    if not accumulators or group == 1:
        return
    sums = [a for a in accumulators if a.op.term is not None]
    before = [Variable(body.fresh("own"), a.variables[0].dtype) for a in sums]
    for accumulator, first in zip(sums, before, strict=True):
        body.append(Let(first, accumulator.variables[0]))
    firsts: list[Joined] = [(a.variables[:1], a.first_combined) for a in sums]
    _reduce(body, [*((a.variables, a.combined) for a in accumulators if a.op.term is None), *firsts], group)
    for accumulator, first in zip(sums, before, strict=True):
        moved, total = accumulator.variables
        body.append(Assign(total, call("mul", total, *accumulator.terms(body, (first,), moved))))
    _reduce(body, [(a.variables[1:], _added) for a in sums], group)


def _added(earlier: Values, later: Values) -> Values:
    return tuple(call("add", x, y) for x, y in zip(earlier, later, strict=True))


def _reduce(body: Body, joined: Sequence[Joined], group: int) -> None:
    if not joined:
        return
    left = [tuple(Variable(body.fresh("left"), v.dtype) for v in variables) for variables, _ in joined]
    right = [tuple(Variable(body.fresh("right"), v.dtype) for v in variables) for variables, _ in joined]
    results = [combined(x, y) for (_, combined), x, y in zip(joined, left, right, strict=True)]
    combiner = Combiner(tuple(chain(*left)), tuple(chain(*right)), tuple(chain(*results)))
    body.append(GroupReduce(tuple(chain(*(variables for variables, _ in joined))), combiner, group))


def combine_shared(
    body: Body, accumulator: Accumulator, buffers: Sequence[Buffer], count: Extent, place: Callable[[Extent], Extent]
) -> None:
    """Combines `count` states in shared memory in order. place: the index of a state."""
    for variable, buffer in zip(accumulator.variables, buffers, strict=True):
        body.append(Assign(variable, Load(buffer, body.index.code(place(0)))))
    row = symbol("row", extent=count)
    with body.loop(row, count, "unroll" if isinstance(count, int) else "serial", start=1):
        at = body.index.code(place(row))
        shared_states = body.name("other", tuple(Load(buffer, at) for buffer in buffers))
        together = accumulator.combined(accumulator.variables, shared_states)
        named = body.name("both", together) if len(together) > 1 else together
        for variable, value in zip(accumulator.variables, named, strict=True):
            body.append(Assign(variable, value))
