"""Builds the host program of a fusion with stream-parallel values: loops with each iteration on a stream of the pool.

Consecutive segments share a loop if their slices have the same extent and chunks, and each segment reads only the
slices that the same iteration computes. A segment that computes whole values ends a loop. An iteration makes its stream
the current one, makes it wait for the caller's stream, runs the segments on slices, and makes the caller's stream wait
for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import segments
from segments import (
    AllocateBuffer,
    CopyBuffer,
    Count,
    GetStream,
    HostLoop,
    HostOp,
    Instruction,
    Integer,
    Launch,
    NamedStream,
    PoolStream,
    Program,
    Release,
    Select,
    SetStream,
    Synchronize,
    integer_of,
    remainder_of,
)
from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.generated_code import compile_expression
from tracefuse.ir.extents import Extent, ceildiv, minimum, python_text, symbols
from tracefuse.ir.fusion import Fusion
from tracefuse.partition.stream_marks import kind_of_slices
from tracefuse.runtime.host_program import Allocation, allocation, returned_memory, scalars_in_shapes
from tracefuse.runtime.memory.buffer_facts import OutputBuffer


@dataclass(frozen=True, slots=True)
class SegmentCall:
    """A segment as the program runs it: a launch, or a host operation (`is_host_op`).

    inputs, outputs: by number in the fusion. fills: it writes to allocated buffers. axes: the cut axis of each value,
    or None for a segment that computes whole values.
    """

    position: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    label: Any
    fills: bool
    is_host_op: bool = False
    axes: Mapping[int, int | None] | None = None


@dataclass(frozen=True, slots=True)
class SlotAllocation:
    """The allocation of a value with one slot per stream, each for one slice along `axis`."""

    whole: Allocation
    axis: int
    streams: int

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self.whole.dtype

    @property
    def extents(self) -> tuple[Extent, ...]:
        cut = minimum(self.streams, self.whole.extents[self.axis])
        return tuple(cut if a == self.axis else e for a, e in enumerate(self.whole.extents))

    def shape(self, values: Mapping[int, Any]) -> tuple[int, ...]:
        """Returns the shape, from live values by id."""
        shape = self.whole.shape(values)
        return tuple(min(self.streams, e) if a == self.axis else e for a, e in enumerate(shape))

    def __str__(self) -> str:
        return f"{self.streams} slices of {self.whole} along axis {self.axis}"


@dataclass(slots=True)
class _Group:
    """The segments of one loop, or a single segment that computes whole values."""

    calls: list[SegmentCall]
    kind: tuple[Extent, int | None] | None = None

    @property
    def outputs(self) -> tuple[int, ...]:
        return tuple(value for call in self.calls for value in call.outputs)

    @property
    def inputs(self) -> tuple[int, ...]:
        outputs = set(self.outputs)
        return tuple(dict.fromkeys(v for call in self.calls for v in call.inputs if v not in outputs))


def build_stream_program(
    fusion: Fusion, graph: segments.Graph, calls: Sequence[SegmentCall], output_buffers: Sequence[OutputBuffer],
    streams: int, *, reuses: bool = True,
) -> Program:  # fmt: skip
    """Builds and verifies the program.

    output_buffers: filled by a Copy at the end. streams: the number of streams in the pool. reuses: a value that lives
    only within a loop has one slot per stream, not one per slice.
    """
    return _ProgramBuilder(fusion, graph, _group_calls(fusion, calls), output_buffers, streams, reuses).program()


def _group_calls(fusion: Fusion, calls: Sequence[SegmentCall]) -> list[_Group]:
    groups: list[_Group] = []
    for call in calls:
        kind = None if call.axes is None else kind_of_slices(fusion, call.outputs[0])
        if kind is not None and groups and groups[-1].kind == kind and _reads_same_slices(groups[-1], call):
            groups[-1].calls.append(call)
        else:
            groups.append(_Group([call], kind))
    return groups


def _reads_same_slices(group: _Group, call: SegmentCall) -> bool:
    """Whether a segment reads only slices that the same iteration of the loop computes."""
    cut = {value: (before.axes or {})[value] for before in group.calls for value in before.outputs}
    axes = call.axes or {}
    return all(axes.get(value) == cut[value] for value in call.inputs if value in cut)


@dataclass(slots=True)
class _Numbers:
    """Hands out unused numbers of values and streams."""

    next_value: int
    next_stream: int = 0

    def value(self) -> int:
        self.next_value += 1
        return self.next_value - 1

    def streams(self) -> int:
        """Returns a number for the caller's stream. Each loop uses two numbers; the second stream has no name."""
        self.next_stream += 2
        return self.next_stream - 2


@dataclass(slots=True)
class _Slices:
    """The slices of one iteration, by value and axis, in the order of their selection."""

    index: int
    numbers: _Numbers
    slots: Collection[int]
    slot: Integer
    size: Count | None
    names: dict[tuple[int, int], int] = field(default_factory=dict)
    selected: list[Instruction] = field(default_factory=list)

    def of(self, value: int, axis: int | None) -> int:
        """Returns the slice of a value, or the value itself if it is read whole."""
        if axis is None:
            return value
        if (value, axis) not in self.names:
            number = self.names[value, axis] = self.numbers.value()
            index = self.slot if value in self.slots else integer_of(self.index)
            self.selected.append(Select(number, value, axis, index, self.size))
        return self.names[value, axis]


