"""Plans: the segments of a fusion, compiled for the layouts and size guards of a call, and the host program.

Every fact about sizes that lowering relied on becomes a guard of the plan, in terms of the fusion's extents. The plan
serves every call that satisfies the guards, because kernels take extents as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import segments
from segments import Program, Runner
from tracefuse import config
from tracefuse.config import Options
from tracefuse.dynamic.guards import Guard
from tracefuse.dynamic.layouts import LayoutKey, Strided, stride_name, symbolic_strides
from tracefuse.ir.data_positions import may_raise
from tracefuse.ir.extents import Extent, Symbol, as_symbol, evaluate, substitute, symbol, symbols
from tracefuse.ir.fusion import Fusion, Node, Shape
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.partition.overwriting import in_place, reads_only_slice, same_extents
from tracefuse.partition.segmentation import Part, Segmentation, prepare_lowering
from tracefuse.partition.slicing import Sliced
from tracefuse.partition.stream_marks import on_streams
from tracefuse.runtime.arena import NO_ARENAS, ArenaPlan, plan_arenas, slot_bytes
from tracefuse.runtime.compile_all import compile_all
from tracefuse.runtime.compiled_segment import CompiledSegment, Watch, called_segment, kernel_segment
from tracefuse.runtime.control_flow_calls import ComputationOf
from tracefuse.runtime.host_program import build_host_program
from tracefuse.runtime.memory.buffer_facts import OutputBuffer, returned, slice_bounds
from tracefuse.runtime.memory.donation import Donated, ReusedBuffer, keep_direct, plan_reuse
from tracefuse.runtime.streams.slices import Computation
from tracefuse.runtime.streams.stream_plan import host_op_of, segment_call
from tracefuse.runtime.streams.stream_program import build_stream_program
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.choose import Choice, choose
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.nest import contiguous_strides
from tracefuse.schedule.sizes import Sizes
from tracefuse.waiting import counted_steps

_BOUNDS = ("start_indices", "end_indices", "strides")

_EXCHANGES = segments.Communicate | segments.WaitRequest | segments.StartCoalescing | segments.EndCoalescing
_STRAIGHT = segments.AllocateBuffer | segments.Alias | segments.Launch | segments.CopyBuffer | segments.Release


def is_written(program: Program) -> bool:
    """Whether a program uses several streams only in stream-parallel loops, so that it compiles to one function."""
    return all(
        isinstance(i, _STRAIGHT | _EXCHANGES | segments.HostOp | segments.HostLoop) for i in program.instructions
    )


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Runs calls whose arguments have these layouts and whose sizes satisfy the guards.

    aligned: the arguments that must start at a multiple of 16 bytes. guards: in the fusion's extents. arena_plan: the
    slots of intermediates. output_buffers: the arrays that results go into. direct: the values that their kernel writes
    straight into an output buffer. cause: what changed since the previous plan. donated: the arguments whose buffers
    may be reused. reused: the values that reuse them.
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
    watch: Watch | None = None,
    slices_of: Callable[[Sliced], Computation] | None = None, donated: Sequence[Donated] = (),
    computation_of: ComputationOf | None = None,
) -> Plan:  # fmt: skip
    """Lowers and compiles every segment for the sizes of a call. Segments compile in parallel.

    values: extents and integer scalars by id. strides: of arguments and output buffers that are not contiguous, by
    symbol name. guards: those of the segmentation. aligned: the arguments that start at a multiple of 16 bytes.
    options: defaults to the options in force. disk: the cache of compiled kernels. output_buffers: the arrays that
    results go into. donated: the arguments whose buffers may be reused. watch: wraps each segment. slices_of: compiles
    the computation of one slice, computation_of a sub-fusion. Raises CompileError that names the segment.
    """
    fusion = segmentation.fusion
    options = config.resolve() if options is None else options
    streamed = on_streams(fusion)
    # A program with streams copies results into output buffers at the end.
    reused = () if streamed else plan_reuse(segmentation, donated, output_buffers, values)
    memory = () if streamed else (*output_buffers, *(reuse.buffer for reuse in reused))
    lowering = _Lowering(segmentation, target, layouts, values, strides, aligned, options, memory)
    plan_guards = [*guards, *(guard for reuse in reused for guard in reuse.guards)]
    with counted_steps("choosing loops", len(segmentation.segments)) as count:
        for position, part in enumerate(segmentation.segments):
            if part.library is None and part.slices is None and not (streamed and host_op_of(part)):
                interface, lowered = lowering.lower(position)
                plan_guards += [interface.original_guard(guard) for guard in lowered.guards]
            count(f"segment {position}")
    lowerings, direct = lowering.lowerings, frozenset(lowering.direct)
    reused = keep_direct(reused, direct)
    memory = (*output_buffers, *(reuse.buffer for reuse in reused))
    functions = compile_all({k: lowered for k, (_, lowered) in lowerings.items()}, target, disk)
    compiled = [
        kernel_segment(*lowerings[position], functions[position], position, target)
        if position in lowerings
        else called_segment(part, position, target, slices_of, watch, computation_of)
        for position, part in enumerate(segmentation.segments)
    ]
    if watch is not None:
        compiled = [c if c.part.slices is not None else watch(c, position) for position, c in enumerate(compiled)]
    if streamed:
        program = _stream_program(segmentation, compiled, output_buffers, options, watched=watch is not None)
    else:
        program = _host_program(segmentation, compiled, memory, direct, lowering.may_raise, options)
    runner = Runner(program, target.device)
    arena_plan = _plan_arenas(program, compiled, target, options) if is_written(program) else NO_ARENAS
    return Plan(
        segmentation, target, layouts, aligned, tuple(dict.fromkeys(plan_guards)), tuple(compiled), program, runner,
        arena_plan, tuple(output_buffers), direct, donated=tuple(donated), reused=reused,
    )  # fmt: skip


def _fills(compiled: Sequence[CompiledSegment]) -> list[bool]:
    """For each segment, whether it writes to allocated buffers; otherwise it returns new arrays."""
    return [one.lowered is not None or one.part.slices is not None or one.exchange is not None for one in compiled]


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
    launches = [_launch(k, one) for k, one in enumerate(compiled)]
    exchanges = {k: one.exchange for k, one in enumerate(compiled) if one.exchange is not None}
    program = build_host_program(
        fusion, segmentation.steps.graph, launches, fills, memory, direct, may_raise, exchanges
    )
    return segments.spread(program, 1 if exchanges or _overlap(fusion, memory) else options.streams)


def _launch(step: int, segment: CompiledSegment) -> segments.Launch:
    """Returns the launch of a segment; that of an exchange without the tokens, which only order it."""
    if segment.exchange is not None:
        return segments.Launch(step, (segment.exchange.source,), segment.exchange.targets, segment)
    return segments.Launch(step, segment.inputs, segment.part.segment.original_outputs, segment)


def _overlap(fusion: Fusion, memory: Sequence[OutputBuffer]) -> bool:
    """Whether an output buffer shares bytes with an argument. A program does not see this, as their numbers differ."""
    return any(buffer.shares or (buffer.same and buffer.memory not in fusion.inputs) for buffer in memory)


def _plan_arenas(
    program: segments.Program, compiled: Sequence[CompiledSegment], target: Target, options: Options
) -> ArenaPlan:
    """Plans the arenas of a program, with a slot for each scratch buffer."""
    scratch = {k: [slot_bytes(size, dtype.itemsize) for dtype, size in one.scratch] for k, one in enumerate(compiled)}
    is_library = [one.code is None for one in compiled]
    return plan_arenas(program, is_library, scratch, slots=target.calls.addresses, graph=options.graph)


class _Lowering:
    """Lowers the segments one by one and records which results their kernels write straight into output buffers.

    lowerings: the interface and the kernels of each segment, by position. direct: those results.
    """

    def __init__(
        self, segmentation: Segmentation, target: Target, layouts: LayoutKey, values: Mapping[int, int],
        strides: Mapping[str, int], aligned: frozenset[int], options: Options,
        output_buffers: Sequence[OutputBuffer],
    ) -> None:  # fmt: skip
        self.segmentation, self.templates = segmentation, target.templates
        self.values, self.strides, self.aligned, self.options = values, strides, aligned, options
        self.layout_of: dict[int, Strided | None] = dict(zip(segmentation.fusion.tensor_inputs, layouts, strict=True))
        usable = (b for b in output_buffers if b.is_nested and (b.layout is None or b.layout.aligned))
        self.output_buffers = {buffer.value: buffer for buffer in usable}
        flagged = self.templates.flags_positions
        self.may_raise = [may_raise(part.fusion, in_kernels=flagged) for part in segmentation.segments]
        self.direct: set[int] = set()
        self.lowerings: dict[int, tuple[_SegmentInterface, Lowered]] = {}

    def lower(self, position: int) -> tuple[_SegmentInterface, Lowered]:
        part = self.segmentation.segments[position]
        outputs = (v for v in part.segment.original_outputs if v in self.output_buffers)
        direct = {v for v in outputs if not self._is_read_from(position, v)}
        if any(self.may_raise[position:]):
            direct = set()  # arguments change only after every segment that may raise
        read_here = {v for v in direct if self._arguments(part, {v})}
        direct -= {v for v in read_here if not in_place(part, self._arguments(part, {v}))}
        inside = in_place(part, self._arguments(part, direct))
        sliced = {v for v in direct if self._owner(part, v) is not None}
        read_here |= sliced
        inside |= {n for v in sliced for n in (self._local(part, v), self._owner(part, v)) if n is not None}
        interface, choice = self._choose(position, direct, inside)
        if inside and not choice.template.writes_in_place:
            direct -= read_here
            interface, choice = self._choose(position, direct, frozenset())
        workers = self.options.threads if self.templates.takes_workers else 0
        lowered = choice.lower().with_arithmetic(self.options.fast_math, workers)
        self.direct |= direct
        self.layout_of.update((v, self.output_buffers[v].layout) for v in direct)
        self.lowerings[position] = interface, lowered
        return interface, lowered

    def _is_read_from(self, position: int, value: int) -> bool:
        """Whether a later segment reads the buffer of `value`, or this segment reads an argument that overlaps it."""
        buffer = self.output_buffers[value]
        reads = [frozenset(part.segment.original_inputs) for part in self.segmentation.segments[position:]]
        later = any(not inputs.isdisjoint((*buffer.same, *buffer.shares)) for inputs in reads[1:])
        part = self.segmentation.segments[position]
        own = (buffer.owner,) if buffer.owner is not None and self._updates_own_slice(part, buffer) else ()
        return later or not reads[0].isdisjoint({*buffer.shares}.difference(own))

    def _updates_own_slice(self, part: Part, buffer: OutputBuffer) -> bool:
        """Whether a segment reads of an argument only the slice that it updates, and no other slice is updated."""
        assert buffer.owner is not None
        owner, output = self._owner(part, buffer.value), self._local(part, buffer.value)
        if owner is None or output is None or [b.owner for b in self.output_buffers.values()].count(buffer.owner) > 1:
            return False
        fusion = self.segmentation.fusion
        interface = _SegmentInterface(self.segmentation, part, self.layout_of)

        def is_slice(node: Node) -> bool:
            own = [interface.to_original(entry) for name in _BOUNDS for entry in node.attributes[name]]
            bounds = [fusion.canonical(e) for one in zip(*slice_bounds(fusion, buffer.value), strict=True) for e in one]
            return same_extents(tuple(own), tuple(bounds), lambda extent: evaluate(extent, self.values))

        return reads_only_slice(part, output, owner, is_slice)

    def _owner(self, part: Part, value: int) -> int | None:
        """Returns the segment's number of the argument of which a result updates a slice, if the segment reads it."""
        owner = self.output_buffers[value].owner
        return None if owner is None else self._local(part, owner)

    def _local(self, part: Part, value: int) -> int | None:
        return next((local for local, original in part.segment.index_map.items() if original == value), None)

    def _arguments(self, part: Part, values: Collection[int]) -> frozenset[tuple[int, int]]:
        """Returns the (output, input) pairs that are the same array, by the segment's own numbers."""
        local_of = {original: local for local, original in part.segment.index_map.items()}
        pairs = ((value, argument) for value in values for argument in self.output_buffers[value].same)
        return frozenset((local_of[v], local_of[a]) for v, a in pairs if a in part.segment.original_inputs)

    def _choose(
        self, position: int, direct: Collection[int], shared: frozenset[int]
    ) -> tuple[_SegmentInterface, Choice]:
        """Chooses the template of a segment.

        direct: the results that its kernel writes straight into output buffers. shared: see `MemoryFacts`.
        """
        part = self.segmentation.segments[position]
        buffers = {v: self.output_buffers[v] for v in direct}
        layout_of = {**self.layout_of, **{v: buffer.layout for v, buffer in buffers.items()}}
        interface = _SegmentInterface(self.segmentation, part, layout_of)
        placed = interface.placed({v for v, b in buffers.items() if b.layout is not None or not b.is_wide})
        decomposed, rule = prepare_lowering(part, self.options)
        choice = choose(
            decomposed, rule, interface.strides, interface.sizes(self.values, self.strides), self.templates,
            name=f"s{position}", contract=self.options.contract, aligned=interface.aligned(self.aligned | self._wide()),
            misaligned=interface.misaligned(), placed=placed, shared=shared, supplied=interface.outputs(direct),
            options=self.options,
        )  # fmt: skip
        return interface, choice

    def _wide(self) -> frozenset[int]:
        """Returns the values of earlier segments that start at a multiple of 16 bytes."""
        values = (v for part in self.segmentation.segments for v in part.segment.original_outputs)
        return frozenset(v for v in values if v not in self.direct or self.output_buffers[v].is_wide)


