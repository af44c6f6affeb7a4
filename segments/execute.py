"""Execution of a host program on a device.

A `Runner` compiles a verified program to a few closures once, so a call costs little more than its launches: the
values to gather, the buffers to allocate and the values to release are fixed before the first call. `execute` and
`execute_steps` serve a single run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import cast

from segments.actions import Action, Binding, Run
from segments.arguments import ArgumentManager
from segments.device import Device
from segments.instructions import (
    CopyBuffer,
    GetStream,
    HostLoop,
    HostOp,
    Instruction,
    Launch,
    ProgramError,
    Release,
    SetStream,
    Synchronize,
    Wait,
    WaitRequest,
    in_order,
    names_of,
)
from segments.program import Program
from segments.run_streams import RunStreams, StreamsDevice, resolve


class Runner:
    """A program bound to a device, callable any number of times.

    A Runner keeps no state between runs and may be called from several threads at once. Raises ProgramError if the
    program fails verification.
    """

    __slots__ = ("_actions", "_awaited", "_bound", "_count", "_first_step", "_on_streams", "device", "program")

    def __init__(self, program: Program, device: Device) -> None:
        program.verify()
        self.program = program
        self.device = device
        self._bound = frozenset(program.inputs)
        self._count = len(program.inputs)
        everything = in_order(program.instructions)
        self._on_streams = any(isinstance(i, GetStream | SetStream | Synchronize | Wait) for i in everything)
        self._awaited = frozenset(i.value for i in everything if isinstance(i, Wait))
        binding = Binding(program, device)
        blocks = _blocks(program.instructions)
        self._actions = [(binding.action(block), any(map(_is_step, block))) for block in blocks]
        steps = [position for position, (_, is_step) in enumerate(self._actions) if is_step]
        self._first_step = steps[0] if steps else len(blocks)

    def __call__(self, arguments: Sequence[object]) -> tuple[object, ...]:
        """Run on `arguments`, in the order of the program's inputs, and return its outputs.

        Raises ProgramError for a wrong number of arguments.
        """
        if len(arguments) != self._count:
            names = names_of(self.program.inputs)
            raise ProgramError(f"the program takes {self._count} arguments ({names}), got {len(arguments)}")
        return self._run(dict(zip(self.program.inputs, arguments, strict=True)))

    def run(self, manager: ArgumentManager) -> tuple[object, ...]:
        """Run on the values bound in `manager` and return the outputs, which stay live there.

        When a launch raises, the manager holds the values that were live before it and none that it would have
        produced. Raises ProgramError when the manager does not hold exactly the program's inputs.
        """
        return self._run(self._values(manager))

    def _run(self, values: dict[int, object]) -> tuple[object, ...]:
        run = self._open(values)
        try:
            for action, _ in self._actions:
                action(run)
        except BaseException:
            _abandon(run)
            raise
        _finish(run)
        return tuple([values[value] for value in self.program.outputs])

    def steps(self, manager: ArgumentManager) -> Generator[dict[int, object], None, tuple[object, ...]]:
        """Run step by step, yielding the live values (`manager.live`) before the first launch and after each one.

        A loop counts as one launch. Inputs that nothing reads are released before the first yield. The generator
        returns the outputs.
        """
        run = self._open(self._values(manager))
        done = False
        try:
            self._act(run, self._actions[: self._first_step])
            yield manager.live
            for action, is_step in self._actions[self._first_step :]:
                action(run)
                if is_step:
                    yield manager.live
            done = True
        finally:
            (_finish if done else _abandon)(run)
        return manager.outputs(self.program.outputs)

    @staticmethod
    def _act(run: Run, actions: Iterable[tuple[Action, bool]]) -> None:
        for action, _ in actions:
            action(run)

    def _open(self, values: dict[int, object]) -> Run:
        if not self._on_streams:
            return Run(values)
        return Run(values, RunStreams(cast("StreamsDevice", self.device).open_streams(), self._awaited))

    def _values(self, manager: ArgumentManager) -> dict[int, object]:
        values = manager.values
        if values.keys() != self._bound:
            missing, extra = self._bound - values.keys(), values.keys() - self._bound
            raise ProgramError(
                f"the manager does not hold the program's inputs: "
                f"missing {names_of(sorted(missing)) or 'none'}, unexpected {names_of(sorted(extra)) or 'none'}"
            )
        return values


def _finish(run: Run) -> None:
    if run.streams is not None:
        run.streams.finish()
        for value, content in run.values.items():
            run.values[value] = resolve(content)


def _abandon(run: Run) -> None:
    if run.streams is not None:
        run.streams.abandon()


def execute(program: Program, manager: ArgumentManager, device: Device) -> tuple[object, ...]:
    """Run `program` once and return its outputs. To run it repeatedly, keep a `Runner`."""
    return Runner(program, device).run(manager)


def execute_steps(
    program: Program, manager: ArgumentManager, device: Device
) -> Generator[dict[int, object], None, tuple[object, ...]]:
    """Run `program` once, yielding the live values before the first launch and after each one."""
    return Runner(program, device).steps(manager)


def _is_step(instruction: Instruction) -> bool:
    return isinstance(instruction, Launch | HostOp | WaitRequest | HostLoop)


def _blocks(instructions: Sequence[Instruction]) -> list[list[Instruction]]:
    """Split instructions into blocks: those before a launch, the launch or loop, and its copies and releases."""
    blocks: list[list[Instruction]] = [[]]
    for instruction in instructions:
        closed = any(isinstance(other, Release | CopyBuffer) or _is_step(other) for other in blocks[-1])
        if closed and not isinstance(instruction, Release | CopyBuffer):
            blocks.append([])
        blocks[-1].append(instruction)
    return blocks
