"""A straight program on several streams: independent launches at once, with waits only where values cross.

A launch goes on the stream of a value that it reads and that nothing else has followed there yet, so that chains stay
on one stream; else on the stream that got work the longest ago. Its memory is allocated on that stream. What is
released goes at the end, when the caller's stream has waited for all others.

Knows: programs without loops and streams, which memory names mean. Must not know: devices, what a launch does.
"""

from __future__ import annotations

from segments.instructions import (
    Alias,
    Allocate,
    Copy,
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

_OWN = NamedStream(0)


def spread(program: Program, streams: int) -> Program:
    """Return the verified program on up to `streams` streams; the program itself where one is enough.

    Raises ProgramError, as `Program.verify`, for a program with loops or with streams of its own.
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
    """used: the streams that have work, the one that got some the longest ago first. made: the stream of each value.

    last: what each stream has made last. touched: the streams that have read or written each memory.
    """

    def __init__(self, streams: int) -> None:
        self.streams = streams
        self.used: list[int] = []
        self.made: dict[int, int] = {}
        self.last: dict[int, tuple[int, ...]] = {}
        self.root: dict[int, int] = {}
        self.touched: dict[int, set[int]] = {}
        self.waited: set[tuple[int, int]] = set()
        self.before: list[Instruction] = []
        self.instructions: list[Instruction] = [GetStream(_OWN.number)]
        self.releases: list[Instruction] = []

    def take(self, instruction: Instruction) -> None:
        match instruction:
            case Allocate():
                self.before.append(instruction)
            case Alias(value, original):
                self.before.append(instruction)
                self.root[value] = self.root.get(original, original)
            case Launch() | HostOp():
                self.launch(instruction)
            case Copy(source, target):
                self.join()
                self.instructions.append(instruction)
                self.made.pop(source, None)
                self.made.pop(target, None)
            case Release():
                self.releases.append(instruction)
            case _:
                self.instructions.append(instruction)

    def launch(self, launch: Launch | HostOp) -> None:
        inputs, outputs = inputs_of(launch), outputs_of(launch)
        stream = self.choose(inputs)
        self.instructions.append(SetStream(PoolStream(stream)))
        if stream not in self.used:
            self.instructions.append(Synchronize(_OWN))
        for value in dict.fromkeys(inputs):
            crosses = self.made.get(value, stream) != stream and (stream, value) not in self.waited
            if crosses:
                self.waited.add((stream, value))
                self.instructions.append(Wait(value))
        written = {self.memory(value) for value in outputs}
        others = set().union(*(self.touched.get(memory, set()) for memory in written)) - {stream}
        self.instructions += [Synchronize(PoolStream(other)) for other in sorted(others)]
        self.instructions += [*self.before, launch]
        self.before = []
        self.used = [*(other for other in self.used if other != stream), stream]
        self.last[stream] = outputs
        for value in outputs:
            self.made[value] = stream
        for value in (*inputs, *outputs):
            self.touched.setdefault(self.memory(value), set()).add(stream)

    def choose(self, inputs: tuple[int, ...]) -> int:
        for value in inputs:
            stream = self.made.get(value)
            if stream is not None and value in self.last[stream]:
                return stream
        return len(self.used) if len(self.used) < self.streams else self.used[0]

    def memory(self, value: int) -> int:
        return self.root.get(value, value)

    def join(self) -> None:
        """The caller's stream goes on after all that was started."""
        self.instructions.append(SetStream(_OWN))
        self.instructions += [Synchronize(PoolStream(stream)) for stream in sorted(self.used)]

    def finished(self) -> list[Instruction]:
        self.join()
        return [*self.instructions, *self.before, *self.releases]