class _ProgramBuilder:
    def __init__(
        self, fusion: Fusion, graph: segments.Graph, groups: list[_Group],
        output_buffers: Sequence[OutputBuffer], streams: int, reuses: bool,
    ) -> None:  # fmt: skip
        self.fusion, self.graph, self.groups, self.output_buffers = fusion, graph, groups, output_buffers
        self.streams, self.reuses = streams, reuses
        used = (*fusion.values, *(buffer.memory for buffer in output_buffers))
        self.numbers = _Numbers(max(used, default=-1) + 1)

    def program(self) -> Program:
        ids = tuple(key for key, _, _ in self.fusion.axis_ids())
        bound = tuple(dict.fromkeys((*self.graph.inputs, *ids, *(buffer.memory for buffer in self.output_buffers))))
        outputs = returned_memory(self.fusion, self.output_buffers)
        events = [
            Launch(k, (*group.inputs, *scalars_in_shapes(self.fusion, group.outputs)), group.outputs)
            for k, group in enumerate(self.groups)
        ]
        events.append(Launch(-1, tuple(n for buffer in self.output_buffers for n in (buffer.value, buffer.memory)), ()))
        dying = segments.releases(events, bound, outputs)
        instructions: list[Instruction] = list(map(Release, dying[0]))
        for group, dead in zip(self.groups, dying[1:], strict=False):
            instructions += self._loop(group) if group.kind is not None else self._whole(group.calls[0])
            instructions += map(Release, dead)
        instructions += [CopyBuffer(buffer.value, buffer.memory) for buffer in self.output_buffers]
        instructions += map(Release, dying[-1])
        program = Program(bound, outputs, instructions)
        program.verify()
        return program

    def _whole(self, call: SegmentCall) -> Iterator[Instruction]:
        if call.fills:
            for value in call.outputs:
                yield AllocateBuffer(value, allocation(self.fusion, value))
        yield _instruction(call, call.inputs, call.outputs)

    def _loop(self, group: _Group) -> Iterator[Instruction]:
        assert group.kind is not None
        extent, chunks = group.kind
        slots = self._slots(group) if self.reuses and chunks is None else frozenset()
        for call in group.calls:
            for value in call.outputs:
                complete = allocation(self.fusion, value)
                axis = (call.axes or {})[value]
                yield AllocateBuffer(
                    value, SlotAllocation(complete, axis or 0, self.streams) if value in slots else complete
                )
        index, count = self.numbers.value(), self.streams
        stream = PoolStream(remainder_of(index, count))
        caller = NamedStream(self.numbers.streams())
        size = None if chunks is None else count_of(ceildiv(extent, chunks), chunk_text(extent, chunks))
        assert isinstance(stream.index, Integer)
        slices = _Slices(index, self.numbers, slots, stream.index, size)
        body: list[Instruction] = [GetStream(caller.number), SetStream(stream), Synchronize(caller)]
        for call in group.calls:
            body += self._slice(call, slices)
        body += [SetStream(caller), Synchronize(stream)]
        yield HostLoop(index, 0, count_of(extent) if chunks is None else chunks, 1, tuple(body))

    @staticmethod
    def _slice(call: SegmentCall, slices: _Slices) -> list[Instruction]:
        axes = call.axes or {}
        inputs = tuple(slices.of(value, axes.get(value)) for value in call.inputs)
        outputs = tuple(slices.of(value, axes[value]) for value in call.outputs)
        selected, slices.selected = slices.selected, []
        return [*selected, _instruction(call, inputs, outputs)]

    def _slots(self, group: _Group) -> frozenset[int]:
        """Returns the values that have no reader outside of the loop."""
        outside = {value for other in self.groups if other is not group for value in other.inputs}
        outside.update(self.fusion.outputs)
        return frozenset(value for value in group.outputs if value not in outside)


def _instruction(call: SegmentCall, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Instruction:
    if call.is_host_op:
        return HostOp(call.label, inputs, outputs[0], call.position)
    return Launch(call.position, inputs, outputs, call.label)


def chunk_text(extent: Extent, chunks: int) -> str:
    """Prints the extent of a chunk."""
    return str(ceildiv(extent, chunks)) if isinstance(extent, int) else f"ceilDiv({extent}, {chunks})"


def count_of(extent: Extent, text: str | None = None) -> Count:
    """Returns an extent as an integer of the program."""
    if isinstance(extent, int):
        return extent
    reads = tuple(dict.fromkeys(s.id for s in symbols(extent) if s.id is not None))
    compute = compile_expression("v", python_text(extent, lambda s: f"v[{s.id}]"), "extent")
    return Integer(text or str(extent), reads, compute)
