"""A plan: the segments of a fusion compiled for the layouts and the size facts of a call, and the program to run them.

Every fact about sizes that lowering used is a guard of the plan, in terms of the fusion's own extents. A call whose
sizes keep the guards runs the plan as it is: kernels take extents as arguments.

Knows: segments, lowering, kernels of a device, the host program. Must not know: frontends, caches.
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
from tracefuse.ir.fusion import Fusion, Shape
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.partition.overwriting import in_place
from tracefuse.partition.segmentation import Part, Segmentation, prepare_lowering
from tracefuse.partition.slicing import Sliced
from tracefuse.partition.stream_marks import on_streams
from tracefuse.runtime.arena import NO_ROOMS, Rooms, lay_out, span_of
from tracefuse.runtime.compile_all import compile_all
from tracefuse.runtime.compiled_segment import CompiledSegment, Watch, called_segment, kernel_segment
from tracefuse.runtime.host_program import build_host_program
from tracefuse.runtime.memory.donation import Donated, Taken, taken_by, takers
from tracefuse.runtime.memory.given_buffers import Given, returned
from tracefuse.runtime.streams.slices import Computation
from tracefuse.runtime.streams.stream_plan import host_op_of, segment_call
from tracefuse.runtime.streams.stream_program import build_stream_program
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.choose import Choice, choose
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.nest import contiguous_strides
from tracefuse.schedule.sizes import Sizes

_STRAIGHT = segments.Allocate | segments.Alias | segments.Launch | segments.Copy | segments.Release


def is_written(program: Program) -> bool:
    """Whether all that is on several streams is loops over slices, so that a program can be written as one function."""
    return all(isinstance(i, _STRAIGHT | segments.HostOp | segments.Loop) for i in program.instructions)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What runs a call whose layouts are these and whose sizes keep the guards (in the fusion's own extents).

    aligned: the arguments that must start at a multiple of 16 bytes. given: the memory that results go into; direct:
    those of its values that are written there by the kernel that makes them. rooms: where intermediates live. cause:
    what changed since the plan before. donated: the arguments whose memory may be taken; taken: the values that do.
    """

    segmentation: Segmentation
    target: Target
    layouts: LayoutKey
    aligned: frozenset[int]
    guards: tuple[Guard, ...]
    segments: tuple[CompiledSegment, ...]
    program: Program
    runner: Runner
    rooms: Rooms
    given: tuple[Given, ...] = ()
    direct: frozenset[int] = frozenset()
    cause: str = ""
    donated: tuple[Donated, ...] = ()
    taken: tuple[Taken, ...] = ()

    @property
    def is_straight(self) -> bool:
        """Whether the program is launches on one stream, with what they allocate, copy and release."""
        return all(isinstance(i, _STRAIGHT) for i in self.program.instructions)

    @property
    def is_written(self) -> bool:
        """Whether the program can be written as one function; else `runner` runs it."""
        return is_written(self.program)

    @property
    def memory(self) -> tuple[int, ...]:
        """The numbers of the memory of results and intermediates that is no argument: buffers, and what is taken."""
        inputs = self.segmentation.fusion.inputs
        own = (given.memory for given in self.given if given.memory not in inputs)
        return (*own, *(one.given.memory for one in self.taken))

    @property
    def lent(self) -> tuple[tuple[int, int], ...]:
        """Where results live in donated memory: (position of the argument, position of the result)."""
        fusion = self.segmentation.fusion
        numbers = returned(fusion)
        kept = ((one.donor, one.given.value) for one in self.taken if one.given.value in numbers)
        return tuple((fusion.inputs.index(donor), numbers.index(value)) for donor, value in kept)


