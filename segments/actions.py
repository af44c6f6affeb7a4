"""Compiles instructions to closures over everything that is fixed between runs.

Each closure reads and updates the live values of a run. Ordering and stream placement are the program's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

from segments.device import CommunicatingDevice, CopyingDevice, Device, HostOpDevice, SlicingDevice
from segments.instructions import (
    Alias,
    AllocateBuffer,
    Communicate,
    CopyBuffer,
    Count,
    EndCoalescing,
    GetStream,
    HostLoop,
    HostOp,
    Instruction,
    Launch,
    ProgramError,
    Release,
    Select,
    SetStream,
    StartCoalescing,
    Stream,
    Synchronize,
    Wait,
    WaitRequest,
    in_order,
    name_of,
    names_of,
    outputs_of,
)
from segments.program import Program
from segments.run_streams import RunStreams, resolve


class Run:
    """One run: its live values, the buffers that are allocated but not yet filled, and its streams, if any.

    requests: the handle and the targets of each exchange that has started.
    """

    __slots__ = ("requests", "streams", "unfilled", "values")

    def __init__(self, values: dict[int, object], streams: RunStreams | None = None) -> None:
        self.values = values
        self.unfilled: dict[int, object] = {}
        self.requests: dict[int, tuple[object, tuple[int, ...]]] = {}
        self.streams = streams


Action: TypeAlias = Callable[[Run], None]


class Binding:
    """Compiles instructions to actions.

    preallocated: values whose memory exists before a launch fills it: allocated values, aliases and slices.
    filled: values that some instruction writes. slices: values that share a part of another value's memory and are
    never returned to the device. names: for each buffer, how many of its names are not yet released.
    """

    def __init__(self, program: Program, device: Device) -> None:
        self.device = device
        self.bound = frozenset(program.inputs)
        self.root: dict[int, int] = {}
        preallocated: set[int] = set()
        filled: set[int] = set()
        slices: set[int] = set()
        for instruction in in_order(program.instructions):
            match instruction:
                case AllocateBuffer(value):
                    preallocated.add(value)
                case Alias(value, original):
                    preallocated.add(value)
                    self.root[value] = self.root.get(original, original)
                case Select(value):
                    preallocated.add(value)
                    slices.add(value)
                case CopyBuffer(_, target):
                    filled.add(target)
            filled.update(outputs_of(instruction))
        for instruction in reversed(in_order(program.instructions)):
            if isinstance(instruction, Select) and instruction.value in filled and instruction.original in slices:
                filled.add(instruction.original)  # filling a slice of a slice fills the outer slice
        self.preallocated, self.filled, self.slices = frozenset(preallocated), frozenset(filled), frozenset(slices)
        self.names: dict[int, int] = {}
        for root in self.root.values():
            self.names[root] = self.names.get(root, 1) + 1

    def action(self, instructions: Sequence[Instruction]) -> Action:
        """Return one action that performs `instructions` in order."""
        actions = list(map(self._compile, instructions))
        if len(actions) == 1:
            return actions[0]

        def run_all(run: Run) -> None:
            for action in actions:
                action(run)

        return run_all

    def _compile(self, instruction: Instruction) -> Action:
        device = self.device
        match instruction:
            case AllocateBuffer(value, spec):
                return _allocation(value, spec, device)
            case Alias(value, original):
                return _alias(value, original, value in self.filled)
            case Select():
                return _selection(instruction, cast("SlicingDevice", device), instruction.value in self.filled)
            case Launch():
                return _launch(instruction, self.preallocated, device)
            case HostOp(label, inputs, output):
                return _host_op(label, inputs, output, output in self.preallocated, cast("HostOpDevice", device))
            case Communicate():
                return _exchange(instruction, self.preallocated, cast("CommunicatingDevice", device))
            case WaitRequest(request):
                return _end_of_exchange(request, cast("CommunicatingDevice", device))
            case StartCoalescing():
                return _call(cast("CommunicatingDevice", device).start_coalescing)
            case EndCoalescing():
                return _call(cast("CommunicatingDevice", device).end_coalescing)
            case CopyBuffer(source, target):
                return _copy(source, target, cast("CopyingDevice", device))
            case Release(value):
                return _release(value, self._returns(value), device)
            case HostLoop():
                slices = [i for i in in_order(instruction.body) if isinstance(i, Select)]
                filled = [i.original for i in slices if i.value in self.filled]
                return _loop(instruction, self.action(instruction.body), self._endings(instruction), filled)
            case GetStream() | SetStream() | Synchronize() | Wait():
                return _stream_action(instruction)

    def _returns(self, value: int) -> bool:
        """Return whether releasing this name returns the memory to the device: the last name, and not of an input."""
        root = self.root.get(value, value)
        self.names[root] = self.names.get(root, 1) - 1
        return root not in self.bound and root not in self.slices and self.names[root] == 0

    def _endings(self, loop: HostLoop) -> list[Action]:
        """Return the releases of the values that an iteration defines and does not release itself."""
        defined: dict[int, None] = {}
        for instruction in loop.body:
            match instruction:
                case AllocateBuffer(value, _) | Alias(value, _) | Select(value):
                    defined[value] = None
                case Release(value):
                    defined.pop(value, None)
            defined.update(dict.fromkeys(v for v in outputs_of(instruction) if v not in self.preallocated))
        return [_release(value, self._returns(value), self.device) for value in defined]


def evaluate(count: Count, values: Mapping[int, object]) -> int:
    """Return the current value of an integer of the program."""
    return count if isinstance(count, int) else count.compute(values)


def _allocation(value: int, spec: object, device: Device) -> Action:
    allocate = device.allocate

    def act(run: Run) -> None:
        if run.streams is not None:
            run.streams.flush()  # an allocation counts as work of the stream, so it issues the pending waits
        run.unfilled[value] = allocate(spec, run.values)

    return act


def _content(run: Run, value: int) -> object:
    return resolve(run.values[value] if value in run.values else run.unfilled[value])


def _alias(value: int, original: int, is_filled: bool) -> Action:
    def act(run: Run) -> None:
        (run.unfilled if is_filled else run.values)[value] = _content(run, original)

    return act


def _selection(select: Select, device: SlicingDevice, is_filled: bool) -> Action:
    value, original, axis, index, size = select.value, select.original, select.axis, select.index, select.size
    slice_of = device.select

    def act(run: Run) -> None:
        length = None if size is None else evaluate(size, run.values)
        part = slice_of(_content(run, original), axis, evaluate(index, run.values), length)
        if not is_filled:
            run.values[value] = part
            return
        run.unfilled[value] = part
        if original in run.unfilled:  # its slices fill it one at a time; it is complete by the time it is read
            run.values[original] = run.unfilled.pop(original)

    return act


def _launch(launch: Launch, preallocated: frozenset[int], device: Device) -> Action:
    step, label, inputs, call = launch.step, launch.label, launch.inputs, device.launch
    filled = tuple(value for value in launch.outputs if value in preallocated)
    returned = tuple(value for value in launch.outputs if value not in preallocated)

    def check(results: Sequence[object] | None) -> Sequence[object]:
        if results is None or len(results) != len(returned):
            count = "nothing" if results is None else f"{len(results)} values"
            raise ProgramError(f"`{launch}` returned {count}, expected {len(returned)} ({names_of(returned)})")
        return results

    def act(run: Run) -> None:
        values, unfilled = run.values, run.unfilled
        if run.streams is not None:
            read, written = [values[value] for value in inputs], [unfilled[value] for value in filled]
            _submit(run, returned, filled, lambda: call(step, label, list(map(resolve, read)), written), check)
            return
        results = call(step, label, [values[value] for value in inputs], [unfilled[value] for value in filled])
        if returned or results is not None:
            values.update(zip(returned, check(results), strict=True))
        for value in filled:
            values[value] = unfilled.pop(value)

    return act


def _submit(
    run: Run,
    returned: tuple[int, ...],
    filled: tuple[int, ...],
    work: Callable[[], Sequence[object] | None],
    check: Callable[[Sequence[object] | None], Sequence[object]],
) -> None:
    """Submit work to the current stream. Values that it returns on a pool stream are futures until it completes."""
    streams = cast("RunStreams", run.streams)
    if streams.is_callers:
        results: list[object] = []

        def run_now() -> None:
            answer = work()
            results.extend(check(answer) if returned or answer is not None else ())

        streams.submit(run_now, (*returned, *filled))
        run.values.update(zip(returned, results, strict=True))
    else:
        futures = [streams.promise() for _ in returned]

        def run_in_turn() -> None:
            answer = work()
            if returned or answer is not None:
                for future, result in zip(futures, check(answer), strict=True):
                    future.content = result

        run.values.update(zip(returned, futures, strict=True))
        streams.submit(run_in_turn, (*returned, *filled))
    for value in filled:
        run.values[value] = run.unfilled.pop(value)


def _one_result(results: Sequence[object] | None) -> Sequence[object]:
    return results or ()


def _host_op(label: object, inputs: tuple[int, ...], output: int, bound: bool, device: HostOpDevice) -> Action:
    call = device.host_op
    returned, filled = ((), (output,)) if bound else ((output,), ())

    def act(run: Run) -> None:
        values = run.values
        read = [values[value] for value in inputs]
        target = run.unfilled[output] if bound else None
        if run.streams is not None:

            def work() -> Sequence[object] | None:
                result = call(label, list(map(resolve, read)), target)
                return None if bound else (result,)

            _submit(run, returned, filled, work, _one_result)
            return
        values[output] = call(label, read, target)
        if bound:
            values[output] = run.unfilled.pop(output)

    return act


def _exchange(exchange: Communicate, preallocated: frozenset[int], device: CommunicatingDevice) -> Action:
    """Compile the start of an exchange, which only the caller's thread issues: ranks agree on one order."""
    label, sources, targets, call = exchange.label, exchange.sources, exchange.targets, device.communicate

    def act(run: Run) -> None:
        if run.streams is not None:
            if not run.streams.is_callers:
                raise ProgramError(f"`{exchange}`: ranks can communicate on the caller's stream only")
            run.streams.flush()
        read = [resolve(run.values[value]) for value in sources]
        written = [run.unfilled[value] if value in preallocated else None for value in targets]
        run.requests[exchange.request] = call(label, read, written), targets

    return act


