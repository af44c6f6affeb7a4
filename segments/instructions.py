"""The instructions of a host program, as printable data.

Values are identified by their original numbers: tensors and scalars from 0 up, extents of the inputs negative. A loop's
index is a value that its body can read. A stream is either a pool stream, given by an index, or the stream that was
current when `GetStream` numbered it. Specifications and labels are opaque and belong to the planner and the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import TypeAlias

from segments.graph import SegmentsError
from segments.lazy_dataclasses import dataclass


class ProgramError(SegmentsError, RuntimeError):
    """A host program that violates a rule of `Program.verify`, or arguments that do not match its inputs."""


def name_of(value: int) -> str:
    """Return the printed name of a value: t3 for value 3, e1 for extent -1."""
    return f"t{value}" if value >= 0 else f"e{-value}"


def names_of(values: Iterable[int]) -> str:
    """Return the printed names of values, separated by commas."""
    return ", ".join(map(name_of, values))


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer computed when the program runs.

    `compute` gets the live values by number and reads only those in `reads`; `text` is the printed form. `value` is set
    if the integer is exactly that value; `remainder` is (value, divisor) if it is that value modulo the divisor.
    """

    text: str
    reads: tuple[int, ...]
    compute: Callable[[Mapping[int, object]], int] = field(compare=False, repr=False)
    value: int | None = None
    remainder: tuple[int, int] | None = None

    def __str__(self) -> str:
        return self.text


Count: TypeAlias = int | Integer
"""A constant, or an integer computed when the program runs."""


def integer_of(value: int, text: str | None = None) -> Integer:
    """Return a value as an Integer: an extent, a scalar or a loop index."""
    return Integer(text or name_of(value), (value,), lambda values: values[value], value)  # type: ignore[arg-type, return-value]


def remainder_of(value: int, divisor: int) -> Integer:
    """Return a value modulo a constant divisor, as an Integer."""
    return Integer(
        f"{name_of(value)} % {divisor}", (value,), lambda values: values[value] % divisor,  # type: ignore[operator]
        remainder=(value, divisor),
    )  # fmt: skip


def reads_of_count(count: Count) -> tuple[int, ...]:
    """Return the values that an integer reads."""
    return count.reads if isinstance(count, Integer) else ()


@dataclass(frozen=True, slots=True)
class PoolStream:
    """Stream `index` of the device's pool, reserved for this program during a run."""

    index: Count

    def __str__(self) -> str:
        return f"stream ({self.index})"


@dataclass(frozen=True, slots=True)
class NamedStream:
    """The stream to which `GetStream` gave this number."""

    number: int

    def __str__(self) -> str:
        return f"s{self.number}"


Stream: TypeAlias = PoolStream | NamedStream


@dataclass(frozen=True, slots=True)
class AllocateBuffer:
    """Allocate a buffer for `value`. `spec` is opaque: the planner writes it and the device reads it."""

    value: int
    spec: object = None

    def __str__(self) -> str:
        return f"{name_of(self.value)} = allocate({'' if self.spec is None else self.spec})"


@dataclass(frozen=True, slots=True)
class Launch:
    """Run segment `step` on `inputs`. It fills the outputs that are allocated and returns the others."""

    step: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    label: object = None

    def __str__(self) -> str:
        name = f"segment_{self.step}" if self.label is None else self.label
        outputs = f" -> {names_of(self.outputs)}" if self.outputs else ""
        return f"launch {name}({names_of(self.inputs)}){outputs}"


@dataclass(frozen=True, slots=True)
class HostOp:
    """Run an array library operation instead of a compiled kernel, into `output` if allocated or into a new buffer.

    `step` is the segment that the operation implements, if any.
    """

    label: object
    inputs: tuple[int, ...]
    output: int
    step: int | None = None

    def __str__(self) -> str:
        return f"{name_of(self.output)} = {self.label}({names_of(self.inputs)})"


@dataclass(frozen=True, slots=True)
class Communicate:
    """Start the exchange `label` with other ranks: it reads `sources` and writes `targets` until its WaitRequest.

    `request` numbers the exchange. A target without memory gets a new buffer at the wait. `step` is the segment that
    the exchange implements, if any.
    """

    request: int
    label: object
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    step: int | None = None

    def __str__(self) -> str:
        targets = f" -> {names_of(self.targets)}" if self.targets else ""
        return f"r{self.request} = communicate {self.label}({names_of(self.sources)}){targets}"


@dataclass(frozen=True, slots=True)
class WaitRequest:
    """Wait until exchange `request` is complete: its targets are defined, and its sources may change again."""

    request: int

    def __str__(self) -> str:
        return f"wait for r{self.request}"


@dataclass(frozen=True, slots=True)
class StartCoalescing:
    """Begin a group of exchanges, which the device starts together."""

    def __str__(self) -> str:
        return "start coalescing"


