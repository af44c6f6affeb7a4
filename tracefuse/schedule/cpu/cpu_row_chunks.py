"""The split template for the CPU: few rows, each long enough to be shared by the workers.

A launch computes the partial states of each chunk of the outermost reduction loop. Every chunk of the next launch
combines them in order and runs the next phase. The last launch stores the remaining outputs.

Must not know: LLVM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import field

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, product, symbol
from tracefuse.ir.fusion import Node
from tracefuse.kernel.kernel_ir import Buffer, Load, Store
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_chunks import LoopChunks, partial_buffers
from tracefuse.schedule.cpu.cpu_frame import CpuProblem, new_body, open_grid, work
from tracefuse.schedule.cpu.cpu_lanes import reduce_loops
from tracefuse.schedule.cpu.cpu_row import is_short
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, Scratch, make_launch
from tracefuse.schedule.nest import position_in
from tracefuse.schedule.probe import weights
from tracefuse.schedule.reduction_states import Accumulator, declare, finish, store_output
from tracefuse.schedule.refusal_codes import RegionRefusal, ScheduleRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.template import Template

FEW_ROWS = 16
LONG_ROW = 1 << 17
"""At most FEW_ROWS rows of more than LONG_ROW elements are split; unsplit rows would leave workers idle.

A second launch takes as long as a worker needs to be worth waking. Of integers and booleans of 1 and 2 bytes that meet
cheap ops, it takes as many more elements as fit in 4 bytes.
"""

CHUNK = 1 << 15
MOST_CHUNKS = 256
"""A chunk has at least CHUNK elements, and there are at most MOST_CHUNKS of them."""


class RowChunksRefusal(ScheduleRefusal):
    """Refusals of the template that splits rows into chunks."""

    STAYS_IN_CACHE = "a row stays in cache between phases"
    TOO_SHORT = "a row is too short to be split"
    ENOUGH_ROWS = "there are rows enough for the workers"


def _accepts(problem: CpuProblem) -> Verdict:
    nest, sizes = problem.region.nest, problem.sizes
    if not nest.reduced:
        return RegionRefusal.NOTHING_REDUCED()
    rows, length = (product(loop.extent for loop in loops) for loops in (nest.parallel, nest.reduced))
    # Test the length first: short rows need no guard on their number, so one plan serves every batch size.
    if is_short(problem):
        return RowChunksRefusal.STAYS_IN_CACHE(length=length)
    if sizes.at_most(length, _longest(problem.region), "a short row is not split"):
        return RowChunksRefusal.TOO_SHORT(length=length)
    if not sizes.at_most(rows, FEW_ROWS, "few rows are split over the workers"):
        return RowChunksRefusal.ENOUGH_ROWS(rows=rows)
    return yes()


def _longest(region: Region) -> int:
    """Returns the most elements of a row that is not split."""
    types = [region.fusion.values[number].dtype for number in region.fusion.tensor_inputs]
    if any(t.is_floating or t.is_complex for t in types) or any(weights(region.fusion).values()):
        return LONG_ROW
    return LONG_ROW * max(4 // max((t.itemsize for t in types), default=4), 1)


def _lower(problem: CpuProblem, decision: None) -> Lowered:
    """Emits one launch per phase, and a last launch if results or outputs remain."""
    chunks = _chunks(problem)
    # A chunk starts at a cache line if its length is constant, or if inner loops follow the chunked one.
    starts_at_lines = isinstance(chunks.length, int) or len(problem.region.nest.reduced) > 1
    region = problem.streaming() if starts_at_lines else problem.region
    split = _RowSplit(region, chunks)
    name = f"{problem.name}_split"
    launches = [_launch(split, phase, f"{name}_{phase}", problem.contract) for phase in range(len(region.full))]
    return problem.finish(launches, split.scratch, split.chunks.derived)


SPLIT = Template("split", _accepts, _lower)


def _chunks(problem: CpuProblem) -> LoopChunks:
    """Returns the chunks of a row: of a constant length, which Python need not compute, unless there are too many."""
    outer, *others = problem.region.nest.reduced
    if not others and problem.sizes.at_most(outer.extent, CHUNK * MOST_CHUNKS, "chunks have the least length"):
        return LoopChunks.equal(outer.extent, CHUNK)
    return LoopChunks.of(outer.extent, product(loop.extent for loop in others), CHUNK, MOST_CHUNKS)


@dataclass(slots=True)
class _RowSplit:
    """The chunks, and the scratch buffers of the earlier phases: one for each part of a state."""

    region: Region
    chunks: LoopChunks
    scratch: list[Scratch] = field(default_factory=list)
    states: list[tuple[Node, tuple[int, ...]]] = field(default_factory=list)


def _launch(split: _RowSplit, phase: int, name: str, contract: bool) -> LaunchSpec:
    region = split.region
    body = new_body(region)
    last = phase + 1 == len(region.full)
    chunked = not last or bool(region.full[phase])
    grid, chunk = open_grid(body, region.nest.parallel, split.chunks.count if chunked else 1)
    read = [pair for node, positions in split.states for pair in _combine(body, split, node, positions)]
    written: list[tuple[int, Buffer]] = []
    if chunked:
        states = [declare(body, node, joins=True) for node in region.in_phase(phase)]
        _chunk(body, split, phase, states, chunk)
        written = [pair for state in states for pair in _store_partial(body, split, state, chunk)]
    if last:
        with _once(body, chunk) if chunked else contextlib.nullcontext():
            for output in region.parallel_outputs:
                store_output(body, region, output)
    scratch = [*read, *written]
    return make_launch(body, name, "cpu", [grid], scratch=scratch, work=work(region), contract=contract)


def _once(body: Body, chunk: Extent) -> contextlib.AbstractContextManager[None]:
    return body.condition(body.index.compare("eq", chunk, 0))


def _place(split: _RowSplit, chunk: Extent) -> Extent:
    return position_in(split.region.nest.parallel) * split.chunks.count + chunk


def _combine(body: Body, split: _RowSplit, node: Node, positions: Sequence[int]) -> list[tuple[int, Buffer]]:
    """Defines the result of an earlier phase: combines the states of its chunks in order."""
    state = declare(body, node, joins=True)
    buffers = partial_buffers(state, positions[0], written=False)
    chunk = symbol("c", extent=split.chunks.count)
    with body.loop(chunk, split.chunks.count):
        at = body.index.code(_place(split, chunk))
        state.absorb(body, tuple(Load(buffer, at) for buffer in buffers))
    finish(body, split.region, state)
    return list(zip(positions, buffers, strict=True))


def _chunk(body: Body, split: _RowSplit, phase: int, states: Sequence[Accumulator], chunk: Extent) -> None:
    """Emits the phase's pass over one chunk of the outermost reduction loop."""
    start, stop = split.chunks.bounds(chunk)
    reduce_loops(body, split.region, phase, states, split.region.nest.reduced, first=start, last=stop)


def _store_partial(body: Body, split: _RowSplit, state: Accumulator, chunk: Extent) -> list[tuple[int, Buffer]]:
    positions = tuple(range(len(split.scratch), len(split.scratch) + len(state.variables)))
    rows = product(loop.extent for loop in split.region.nest.parallel)
    split.scratch += [Scratch(v.dtype, rows * split.chunks.count) for v in state.variables]
    split.states.append((state.node, positions))
    buffers = partial_buffers(state, positions[0], written=True)
    for buffer, variable in zip(buffers, state.variables, strict=True):
        body.append(Store(buffer, body.index.code(_place(split, chunk)), variable))
    return list(zip(positions, buffers, strict=True))