def _end_of_exchange(request: int, device: CommunicatingDevice) -> Action:
    finish = device.finish_request

    def act(run: Run) -> None:
        handle, targets = run.requests.pop(request)
        for value, buffer in zip(targets, finish(handle), strict=True):
            run.unfilled.pop(value, None)
            run.values[value] = buffer

    return act


def _call(function: Callable[[], None]) -> Action:
    def act(run: Run) -> None:
        function()

    return act


def _copy(source: int, target: int, device: CopyingDevice) -> Action:
    copy = device.copy

    def act(run: Run) -> None:
        values = run.values
        if target in run.unfilled:
            values[target] = run.unfilled.pop(target)
        if run.streams is None:
            copy(values[source], values[target])
            return
        read, written = values[source], values[target]
        run.streams.submit(lambda: copy(resolve(read), resolve(written)), (target,))

    return act


def _release(value: int, returns: bool, device: Device) -> Action:
    release = device.release

    def act(run: Run) -> None:
        memory = run.values.pop(value) if value in run.values else run.unfilled.pop(value)
        if run.streams is not None:
            # The device may reuse the memory, so its next writer must come after the pending waits.
            run.streams.submit((lambda: release(resolve(memory))) if returns else _nothing)
        elif returns:
            release(memory)

    return act


