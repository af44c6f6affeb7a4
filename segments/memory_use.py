"""How much memory a program takes: what it has allocated at one time, from the program alone.

Room is counted from the instruction that makes it to the release of its last name. Other names of it and slices of it
take none, and neither do the inputs: they are the caller's.

Knows: instructions in order. Must not know: what a room unit is, how devices allocate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from segments.instructions import (
    Alias,
    Allocate,
    Communicate,
    Copy,
    HostOp,
    Instruction,
    Launch,
    Loop,
    Release,
    Select,
    outputs_of,
)
from segments.program import Program


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """peak: the most that is taken at one time. step: the first launch while it is, None where no launch runs then.
    kept: what the outputs take when the program ends."""

    peak: int
    step: int | None
    kept: int


def memory_use(
    program: Program, room_of: Callable[[int], int], working_room_of: Callable[[Launch], int] | None = None
) -> MemoryUse:
    """Return what `program` takes. `room_of(value)`: of one value; `working_room_of`: of a launch while it runs."""
    count = _Count(program, room_of, working_room_of or (lambda launch: 0))
    count.go_through(program.instructions)
    return MemoryUse(count.peak, count.step, sum(count.live.values()))


class _Count:
    """live: the room of what was made and not released. root: whose memory a name means. names: how many it has."""

    def __init__(
        self, program: Program, room_of: Callable[[int], int], working_room_of: Callable[[Launch], int]
    ) -> None:
        self.room_of, self.working_room_of = room_of, working_room_of
        self.live: dict[int, int] = {}
        self.root: dict[int, int] = {value: value for value in program.inputs}
        self.names: dict[int, int] = dict.fromkeys(program.inputs, 1)
        self.peak = 0
        self.step: int | None = None

    def go_through(self, instructions: tuple[Instruction, ...]) -> None:
        for instruction in instructions:
            match instruction:
                case Allocate(value):
                    self.make(value)
                case Alias(value, original) | Select(value, original):
                    self.name(value, original)
                case Release(value):
                    self.release(value)
                case Loop(_, _, _, _, body):
                    self.iterate(body)
                case Launch() | HostOp() | Communicate() | Copy():
                    for value in outputs_of(instruction):
                        if value not in self.root:
                            self.make(value)
                    self.reach(instruction)

    def make(self, value: int) -> None:
        self.root[value] = value
        self.names[value] = 1
        self.live[value] = self.room_of(value)

    def name(self, value: int, original: int) -> None:
        root = self.root[value] = self.root[original]
        self.names[root] += 1

    def release(self, value: int) -> None:
        root = self.root.pop(value)
        self.names[root] -= 1
        if self.names[root] == 0:
            self.live.pop(root, None)

    def reach(self, instruction: Launch | HostOp | Communicate | Copy) -> None:
        taken = sum(self.live.values())
        if isinstance(instruction, Launch):
            taken += self.working_room_of(instruction)
        if taken > self.peak:
            self.peak = taken
            self.step = instruction.step if isinstance(instruction, Launch | HostOp) else None

    def iterate(self, body: tuple[Instruction, ...]) -> None:
        """One iteration: what it defines ends with it."""
        before = set(self.root)
        self.go_through(body)
        for value in [value for value in self.root if value not in before]:
            self.release(value)
