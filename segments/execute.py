"""Running a host program over a device.

A `Runner` turns a verified program once into a few closures, so that a call costs little more than its launches:
the numbers to gather, what to allocate and what to drop are all known before the first call. `execute` and
`execute_steps` are for a single run.

This module knows the order of instructions and a device by its three methods. It must not know what a buffer, a
specification or a label is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from segments.arguments import ArgumentManager
from segments.program import Alias, Allocate, Copy, Instruction, Launch, Program, ProgramError, Release, names_of


class Device(Protocol):
    """What a program runs on. Buffers, specifications and labels pass through unlooked at.

    A device must not depend on `release` to get its memory back: when a launch raises, buffers are dropped by
    reference alone, since work that was begun may still write to them.
    """

    def allocate(self, spec: object, values: Mapping[int, object]) -> object:
        """Return a fresh buffer for `spec`; `values` are all live values by original number, extents among them."""
        ...

    def launch(self, step: int, label: object, inputs: list[object], outputs: list[object]) -> Sequence[object] | None:
        """Run a segment. `outputs` are the allocated ones, in order; the others are returned, in order."""
        ...

    def release(self, buffer: object) -> None:
        """Take back what `allocate` or `launch` returned; never called for an input of the program.

        Memory with several names is taken back with the last of them.
        """
        ...


class CopyingDevice(Device, Protocol):
    """What a program with Copy instructions runs on."""

    def copy(self, source: object, target: object) -> None:
        """Write what `source` holds into `target`."""
        ...


# Runs a few instructions on the live values and the buffers that are allocated but not filled yet.
_Action = Callable[[dict[int, object], dict[int, object]], None]


@dataclass(slots=True)
class _Block:
    """Instructions that run as one: what comes before a launch, at most one launch, what comes after it."""

    before: list[Instruction] = field(default_factory=list)
    launch: Launch | None = None
    after: list[Instruction] = field(default_factory=list)


class Runner:
    """A program bound to a device, ready to be called any number of times.

    It keeps no state between runs, so that runs of several threads do not meet here. Raises ProgramError when the
    program does not verify.
    """

    __slots__ = ("_actions", "_bound", "_count", "_first_launch", "device", "program")

    def __init__(self, program: Program, device: Device) -> None:
        program.verify()
        self.program = program
        self.device = device
        self._bound = frozenset(program.inputs)
        self._count = len(program.inputs)
        blocks = _blocks(program)
        binding = _Binding(program, device)
        self._actions = [(binding.action(block), block.launch is not None) for block in blocks]
        launches = [position for position, (_, launches) in enumerate(self._actions) if launches]
        self._first_launch = launches[0] if launches else len(blocks)

    def __call__(self, arguments: Sequence[object]) -> tuple[object, ...]:
        """Run on `arguments`, in the order of the program's inputs, and return its outputs."""
        if len(arguments) != self._count:
            names = names_of(self.program.inputs)
            raise ProgramError(f"the program takes {self._count} arguments ({names}), got {len(arguments)}")
        values = dict(zip(self.program.inputs, arguments, strict=True))
        room: dict[int, object] = {}
        for action, _ in self._actions:
            action(values, room)
        return tuple([values[value] for value in self.program.outputs])

    def run(self, manager: ArgumentManager) -> tuple[object, ...]:
        """Run on what is bound in `manager`, and return the outputs, which stay live there.

        When a launch raises, the manager holds what was live before it, and no value that was not made.
        Raises ProgramError when the manager holds other values than the program's inputs.
        """
        values = self._values(manager)
        room: dict[int, object] = {}
        for action, _ in self._actions:
            action(values, room)
        return tuple([values[value] for value in self.program.outputs])

    def steps(self, manager: ArgumentManager) -> Generator[dict[int, object], None, tuple[object, ...]]:
        """Run, yielding what is live (`manager.live`) right before the first launch and after each one.

        Inputs that nothing reads are gone in the first state. The generator returns the outputs.
        """
        values = self._values(manager)
        room: dict[int, object] = {}
        for action, _ in self._actions[: self._first_launch]:
            action(values, room)
        yield manager.live
        for action, launches in self._actions[self._first_launch :]:
            action(values, room)
            if launches:
                yield manager.live
        return manager.outputs(self.program.outputs)

    def _values(self, manager: ArgumentManager) -> dict[int, object]:
        values = manager.values
        if values.keys() != self._bound:
            missing, extra = self._bound - values.keys(), values.keys() - self._bound
            raise ProgramError(
                f"the manager does not hold the program's inputs: "
                f"missing {names_of(sorted(missing)) or 'nothing'}, besides them {names_of(sorted(extra)) or 'nothing'}"
            )
        return values


