"""Assignment of a straight-line program to several streams: independent launches overlap, with waits between streams.

A launch goes to the stream that last produced one of its inputs, so chains stay on one stream; otherwise to the least
recently used stream. Its outputs are allocated on that stream. All releases move to the end, after the caller's stream
has waited for the others.
"""

from __future__ import annotations

from segments.instructions import (
    Alias,
    AllocateBuffer,
    CopyBuffer,
    GetStream,
    HostOp,
    Instruction,
    Launch,
    NamedStream,
    PoolStream,
    Release,
    SetStream,
    Synchronize,
    Wait,
    inputs_of,
    outputs_of,
)
from segments.program import Program

_CALLERS = NamedStream(0)


def spread(program: Program, streams: int) -> Program:
    """Return the verified program on up to `streams` streams, or `program` itself if one stream suffices.

    Raises ProgramError, like `Program.verify`, for a program that has loops or already uses streams.
    """
    spreading = _Spreading(streams)
    for instruction in program.instructions:
        spreading.take(instruction)
    if len(spreading.used) < 2:
        return program
    spread_out = Program(program.inputs, program.outputs, spreading.finished())
    spread_out.verify()
    return spread_out


class _Spreading:
    """The streams' state while launches are assigned to them.

    used: the streams with work, least recently used first. stream_of: the stream that produced each value.
    last: the outputs of each stream's last launch. touched: the streams that have accessed each buffer.
    """

    def __init__(self, streams: int) -> None:
        self.streams = streams
        self.used: list[int] = []
        self.stream_of: dict[int, int] = {}
        self.last: dict[int, tuple[int, ...]] = {}
        self.root: dict[int, int] = {}
        self.touched: dict[int, set[int]] = {}
        self.waited: set[tuple[int, int]] = set()
        self.before: list[Instruction] = []
        self.instructions: list[Instruction] = [GetStream(_CALLERS.number)]
        self.releases: list[Instruction] = []

    def take(self, instruction: Instruction) -> None:
        match instruction:
            case AllocateBuffer():
                self.before.append(instruction)
            case Alias(value, original):
                self.before.append(instruction)
                self.root[value] = self.root.get(original, original)
            case Launch() | HostOp():
                self.launch(instruction)
            case CopyBuffer(source, target):
                self.join()
                self.instructions.append(instruction)
                self.stream_of.pop(source, None)
                self.stream_of.pop(target, None)
            case Release():
                self.releases.append(instruction)
            case _:
                self.instructions.append(instruction)

    def launch(self, launch: Launch | HostOp) -> None:
        inputs, outputs = inputs_of(launch), outputs_of(launch)
        stream = self.choose(inputs)
        self.instructions.append(SetStream(PoolStream(stream)))
        if stream not in self.used:
            self.instructions.append(Synchronize(_CALLERS))
        for value in dict.fromkeys(inputs):
            crosses = self.stream_of.get(value, stream) != stream and (stream, value) not in self.waited
            if crosses:
                self.waited.add((stream, value))
                self.instructions.append(Wait(value))
        written = {self.memory(value) for value in outputs}
        producers = set().union(*(self.touched.get(memory, set()) for memory in written)) - {stream}
        self.instructions += [Synchronize(PoolStream(other)) for other in sorted(producers)]
        self.instructions += [*self.before, launch]
        self.before = []
        self.used = [*(other for other in self.used if other != stream), stream]
        self.last[stream] = outputs
        for value in outputs:
            self.stream_of[value] = stream
        for value in (*inputs, *outputs):
            self.touched.setdefault(self.memory(value), set()).add(stream)

    def choose(self, inputs: tuple[int, ...]) -> int:
        for value in inputs:
            stream = self.stream_of.get(value)
            if stream is not None and value in self.last[stream]:
                return stream
        return len(self.used) if len(self.used) < self.streams else self.used[0]

    def memory(self, value: int) -> int:
        return self.root.get(value, value)

    def join(self) -> None:
        """Return to the caller's stream and make it wait for all others."""
        self.instructions.append(SetStream(_CALLERS))
        self.instructions += [Synchronize(PoolStream(stream)) for stream in sorted(self.used)]

    def finished(self) -> list[Instruction]:
        self.join()
        return [*self.instructions, *self.before, *self.releases]
