"""The host program: inputs, instructions and outputs, and a builder that resolves aliases.

`verify.py` checks a program, `liveness.py` places its releases and `execute.py` runs it.
"""

from __future__ import annotations

from collections.abc import Sequence

from segments.instructions import (
    Alias,
    AllocateBuffer,
    Communicate,
    CopyBuffer,
    HostLoop,
    HostOp,
    Instruction,
    Launch,
    ProgramError,
    Release,
    Select,
    Wait,
    in_order,
    indent_lines,
    name_of,
    names_of,
)
from segments.lazy_dataclasses import replace
from segments.verify import verify


class Program:
    """An immutable host program. `inputs` include the extents; `verify` checks the program and `str` prints it."""

    __slots__ = ("_is_verified", "inputs", "instructions", "outputs")

    def __init__(self, inputs: Sequence[int], outputs: Sequence[int], instructions: Sequence[Instruction]) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.instructions = tuple(instructions)
        self._is_verified = False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        return (self.inputs, self.outputs, self.instructions) == (other.inputs, other.outputs, other.instructions)

    def __hash__(self) -> int:
        return hash((self.inputs, self.outputs, self.instructions))

    def __repr__(self) -> str:
        return f"Program(inputs={self.inputs}, outputs={self.outputs}, instructions={self.instructions})"

    def __str__(self) -> str:
        lines = [f"program({names_of(self.inputs)}):", *indent_lines(self.instructions)]
        lines.append(f"  return {names_of(self.outputs)}".rstrip())
        return "\n".join(lines)

    def verify(self) -> None:
        """Raise ProgramError at the first violated rule, with the number and text of the instruction.

        Values: no value is read before it is defined (an allocated value is defined once a launch has filled it) or
        after its release. No value is allocated, filled or released twice. Extents are never allocated, produced or
        released. Outputs exist at the end and are not released; every other value except extents has been released, or
        was defined in a loop body and goes out of scope with the iteration.

        Aliases: an input is never an alias. No memory is written through two names. After a write through one name no
        other name of the memory is read, and after a CopyBuffer none at all: the earlier values are overwritten. The
        launch that writes may read the other names. Filling a slice fills a part of its value, and the whole value is
        read only after the loop that fills it.

        Exchanges: each has one WaitRequest, in the same loop body. Until then its targets are neither read, written nor
        released, and its sources neither written nor released. A group contains exchanges and allocations only.

        Streams: a stream reads, writes or releases memory that another stream accessed only after waiting for it. At
        the end the caller's stream is current and has waited for everything that the outputs depend on.
        """
        if not self._is_verified:
            verify(self.inputs, self.outputs, self.instructions)
            self._is_verified = True


class ProgramBuilder:
    """Builds a program in which a value may have several names.

    `mark_alias(original, new)` makes `new` another name of `original`. `build` replaces each name by the value that its
    chain of aliases ends in.
    """

    def __init__(self) -> None:
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        self._instructions: list[Instruction] = []
        self._original: dict[int, int] = {}

    def add_input(self, value: int) -> None:
        """Add an input."""
        self._inputs.append(value)

    def add_output(self, value: int) -> None:
        """Add an output."""
        self._outputs.append(value)

    def append(self, *instructions: Instruction) -> None:
        """Append instructions."""
        self._instructions += instructions

    def mark_alias(self, original: int, new: int) -> None:
        """Make `new` another name of `original`.

        Raises ProgramError if `new` is already an alias or if the aliases would form a cycle. `build` raises if `new`
        is an input, since inputs may be added later.
        """
        if original < 0 or new < 0:
            raise ProgramError("extents have no memory: only tensors can be aliased")
        if new in self._original:
            raise ProgramError(f"{name_of(new)} is already an alias of {name_of(self._original[new])}")
        if self.resolve(original) == new:
            raise ProgramError(f"{name_of(new)} would be an alias of itself")
        self._original[new] = original

    def resolve(self, value: int) -> int:
        """Return the value that a name refers to, through all aliases."""
        while value in self._original:
            value = self._original[value]
        return value

    def build(self) -> Program:
        """Return the verified program.

        Raises ProgramError if an alias is an input or is also defined by an instruction, and as `Program.verify` does.
        """
        for value in self._inputs:
            if value in self._original:
                raise ProgramError("Inputs cannot be aliased")
        defined = {i.value for i in in_order(self._instructions) if isinstance(i, AllocateBuffer | Alias | Select)}
        for value in sorted(defined & self._original.keys()):
            raise ProgramError(
                f"{name_of(value)} is an alias of {name_of(self._original[value])} "
                f"and is also defined by an instruction"
            )
        outputs = [self.resolve(value) for value in self._outputs]
        program = Program(self._inputs, outputs, [self._resolve_names(i) for i in self._instructions])
        program.verify()
        return program

    def _resolve_names(self, instruction: Instruction) -> Instruction:
        name = self.resolve
        match instruction:
            case Launch(step, inputs, outputs, label):
                return Launch(step, tuple(map(name, inputs)), tuple(map(name, outputs)), label)
            case HostOp(_, inputs, output):
                return replace(instruction, inputs=tuple(map(name, inputs)), output=name(output))
            case Communicate(_, _, sources, targets):
                return replace(instruction, sources=tuple(map(name, sources)), targets=tuple(map(name, targets)))
            case CopyBuffer(source, target):
                return CopyBuffer(name(source), name(target))
            case Alias() | Select():
                return replace(instruction, original=name(instruction.original))
            case Release(value):
                return Release(name(value))
            case Wait(value):
                return Wait(name(value))
            case HostLoop():
                return replace(instruction, body=tuple(map(self._resolve_names, instruction.body)))
        return instruction