def execute(program: Program, manager: ArgumentManager, device: Device) -> tuple[object, ...]:
    """Run `program` once and return its outputs. To run it again and again, keep a `Runner`."""
    return Runner(program, device).run(manager)


def execute_steps(
    program: Program, manager: ArgumentManager, device: Device
) -> Generator[dict[int, object], None, tuple[object, ...]]:
    """Run `program` once, yielding what is live right before the first launch and after each one."""
    return Runner(program, device).steps(manager)


def _blocks(program: Program) -> list[_Block]:
    blocks = [_Block()]
    for instruction in program.instructions:
        block = blocks[-1]
        if isinstance(instruction, Release | Copy):
            block.after.append(instruction)
            continue
        if block.after or block.launch is not None:
            block = _Block()
            blocks.append(block)
        if isinstance(instruction, Launch):
            block.launch = instruction
        else:
            block.before.append(instruction)
    return blocks


class _Binding:
    """Turns instructions into closures over everything that does not change between runs.

    given: the values that are filled rather than made: allocated, or other names of memory. names: how many names of
    the memory of a value are not released yet.
    """

    def __init__(self, program: Program, device: Device) -> None:
        self.device = device
        self.bound = frozenset(program.inputs)
        self.root: dict[int, int] = {}
        given: set[int] = set()
        filled: set[int] = set()
        for instruction in program.instructions:
            match instruction:
                case Allocate(value):
                    given.add(value)
                case Alias(value, original):
                    given.add(value)
                    self.root[value] = self.root.get(original, original)
                case Launch(_, _, outputs):
                    filled.update(outputs)
        self.given, self.filled = frozenset(given), frozenset(filled)
        self.names: dict[int, int] = {}
        for root in self.root.values():
            self.names[root] = self.names.get(root, 1) + 1

    def action(self, block: _Block) -> _Action:
        actions = [*self._before(block.before)]
        if block.launch is not None:
            actions.append(_launch(block.launch, self.given, self.device))
        actions.extend(self._after(block.after))
        if len(actions) == 1:
            return actions[0]

        def run(values: dict[int, object], room: dict[int, object]) -> None:
            for action in actions:
                action(values, room)

        return run

    def _before(self, instructions: Sequence[Instruction]) -> list[_Action]:
        actions: list[_Action] = []
        for instruction in instructions:
            match instruction:
                case Allocate(value, spec):
                    actions.append(_allocation(value, spec, self.device))
                case Alias(value, original):
                    actions.append(_alias(value, original, value in self.filled))
        return actions

    def _after(self, instructions: Sequence[Instruction]) -> list[_Action]:
        actions: list[_Action] = []
        for instruction in instructions:
            match instruction:
                case Copy(source, target):
                    actions.append(_copy(source, target, cast("CopyingDevice", self.device)))
                case Release(value):
                    actions.append(_release(value, self._returns(value), self.device))
        return actions

    def _returns(self, value: int) -> bool:
        """Whether the device gets the memory back with this name: it is the last one, and of no input."""
        root = self.root.get(value, value)
        self.names[root] = self.names.get(root, 1) - 1
        return root not in self.bound and self.names[root] == 0


def _allocation(value: int, spec: object, device: Device) -> _Action:
    allocate = device.allocate

    def run(values: dict[int, object], room: dict[int, object]) -> None:
        room[value] = allocate(spec, values)

    return run


def _alias(value: int, original: int, is_filled: bool) -> _Action:
    def run(values: dict[int, object], room: dict[int, object]) -> None:
        memory = values[original] if original in values else room[original]
        (room if is_filled else values)[value] = memory

    return run


def _copy(source: int, target: int, device: CopyingDevice) -> _Action:
    copy = device.copy

    def run(values: dict[int, object], room: dict[int, object]) -> None:
        if target in room:
            values[target] = room.pop(target)
        copy(values[source], values[target])

    return run


def _launch(launch: Launch, given: frozenset[int], device: Device) -> _Action:
    step, label, inputs, call = launch.step, launch.label, launch.inputs, device.launch
    filled = tuple(value for value in launch.outputs if value in given)
    made = tuple(value for value in launch.outputs if value not in given)

    def run(values: dict[int, object], room: dict[int, object]) -> None:
        results = call(step, label, [values[value] for value in inputs], [room[value] for value in filled])
        if made or results is not None:
            if results is None or len(results) != len(made):
                count = "nothing" if results is None else f"{len(results)} values"
                raise ProgramError(f"`{launch}` returned {count}, expected {len(made)} ({names_of(made)})")
            values.update(zip(made, results, strict=True))
        for value in filled:
            values[value] = room.pop(value)

    return run


def _release(value: int, returns: bool, device: Device) -> _Action:
    release = device.release

    def run(values: dict[int, object], room: dict[int, object]) -> None:
        memory = values.pop(value) if value in values else room.pop(value)
        if returns:
            release(memory)

    return run
