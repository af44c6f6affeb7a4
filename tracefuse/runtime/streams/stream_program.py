"""The host program of a fusion with values on streams: loops over slices, each iteration on a stream of the pool.

Segments that are computed slice by slice and follow each other share a loop where their slices are of one kind and
each reads of the others the slice that it computes; what is computed whole separates loops. A loop iteration makes its
stream the current one, lets it wait for the caller's, runs the segments on slices, and lets the caller's wait for it.

Knows: segments by the values that they read and make, slices. Must not know: kernels, targets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import segments
from segments import (
    Allocate,
    Copy,
    Count,
    GetStream,
    HostOp,
    Instruction,
    Integer,
    Launch,
    Loop,
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
from tracefuse.dtypes import DType
from tracefuse.generated_code import compile_expression
from tracefuse.ir.extents import Extent, ceildiv, minimum, python_text, symbols
from tracefuse.ir.fusion import Fusion
from tracefuse.partition.stream_marks import kind_of_slices
from tracefuse.runtime.host_program import Allocation, allocation, returned_memory, scalars_in_shapes
from tracefuse.runtime.memory.given_buffers import Given


@dataclass(frozen=True, slots=True)
class SegmentCall:
    """A segment as the program runs it: a launch, or an operation of the array library (`is_host_op`).

    inputs, outputs: by number in the fusion. fills: whether it fills memory that is allocated for it. axes: the axis of
    each value that is cut, where it is computed in slices; None for what is computed whole.
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
    """Room for as many slices of a value as there are streams: each stream has its own."""

    whole: Allocation
    axis: int
    streams: int

    @property
    def dtype(self) -> DType:
        """Of its elements."""
        return self.whole.dtype

    @property
    def extents(self) -> tuple[Extent, ...]:
        cut = minimum(self.streams, self.whole.extents[self.axis])
        return tuple(cut if a == self.axis else e for a, e in enumerate(self.whole.extents))

    def shape(self, values: Mapping[int, Any]) -> tuple[int, ...]:
        """The extents, from the live values."""
        shape = self.whole.shape(values)
        return tuple(min(self.streams, e) if a == self.axis else e for a, e in enumerate(shape))

    def __str__(self) -> str:
        return f"{self.streams} slices of {self.whole} along axis {self.axis}"


@dataclass(slots=True)
class _Group:
    """Segments that run as one: one that is computed whole, or those of a loop."""

    calls: list[SegmentCall]
    kind: tuple[Extent, int | None] | None = None

    @property
    def outputs(self) -> tuple[int, ...]:
        return tuple(value for call in self.calls for value in call.outputs)

    @property
    def inputs(self) -> tuple[int, ...]:
        made = set(self.outputs)
        return tuple(dict.fromkeys(v for call in self.calls for v in call.inputs if v not in made))


def build_stream_program(
    fusion: Fusion, graph: segments.Graph, calls: Sequence[SegmentCall], given: Sequence[Given], streams: int,
    *, reuses: bool = True,
) -> Program:  # fmt: skip
    """The verified program.

    given: the memory that results go into, by a Copy at the end. streams: how many streams the pool has. reuses: a
    value that lives only within a loop gets as many slots as there are streams, in place of room for all slices.
    """
    return _Building(fusion, graph, _grouped(fusion, calls), given, streams, reuses).program()


def _grouped(fusion: Fusion, calls: Sequence[SegmentCall]) -> list[_Group]:
    groups: list[_Group] = []
    for call in calls:
        kind = None if call.axes is None else kind_of_slices(fusion, call.outputs[0])
        if kind is not None and groups and groups[-1].kind == kind and _reads_own_slices(groups[-1], call):
            groups[-1].calls.append(call)
        else:
            groups.append(_Group([call], kind))
    return groups


def _reads_own_slices(group: _Group, call: SegmentCall) -> bool:
    """Whether a segment reads, of what the loop makes, the very slices that the iteration has made."""
    made = {value: (before.axes or {})[value] for before in group.calls for value in before.outputs}
    axes = call.axes or {}
    return all(axes.get(value) == made[value] for value in call.inputs if value in made)


@dataclass(slots=True)
class _Numbers:
    """Numbers of values and of streams that nothing has yet."""

    next_value: int
    next_stream: int = 0

    def value(self) -> int:
        self.next_value += 1
        return self.next_value - 1

    def streams(self) -> int:
        """A number for the caller's stream; each loop has two streams, the other one has no name."""
        self.next_stream += 2
        return self.next_stream - 2