@dataclass(frozen=True, slots=True)
class EndCoalescing:
    """End a group of exchanges."""

    def __str__(self) -> str:
        return "end coalescing"


@dataclass(frozen=True, slots=True)
class Release:
    """Release `value`, which no later instruction reads."""

    value: int

    def __str__(self) -> str:
        return f"release {name_of(self.value)}"


@dataclass(frozen=True, slots=True)
class Alias:
    """Make `value` another name of the memory of `original`, which is allocated or live and may itself be an alias."""

    value: int
    original: int

    def __str__(self) -> str:
        return f"{name_of(self.value)} = alias({name_of(self.original)})"


@dataclass(frozen=True, slots=True)
class Select:
    """Make `value` a view of `original` at `index` along `axis`; writing to it writes that part of `original`.

    Without `size` the view drops the axis. Otherwise it covers elements index * size up to (index + 1) * size,
    clipped to the extent of the axis.
    """

    value: int
    original: int
    axis: int
    index: Count
    size: Count | None = None

    def __str__(self) -> str:
        size = "" if self.size is None else f", size {self.size}"
        return f"{name_of(self.value)} = select({name_of(self.original)}, axis {self.axis}, index {self.index}{size})"


@dataclass(frozen=True, slots=True)
class CopyBuffer:
    """Copy the content of `source` into the memory of `target`."""

    source: int
    target: int

    def __str__(self) -> str:
        return f"copy {name_of(self.source)} -> {name_of(self.target)}"


@dataclass(frozen=True, slots=True)
class GetStream:
    """Give the current stream a number."""

    number: int

    def __str__(self) -> str:
        return f"s{self.number} = current stream"


@dataclass(frozen=True, slots=True)
class SetStream:
    """Make a stream the current one; later instructions run on it."""

    stream: Stream

    def __str__(self) -> str:
        return f"set stream {self.stream}"


@dataclass(frozen=True, slots=True)
class Synchronize:
    """Make later work on the current stream wait for all work submitted to `stream`; the host does not block.

    The wait covers work only: waits that `stream` has not yet followed with work are not passed on.
    """

    stream: Stream

    def __str__(self) -> str:
        return f"synchronize {self.stream}"


@dataclass(frozen=True, slots=True)
class Wait:
    """Make later work on the current stream wait until `value` is defined, on whatever stream that happens."""

    value: int

    def __str__(self) -> str:
        return f"wait for {name_of(self.value)}"


@dataclass(frozen=True, slots=True)
class HostLoop:
    """Run `body` with the value `index` = start, start + step, ... up to but excluding stop.

    The index and the values that the body defines go out of scope at the end of each iteration.
    """

    index: int
    start: Count
    stop: Count
    step: Count
    body: tuple[Instruction, ...]

    def __str__(self) -> str:
        head = f"for {name_of(self.index)} in range({self.start}, {self.stop}, {self.step}):"
        return "\n".join([head, *indent_lines(self.body)])


Instruction: TypeAlias = (
    AllocateBuffer
    | Alias
    | Select
    | Launch
    | HostOp
    | Communicate
    | WaitRequest
    | StartCoalescing
    | EndCoalescing
    | CopyBuffer
    | Release
    | HostLoop
    | GetStream
    | SetStream
    | Wait
    | Synchronize
)


def indent_lines(instructions: Iterable[Instruction]) -> list[str]:
    """Return the printed lines of instructions, indented by two spaces."""
    return [f"  {line}" for instruction in instructions for line in str(instruction).split("\n")]


def inputs_of(instruction: Instruction) -> tuple[int, ...]:
    """Return the values whose content an instruction reads, excluding a loop's body."""
    match instruction:
        case Launch(_, inputs, _) | HostOp(_, inputs, _):
            return inputs
        case Communicate(_, _, sources):
            return sources
        case CopyBuffer(source, _):
            return (source,)
        case Select(_, _, _, index, size):
            return (*reads_of_count(index), *(() if size is None else reads_of_count(size)))
        case HostLoop(_, start, stop, step):
            return (*reads_of_count(start), *reads_of_count(stop), *reads_of_count(step))
        case SetStream(PoolStream(index)) | Synchronize(PoolStream(index)):
            return reads_of_count(index)
    return ()


def outputs_of(instruction: Instruction) -> tuple[int, ...]:
    """Return the values that an instruction returns or fills, excluding a loop's body."""
    match instruction:
        case Launch(_, _, outputs):
            return outputs
        case HostOp(_, _, output):
            return (output,)
        case Communicate(_, _, _, targets):
            return targets
    return ()


def in_order(instructions: Iterable[Instruction]) -> list[Instruction]:
    """Return all instructions in program order, each loop followed by those of its body."""
    flat: list[Instruction] = []
    for instruction in instructions:
        flat.append(instruction)
        if isinstance(instruction, HostLoop):
            flat += in_order(instruction.body)
    return flat
