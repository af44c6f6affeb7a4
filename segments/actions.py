"""Instructions as closures over everything that does not change between runs.

Knows: what each instruction does with the live values of a run. Must not know: their order, what buffers are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

from segments.device import CommunicatingDevice, CopyingDevice, Device, HostOpDevice, SlicingDevice
from segments.instructions import (
    Alias,
    Allocate,
    Communicate,
    Copy,
    Count,
    GetStream,
    HostOp,
    Instruction,
    Launch,
    Loop,
    ProgramError,
    Release,
    Select,
    SetStream,
    Stream,
    Synchronize,
    Wait,
    in_order,
    name_of,
    names_of,
    outputs_of,
)
from segments.lanes import Lanes, resolved
from segments.program import Program


class Run:
    """One run: the live values, the buffers that are allocated but not filled yet, its streams if there are some."""

    __slots__ = ("lanes", "room", "values")

    def __init__(self, values: dict[int, object], lanes: Lanes | None = None) -> None:
        self.values = values
        self.room: dict[int, object] = {}
        self.lanes = lanes


Action: TypeAlias = Callable[[Run], None]


class Binding:
    """Turns instructions into actions.

    given: the values that are filled rather than made: allocated, or other names of memory. names: how many names of
    the memory of a value are not released yet. slices: values that are parts of others, which no device takes back.
    """

    def __init__(self, program: Program, device: Device) -> None:
        self.device = device
        self.bound = frozenset(program.inputs)
        self.root: dict[int, int] = {}
        given: set[int] = set()
        filled: set[int] = set()
        slices: set[int] = set()
        for instruction in in_order(program.instructions):
            match instruction:
                case Allocate(value):
                    given.add(value)
                case Alias(value, original):
                    given.add(value)
                    self.root[value] = self.root.get(original, original)
                case Select(value):
                    given.add(value)
                    slices.add(value)
                case Copy(_, target):
                    filled.add(target)
            filled.update(outputs_of(instruction))
        for instruction in reversed(in_order(program.instructions)):
            if isinstance(instruction, Select) and instruction.value in filled and instruction.original in slices:
                filled.add(instruction.original)  # what fills a slice of a slice fills that
        self.given, self.filled, self.slices = frozenset(given), frozenset(filled), frozenset(slices)
        self.names: dict[int, int] = {}
        for root in self.root.values():
            self.names[root] = self.names.get(root, 1) + 1

    def action(self, instructions: Sequence[Instruction]) -> Action:
        """Return what does all of `instructions`, in order."""
        actions = list(map(self._one, instructions))
        if len(actions) == 1:
            return actions[0]

        def run_all(run: Run) -> None:
            for action in actions:
                action(run)

        return run_all

    def _one(self, instruction: Instruction) -> Action:
        device = self.device
        match instruction:
            case Allocate(value, spec):
                return _allocation(value, spec, device)
            case Alias(value, original):
                return _alias(value, original, value in self.filled)
            case Select():
                return _selection(instruction, cast("SlicingDevice", device), instruction.value in self.filled)
            case Launch():
                return _launch(instruction, self.given, device)
            case HostOp(label, inputs, output):
                return _host_op(label, inputs, output, output in self.given, cast("HostOpDevice", device))
            case Communicate(label, source, target):
                return _exchange(label, source, target, target in self.given, cast("CommunicatingDevice", device))
            case Copy(source, target):
                return _copy(source, target, cast("CopyingDevice", device))
            case Release(value):
                return _release(value, self._returns(value), device)
            case Loop():
                slices = [i for i in in_order(instruction.body) if isinstance(i, Select)]
                filled = [i.original for i in slices if i.value in self.filled]
                return _loop(instruction, self.action(instruction.body), self._endings(instruction), filled)
            case GetStream() | SetStream() | Synchronize() | Wait():
                return _stream_action(instruction)

    def _returns(self, value: int) -> bool:
        """Whether the device gets the memory back with this name: it is the last one, and of no input."""
        root = self.root.get(value, value)
        self.names[root] = self.names.get(root, 1) - 1
        return root not in self.bound and root not in self.slices and self.names[root] == 0

    def _endings(self, loop: Loop) -> list[Action]:
        """The releases of what an iteration defines and does not release itself."""
        defined: dict[int, None] = {}
        for instruction in loop.body:
            match instruction:
                case Allocate(value, _) | Alias(value, _) | Select(value):
                    defined[value] = None
                case Release(value):
                    defined.pop(value, None)
            defined.update(dict.fromkeys(v for v in outputs_of(instruction) if v not in self.given))
        return [_release(value, self._returns(value), self.device) for value in defined]


def evaluated(count: Count, values: Mapping[int, object]) -> int:
    """Return an integer that is known now."""
    return count if isinstance(count, int) else count.compute(values)


def _allocation(value: int, spec: object, device: Device) -> Action:
    allocate = device.allocate

    def act(run: Run) -> None:
        if run.lanes is not None:
            run.lanes.flush()  # what follows on other streams is after what this one waits for, as for any work
        run.room[value] = allocate(spec, run.values)

    return act


def _held(run: Run, value: int) -> object:
    return resolved(run.values[value] if value in run.values else run.room[value])


def _alias(value: int, original: int, is_filled: bool) -> Action:
    def act(run: Run) -> None:
        (run.room if is_filled else run.values)[value] = _held(run, original)

    return act


def _selection(select: Select, device: SlicingDevice, is_filled: bool) -> Action:
    value, original, axis, index, size = select.value, select.original, select.axis, select.index, select.size
    slice_of = device.select

    def act(run: Run) -> None:
        length = None if size is None else evaluated(size, run.values)
        part = slice_of(_held(run, original), axis, evaluated(index, run.values), length)
        if not is_filled:
            run.values[value] = part
            return
        run.room[value] = part
        if original in run.room:  # which is filled part by part, and whole when it is read
            run.values[original] = run.room.pop(original)

    return act


def _launch(launch: Launch, given: frozenset[int], device: Device) -> Action:
    step, label, inputs, call = launch.step, launch.label, launch.inputs, device.launch
    filled = tuple(value for value in launch.outputs if value in given)
    made = tuple(value for value in launch.outputs if value not in given)

    def checked(results: Sequence[object] | None) -> Sequence[object]:
        if results is None or len(results) != len(made):
            count = "nothing" if results is None else f"{len(results)} values"
            raise ProgramError(f"`{launch}` returned {count}, expected {len(made)} ({names_of(made)})")
        return results

    def act(run: Run) -> None:
        values, room = run.values, run.room
        if run.lanes is not None:
            read, written = [values[value] for value in inputs], [room[value] for value in filled]
            _submit(run, made, filled, lambda: call(step, label, list(map(resolved, read)), written), checked)
            return
        results = call(step, label, [values[value] for value in inputs], [room[value] for value in filled])
        if made or results is not None:
            values.update(zip(made, checked(results), strict=True))
        for value in filled:
            values[value] = room.pop(value)

    return act


def _submit(
    run: Run,
    made: tuple[int, ...],
    filled: tuple[int, ...],
    work: Callable[[], Sequence[object] | None],
    checked: Callable[[Sequence[object] | None], Sequence[object]],
) -> None:
    """Does work on the current stream. What it makes on another stream than the caller's is there later."""
    lanes = cast("Lanes", run.lanes)
    if lanes.is_callers:
        results: list[object] = []

        def at_once() -> None:
            given = work()
            results.extend(checked(given) if made or given is not None else ())

        lanes.submit(at_once, (*made, *filled))
        run.values.update(zip(made, results, strict=True))
    else:
        coming = [lanes.later() for _ in made]

        def in_time() -> None:
            given = work()
            if made or given is not None:
                for later, result in zip(coming, checked(given), strict=True):
                    later.held = result

        run.values.update(zip(made, coming, strict=True))
        lanes.submit(in_time, (*made, *filled))
    for value in filled:
        run.values[value] = run.room.pop(value)