def _nothing() -> None:
    pass


def _loop(loop: HostLoop, body: Action, ending: Sequence[Action], filled: Sequence[int]) -> Action:
    index = loop.index

    def act(run: Run) -> None:
        values = run.values
        start, stop, step = [evaluate(count, values) for count in (loop.start, loop.stop, loop.step)]
        if step == 0:
            raise ProgramError(f"the loop over {name_of(index)} has a step of 0")
        for number in range(start, stop, step):
            values[index] = number
            body(run)
            for end in ending:
                end(run)
        values.pop(index, None)
        for value in filled:
            if value in run.unfilled:  # the loop had no iteration to fill it
                values[value] = run.unfilled.pop(value)

    return act


def _stream_action(instruction: GetStream | SetStream | Synchronize | Wait) -> Action:
    match instruction:
        case GetStream(number):
            return lambda run: cast("RunStreams", run.streams).name(number)
        case SetStream(stream):
            return lambda run: cast("RunStreams", run.streams).set(_stream(run, stream))
        case Synchronize(stream):
            return lambda run: cast("RunStreams", run.streams).synchronize(_stream(run, stream))
        case Wait(value):
            return lambda run: cast("RunStreams", run.streams).wait(value)


def _stream(run: Run, stream: Stream) -> object:
    return cast("RunStreams", run.streams).stream(stream, run.values)