class _SegmentInterface:
    """Maps a segment's own symbols and numbers to those of the enclosing fusion."""

    def __init__(self, segmentation: Segmentation, part: Part, layout_of: Mapping[int, Any]) -> None:
        self.fusion, self.part = segmentation.fusion, part
        self.layout_of = layout_of
        self.original: dict[Symbol, Extent] = {}
        local = part.decomposed
        for key, number, axis in local.axis_ids():
            shape = self.fusion.values[part.segment.index_map[number]].shape
            self.original[Symbol(f"i{-key - 1}", key)] = self.fusion.canonical(shape[axis])
        for number in local.scalar_inputs:
            extent = local.values[number].extent
            local_symbol = None if extent is None else as_symbol(extent)
            if local_symbol is not None:
                self.original.setdefault(local_symbol, self._scalar_extent(number))
        self.strides: dict[int, Shape] = {n: self._strides(n) for n in local.tensor_inputs}

    def _scalar_extent(self, number: int) -> Extent:
        original = self.part.segment.index_map[number]
        if original < 0:
            return self.fusion.canonical(symbol(f"i{-original - 1}", original))
        extent = self.fusion.values[original].extent
        return 0 if extent is None else self.fusion.canonical(extent)

    def outputs(self, values: Collection[int]) -> frozenset[int]:
        """Returns the segment's outputs among `values` of the fusion."""
        return frozenset(n for n in self.part.segment.outputs if self.part.segment.index_map[n] in values)

    def placed(self, values: Collection[int]) -> frozenset[int]:
        """Gives the outputs among `values` of the fusion the strides of their buffers, and returns them."""
        outputs = self.outputs(values)
        self.strides.update((n, self._strides(n)) for n in outputs)
        return outputs

    def _layout(self, number: int) -> Any:
        return self.layout_of.get(self.part.segment.index_map[number])

    def _strides(self, number: int) -> Shape:
        shape, layout = self.part.decomposed.shape_of(number), self._layout(number)
        return contiguous_strides(shape) if layout is None else symbolic_strides(layout, shape, number)

    def aligned(self, arguments: frozenset[int]) -> frozenset[int]:
        """Returns the tensor inputs that start at a multiple of 16 bytes. arguments: the fusion's values that do."""
        return frozenset(n for n in self.part.decomposed.tensor_inputs if self.part.segment.index_map[n] in arguments)

    def misaligned(self) -> frozenset[int]:
        """Returns the tensor inputs whose elements are not at multiples of their size."""
        layouts = ((n, self._layout(n)) for n in self.part.decomposed.tensor_inputs)
        return frozenset(n for n, layout in layouts if layout is not None and not layout.aligned)

    def to_original(self, extent: Extent) -> Extent:
        """Returns an expression of the segment's symbols in terms of the fusion's."""
        return substitute(extent, {**self.original, **self._stride_names(extent)})

    def _stride_names(self, extent: Extent) -> dict[Symbol, Extent]:
        axes = {stride_name(n, a): (n, a) for n in self.strides for a in range(len(self.strides[n]))}
        strides = [s for s in symbols(extent) if s.name in axes]
        index_map = self.part.segment.index_map
        return {s: symbol(stride_name(index_map[axes[s.name][0]], axes[s.name][1])) for s in strides}

    def original_guard(self, guard: Guard) -> Guard:
        return replace(guard, left=self.to_original(guard.left), right=self.to_original(guard.right))

    def sizes(self, values: Mapping[int, int], strides: Mapping[str, int]) -> Sizes:
        """Returns the values of the segment's symbols at a call."""
        extents = {s.id: evaluate(e, values) for s, e in self.original.items() if s.id is not None}
        index_map = self.part.segment.index_map
        named = {
            stride_name(n, a): strides[stride_name(index_map[n], a)]
            for n in self.strides
            for a in range(len(self.strides[n]))
            if stride_name(index_map[n], a) in strides
        }
        return Sizes(extents, named)
