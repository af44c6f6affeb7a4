"""Split reductions: chunks of the reduction loops over many blocks, with partial states in scratch memory.

A launch computes the states of each chunk for one phase. Every block of the next launch combines them in a fixed order
and runs the next phase. The last launch stores the remaining outputs. The number of chunks depends on the sizes and
the number of multiprocessors, so the bits of a result do not depend on other work on the GPU.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import partial

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Extent, Symbol, ceildiv, maximum, minimum, product, substitute, symbol, symbol_of
from tracefuse.ir.fusion import Node
from tracefuse.kernel.kernel_ir import Allocate, Buffer, Copy, Expression, Load
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import (
    Positions,
    Setting,
    Strides,
    bind_loops,
    bind_position,
    new_body,
    open_block,
    open_threads,
    when,
)
from tracefuse.schedule.gpu.gpu_phase import State, accumulate_phase, combine_threads, store_parallel_outputs
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_runs import ElementRun, ends_of_runs, row_accesses
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, Scratch, make_launch
from tracefuse.schedule.reduction_states import declare, finish, state_types
from tracefuse.schedule.refusal_codes import RegionRefusal, ScheduleRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.template import Template

THREADS = 512
UNROLL = 4
BLOCKS = 4
"""Four blocks of 512 threads fill a multiprocessor. Each thread has four loads in flight."""

FEW_ROWS, FEW_ROWS_ONCE = 2, 4
"""Long rows are split up to this many per multiprocessor, since unsplit they would not fill the chip, or not evenly:
with 2.1 rows for each multiprocessor some have 3. Rows that are read again lie in the L2 cache if they are whole."""

FEW_CHUNKS, ROUNDS = 16, 4
"""Rows of fewer chunks than FEW_CHUNKS have ROUNDS times as many, so that the last blocks end about together."""

SCRATCH_ALIGNMENT = 16


class SplitRefusal(ScheduleRefusal):
    """Refusals of the split template."""

    ENOUGH_ROWS = "there are rows enough to fill the GPU"


@dataclass(slots=True)
class Chunks:
    """`count` chunks of `total` reduction positions, of equal length, which is a multiple of `multiple`.

    The last chunks may be shorter or empty. derived: the definitions of the symbols.
    """

    total: Extent
    count: Extent
    multiple: Extent
    derived: dict[Symbol, Extent]

    @classmethod
    def make(cls, total: Extent, wanted: Extent, multiple: Extent) -> Chunks:
        """Makes at most `wanted` chunks, and at most one per `multiple` positions."""
        positions, count = symbol("positions"), symbol("chunks", minimum=1)
        counts = maximum(minimum(wanted, ceildiv(total, multiple)), 1)
        return cls(positions, count, multiple, {symbol_of(positions): total, symbol_of(count): counts})

    def divided(self, name: str, wanted: Extent) -> Chunks:
        """Returns as many other chunks of the same positions, at most `wanted`. name: of their number."""
        other, count = Chunks.make(self.total, wanted, self.multiple), symbol(name, minimum=1)
        derived = {symbol_of(count): other.derived[symbol_of(other.count)]}
        return replace(other, total=self.total, count=count, derived=derived)

    def bounds(self, body: Body, chunk: Extent) -> tuple[Extent, Extent]:
        """Returns the first position of a chunk, and the one after its last."""
        length = ceildiv(ceildiv(self.total, self.count), self.multiple) * self.multiple
        first = bind_position(body, "first", minimum(chunk * length, self.total), self.total + 1)
        return first, bind_position(body, "stop", minimum(first + length, self.total), self.total + 1)


@dataclass(slots=True)
class Partials:
    """The partial states that one launch passes to the next, in scratch buffers.

    states: each reduction with its positions in `scratch`, phase after phase. count: the number of states per chunk.
    """

    count: Extent
    scratch: list[Scratch] = field(default_factory=list)
    states: list[tuple[Node, tuple[int, ...]]] = field(default_factory=list)

    def write(
        self, body: Body, states: Sequence[State], chunks: Extent, place: Extent, tests: Sequence[Expression]
    ) -> list[tuple[int, Buffer]]:
        """Stores the states of one of `chunks` chunks at `place` if the tests hold.

        Returns the scratch parameters of the launch.
        """
        written = []
        for state in states:
            first = len(self.scratch)
            for part, variable in enumerate(state[0].variables):
                dtype = variable.dtype
                buffer = Buffer(f"partial{first + part}", dtype, written=True, alignment=SCRATCH_ALIGNMENT)
                with when(body, tests):
                    body.store(buffer, place, tuple(a.variables[part] for a in state), aligned=True)
                self.scratch.append(Scratch(dtype, self.count * chunks))
                written.append((first + part, buffer))
            self.states.append((state[0].node, tuple(range(first, len(self.scratch)))))
        return written

    def read(
        self,
        body: Body,
        region: Region,
        chunks: Extent,
        start: Extent,
        step: Extent,
        place: Extent,
        width: int,
        unroll: int = 1,
    ) -> tuple[list[State], list[tuple[int, Buffer]]]:
        """Accumulates chunks start, start + step, ... of all states so far.

        Returns the accumulated states and the launch's scratch parameters. place: the index of a state in its chunk;
        width: the lanes of a state; unroll: the number of chunks read at a time.
        """
        states = [tuple(declare(body, node) for _ in range(width)) for node, _ in self.states]
        buffers = [
            (position, Buffer(f"partial{position}", dtype, alignment=SCRATCH_ALIGNMENT))
            for node, positions in self.states
            for position, dtype in zip(positions, state_types(node, body), strict=True)
        ]
        by_position = dict(buffers)
        chunk = symbol("c", extent=chunks)

        def absorb(chunk: Extent) -> None:
            for state, (_, positions) in zip(states, self.states, strict=True):
                at = chunk * self.count + place
                parts = [_load(body, by_position[position], at, width) for position in positions]
                for lane, accumulator in enumerate(state):
                    accumulator.absorb(body, tuple(part[lane] for part in parts))

        if states and unroll > 1:
            Strides(0, chunks, start, step, unroll).each(
                body, lambda at: body.bind(chunk, body.index.code(at)), lambda: absorb(chunk)
            )
        elif states:
            with body.loop(chunk, chunks, start=start, step=step):
                absorb(chunk)
        return states, buffers


def _load(body: Body, buffer: Buffer, offset: Extent, width: int) -> tuple[Expression, ...]:
    """Loads `width` adjacent states in one access."""
    start = substitute(offset, {symbol_of(body.lane): 0})
    if width == 1:
        return (Load(buffer, body.index.code(start)),)
    registers = Buffer(body.fresh("partial"), buffer.dtype, "local", width)
    body.append(Allocate(registers))
    body.append(Copy(registers, body.index.code(0), buffer, body.index.code(start), width))
    return tuple(Load(registers, body.index.code(lane)) for lane in range(width))


def _accepts(problem: GpuProblem) -> Verdict:
    nest, sizes = problem.one_pass.nest, problem.rewritten_sizes
    if not nest.reduced or not nest.loops[-1].reduced:
        return RegionRefusal.INNERMOST_NOT_REDUCED()
    rows = product(loop.extent for loop in nest.parallel)
    per_multiprocessor = FEW_ROWS if problem.one_pass.probe.cached else FEW_ROWS_ONCE
    most = per_multiprocessor * problem.chip.multiprocessors
    few = sizes.at_most(rows, most, "long rows too few to fill the GPU are split")
    return yes() if few else SplitRefusal.ENOUGH_ROWS(rows=rows)


def _lower(problem: GpuProblem, decision: None) -> Lowered:
    """Emits one launch per phase, and a last launch if results or outputs remain."""
    region, setting, run = problem.one_pass, problem.row_setting, problem.run
    positions = row_accesses(region, setting.lanes, run)
    rows = product(loop.extent for loop in region.nest.parallel)
    blocks = BLOCKS * setting.chip.multiprocessors
    if not problem.rewritten_sizes.at_most(rows, blocks // FEW_CHUNKS, "many chunks of each row"):
        blocks *= ROUNDS
    wanted = blocks // maximum(rows, 1)
    chunks = Chunks.make(positions.total, wanted, THREADS * UNROLL)
    partials = Partials(rows)
    launches = tuple(
        _launch(region, setting, phase, positions, chunks, partials, run) for phase in range(len(region.full))
    )
    return problem.finish(launches, partials.scratch, chunks.derived | ({} if run is None else run.derived))


SPLIT = Template("split", _accepts, _lower)


def _launch(
    region: Region, setting: Setting, phase: int, positions: Positions, chunks: Chunks, partials: Partials,
    run: ElementRun | None,
) -> LaunchSpec:  # fmt: skip
    body, nest = new_body(region, setting), region.nest
    last = phase + 1 == len(region.full)
    chunked = not last or bool(region.full[phase])
    rows = product(loop.extent for loop in nest.parallel)
    block = open_block(body, rows * chunks.count if chunked else rows)
    thread, variable = open_threads(body, THREADS)
    row = bind_position(body, "row", block // chunks.count, rows) if chunked else block
    chunk = bind_position(body, "chunk", block % chunks.count, chunks.count) if chunked else 0
    bind_loops(body, nest.parallel, row)
    part = region.placed(positions.values(body.lane))
    earlier, read = partials.read(body, part, chunks.count, thread, THREADS, row, 1)
    combine_threads(body, earlier, THREADS)
    for state in earlier:
        finish(body, part, *state)
    first = body.index.compare("eq", thread, 0)
    written: list[tuple[int, Buffer]] = []
    if chunked:
        start, stop = chunks.bounds(body, chunk)
        walk = Strides(start, stop, thread, THREADS, UNROLL, narrow=last and body.lanes == 1)
        rest = (
            None
            if run is None
            else ends_of_runs(body, region, run, partial(_share_of_ends, body, chunks, chunk, thread))
        )
        states = accumulate_phase(body, part, phase, walk, positions, rest=rest)
        combine_threads(body, states, THREADS)
        written = partials.write(body, states, chunks.count, chunk * rows + row, [first])
    if last:
        store_parallel_outputs(body, part, [first, body.index.compare("eq", chunk, 0)] if chunked else [first])
    return make_launch(
        body, f"{setting.name}_split_{phase}", "cuda", [(block, rows * chunks.count if chunked else rows)],
        scratch=[*read, *written], contract=setting.contract, threads=THREADS, thread=variable,
    )  # fmt: skip


def _share_of_ends(body: Body, chunks: Chunks, chunk: Extent, thread: Extent, total: Extent) -> Strides:
    """Returns a walk over the share that a chunk has of `total` elements in no whole access."""
    length = ceildiv(total, chunks.count)
    first = bind_position(body, "first", minimum(chunk * length, total), total + 1)
    stop = bind_position(body, "stop", minimum(first + length, total), total + 1)
    return Strides(first, stop, thread, THREADS, 1)
