"""Plans: the segments of a fusion, compiled for the layouts and size guards of a call, and the host program.

Every fact about sizes that lowering relied on becomes a guard of the plan, in terms of the fusion's extents. The plan
serves every call that satisfies the guards, because kernels take extents as arguments.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import segments
from segments import Program, Runner
from segments.lazy_dataclasses import dataclass, replace
from tracefuse import config
from tracefuse.config import Options
from tracefuse.dynamic.guards import Guard
from tracefuse.dynamic.layouts import LayoutKey
from tracefuse.ir.fusion import Fusion
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.cache.memory_cache import Statistics
from tracefuse.kernel.llvm import background_compilation
from tracefuse.partition.segmentation import Part, Segmentation
from tracefuse.partition.slicing import Sliced
from tracefuse.partition.stream_marks import on_streams
from tracefuse.runtime.arena import NO_ARENAS, ArenaPlan, plan_arenas, slot_bytes
from tracefuse.runtime.compile_all import compile_all
from tracefuse.runtime.compiled_segment import (
    CompiledSegment,
    Watch,
    called_segment,
    kernel_segment,
    product_segment,
    progress_of,
)
from tracefuse.runtime.control_flow_calls import ComputationOf
from tracefuse.runtime.host_program import build_host_program
from tracefuse.runtime.memory.buffer_facts import OutputBuffer, returned
from tracefuse.runtime.memory.donation import Donated, ReusedBuffer, keep_direct, plan_reuse
from tracefuse.runtime.product_segments import product_of_segment
from tracefuse.runtime.segment_lowering import SegmentExtents, SegmentLowering
from tracefuse.runtime.streams.slices import Computation
from tracefuse.runtime.streams.stream_plan import host_op_of, segment_call
from tracefuse.runtime.streams.stream_program import build_stream_program
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.tiling_choice import TilingChooser
from tracefuse.waiting import counted_steps

_EXCHANGES = segments.Communicate | segments.WaitRequest | segments.StartCoalescing | segments.EndCoalescing
_STRAIGHT = segments.AllocateBuffer | segments.Alias | segments.Launch | segments.CopyBuffer | segments.Release


def is_written(program: Program) -> bool:
    """Whether a program uses several streams only in stream-parallel loops, so that it compiles to one function."""
    return all(
        isinstance(i, _STRAIGHT | _EXCHANGES | segments.HostOp | segments.HostLoop) for i in program.instructions
    )


@dataclass(frozen=True, slots=True)
class BuildTimes:
    """How long the stages of a plan took, in seconds, and where its kernels came from.

    kernels: counted for the process, so that kernels of other threads count, too.
    """

    choosing_loops: float
    compiling_kernels: float
    host_program: float
    kernels: Statistics


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Runs calls whose arguments have these layouts and whose sizes satisfy the guards.

    aligned: the arguments that must start at a multiple of 16 bytes. guards: in the fusion's extents. arena_plan: the
    slots of intermediates. output_buffers: the arrays that results go into. direct: the values that their kernel writes
    straight into an output buffer. cause: what changed since the previous plan. donated: the arguments whose buffers
    may be reused. reused: the values that reuse them. times: of its stages.
    """

    segmentation: Segmentation
    target: Target
    layouts: LayoutKey
    aligned: frozenset[int]
    guards: tuple[Guard, ...]
    segments: tuple[CompiledSegment, ...]
    program: Program
    runner: Runner
    arena_plan: ArenaPlan
    output_buffers: tuple[OutputBuffer, ...] = ()
    direct: frozenset[int] = frozenset()
    cause: str = ""
    donated: tuple[Donated, ...] = ()
    reused: tuple[ReusedBuffer, ...] = ()
    times: BuildTimes | None = None

    @property
    def is_straight(self) -> bool:
        """Whether the program only allocates, launches, copies and releases, on one stream."""
        return all(isinstance(i, _STRAIGHT) for i in self.program.instructions)

    @property
    def is_written(self) -> bool:
        """Whether the program compiles to one function; otherwise `runner` runs it."""
        return is_written(self.program)

    @property
    def memory(self) -> tuple[int, ...]:
        """The numbers of output buffers that are not arguments, and of reused donated buffers."""
        inputs = self.segmentation.fusion.inputs
        passed = (buffer.memory for buffer in self.output_buffers if buffer.memory not in inputs)
        return (*passed, *(reuse.buffer.memory for reuse in self.reused))

    @property
    def progress(self) -> tuple[list[str], ...]:
        """For each segment, how far those of its kernels are compiled that run quickly compiled code first."""
        return tuple(progress_of(segment, self.target) for segment in self.segments)

    def for_graph(self) -> Plan:
        """Returns the plan with slots of intermediates for launches as a CUDA graph."""
        return replace(self, arena_plan=_plan_arenas(self.program, self.segments, self.target, graph=True))

    @property
    def donated_results(self) -> tuple[tuple[int, int], ...]:
        """The results in donated buffers, as (position of the argument, position of the result)."""
        fusion = self.segmentation.fusion
        numbers = returned(fusion)
        results = ((reuse.donor, reuse.buffer.value) for reuse in self.reused if reuse.buffer.value in numbers)
        return tuple((fusion.inputs.index(donor), numbers.index(value)) for donor, value in results)


