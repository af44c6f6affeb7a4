"""The host program as data: what happens between launches, as instructions that print and can be checked.

Values go by their original numbers: tensors and scalars from 0 up, extents of the inputs negative. A program is
checked by `verify` before it runs, with no device in sight, so that a wrong release is found on paper.

This module knows instructions and the rules of their order. It must not know when a value dies (that is liveness),
what a specification or a label means, or how anything is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
class Copy:
    """Write what `source` holds into the memory of `target`, which from then on holds it too."""

    source: int
    target: int

    def __str__(self) -> str:
        return f"copy {name_of(self.source)} -> {name_of(self.target)}"


Instruction = Allocate | Alias | Launch | Copy | Release


class Program:
    """Inputs (extents among them), instructions, outputs. Immutable; `verify` checks it and `str` prints it."""

    __slots__ = ("inputs", "instructions", "outputs")

    def __init__(self, inputs: Sequence[int], outputs: Sequence[int], instructions: Sequence[Instruction]) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.instructions = tuple(instructions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        return (self.inputs, self.outputs, self.instructions) == (other.inputs, other.outputs, other.instructions)

    def __hash__(self) -> int:
        return hash((self.inputs, self.outputs, self.instructions))

    def __repr__(self) -> str:
        return f"Program(inputs={self.inputs}, outputs={self.outputs}, instructions={self.instructions})"

    def __str__(self) -> str:
        lines = [f"program({names_of(self.inputs)}):"]
        lines.extend(f"  {instruction}" for instruction in self.instructions)
        lines.append(f"  return {names_of(self.outputs)}".rstrip())
        return "\n".join(lines)

    def verify(self) -> None:
        """Raise ProgramError, with the number and text of the instruction, at the first rule that is broken.

        The rules: nothing is read before it is defined (an allocated value is defined once a launch has filled it)
        or after its release; nothing is allocated, filled or released twice; extents are never allocated, made or
        released; outputs exist at the end and are not released; everything else but extents has been released.
        Memory with several names: an input is no other value's alias; no memory is written through two names; once it
        is written through one, no other name of it is read, and after a Copy no name of it at all: the values that
        they stood for are gone. The launch that writes may read the other names.
        """
        check = _Check(self)
        for position, instruction in enumerate(self.instructions):
            check.step(position, instruction)
        check.end()


class _Check:
    """Where each value stands while a program is gone through: in `allocated`, `live` or `released`, or unknown.

    root: the value whose memory a name means, through all aliases. written: for memory with several names or of an
    input, the name that it was written through and the position of the instruction.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.allocated: set[int] = set()
        self.live: set[int] = set(program.inputs)
        self.released: dict[int, int] = {}
        self.root: dict[int, int] = {}
        self.written: dict[int, tuple[int, int]] = {}
        self.copied: set[int] = set()
        self.position = 0
        self.place = ""
        if len(self.live) != len(program.inputs):
            raise ProgramError(f"an input is there twice: {names_of(program.inputs)}")

    def step(self, position: int, instruction: Instruction) -> None:
        self.position, self.place = position, f"instruction {position}, `{instruction}`"
        match instruction:
            case Allocate(value):
                self.new(value, "allocates")
                self.allocated.add(value)
            case Alias(value, original):
                self.alias(value, original)
            case Launch(_, inputs, outputs):
                for value in inputs:
                    self.read(value)
                for value in outputs:
                    self.fill(value)
            case Copy(source, target):
                self.read(source)
                self.copy(target)
            case Release(value):
                self.release(value)

    def new(self, value: int, verb: str) -> None:
        if value < 0:
            raise ProgramError(f"{self.place}: {verb} {name_of(value)}, an extent of the inputs")
        if value in self.allocated:
            raise ProgramError(f"{self.place}: {name_of(value)} is allocated already")
        if value in self.live:
            raise ProgramError(f"{self.place}: {verb} {name_of(value)}, which is defined already")
        if value in self.released:
            raise ProgramError(f"{self.place}: {verb} {name_of(value)} again, {self.release_of(value)}")

    def alias(self, value: int, original: int) -> None:
        if value in self.program.inputs:
            raise ProgramError(f"{self.place}: Inputs cannot be aliased")
        self.new(value, "aliases")
        if original < 0:
            raise ProgramError(f"{self.place}: extents have no memory")
        if original in self.allocated:
            self.allocated.add(value)
        else:
            self.read(original)
            self.live.add(value)
        self.root[value] = self.memory(original)

    def memory(self, value: int) -> int:
        return self.root.get(value, value)

    def fill(self, value: int) -> None:
        """What a launch writes: allocated room, the memory of an alias, or a value of its own."""
        if value in self.root:
            if value not in self.allocated and value not in self.live:
                self.new(value, "makes")
            self.write(value)
        elif value not in self.allocated:
            self.new(value, "makes")
        self.allocated.discard(value)
        self.live.add(value)

    def copy(self, target: int) -> None:
        if target not in self.live and target not in self.allocated:
            self.read(target)
        if target < 0:
            raise ProgramError(f"{self.place}: writes {name_of(target)}, an extent of the inputs")
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
        self.written[self.memory(value)] = value, self.position

    def read(self, value: int) -> None:
        if value in self.live:
            self.read_written(value)
            return
        if value in self.released:
            raise ProgramError(f"{self.place}: reads {name_of(value)} after its release, {self.release_of(value)}")
        if value in self.allocated:
            raise ProgramError(f"{self.place}: reads {name_of(value)}, which is allocated but filled by no launch yet")
        raise ProgramError(f"{self.place}: reads {name_of(value)} before its definition")

    def read_written(self, value: int) -> None:
        """Refuses a name of memory that was written through another one."""
        before = self.written.get(self.memory(value))
        if before is not None and (before[0] != value or value in self.copied):
            raise ProgramError(
                f"{self.place}: reads {name_of(value)}, whose memory instruction {before[1]} has overwritten"
            )

    def release(self, value: int) -> None:
        if value < 0:
            raise ProgramError(f"{self.place}: extents are integers and stay to the end")
        if value in self.released:
            raise ProgramError(f"{self.place}: {name_of(value)} is released twice, {self.release_of(value)}")
        if value not in self.live and value not in self.allocated:
            raise ProgramError(f"{self.place}: releases {name_of(value)} before its definition")
        if value in self.program.outputs:
            raise ProgramError(f"{self.place}: releases {name_of(value)}, an output of the program")
        self.live.discard(value)
        self.allocated.discard(value)
        self.released[value] = self.position

    def release_of(self, value: int) -> str:
        return f"released at instruction {self.released[value]}"

    def end(self) -> None:
        for value in self.program.outputs:
            if value not in self.live:
                raise ProgramError(f"output {name_of(value)} is defined by no instruction and is no input")
            before = self.written.get(self.memory(value))
            if before is not None and before[0] != value:
                raise ProgramError(
                    f"output {name_of(value)} lies in memory that instruction {before[1]} has overwritten"
                )
        left = sorted(value for value in self.live | self.allocated if value >= 0 and value not in self.program.outputs)
        if left:
            raise ProgramError(f"never released: {names_of(left)}; a value that nothing reads later must be released")
