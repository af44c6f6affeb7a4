"""The split template for the CPU: few rows, each long enough to be shared by the workers.

The outermost R loop is cut into chunks. A launch computes each chunk's partial states; the next launch combines them
in order, every piece for itself, and goes on with the next phase; the last one stores what is left. The number of
chunks depends on sizes alone, so the bits of a sum do not depend on the number of workers.

Knows: phases, loops, kernel IR. Must not know: LLVM, arrays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from tracefuse.ir.extents import Extent, Symbol, as_symbol, ceildiv, maximum, minimum, product, symbol
from tracefuse.ir.fusion import Node
from tracefuse.kernel.kernel_ir import Buffer, Load, Store
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_lanes import reduce_loops
from tracefuse.schedule.cpu.cpu_row import new_body, open_grid, work
from tracefuse.schedule.launch_spec import LaunchSpec, Scratch, make_launch
from tracefuse.schedule.nest import Loop, position_in
from tracefuse.schedule.phases import Accumulator, Region, declare, finish, store_output

CHUNK = 1 << 15
MOST_CHUNKS = 256
"""A chunk has at least CHUNK elements, and there are at most MOST_CHUNKS of them."""


@dataclass(slots=True)
class _Split:
    """The chunks, and the scratch buffers of the phases so far (one for each part of a state)."""

    region: Region
    rows: Loop
    length: Extent
    count: Extent
    derived: dict[Symbol, Extent]
    scratch: list[Scratch] = field(default_factory=list)
    states: list[tuple[Node, tuple[int, ...]]] = field(default_factory=list)


def lower_split(region: Region, name: str, contract: bool) -> tuple[tuple[LaunchSpec, ...], _Split]:
    """One launch a phase, and a last one where results or outputs are left."""
    rows = region.nest.reduced[0]
    inner = product(loop.extent for loop in region.nest.reduced[1:])
    length, count = symbol("chunk_length", minimum=1), symbol("chunks", minimum=1)
    lengths = maximum(ceildiv(CHUNK, maximum(inner, 1)), ceildiv(rows.extent, MOST_CHUNKS))
    derived = {_symbol(length): lengths, _symbol(count): maximum(ceildiv(rows.extent, maximum(lengths, 1)), 1)}
    split = _Split(region, rows, length, count, derived)
    launches = [_launch(split, phase, f"{name}_{phase}", contract) for phase in range(len(region.full))]
    return tuple(launches), split


def _symbol(extent: Extent) -> Symbol:
    found = as_symbol(extent)
    assert found is not None
    return found


def _launch(split: _Split, phase: int, name: str, contract: bool) -> LaunchSpec:
    region = split.region
    body = new_body(region)
    last = phase + 1 == len(region.full)
    chunked = not last or bool(region.full[phase])
    grid, chunk = open_grid(body, region.nest.kept, split.count if chunked else 1)
    read = [pair for node, positions in split.states for pair in _combine(body, split, node, positions)]
    written: list[tuple[int, Buffer]] = []
    if chunked:
        states = [declare(body, region, node) for node in region.in_phase(phase)]
        _chunk(body, split, phase, states, chunk)
        written = [pair for state in states for pair in _store_partial(body, split, state, chunk)]
    if last:
        with _once(body, chunk) if chunked else contextlib.nullcontext():
            for output in region.kept:
                store_output(body, region, output)
    scratch = [*read, *written]
    return make_launch(body, name, "cpu", [grid], scratch=scratch, work=work(region), contract=contract)


def _once(body: Body, chunk: Extent) -> contextlib.AbstractContextManager[None]:
    return body.condition(body.index.compare("eq", chunk, 0))


def _place(split: _Split, chunk: Extent) -> Extent:
    return position_in(split.region.nest.kept) * split.count + chunk


def _combine(body: Body, split: _Split, node: Node, positions: Sequence[int]) -> list[tuple[int, Buffer]]:
    """Makes the result of an earlier phase known: its chunks' states, combined in order."""
    state = declare(body, split.region, node)
    buffers = _partials(state, positions, written=False)
    chunk = symbol("c", extent=split.count)
    with body.loop(chunk, split.count):
        at = body.index.code(_place(split, chunk))
        state.absorb(body, tuple(Load(buffer, at) for buffer in buffers))
    finish(body, split.region, state)
    return list(zip(positions, buffers, strict=True))


def _partials(state: Accumulator, positions: Sequence[int], *, written: bool) -> list[Buffer]:
    """The scratch parameters of a state: one for each of its parts."""
    return [
        Buffer(f"partial{position}", v.dtype, written=written, alignment=v.dtype.itemsize)
        for position, v in zip(positions, state.variables, strict=True)
    ]


def _chunk(body: Body, split: _Split, phase: int, states: Sequence[Accumulator], chunk: Extent) -> None:
    """The phase's pass over one chunk of the outermost R loop."""
    start = chunk * split.length
    stop = minimum(start + split.length, split.rows.extent)
    reduce_loops(body, split.region, phase, states, split.region.nest.reduced, first=start, last=stop)


def _store_partial(body: Body, split: _Split, state: Accumulator, chunk: Extent) -> list[tuple[int, Buffer]]:
    positions = tuple(range(len(split.scratch), len(split.scratch) + len(state.variables)))
    rows = product(loop.extent for loop in split.region.nest.kept)
    split.scratch += [Scratch(v.dtype, rows * split.count) for v in state.variables]
    split.states.append((state.node, positions))
    buffers = _partials(state, positions, written=True)
    for buffer, variable in zip(buffers, state.variables, strict=True):
        body.append(Store(buffer, body.index.code(_place(split, chunk)), variable))
    return list(zip(positions, buffers, strict=True))