def build_plan(
    segmentation: Segmentation, target: Target, layouts: LayoutKey, values: Mapping[int, int],
    strides: Mapping[str, int], *, guards: Sequence[Guard] = (), aligned: frozenset[int] = frozenset(),
    options: Options | None = None, disk: DiskCache | None = None, given: Sequence[Given] = (),
    watch: Watch | None = None,
    slices_of: Callable[[Sliced], Computation] | None = None, donated: Sequence[Donated] = (),
) -> Plan:  # fmt: skip
    """Lowers and compiles every segment for the sizes of a call; several segments compile at once.

    values: extents and integer scalars by id. strides: of arguments and given memory that are not contiguous, by symbol
    name. guards: those of the segmentation itself. aligned: arguments whose memory starts at a multiple of 16 bytes.
    options: those in force, if none are given. disk: where compiled kernels are kept. given: the memory that results go
    into. donated: arguments whose memory may be taken by what is made. watch: what runs in place of each segment, from
    it and its position. slices_of: compiles what computes one slice. Raises CompileError, naming the segment.
    """
    fusion = segmentation.fusion
    options = config.resolve() if options is None else options
    streamed = on_streams(fusion)
    # In a program with streams, results are copied into given memory at the end.
    taken = () if streamed else takers(segmentation, donated, given, values)
    memory = () if streamed else (*given, *(one.given for one in taken))
    lowering = _Lowering(segmentation, target, layouts, values, strides, aligned, options, memory)
    found = [*guards, *(guard for one in taken for guard in one.guards)]
    for position, part in enumerate(segmentation.segments):
        if part.library is None and part.slices is None and not (streamed and host_op_of(part)):
            border, lowered = lowering.lower(position)
            found += [border.original_guard(guard) for guard in lowered.guards]
    lowerings, direct = lowering.found, frozenset(lowering.direct)
    taken = taken_by(taken, direct)
    memory = (*given, *(one.given for one in taken))
    functions = compile_all({k: lowered for k, (_, lowered) in lowerings.items()}, target, disk)
    compiled = [
        kernel_segment(*lowerings[position], functions[position], position, target)
        if position in lowerings
        else called_segment(part, position, target, slices_of, watch)
        for position, part in enumerate(segmentation.segments)
    ]
    if watch is not None:
        compiled = [c if c.part.slices is not None else watch(c, position) for position, c in enumerate(compiled)]
    if streamed:
        program = _stream_program(segmentation, compiled, given, options, watched=watch is not None)
    else:
        program = _host_program(segmentation, compiled, memory, direct, lowering.may_raise, options)
    runner = Runner(program, target.device)
    rooms = _rooms(program, compiled, target, options) if is_written(program) else NO_ROOMS
    return Plan(
        segmentation, target, layouts, aligned, tuple(dict.fromkeys(found)), tuple(compiled), program, runner,
        rooms, tuple(given), direct, donated=tuple(donated), taken=taken,
    )  # fmt: skip


def _fills(compiled: Sequence[CompiledSegment]) -> list[bool]:
    """Of each segment, whether it fills memory that is allocated for it, or makes its results."""
    return [one.lowered is not None or one.part.slices is not None for one in compiled]


def _stream_program(
    segmentation: Segmentation, compiled: Sequence[CompiledSegment], given: Sequence[Given], options: Options, *,
    watched: bool,
) -> Program:  # fmt: skip
    """The program of a fusion with values on streams. watched: no segment is run by the array library alone."""
    fills, reuses = _fills(compiled), not options.disables("loop_buffer_reuse")
    calls = [segment_call(k, c.part, c.inputs, c, fills[k], watched=watched) for k, c in enumerate(compiled)]
    graph, streams = segmentation.steps.graph, options.number_of_streams
    return build_stream_program(segmentation.fusion, graph, calls, given, streams, reuses=reuses)


def _host_program(
    segmentation: Segmentation, compiled: Sequence[CompiledSegment], memory: Sequence[Given], direct: frozenset[int],
    may_raise: Sequence[bool], options: Options,
) -> Program:  # fmt: skip
    """The program of any other, on as many streams as the options say."""
    fusion, fills = segmentation.fusion, _fills(compiled)
    launches = [segments.Launch(k, c.inputs, c.part.segment.original_outputs, c) for k, c in enumerate(compiled)]
    program = build_host_program(fusion, segmentation.steps.graph, launches, fills, memory, direct, may_raise)
    return segments.spread(program, 1 if _overlap(fusion, memory) else options.streams)


def _overlap(fusion: Fusion, memory: Sequence[Given]) -> bool:
    """Whether memory that results go into has bytes of arguments, which a program does not know: it has other names."""
    return any(one.shares or (one.same and one.memory not in fusion.inputs) for one in memory)


