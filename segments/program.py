"""The host program: inputs, instructions, outputs; and a builder that gives memory other names.

Knows: instructions. Must not know: when a value dies (that is liveness), how anything is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from segments.instructions import (
    Alias,
    Allocate,
    Communicate,
    Copy,
    HostOp,
    Instruction,
    Launch,
    Loop,
    ProgramError,
    Release,
    Select,
    Wait,
    in_order,
    indented,
    name_of,
    names_of,
)
from segments.verify import verify


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
        lines = [f"program({names_of(self.inputs)}):", *indented(self.instructions)]
        lines.append(f"  return {names_of(self.outputs)}".rstrip())
        return "\n".join(lines)

    def verify(self) -> None:
        """Raise ProgramError, with the number and text of the instruction, at the first rule that is broken.

        The rules: nothing is read before it is defined (an allocated value is defined once a launch has filled it)
        or after its release; nothing is allocated, filled or released twice; extents are never allocated, made or
        released; outputs exist at the end and are not released; everything else but extents has been released, or was
        defined by the body of a loop and ends with the iteration.
        Memory with several names: an input is no other value's alias; no memory is written through two names; once it
        is written through one, no other name of it is read, and after a Copy no name of it at all: the values that
        they stood for are gone. The launch that writes may read the other names. A slice is a part of its value: to
        fill it is to fill a part, and the whole is read after the loop that fills it.
        Streams: what one stream made, read or wrote, another reads, writes or releases after a wait alone. At the end
        the stream that was current at the start is current again and has waited for all that outputs depend on.
        """
        verify(self.inputs, self.outputs, self.instructions)


class ProgramBuilder:
    """Collects a program, in which a value may have several names.

    `mark_alias(original, new)` makes `new` another name of the memory of `original`: each instruction that reads or
    writes `new` then means the value that the chain of names ends in.
    """

    def __init__(self) -> None:
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        self._instructions: list[Instruction] = []
        self._original: dict[int, int] = {}

    def add_input(self, value: int) -> None:
        """Adds an input."""
        self._inputs.append(value)

    def add_output(self, value: int) -> None:
        """Adds an output."""
        self._outputs.append(value)

    def append(self, *instructions: Instruction) -> None:
        """Adds instructions at the end."""
        self._instructions += instructions

    def mark_alias(self, original: int, new: int) -> None:
        """Make `new` another name of `original`.

        Raises ProgramError where `new` has an original already, or where the names would go in a circle. That an input
        cannot be a new name is found when the program is built, whichever was said first.
        """
        if original < 0 or new < 0:
            raise ProgramError("extents have no memory: only tensors can be aliased")
        if new in self._original:
            raise ProgramError(f"{name_of(new)} is a name of {name_of(self._original[new])} already")
        if self.resolve(original) == new:
            raise ProgramError(f"{name_of(new)} would be a name of itself")
        self._original[new] = original

    def resolve(self, value: int) -> int:
        """Return the value that a name stands for, through all aliases."""
        while value in self._original:
            value = self._original[value]
        return value

    def build(self) -> Program:
        """Return the verified program. Raises ProgramError as `Program.verify`."""
        for value in self._inputs:
            if value in self._original:
                raise ProgramError("Inputs cannot be aliased")
        made = {i.value for i in in_order(self._instructions) if isinstance(i, Allocate | Alias | Select)}
        for value in sorted(made & self._original.keys()):
            raise ProgramError(f"{name_of(value)} is a name of {name_of(self._original[value])}, and is made besides")
        program = Program(
            self._inputs, [self.resolve(value) for value in self._outputs], [self._named(i) for i in self._instructions]
        )
        program.verify()
        return program

    def _named(self, instruction: Instruction) -> Instruction:
        name = self.resolve
        match instruction:
            case Launch(step, inputs, outputs, label):
                return Launch(step, tuple(map(name, inputs)), tuple(map(name, outputs)), label)
            case HostOp(_, inputs, output):
                return replace(instruction, inputs=tuple(map(name, inputs)), output=name(output))
            case Communicate(label, source, target):
                return Communicate(label, name(source), name(target))
            case Copy(source, target):
                return Copy(name(source), name(target))
            case Alias() | Select():
                return replace(instruction, original=name(instruction.original))
            case Release(value):
                return Release(name(value))
            case Wait(value):
                return Wait(name(value))
            case Loop():
                return replace(instruction, body=tuple(map(self._named, instruction.body)))
        return instruction
