"""The peak memory of a program, computed from its instructions alone.

A buffer counts from the instruction that creates it to the release of its last name. Aliases and slices share memory
and add nothing; inputs belong to the caller and are not counted. Sizes are in the caller's unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from segments.instructions import (
    Alias,
    AllocateBuffer,
    Communicate,
    CopyBuffer,
    HostLoop,
    HostOp,
    Instruction,
    Launch,
    Release,
    Select,
    outputs_of,
)
from segments.lazy_dataclasses import dataclass
from segments.program import Program


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory use of a program.

    peak: the most memory live at one time. step: the first launch that reaches the peak, None if no launch runs then.
    outputs: the memory of the outputs, live when the program ends.
    """

    peak: int
    step: int | None
    outputs: int


def memory_use(
    program: Program, size_of: Callable[[int], int], workspace_of: Callable[[Launch], int] | None = None
) -> MemoryUse:
    """Return the memory use of `program`.

    `size_of(value)` is the size of one value's buffer and `workspace_of(launch)` that of a launch's temporary memory.
    """
    count = _Count(program, size_of, workspace_of or (lambda launch: 0))
    count.run(program.instructions)
    return MemoryUse(count.peak, count.step, count.total)


def memory_timeline(
    program: Program, size_of: Callable[[int], int], workspace_of: Callable[[Launch], int] | None = None
) -> Iterator[tuple[Instruction, int]]:
    """Yield each top-level instruction with the most memory live while it runs; arguments as for `memory_use`."""
    count = _Count(program, size_of, workspace_of or (lambda launch: 0))
    for instruction in program.instructions:
        count.peak = 0
        count.run((instruction,))
        yield instruction, max(count.peak, count.total)


class _Count:
    """live: the sizes of live buffers. total: their sum. root: the value that owns a name's buffer.

    names: how many names it has.
    """

    def __init__(self, program: Program, size_of: Callable[[int], int], workspace_of: Callable[[Launch], int]) -> None:
        self.size_of, self.workspace_of = size_of, workspace_of
        self.live: dict[int, int] = {}
        self.total = 0
        self.root: dict[int, int] = {value: value for value in program.inputs}
        self.names: dict[int, int] = dict.fromkeys(program.inputs, 1)
        self.peak = 0
        self.step: int | None = None

    def run(self, instructions: tuple[Instruction, ...]) -> None:
        for instruction in instructions:
            match instruction:
                case AllocateBuffer(value):
                    self.create(value)
                case Alias(value, original) | Select(value, original):
                    self.name(value, original)
                case Release(value):
                    self.release(value)
                case HostLoop(_, _, _, _, body):
                    self.iterate(body)
                case Launch() | HostOp() | Communicate() | CopyBuffer():
                    for value in outputs_of(instruction):
                        if value not in self.root:
                            self.create(value)
                    self.reach(instruction)

    def create(self, value: int) -> None:
        self.root[value] = value
        self.names[value] = 1
        self.total -= self.live.get(value, 0)
        self.live[value] = self.size_of(value)
        self.total += self.live[value]

    def name(self, value: int, original: int) -> None:
        root = self.root[value] = self.root[original]
        self.names[root] += 1

    def release(self, value: int) -> None:
        root = self.root.pop(value)
        self.names[root] -= 1
        if self.names[root] == 0:
            self.total -= self.live.pop(root, 0)

    def reach(self, instruction: Launch | HostOp | Communicate | CopyBuffer) -> None:
        during_launch = self.total
        if isinstance(instruction, Launch):
            during_launch += self.workspace_of(instruction)
        if during_launch > self.peak:
            self.peak = during_launch
            self.step = None if isinstance(instruction, CopyBuffer) else instruction.step

    def iterate(self, body: tuple[Instruction, ...]) -> None:
        """Count one iteration; the values that it defines go out of scope at its end."""
        before = set(self.root)
        self.run(body)
        for value in [value for value in self.root if value not in before]:
            self.release(value)