@dataclass(slots=True)
class _Slices:
    """The slices of one iteration: by value and axis, in the order in which they are selected."""

    index: int
    numbers: _Numbers
    slots: Collection[int]
    slot: Integer
    size: Count | None
    names: dict[tuple[int, int], int] = field(default_factory=dict)
    selected: list[Instruction] = field(default_factory=list)

    def of(self, value: int, axis: int | None) -> int:
        """The slice of a value, the value itself where it is read whole."""
        if axis is None:
            return value
        if (value, axis) not in self.names:
            number = self.names[value, axis] = self.numbers.value()
            index = self.slot if value in self.slots else integer_of(self.index)
            self.selected.append(Select(number, value, axis, index, self.size))
        return self.names[value, axis]


class _Building:
    def __init__(
        self, fusion: Fusion, graph: segments.Graph, groups: list[_Group], given: Sequence[Given], streams: int,
        reuses: bool,
    ) -> None:  # fmt: skip
        self.fusion, self.graph, self.groups, self.given = fusion, graph, groups, given
        self.streams, self.reuses = streams, reuses
        taken = (*fusion.values, *(g.memory for g in given))
        self.numbers = _Numbers(max(taken, default=-1) + 1)

    def program(self) -> Program:
        ids = tuple(key for key, _, _ in self.fusion.axis_ids())
        bound = tuple(dict.fromkeys((*self.graph.inputs, *ids, *(g.memory for g in self.given))))
        outputs = returned_memory(self.fusion, self.given)
        events = [
            Launch(k, (*group.inputs, *scalars_in_shapes(self.fusion, group.outputs)), group.outputs)
            for k, group in enumerate(self.groups)
        ]
        events.append(Launch(-1, tuple(n for g in self.given for n in (g.value, g.memory)), ()))
        dying = segments.releases(events, bound, outputs)
        instructions: list[Instruction] = list(map(Release, dying[0]))
        for group, dead in zip(self.groups, dying[1:], strict=False):
            instructions += self._loop(group) if group.kind is not None else self._whole(group.calls[0])
            instructions += map(Release, dead)
        instructions += [Copy(g.value, g.memory) for g in self.given]
        instructions += map(Release, dying[-1])
        program = Program(bound, outputs, instructions)
        program.verify()
        return program

    def _whole(self, call: SegmentCall) -> Iterator[Instruction]:
        if call.fills:
            for value in call.outputs:
                yield Allocate(value, allocation(self.fusion, value))
        yield _run(call, call.inputs, call.outputs)

    def _loop(self, group: _Group) -> Iterator[Instruction]:
        assert group.kind is not None
        extent, pieces = group.kind
        slots = self._slots(group) if self.reuses and pieces is None else frozenset()
        for call in group.calls:
            for value in call.outputs:
                whole = allocation(self.fusion, value)
                axis = (call.axes or {})[value]
                yield Allocate(value, SlotAllocation(whole, axis or 0, self.streams) if value in slots else whole)
        index, count = self.numbers.value(), self.streams
        stream = PoolStream(remainder_of(index, count))
        own = NamedStream(self.numbers.streams())
        size = None if pieces is None else count_of(ceildiv(extent, pieces), piece_text(extent, pieces))
        assert isinstance(stream.index, Integer)
        slices = _Slices(index, self.numbers, slots, stream.index, size)
        body: list[Instruction] = [GetStream(own.number), SetStream(stream), Synchronize(own)]
        for call in group.calls:
            body += self._slice(call, slices)
        body += [SetStream(own), Synchronize(stream)]
        yield Loop(index, 0, count_of(extent) if pieces is None else pieces, 1, tuple(body))

    @staticmethod
    def _slice(call: SegmentCall, slices: _Slices) -> list[Instruction]:
        axes = call.axes or {}
        inputs = tuple(slices.of(value, axes.get(value)) for value in call.inputs)
        outputs = tuple(slices.of(value, axes[value]) for value in call.outputs)
        selected, slices.selected = slices.selected, []
        return [*selected, _run(call, inputs, outputs)]

    def _slots(self, group: _Group) -> frozenset[int]:
        """The values that nothing outside of the loop reads."""
        outside = {value for other in self.groups if other is not group for value in other.inputs}
        outside.update(self.fusion.outputs)
        return frozenset(value for value in group.outputs if value not in outside)


def _run(call: SegmentCall, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Instruction:
    if call.is_host_op:
        return HostOp(call.label, inputs, outputs[0], call.position)
    return Launch(call.position, inputs, outputs, call.label)


def piece_text(extent: Extent, pieces: int) -> str:
    """How the extent of a piece is written."""
    return str(ceildiv(extent, pieces)) if isinstance(extent, int) else f"ceilDiv({extent}, {pieces})"


def count_of(extent: Extent, text: str | None = None) -> Count:
    """An extent as an integer of the program."""
    if isinstance(extent, int):
        return extent
    reads = tuple(dict.fromkeys(s.id for s in symbols(extent) if s.id is not None))
    compute = compile_expression("v", python_text(extent, lambda s: f"v[{s.id}]"), "extent")
    return Integer(text or str(extent), reads, compute)