def _rooms(program: segments.Program, compiled: Sequence[CompiledSegment], target: Target, options: Options) -> Rooms:
    """Where what the program makes lies in one memory: a slot for each scratch buffer, too."""
    scratch = {k: [span_of(size, dtype.itemsize) for dtype, size in one.scratch] for k, one in enumerate(compiled)}
    called = [one.code is None for one in compiled]
    return lay_out(program, called, scratch, slots=target.calls.addresses, graph=options.graph)


class _Lowering:
    """Lowers the segments one by one; knows which results are written into given memory by then.

    found: the border and the launches of each segment. direct: those results.
    """

    def __init__(
        self, segmentation: Segmentation, target: Target, layouts: LayoutKey, values: Mapping[int, int],
        strides: Mapping[str, int], aligned: frozenset[int], options: Options, given: Sequence[Given],
    ) -> None:  # fmt: skip
        self.segmentation, self.templates = segmentation, target.templates
        self.values, self.strides, self.aligned, self.options = values, strides, aligned, options
        self.layout_of: dict[int, Strided | None] = dict(zip(segmentation.fusion.tensor_inputs, layouts, strict=True))
        self.given = {g.value: g for g in given if g.is_nested and (g.layout is None or g.layout.aligned)}
        flagged = self.templates.flags_positions
        self.may_raise = [may_raise(part.fusion, in_kernels=flagged) for part in segmentation.segments]
        self.direct: set[int] = set()
        self.found: dict[int, tuple[_Border, Lowered]] = {}

    def lower(self, position: int) -> tuple[_Border, Lowered]:
        part = self.segmentation.segments[position]
        apart = {v for v in part.segment.original_outputs if v in self.given and not self._read_from(position, v)}
        if any(self.may_raise[position:]):
            apart = set()  # what was passed in is changed after all that may fail
        read_here = {v for v in apart if self._arguments(part, {v})}
        apart -= {v for v in read_here if not in_place(part, self._arguments(part, {v}))}
        inside = in_place(part, self._arguments(part, apart))
        border, choice = self._choice(position, apart, inside)
        if inside and not choice.template.writes_in_place:
            apart -= read_here
            border, choice = self._choice(position, apart, frozenset())
        workers = self.options.threads if self.templates.takes_workers else 0
        lowered = choice.lower().with_arithmetic(self.options.fast_math, workers)
        self.direct |= apart
        self.layout_of.update((v, self.given[v].layout) for v in apart)
        self.found[position] = border, lowered
        return border, lowered

    def _read_from(self, position: int, value: int) -> bool:
        """Whether a later segment reads the memory of `value`, or this one another argument that shares its bytes."""
        given = self.given[value]
        reads = [frozenset(part.segment.original_inputs) for part in self.segmentation.segments[position:]]
        later = any(not own.isdisjoint((*given.same, *given.shares)) for own in reads[1:])
        return later or not reads[0].isdisjoint(given.shares)

    def _arguments(self, part: Part, values: Collection[int]) -> frozenset[tuple[int, int]]:
        """(output, input) of the segment, by its own numbers, for what is one array."""
        own = {original: local for local, original in part.segment.index_map.items()}
        pairs = ((value, argument) for value in values for argument in self.given[value].same)
        return frozenset((own[v], own[a]) for v, a in pairs if a in part.segment.original_inputs)

    def _choice(self, position: int, apart: Collection[int], shared: frozenset[int]) -> tuple[_Border, Choice]:
        """The template of a segment. apart: the results that it writes into given memory; shared: see `Memory`."""
        part = self.segmentation.segments[position]
        border = _Border(self.segmentation, part, {**self.layout_of, **{v: self.given[v].layout for v in apart}})
        placed = border.placed({v for v in apart if self.given[v].layout is not None or not self.given[v].is_wide})
        written, rule = prepare_lowering(part, self.options)
        choice = choose(
            written, rule, border.strides, border.sizes(self.values, self.strides), self.templates,
            name=f"s{position}", contract=self.options.contract, aligned=border.aligned(self.aligned | self._wide()),
            misaligned=border.misaligned(), placed=placed, shared=shared, given=border.own(apart),
            options=self.options,
        )  # fmt: skip
        return border, choice

    def _wide(self) -> frozenset[int]:
        """The values of earlier segments that start at a multiple of 16 bytes."""
        made = (v for part in self.segmentation.segments for v in part.segment.original_outputs)
        return frozenset(v for v in made if v not in self.direct or self.given[v].is_wide)


