"""The instructions of a host program: what happens between launches, as data that prints.

Values go by their original numbers: tensors and scalars from 0 up, extents of the inputs negative. The index of a loop
is a value too, which its body can read. Streams are of two kinds: those of a pool, by an index, and the one that was
current when `GetStream` named it.

Knows: what an instruction reads and writes. Must not know: their order, what a specification or a label means, devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from segments.graph import SegmentsError


class ProgramError(SegmentsError, RuntimeError):
    """A host program that would read, write or free what it must not; or arguments that do not fit it."""


def name_of(value: int) -> str:
    """Return how a value is written: t3 for value 3, e1 for extent -1."""
    return f"t{value}" if value >= 0 else f"e{-value}"


def names_of(values: Iterable[int]) -> str:
    """Return the names of values, with commas between."""
    return ", ".join(map(name_of, values))


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer that is known when the program runs.

    `compute` gets the live values by number and looks at those that are in `reads`; `text` is how it is written.
    `value` is the number of the value that it is, where it is one as it stands; `remainder` is (number of a value,
    divisor), where it is what is left of dividing that value.
    """

    text: str
    reads: tuple[int, ...]
    compute: Callable[[Mapping[int, object]], int] = field(compare=False, repr=False)
    value: int | None = None
    remainder: tuple[int, int] | None = None

    def __str__(self) -> str:
        return self.text


Count: TypeAlias = int | Integer
"""A constant, or an integer that is known when the program runs."""


def integer_of(value: int, text: str | None = None) -> Integer:
    """Return the integer that a value is: an extent, a scalar, the index of a loop."""
    return Integer(text or name_of(value), (value,), lambda values: values[value], value)  # type: ignore[arg-type, return-value]


def remainder_of(value: int, divisor: int) -> Integer:
    """Return the integer that is left of dividing a value by a constant."""
    return Integer(
        f"{name_of(value)} % {divisor}", (value,), lambda values: values[value] % divisor,  # type: ignore[operator]
        remainder=(value, divisor),
    )  # fmt: skip


def reads_of_count(count: Count) -> tuple[int, ...]:
    """Return the values that an integer depends on."""
    return count.reads if isinstance(count, Integer) else ()


@dataclass(frozen=True, slots=True)
class PoolStream:
    """Stream number `index` of the device's pool, which is for this program's use."""

    index: Count

    def __str__(self) -> str:
        return f"stream ({self.index})"


@dataclass(frozen=True, slots=True)
class NamedStream:
    """The stream that `GetStream` has given this number."""

    number: int

    def __str__(self) -> str:
        return f"s{self.number}"


Stream: TypeAlias = PoolStream | NamedStream


@dataclass(frozen=True, slots=True)
class Allocate:
    """Make room for `value`; what `spec` says is between the one who planned and the device."""

    value: int
    spec: object = None

    def __str__(self) -> str:
        return f"{name_of(self.value)} = allocate({'' if self.spec is None else self.spec})"


@dataclass(frozen=True, slots=True)
class Launch:
    """Run segment number `step`: read `inputs`, and fill `outputs` where they are allocated, or else make them."""

    step: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    label: object = None

    def __str__(self) -> str:
        name = f"segment_{self.step}" if self.label is None else self.label
        made = f" -> {names_of(self.outputs)}" if self.outputs else ""
        return f"launch {name}({names_of(self.inputs)}){made}"


@dataclass(frozen=True, slots=True)
class HostOp:
    """Run an operation of the array library, with no compiled kernel: into `output` if it has memory, or a new one.

    `step` is the segment that it is, if it is one.
    """

    label: object
    inputs: tuple[int, ...]
    output: int
    step: int | None = None

    def __str__(self) -> str:
        return f"{name_of(self.output)} = {self.label}({names_of(self.inputs)})"


@dataclass(frozen=True, slots=True)
class Communicate:
    """Exchange `source` among ranks as `label` says: into `target` where it has memory, or a new one."""

    label: object
    source: int
    target: int

    def __str__(self) -> str:
        return f"{name_of(self.target)} = communicate {self.label}({name_of(self.source)})"