def _one_result(results: Sequence[object] | None) -> Sequence[object]:
    return results or ()


def _host_op(label: object, inputs: tuple[int, ...], output: int, bound: bool, device: HostOpDevice) -> Action:
    call = device.host_op
    made, filled = ((), (output,)) if bound else ((output,), ())

    def act(run: Run) -> None:
        values = run.values
        read = [values[value] for value in inputs]
        target = run.room[output] if bound else None
        if run.lanes is not None:

            def work() -> Sequence[object] | None:
                result = call(label, list(map(resolved, read)), target)
                return None if bound else (result,)

            _submit(run, made, filled, work, _one_result)
            return
        values[output] = call(label, read, target)
        if bound:
            values[output] = run.room.pop(output)

    return act


def _exchange(label: object, source: int, target: int, bound: bool, device: CommunicatingDevice) -> Action:
    """Ranks meet in it, so that it happens at once, after what the current stream waits for."""
    call = device.communicate

    def act(run: Run) -> None:
        room = run.room.pop(target) if bound else None
        held: list[object] = []

        def work() -> None:
            held.append(call(label, resolved(run.values[source]), room))

        if run.lanes is None:
            work()
        else:
            caller, lanes = run.lanes.is_callers, run.lanes
            if not caller:
                raise ProgramError("ranks communicate on the caller's stream")
            lanes.submit(work, (target,))
        run.values[target] = room if bound else held[0]

    return act


def _copy(source: int, target: int, device: CopyingDevice) -> Action:
    copy = device.copy

    def act(run: Run) -> None:
        values = run.values
        if target in run.room:
            values[target] = run.room.pop(target)
        if run.lanes is None:
            copy(values[source], values[target])
            return
        read, written = values[source], values[target]
        run.lanes.submit(lambda: copy(resolved(read), resolved(written)), (target,))

    return act


def _release(value: int, returns: bool, device: Device) -> Action:
    release = device.release

    def act(run: Run) -> None:
        memory = run.values.pop(value) if value in run.values else run.room.pop(value)
        if run.lanes is not None:
            # Memory that is handed out again is written after all that is waited for here.
            run.lanes.submit((lambda: release(resolved(memory))) if returns else _nothing)
        elif returns:
            release(memory)

    return act


def _nothing() -> None:
    pass


def _loop(loop: Loop, body: Action, ending: Sequence[Action], filled: Sequence[int]) -> Action:
    index = loop.index

    def act(run: Run) -> None:
        values = run.values
        start, stop, step = [evaluated(count, values) for count in (loop.start, loop.stop, loop.step)]
        if step == 0:
            raise ProgramError(f"the loop over {name_of(index)} has a step of 0")
        for number in range(start, stop, step):
            values[index] = number
            body(run)
            for end in ending:
                end(run)
        values.pop(index, None)
        for value in filled:
            if value in run.room:  # no iteration has begun to fill it
                values[value] = run.room.pop(value)

    return act


def _stream_action(instruction: GetStream | SetStream | Synchronize | Wait) -> Action:
    match instruction:
        case GetStream(number):
            return lambda run: cast("Lanes", run.lanes).name(number)
        case SetStream(stream):
            return lambda run: cast("Lanes", run.lanes).set(_stream(run, stream))
        case Synchronize(stream):
            return lambda run: cast("Lanes", run.lanes).synchronize(_stream(run, stream))
        case Wait(value):
            return lambda run: cast("Lanes", run.lanes).wait(value)


def _stream(run: Run, stream: Stream) -> object:
    return cast("Lanes", run.lanes).stream(stream, run.values)