class _Border:
    """How a segment's own symbols and numbers read in the fusion that it is a part of."""

    def __init__(self, segmentation: Segmentation, part: Part, layout_of: Mapping[int, Any]) -> None:
        self.fusion, self.part = segmentation.fusion, part
        self.layout_of = layout_of
        self.original: dict[Symbol, Extent] = {}
        local = part.written
        for key, number, axis in local.axis_ids():
            shape = self.fusion.values[part.segment.index_map[number]].shape
            self.original[Symbol(f"i{-key - 1}", key)] = self.fusion.canonical(shape[axis])
        for number in local.scalar_inputs:
            extent = local.values[number].extent
            own = None if extent is None else as_symbol(extent)
            if own is not None:
                self.original.setdefault(own, self._scalar_extent(number))
        self.strides: dict[int, Shape] = {n: self._strides(n) for n in local.tensor_inputs}

    def _scalar_extent(self, number: int) -> Extent:
        original = self.part.segment.index_map[number]
        if original < 0:
            return self.fusion.canonical(symbol(f"i{-original - 1}", original))
        extent = self.fusion.values[original].extent
        return 0 if extent is None else self.fusion.canonical(extent)

    def own(self, values: Collection[int]) -> frozenset[int]:
        """The outputs among `values` (of the original)."""
        return frozenset(n for n in self.part.segment.outputs if self.part.segment.index_map[n] in values)

    def placed(self, values: Collection[int]) -> frozenset[int]:
        """The outputs among `values` (of the original), whose strides from here on are those of their memory."""
        own = self.own(values)
        self.strides.update((n, self._strides(n)) for n in own)
        return own

    def _layout(self, number: int) -> Any:
        return self.layout_of.get(self.part.segment.index_map[number])

    def _strides(self, number: int) -> Shape:
        shape, layout = self.part.written.shape_of(number), self._layout(number)
        return contiguous_strides(shape) if layout is None else symbolic_strides(layout, shape, number)

    def aligned(self, arguments: frozenset[int]) -> frozenset[int]:
        """The tensor inputs that start at a multiple of 16 bytes, from the values of the original that do."""
        return frozenset(n for n in self.part.written.tensor_inputs if self.part.segment.index_map[n] in arguments)

    def misaligned(self) -> frozenset[int]:
        """The tensor inputs whose elements are not at multiples of their size."""
        layouts = ((n, self._layout(n)) for n in self.part.written.tensor_inputs)
        return frozenset(n for n, layout in layouts if layout is not None and not layout.aligned)

    def to_original(self, extent: Extent) -> Extent:
        """An expression of the segment's symbols in the fusion's."""
        return substitute(extent, {**self.original, **self._stride_names(extent)})

    def _stride_names(self, extent: Extent) -> dict[Symbol, Extent]:
        own = {stride_name(n, a): (n, a) for n in self.strides for a in range(len(self.strides[n]))}
        found = [s for s in symbols(extent) if s.name in own]
        index_map = self.part.segment.index_map
        return {s: symbol(stride_name(index_map[own[s.name][0]], own[s.name][1])) for s in found}

    def original_guard(self, guard: Guard) -> Guard:
        return replace(guard, left=self.to_original(guard.left), right=self.to_original(guard.right))

    def sizes(self, values: Mapping[int, int], strides: Mapping[str, int]) -> Sizes:
        """The actual values of the segment's symbols."""
        own = {s.id: evaluate(e, values) for s, e in self.original.items() if s.id is not None}
        index_map = self.part.segment.index_map
        named = {
            stride_name(n, a): strides[stride_name(index_map[n], a)]
            for n in self.strides
            for a in range(len(self.strides[n]))
            if stride_name(index_map[n], a) in strides
        }
        return Sizes(own, named)
