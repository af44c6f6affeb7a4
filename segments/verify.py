"""The verifier of host programs: reports a wrong release or a missing wait before any device is involved.

`Program.verify` documents the rules. The verifier steps through the instructions once, and through each loop body
twice, and tracks the state of every value. It does not derive lifetimes; `liveness.py` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from segments.exchange_order import ExchangeOrder, Memory
from segments.instructions import (
    Alias,
    AllocateBuffer,
    Communicate,
    CopyBuffer,
    EndCoalescing,
    GetStream,
    HostLoop,
    HostOp,
    Instruction,
    Launch,
    ProgramError,
    Release,
    Select,
    SetStream,
    StartCoalescing,
    Synchronize,
    Wait,
    WaitRequest,
    inputs_of,
    name_of,
    names_of,
    outputs_of,
)
from segments.stream_order import CALLER, StreamOrder, StreamPart, part_of


def verify(inputs: Sequence[int], outputs: Sequence[int], instructions: Sequence[Instruction]) -> None:
    """Raise ProgramError at the first violation of a rule of `Program.verify`, naming the instruction."""
    check = _Check(inputs, outputs)
    for position, instruction in enumerate(instructions):
        check.step(str(position), instruction)
    check.end()


class _Check:
    """The state of each value at the current instruction: allocated, live, released or undefined.

    root: the value that owns the memory behind a name, resolved through all aliases and slices.
    slices: for each slice, the value it was taken from and the part of the memory it covers.
    filling: values whose slices the enclosing loops are filling.
    written: for memory with several names, or of an input, the name it was written through and the instruction number.
    """

    def __init__(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.allocated: set[int] = set()
        self.live: set[int] = set(inputs)
        self.released: dict[int, str] = {}
        self.root: dict[int, int] = {}
        self.slices: dict[int, tuple[int, StreamPart]] = {}
        self.filling: set[int] = set()
        self.written: dict[int, tuple[int, str]] = {}
        self.copied: set[int] = set()
        self.loops: dict[int, int] = {}
        self.locals: list[set[int]] = []
        self.order = StreamOrder()
        self.exchanges = ExchangeOrder()
        self.number = self.place = ""
        if len(self.live) != len(self.inputs):
            raise ProgramError(f"an input is listed twice: {names_of(self.inputs)}")
        self.order.work()
        for value in self.inputs:
            self.order.access(value, None, True, "the caller", "")

    def at(self, number: str, instruction: Instruction) -> None:
        first = str(instruction).partition("\n")[0]
        self.number, self.place = number, f"instruction {number}, `{first}`"

    def read_inputs(self, instruction: Instruction) -> None:
        for value in inputs_of(instruction):
            self.read(value)
        if isinstance(instruction, Launch | HostOp | CopyBuffer | HostLoop):
            self.exchanges.work(self.place)
        if isinstance(instruction, Launch | HostOp | Communicate | CopyBuffer):
            self.order.work()
            self.touch(inputs_of(instruction), writes=False)

    def step(self, number: str, instruction: Instruction) -> None:
        self.at(number, instruction)
        self.read_inputs(instruction)
        match instruction:
            case AllocateBuffer(value):
                self.new(value, "allocates")
                self.allocated.add(value)
                self.order.work()
                self.touch((value,), writes=True)
            case Alias(value, original):
                self.alias(value, original)
            case Select():
                self.select(instruction)
            case Launch() | HostOp():
                self.define(outputs_of(instruction))
            case Communicate(_, _, sources, targets):
                reads, writes = (tuple(map(self.part_of_memory, values)) for values in (sources, targets))
                self.touch([value for value in targets if value in self.allocated], writes=True)
                self.exchanges.start(instruction, reads, writes, self.place, len(self.locals))
            case WaitRequest(request):
                finished = self.exchanges.finish(request, self.place)
                self.order.work()
                self.touch(finished.sources, writes=False)
                self.define(finished.targets)
            case StartCoalescing():
                self.exchanges.open_group(self.place)
            case EndCoalescing():
                self.exchanges.close_group(self.place)
            case CopyBuffer(_, target):
                self.copy(target)
                self.touch((target,), writes=True)
            case Release(value):
                self.release(value)
            case HostLoop():
                self.loop(number, instruction)
            case GetStream() | SetStream() | Synchronize() | Wait():
                self.stream(instruction)

    def define(self, outputs: Sequence[int]) -> None:
        for value in outputs:
            self.fill(value)
        self.touch(outputs, writes=True)

    def part_of_memory(self, value: int) -> Memory:
        return self.memory(value), self.slices[value][1] if value in self.slices else None

    # -- values -------------------------------------------------------------------------------------------------------

    def new(self, value: int, verb: str) -> None:
        if value < 0:
            raise ProgramError(f"{self.place}: {verb} {name_of(value)}, an extent of the inputs")
        if value in self.allocated:
            raise ProgramError(f"{self.place}: {name_of(value)} is already allocated")
        if value in self.live:
            raise ProgramError(f"{self.place}: {verb} {name_of(value)}, which is already defined")
        if value in self.released:
            raise ProgramError(f"{self.place}: {verb} {name_of(value)} again, {self.release_of(value)}")
        if self.locals:
            self.locals[-1].add(value)

    def alias(self, value: int, original: int) -> None:
        if value in self.inputs:
            raise ProgramError(f"{self.place}: Inputs cannot be aliased")
        self.another_name(value, original, "aliases")

    def another_name(self, value: int, original: int, verb: str) -> None:
        self.new(value, verb)
        if original < 0:
            raise ProgramError(f"{self.place}: extents have no memory")
        if original in self.allocated:
            self.allocated.add(value)
        else:
            self.read(original)
            self.live.add(value)
        self.root[value] = self.memory(original)

    def select(self, select: Select) -> None:
        value, original = select.value, select.original
        if value in self.inputs:
            raise ProgramError(f"{self.place}: {name_of(value)} is an input and cannot be redefined as a slice")
        filling = original in self.filling
        if filling:  # the loop fills `original` slice by slice, so a new slice of it is writable
            self.new(value, "selects")
            self.allocated.add(value)
            self.root[value] = self.memory(original)
        else:
            self.another_name(value, original, "selects")
        outer = self.slices.get(original)
        part = part_of(select.axis, select.index, self.loops)
        self.slices[value] = (original, part if outer is None else outer[1])

    def memory(self, value: int) -> int:
        return self.root.get(value, value)

    def fill(self, value: int) -> None:
        """Define an output of a launch: in allocated memory, in the memory of an alias or slice, or in a new buffer."""
        if value in self.slices:
            self.fill_slice(value)
        elif value in self.root:
            if value not in self.allocated and value not in self.live:
                self.new(value, "produces")
            self.write(value)
        elif value not in self.allocated:
            self.new(value, "produces")
        self.allocated.discard(value)
        self.live.add(value)

    def fill_slice(self, value: int) -> None:
        if value not in self.allocated and value not in self.live:
            self.new(value, "produces")
        buffer = self.slices[value][0]
        while buffer in self.allocated:
            self.allocated.discard(buffer)
            (self.filling if self.locals else self.live).add(buffer)
            if buffer not in self.slices:
                break
            buffer = self.slices[buffer][0]
        if self.memory(value) in self.inputs:
            self.write(value)

    def copy(self, target: int) -> None:
        if target not in self.live and target not in self.allocated:
            self.read(target)
        if target < 0:
            raise ProgramError(f"{self.place}: writes {name_of(target)}, an extent of the inputs")
        if target in self.slices:
            self.fill_slice(target)
        else:
            self.write(target)
            self.copied.add(target)
        self.allocated.discard(target)
        self.live.add(target)

    def write(self, value: int) -> None:
        before = self.written.get(self.memory(value))
        if before is not None:
            raise ProgramError(
                f"{self.place}: writes the memory of {name_of(self.memory(value))} through {name_of(value)}, which "
                f"instruction {before[1]} wrote through {name_of(before[0])}"
            )
        self.written[self.memory(value)] = value, self.number

    def read(self, value: int) -> None:
        if value in self.live:
            self.read_written(value)
            return
        if value in self.released:
            raise ProgramError(f"{self.place}: reads {name_of(value)} after its release, {self.release_of(value)}")
        if value in self.allocated:
            raise ProgramError(
                f"{self.place}: reads {name_of(value)}, which is allocated but not yet filled by any launch"
            )
        if value in self.filling:
            raise ProgramError(f"{self.place}: reads {name_of(value)}, which the loop is still filling slice by slice")
        raise ProgramError(f"{self.place}: reads {name_of(value)} before its definition")

    def read_written(self, value: int) -> None:
        """Raise ProgramError for a read of memory that has since been written through another name."""
        before = self.written.get(self.memory(value))
        if before is not None and (before[0] != value or value in self.copied):
            raise ProgramError(
                f"{self.place}: reads {name_of(value)}, whose memory instruction {before[1]} has overwritten"
            )

    def release(self, value: int) -> None:
        if value < 0:
            raise ProgramError(f"{self.place}: extents are integers and are never released")
        if value in self.released:
            raise ProgramError(f"{self.place}: {name_of(value)} is released twice, {self.release_of(value)}")
        if value not in self.live and value not in self.allocated:
            raise ProgramError(f"{self.place}: releases {name_of(value)} before its definition")
        if value in self.outputs:
            raise ProgramError(f"{self.place}: releases {name_of(value)}, an output of the program")
        if self.locals and value not in self.locals[-1]:
            raise ProgramError(f"{self.place}: a loop releases {name_of(value)}, which is defined outside its body")
        self.order.work()
        if value not in self.slices:
            self.touch((value,), writes=True, verb="releases")
        self.live.discard(value)
        self.allocated.discard(value)
        self.released[value] = self.number

    def release_of(self, value: int) -> str:
        return f"released at instruction {self.released[value]}"

    # -- loops and streams --------------------------------------------------------------------------------------------

    def loop(self, number: str, loop: HostLoop) -> None:
        """Check the body as two iterations: the second sees the values and the waits that the first leaves behind."""
        self.new(loop.index, "iterates over")
        before = set(self.filling)
        for iteration in (0, 1):
            self.loops[loop.index] = iteration
            self.live.add(loop.index)
            self.locals.append(set())
            for position, instruction in enumerate(loop.body):
                self.step(f"{number}.{position}", instruction)
            self.exchanges.end(len(self.locals))
            self.forget(self.locals.pop() | {loop.index})
        del self.loops[loop.index]
        for value in self.filling - before:
            if not self.locals or value in self.locals[-1]:  # otherwise an enclosing loop keeps filling it
                self.filling.discard(value)
                self.live.add(value)
        self.at(number, loop)

    def forget(self, values: Iterable[int]) -> None:
        """Drop the values that an iteration defined: they go out of scope when it ends."""
        for value in values:
            if value in self.outputs:
                raise ProgramError(
                    f"{self.place}: output {name_of(value)} goes out of scope with the iteration that defines it"
                )
            for state in (self.live, self.allocated, self.filling):
                state.discard(value)
            for table in (self.released, self.root, self.slices):
                table.pop(value, None)
            self.order.forget(value)

    def stream(self, instruction: GetStream | SetStream | Synchronize | Wait) -> None:
        match instruction:
            case GetStream(number):
                self.order.name(number)
            case SetStream(stream):
                self.order.current = self.order.key(stream, self.loops, self.place)
            case Synchronize(stream):
                self.order.synchronize(self.order.key(stream, self.loops, self.place))
            case Wait(value):
                self.read(value)
                self.order.wait(value)

    def touch(self, values: Iterable[int], writes: bool, verb: str = "") -> None:
        for value in dict.fromkeys(values):
            if value < 0 or value in self.loops:
                continue
            part = self.slices[value][1] if value in self.slices else None
            verb = verb or ("writes" if writes else "reads")
            self.order.access(self.memory(value), part, writes, self.place, f"{verb} {name_of(value)}")
            self.exchanges.access(value, self.part_of_memory(value), writes, self.place, verb)
            if writes:
                self.order.define(value)

    def end(self) -> None:
        self.exchanges.end()
        for value in self.outputs:
            if value not in self.live:
                raise ProgramError(f"output {name_of(value)} is defined by no instruction and is not an input")
            before = self.written.get(self.memory(value))
            if before is not None and before[0] != value:
                raise ProgramError(
                    f"output {name_of(value)} lies in memory that instruction {before[1]} has overwritten"
                )
        left = sorted(value for value in self.live | self.allocated if value >= 0 and value not in self.outputs)
        if left:
            raise ProgramError(f"never released: {names_of(left)}; release each value after its last use")
        if self.order.current != CALLER:
            raise ProgramError("the program does not end on the caller's stream")
        self.place = "the end"
        self.order.work()
        self.touch(self.outputs, writes=False)