def build_plan(
    segmentation: Segmentation, target: Target, layouts: LayoutKey, values: Mapping[int, int],
    strides: Mapping[str, int], *, guards: Sequence[Guard] = (), aligned: frozenset[int] = frozenset(),
    options: Options | None = None, disk: DiskCache | None = None, output_buffers: Sequence[OutputBuffer] = (),
    watch: Watch | None = None, slices_of: Callable[[Sliced], Computation] | None = None,
    donated: Sequence[Donated] = (), computation_of: ComputationOf | None = None, tilings: TilingChooser | None = None,
) -> Plan:  # fmt: skip
    """Lowers and compiles every segment for the sizes of a call. Segments compile in parallel.

    values: extents and integer scalars by id. strides: of arguments and output buffers that are not contiguous, by
    symbol name. guards: those of the segmentation. aligned: the arguments that start at a multiple of 16 bytes.
    options: defaults to the options in force. disk: the cache of compiled kernels. output_buffers: the arrays that
    results go into. donated: the arguments whose buffers may be reused. watch: wraps each segment. slices_of: compiles
    the computation of one slice, computation_of a sub-fusion. tilings: chooses among the tilings of the templates; by
    default by the cost model. Raises CompileError that names the segment.
    """
    started = time.perf_counter()
    options = config.resolve() if options is None else options
    streamed = on_streams(segmentation.fusion)
    # A program with streams copies results into output buffers at the end.
    reused = () if streamed else plan_reuse(segmentation, donated, output_buffers, values)
    memory = () if streamed else _memory(output_buffers, reused)
    lowering = SegmentLowering(segmentation, target, layouts, values, strides, aligned, options, memory, tilings)
    plan_guards = [*guards, *(guard for reuse in reused for guard in reuse.guards), *_lower_kernels(lowering, streamed)]
    direct = frozenset(lowering.direct)
    reused = keep_direct(reused, direct)
    chosen, before = time.perf_counter(), target.compiler.statistics()
    quick = options.background_compilation and options.tune == "off"  # tilings are measured with optimized code
    work = {k: lowering.work(k) for k in lowering.lowerings} if quick else {}
    functions = compile_all({k: lowered for k, (_, lowered) in lowering.lowerings.items()}, target, disk, work)
    finished, after = time.perf_counter(), target.compiler.statistics()
    called = functools.partial(
        called_segment, target=target, slices_of=slices_of, watch=watch, computation_of=computation_of, disk=disk,
        options=options,
    )  # fmt: skip
    compiled = _compiled_segments(lowering, target, functions, called, watch)
    if streamed:
        program = _stream_program(segmentation, compiled, output_buffers, options, watched=watch is not None)
    else:
        memory = _memory(output_buffers, reused)
        program = _host_program(segmentation, compiled, memory, direct, lowering.may_raise, options)
    arena_plan = _plan_arenas(program, compiled, target, graph=options.graph == "on")
    kernels = Statistics(*(later - earlier for earlier, later in zip(before, after, strict=True)))
    background_compilation.begin()
    times = BuildTimes(chosen - started, finished - chosen, time.perf_counter() - finished, kernels)
    return Plan(
        segmentation, target, layouts, aligned, tuple(dict.fromkeys(plan_guards)), tuple(compiled), program,
        Runner(program, target.device), arena_plan, tuple(output_buffers), direct, donated=tuple(donated),
        reused=reused, times=times,
    )  # fmt: skip


def _lower_kernels(lowering: SegmentLowering, streamed: bool) -> list[Guard]:
    """Lowers every segment that is a kernel; returns what that relied on. streamed: the fusion has streams."""
    guards: list[Guard] = []
    parts = lowering.segmentation.segments
    with counted_steps("choosing loops", len(parts)) as count:
        for position, part in enumerate(parts):
            if part.library is None and part.slices is None and not (streamed and host_op_of(part)):
                interface, lowered = lowering.lower(position)
                guards += [interface.original_guard(guard) for guard in lowered.guards]
            count(f"segment {position}")
    return guards


