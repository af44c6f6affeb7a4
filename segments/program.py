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


Instruction = Allocate | Launch | Release


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
        """
        check = _Check(self)
        for position, instruction in enumerate(self.instructions):
            check.step(position, instruction)
        check.end()


class _Check:
    """Where each value stands while a program is gone through: in `allocated`, `live` or `released`, or unknown."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.allocated: set[int] = set()
        self.live: set[int] = set(program.inputs)
        self.released: dict[int, int] = {}
        self.place = ""
        if len(self.live) != len(program.inputs):
            raise ProgramError(f"an input is there twice: {names_of(program.inputs)}")

    def step(self, position: int, instruction: Instruction) -> None:
        self.place = f"instruction {position}, `{instruction}`"
        match instruction:
            case Allocate(value):
                self.new(value, "allocates")
                self.allocated.add(value)
            case Launch(_, inputs, outputs):
                for value in inputs:
                    self.read(value)
                for value in outputs:
                    if value not in self.allocated:
                        self.new(value, "makes")
                    self.allocated.discard(value)
                    self.live.add(value)
            case Release(value):
                self.release(value, position)

    def new(self, value: int, verb: str) -> None:
        if value < 0:
            raise ProgramError(f"{self.place}: {verb} {name_of(value)}, an extent of the inputs")
        if value in self.allocated:
            raise ProgramError(f"{self.place}: {name_of(value)} is allocated already")
        if value in self.live:
            raise ProgramError(f"{self.place}: {verb} {name_of(value)}, which is defined already")
        if value in self.released:
            raise ProgramError(f"{self.place}: {verb} {name_of(value)} again, {self.release_of(value)}")

    def read(self, value: int) -> None:
        if value in self.live:
            return
        if value in self.released:
            raise ProgramError(f"{self.place}: reads {name_of(value)} after its release, {self.release_of(value)}")
        if value in self.allocated:
            raise ProgramError(f"{self.place}: reads {name_of(value)}, which is allocated but filled by no launch yet")
        raise ProgramError(f"{self.place}: reads {name_of(value)} before its definition")

    def release(self, value: int, position: int) -> None:
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
        self.released[value] = position

    def release_of(self, value: int) -> str:
        return f"released at instruction {self.released[value]}"

    def end(self) -> None:
        for value in self.program.outputs:
            if value not in self.live:
                raise ProgramError(f"output {name_of(value)} is defined by no instruction and is no input")
        left = sorted(value for value in self.live | self.allocated if value >= 0 and value not in self.program.outputs)
        if left:
            raise ProgramError(f"never released: {names_of(left)}; a value that nothing reads later must be released")