@dataclass(frozen=True, slots=True)
class Release:
    """Let go of `value`: nothing later reads it."""

    value: int

    def __str__(self) -> str:
        return f"release {name_of(self.value)}"


@dataclass(frozen=True, slots=True)
class Alias:
    """Make `value` another name of the memory of `original`, which is allocated or live; an alias of one will do."""

    value: int
    original: int

    def __str__(self) -> str:
        return f"{name_of(self.value)} = alias({name_of(self.original)})"


@dataclass(frozen=True, slots=True)
class Select:
    """Make `value` the slice of `original` at `index` of `axis`, with no copy; what fills it fills that part.

    With no `size` the slice lacks the axis. Else it has elements index * size up to (index + 1) * size of it, cut to
    what there is.
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
class Copy:
    """Write what `source` holds into the memory of `target`, which from then on holds it too."""

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
    """Make a stream the current one: what comes next runs on it."""

    stream: Stream

    def __str__(self) -> str:
        return f"set stream {self.stream}"


@dataclass(frozen=True, slots=True)
class Synchronize:
    """What comes next on the current stream starts after all that was started on `stream`; the host does not wait.

    It is a wait for work: a stream that was only told to wait, and has run nothing since, passes that on to nobody.
    """

    stream: Stream

    def __str__(self) -> str:
        return f"synchronize {self.stream}"


@dataclass(frozen=True, slots=True)
class Wait:
    """What comes next on the current stream starts after `value` has been made, whatever stream that is on."""

    value: int

    def __str__(self) -> str:
        return f"wait for {name_of(self.value)}"


@dataclass(frozen=True, slots=True)
class Loop:
    """Run `body` with the value `index` = start, start + step, ... before stop.

    What the body defines ends with the iteration, and so does the index.
    """

    index: int
    start: Count
    stop: Count
    step: Count
    body: tuple[Instruction, ...]

    def __str__(self) -> str:
        head = f"for {name_of(self.index)} in range({self.start}, {self.stop}, {self.step}):"
        return "\n".join([head, *indented(self.body)])


Instruction: TypeAlias = (
    Allocate
    | Alias
    | Select
    | Launch
    | HostOp
    | Communicate
    | Copy
    | Release
    | Loop
    | GetStream
    | SetStream
    | Wait
    | Synchronize
)


def indented(instructions: Iterable[Instruction]) -> list[str]:
    """Return the lines of instructions, two spaces in."""
    return [f"  {line}" for instruction in instructions for line in str(instruction).split("\n")]


def inputs_of(instruction: Instruction) -> tuple[int, ...]:
    """Return the values whose content an instruction reads, without those of a loop's body."""
    match instruction:
        case Launch(_, inputs, _) | HostOp(_, inputs, _):
            return inputs
        case Communicate(_, source, _) | Copy(source, _):
            return (source,)
        case Select(_, _, _, index, size):
            return (*reads_of_count(index), *(() if size is None else reads_of_count(size)))
        case Loop(_, start, stop, step):
            return (*reads_of_count(start), *reads_of_count(stop), *reads_of_count(step))
        case SetStream(PoolStream(index)) | Synchronize(PoolStream(index)):
            return reads_of_count(index)
    return ()


def outputs_of(instruction: Instruction) -> tuple[int, ...]:
    """Return the values that an instruction makes or fills, without those of a loop's body."""
    match instruction:
        case Launch(_, _, outputs):
            return outputs
        case HostOp(_, _, output):
            return (output,)
        case Communicate(_, _, target):
            return (target,)
    return ()


def in_order(instructions: Iterable[Instruction]) -> list[Instruction]:
    """Return the instructions with those of loop bodies after their loop, each once."""
    found: list[Instruction] = []
    for instruction in instructions:
        found.append(instruction)
        if isinstance(instruction, Loop):
            found += in_order(instruction.body)
    return found
