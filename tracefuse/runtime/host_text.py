"""Prints a host program in the style of nvFuser's host IR.

Tensors are T and scalars are S, with their numbers in the fusion. Slices have the numbers after those. Axes are
numbered in order: iS is an axis, bS an axis of extent 1, iStreamIdx a stream-parallel axis. The text leaves out
releases; `str` of the program itself shows them.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from segments import (
    Alias,
    AllocateBuffer,
    Communicate,
    CopyBuffer,
    Count,
    EndCoalescing,
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
    StartCoalescing,
    Synchronize,
    Wait,
    WaitRequest,
)
from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion, Literal, Op
from tracefuse.partition.stream_marks import stream_of
from tracefuse.runtime.compiled_segment import CompiledSegment
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.streams.stream_program import SlotAllocation, chunk_text

_TYPES = {
    "float64": "double", "float32": "float", "float16": "__half", "bfloat16": "__bfloat", "int64": "int64_t",
    "int32": "int", "complex64": "std::complex<float>", "complex128": "std::complex<double>",
}  # fmt: skip

STREAMS = "numberOfStreams"


@dataclass(frozen=True, eq=False)
class HostProgram:
    """The host program of a call. `str` prints it. program: all instructions, including releases."""

    fusion: Fusion
    program: Program

    @classmethod
    def of(cls, plan: Plan) -> HostProgram:
        """Returns the program of a plan."""
        return cls(plan.segmentation.fusion, plan.program)

    def verify(self) -> None:
        """Verifies the program, as `segments.Program.verify` does."""
        self.program.verify()

    @cached_property
    def _text(self) -> str:
        return host_text(self.fusion, self.program)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def host_text(fusion: Fusion, program: Program) -> str:
    """Prints a program, one instruction per line."""
    return "\n".join(_Text(fusion, program).lines())


@dataclass(frozen=True, slots=True)
class _Named:
    """The printed form of a value. head: its name and type. axes: one text for each axis. name: the complete form."""

    head: str
    axes: tuple[str, ...]
    extents: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.head}[{', '.join(self.axes)}]"


class _Text:
    def __init__(self, fusion: Fusion, program: Program) -> None:
        self.fusion, self.program = fusion, program
        self.next_axis = 0
        self.names: dict[int, _Named] = {}
        self.tensors: dict[int, DType] = {}
        tensors = [n for n in sorted(fusion.values) if fusion.values[n].is_tensor]
        for number in tensors:
            value = fusion.values[number]
            stream = stream_of(fusion, number)
            extents: list[tuple[str, Extent | str]] = []
            for axis, extent in enumerate(fusion.shape_of(number)):
                if stream is None or stream.axis != axis:
                    extents.append(("bS" if extent == 1 else "iS", extent))
                elif stream.chunks is None:
                    extents.append(("iStreamIdx", extent))
                else:
                    extents += [("iStreamIdx", stream.chunks), ("iS", chunk_text(extent, stream.chunks))]
            self.names[number] = self._named(number, "g", value.dtype, extents)
            self.tensors[number] = value.dtype
        known = (*fusion.values, *(n for n in program.inputs if n >= 0))
        self.next_tensor = max(known, default=-1) + 1

    def _named(self, number: int, memory: str, dtype: DType, extents: Sequence[tuple[str, Extent | str]]) -> _Named:
        axes = []
        for kind, extent in extents:
            axes.append(f"{kind}{self.next_axis}{{{extent}}}")
            self.next_axis += 1
        head = f"T{number}_{memory}_{_TYPES.get(dtype.name, dtype.name)}"
        return _Named(head, tuple(axes), tuple(str(e) for _, e in extents))

    def name(self, number: int) -> str:
        if number in self.names:
            return self.names[number].name
        if number < 0:
            return f"i{-number - 1}"
        return f"S{number}" if number in self.fusion.values else f"T{number}"

    def lines(self) -> Iterator[str]:
        inputs = ", ".join(self.name(n) for n in self.program.inputs if n >= 0)
        outputs = ", ".join(map(self.name, self.program.outputs))
        yield f"%HostIrContainer {{ ({inputs}) -> ({outputs}) :"
        for instruction in self.program.instructions:
            yield from (f"  {line}" for line in self._lines(instruction, None))
        yield "} // %HostIrContainer"

    def _lines(self, instruction: Instruction, loop: HostLoop | None) -> Iterator[str]:
        match instruction:
            case AllocateBuffer(value, spec):
                yield self._allocate(value, spec)
            case Alias(value, original):
                yield f"{self.name(value)} = HirAlias( {self.name(original)} )"
            case Select():
                yield self._select(instruction, loop)
            case Launch() | HostOp():
                yield self._run(instruction)
            case Communicate(request, label, sources, targets):
                names = (", ".join(map(self.name, values)) for values in (sources, targets))
                yield f"Communication {request} ( {label} ), input: {next(names)}, output: {next(names)}"
            case WaitRequest(request):
                yield f"Wait Communication {request}"
            case StartCoalescing():
                yield "StartCoalescing"
            case EndCoalescing():
                yield "EndCoalescing"
            case CopyBuffer(source, target):
                yield f"{self.name(target)} = Copy( {self.name(source)} )"
            case HostLoop():
                yield from self._loop(instruction)
            case GetStream(number):
                yield f"GetCurrentStream into Stream {number}"
            case SetStream(stream):
                yield f"SetCurrentStream to {self._stream(stream, loop)}"
            case Synchronize(stream):
                yield f"Synchronize {self._stream(stream, loop)}"
            case Wait(value):
                yield f"Wait for {self.name(value)}"
            case Release():
                pass

    def _allocate(self, value: int, spec: object) -> str:
        extents = list(self.names[value].extents)
        stream = stream_of(self.fusion, value) if value in self.fusion.values else None
        if stream is not None and stream.chunks is not None:
            extents = list(map(str, self.fusion.shape_of(value)))
        if isinstance(spec, SlotAllocation):
            extents[spec.axis] = f"min({STREAMS}, {extents[spec.axis]})"
        name = self.name(value)
        size = _product(extents)
        return f"{name} = ALLOCATE(buffer={name}, mem_type=global, size={size}, zero_init=false, resets_to_zero=false)"

    def _select(self, select: Select, loop: HostLoop | None) -> str:
        original = self.names[select.original]
        selected = select.axis
        dtype = self.tensors[select.original]
        remaining: list[tuple[str, Extent | str]] = []
        for axis, (text, extent) in enumerate(zip(original.axes, original.extents, strict=True)):
            if axis != selected:
                remaining.append(("bS" if text.startswith("bS") else "iS", extent))
            elif select.size is not None and not text.startswith("iStreamIdx"):
                remaining.append(("iS", self._count(select.size, loop)))
        self.names[select.value] = self._named(self.next_tensor, "l", dtype, remaining)
        self.tensors[select.value] = dtype
        self.next_tensor += 1
        size = "" if select.size is None else f", size = {self._count(select.size, loop)}"
        index = self._count(select.index, loop)
        return (
            f"{self.name(select.value)} = HirAliasSelect( {original.name}, axis = {original.axes[selected]}, "
            f"index = {index}{size} )"
        )

    def _run(self, instruction: Launch | HostOp) -> str:
        arguments = ", ".join(map(self.name, instruction.inputs))
        if isinstance(instruction, HostOp):
            host_call: Any = instruction.label
            return f"{self.name(instruction.output)} = {_call(host_call.op, arguments)}"
        outputs = ", ".join(map(self.name, instruction.outputs))
        label = instruction.label
        nodes = label.part.fusion.nodes if isinstance(label, CompiledSegment) else ()
        if isinstance(label, CompiledSegment) and len(nodes) == 1:
            call = _call(nodes[0].op, self._operands(label, instruction.inputs))
        else:
            call = f"LaunchKernel( {label}{', ' if arguments else ''}{arguments} )"
        return f"{outputs} = {call}" if outputs else call

    def _operands(self, segment: CompiledSegment, inputs: Sequence[int]) -> str:
        """Prints the operands of a segment that has one op."""
        (node,) = segment.part.fusion.nodes
        names = dict(zip(segment.inputs, inputs, strict=True))
        index_map = segment.part.segment.index_map
        texts = (repr(o.value) if isinstance(o, Literal) else self.name(names[index_map[o]]) for o in node.operands)
        return ", ".join(texts)

    def _loop(self, loop: HostLoop) -> Iterator[str]:
        selects = (i for i in loop.body if isinstance(i, Select) and i.original in self.names)
        streamed = [i for i in selects if any(a.startswith("iStreamIdx") for a in self.names[i.original].axes)]
        if any(isinstance(i, GetStream) for i in loop.body) and streamed:
            names = self.names[streamed[0].original].axes
            yield f"FOR StreamIdx in {next(a for a in names if a.startswith('iStreamIdx'))}:"
        else:
            bounds = ", ".join(self._count(count, None) for count in (loop.start, loop.stop, loop.step))
            yield f"FOR S{loop.index} in range( {bounds} ):"
        for instruction in loop.body:
            yield from (f"  {line}" for line in self._lines(instruction, loop))

    def _stream(self, stream: PoolStream | NamedStream, loop: HostLoop | None) -> str:
        if isinstance(stream, NamedStream):
            return f"Stream {stream.number}"
        return f"Stream {self._count(stream.index, loop)}"

    def _count(self, count: Count, loop: HostLoop | None) -> str:
        if not isinstance(count, Integer) or loop is None or loop.index not in count.reads:
            return str(count)
        return "StreamIdx" if count.value == loop.index else f"( StreamIdx % {STREAMS} )"


def _call(op: Op, arguments: str) -> str:
    title = "".join(word.capitalize() for word in op.name.split("_"))
    cache_hint = ", cache_op=Streaming" if op.is_copy else ""
    return f"{title}( {arguments}{cache_hint} )"


def _product(extents: Sequence[str]) -> str:
    """Prints a product as nested binary products."""
    text = extents[0] if extents else "1"
    for extent in extents[1:]:
        text = f"( {text} * {extent} )"
    return text