def _compiled_segments(
    lowering: SegmentLowering, target: Target, functions: Mapping[int, Any],
    called: Callable[[Part, int], CompiledSegment], watch: Watch | None,
) -> list[CompiledSegment]:  # fmt: skip
    """Returns what runs each segment. functions: the compiled kernels by position. called: what runs any other one."""
    compiled = [
        kernel_segment(*lowering.lowerings[position], functions[position], position, target)
        if position in lowering.lowerings
        else _product_segment(lowering.segmentation, position, target, lowering) or called(part, position)
        for position, part in enumerate(lowering.segmentation.segments)
    ]
    if watch is None:
        return compiled
    return [one if one.part.slices is not None else watch(one, position) for position, one in enumerate(compiled)]


def _product_segment(
    segmentation: Segmentation, position: int, target: Target, lowering: SegmentLowering
) -> CompiledSegment | None:
    """Builds the segment of a product of contiguous arrays that the target's library launches like a kernel."""
    product = product_of_segment(segmentation, position, target, lambda value: lowering.layout_of.get(value) is None)
    if product is None:
        return None
    interface = SegmentExtents(segmentation, segmentation.segments[position], lowering.layout_of)
    return product_segment(interface, *product, position, target)


def _memory(output_buffers: Sequence[OutputBuffer], reused: Sequence[ReusedBuffer]) -> tuple[OutputBuffer, ...]:
    """Returns the memory of the caller that results go into."""
    return (*output_buffers, *(reuse.buffer for reuse in reused))


def _fills(compiled: Sequence[CompiledSegment]) -> list[bool]:
    """For each segment, whether it writes to allocated buffers; otherwise it returns new arrays."""
    return [
        segment.is_launched or segment.part.slices is not None or segment.exchange is not None for segment in compiled
    ]


def _stream_program(
    segmentation: Segmentation, compiled: Sequence[CompiledSegment], output_buffers: Sequence[OutputBuffer],
    options: Options, *,
    watched: bool,
) -> Program:  # fmt: skip
    """Builds the program of a fusion with stream-parallel values. watched: every segment runs through its wrapper."""
    fills, reuses = _fills(compiled), not options.disables("loop_buffer_reuse")
    calls = [segment_call(k, c.part, c.inputs, c, fills[k], watched=watched) for k, c in enumerate(compiled)]
    graph, streams = segmentation.steps.graph, options.number_of_streams
    return build_stream_program(segmentation.fusion, graph, calls, output_buffers, streams, reuses=reuses)


def _host_program(
    segmentation: Segmentation, compiled: Sequence[CompiledSegment], memory: Sequence[OutputBuffer],
    direct: frozenset[int], may_raise: Sequence[bool], options: Options,
) -> Program:  # fmt: skip
    """Builds the program of a fusion without stream-parallel values, on the number of streams that the options give."""
    fusion, fills = segmentation.fusion, _fills(compiled)
    launches = [_launch(k, segment) for k, segment in enumerate(compiled)]
    waits = options.communication_sync
    exchanges = {
        k: segment.exchange.that_waits(waits) for k, segment in enumerate(compiled) if segment.exchange is not None
    }
    program = build_host_program(
        fusion, segmentation.steps.graph, launches, fills, memory, direct, may_raise, exchanges
    )
    return segments.spread(program, 1 if exchanges or _overlap(fusion, memory) else options.streams)


def _launch(step: int, segment: CompiledSegment) -> segments.Launch:
    """Returns the launch of a segment; that of an exchange without the tokens, which only order it."""
    if segment.exchange is not None:
        return segments.Launch(step, segment.exchange.sources, segment.exchange.targets, segment)
    return segments.Launch(step, segment.inputs, segment.part.segment.original_outputs, segment)


def _overlap(fusion: Fusion, memory: Sequence[OutputBuffer]) -> bool:
    """Whether an output buffer shares bytes with an argument. A program does not see this, as their numbers differ."""
    return any(buffer.shares or (buffer.same and buffer.memory not in fusion.inputs) for buffer in memory)


def _plan_arenas(
    program: segments.Program, compiled: Sequence[CompiledSegment], target: Target, *, graph: bool
) -> ArenaPlan:
    """Plans the arenas of a program that compiles to one function, with a slot for each scratch buffer."""
    if not is_written(program):
        return NO_ARENAS
    scratch = {
        k: [slot_bytes(size, dtype.itemsize) for dtype, size in segment.scratch] for k, segment in enumerate(compiled)
    }
    is_library = [segment.code is None for segment in compiled]
    return plan_arenas(program, is_library, scratch, slots=target.calls.addresses, graph=graph)
