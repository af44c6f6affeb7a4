"""Compiles the stream-parallel loops of a host program to Python functions.

A stream-parallel loop spreads its iterations over streams. The loop is bound once for the shapes and strides of a call.
After that, an iteration only computes the addresses of its slices and launches. Streams wait for each other at the
beginning and the end of the loop, not at every iteration. The function of a loop takes the caller's stream and the
whole arrays.

    def loop(caller, t0, t2, e1):                   def run(caller, n, t0, t2, e1):
        n = stop({-1: e1})                              p0 = t0.data.ptr ...
        key = (t0.shape, t0.strides, ...)               def start_worker(stream, j):
        run = bound.get(key)                                slice0 = full0(stream.ptr)
        if run is None:                                     def iterate(k):
            run = bind(key, n, (t0, t2, e1))                    slice0(p0 + k * d0, p2 + k * d2)
        run(caller, n, t0, t2, e1)                          return iterate
                                                        run_workers(caller, start_worker, n, streams)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from segments import Count, HostLoop, HostOp, Integer, Launch, Select, SetStream, name_of
from segments.lazy_dataclasses import dataclass
from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.generated_code import compile_function
from tracefuse.ir.fusion import Fusion
from tracefuse.runtime.streams.slices import HostCallOnSlices, OnSlices, StreamWorker
from tracefuse.runtime.targets.target import Target

MAX_BOUND = 256
"""The number of argument layouts that a loop stays bound for. Beyond it, the oldest is dropped."""
register(Cache(
    "runtime.streams.stream_loops.StreamLoop._bound", "the bound body of a stream-parallel loop",
    "shapes, strides and integers of the arguments", f"{MAX_BOUND}, the oldest go", "a plan", "with the plan",
))  # fmt: skip
register(Cache(
    "runtime.streams.stream_loops.StreamLoop._bodies", "the Python function that binds the body",
    "which steps take addresses", "2 for each step", "a plan", "with the plan",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operand:
    """An array that an iteration reads or writes.

    axis: the iteration uses a slice along it, or the whole value if it is None. in_slot: the slice is at the index of
    the stream, not of the iteration.
    """

    value: int
    axis: int | None = None
    in_slot: bool = False


@dataclass(frozen=True, slots=True)
class LoopStep:
    """One computation of an iteration.

    tensors: the operands that it reads, then those that it writes. arguments: all inputs in order, which are operands
    and the numbers of scalars. scalars: the numbers of scalars that are not integers.
    """

    label: Any
    tensors: tuple[Operand, ...]
    arguments: tuple[Operand | int, ...]
    outputs: tuple[Operand, ...]
    scalars: tuple[int, ...]


class StreamLoop:
    """A stream-parallel loop of a program.

    values: the parameters after the stream, by number in `fusion`. segments: the segments that it runs. A call runs the
    loop; the caller's stream continues after all iterations.
    """

    def __init__(self, loop: HostLoop, fusion: Fusion, target: Target) -> None:
        self.loop, self.fusion, self.calls, self.device = loop, fusion, target.calls, target.device
        self._selects = {i.value: i for i in loop.body if isinstance(i, Select)}
        launches = [i for i in loop.body if isinstance(i, Launch | HostOp)]
        self.steps = tuple(map(self._step, launches))
        self.segments = tuple(launch.step for launch in launches)
        self.streams = next(filter(None, (_divisor(i) for i in loop.body if isinstance(i, SetStream))))
        self.size: Count | None = next(iter(self._selects.values())).size
        operands = dict.fromkeys(operand for step in self.steps for operand in step.tensors)
        self.wholes = tuple(dict.fromkeys(operand.value for operand in operands))
        numbers = [n for step in self.steps for n in step.arguments if isinstance(n, int)]
        counts = [count for count in (loop.stop, self.size) if isinstance(count, Integer)]
        self.numbers = tuple(dict.fromkeys([*numbers, *(n for count in counts for n in count.reads)]))
        self.values = (*self.wholes, *self.numbers)
        self._bound: BoundedTable[Any, Callable[..., None]] = BoundedTable(MAX_BOUND)
        self._bodies: dict[tuple[bool, ...], Callable[..., Callable[..., None]]] = {}
        self.text = "\n".join(self._entry())
        self.call: Callable[..., None] = self._compile(self.text, "loop")

    def __call__(self, caller: Any, *values: Any) -> None:
        self.call(caller, *values)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _operand(self, value: int) -> Operand:
        select = self._selects.get(value)
        if select is None:
            return Operand(value)
        assert isinstance(select.index, Integer)
        return Operand(select.original, select.axis, select.index.remainder is not None)

    def _step(self, launch: Launch | HostOp) -> LoopStep:
        if isinstance(launch, HostOp):
            operands, target = tuple(map(self._operand, launch.inputs)), self._operand(launch.output)
            return LoopStep(launch.label, (*operands, target), operands, (target,), ())
        arguments = [self._operand(v) if self._is_tensor(v) else v for v in launch.inputs]
        outputs = tuple(map(self._operand, launch.outputs))
        inputs = tuple(argument for argument in arguments if isinstance(argument, Operand))
        scalars = tuple(n for n in arguments if isinstance(n, int) and not self._is_integer(n))
        return LoopStep(launch.label, (*inputs, *outputs), tuple(arguments), outputs, scalars)

    def _is_tensor(self, number: int) -> bool:
        return number in self._selects or (number >= 0 and self.fusion.values[number].is_tensor)

    def _is_integer(self, number: int) -> bool:
        return number < 0 or self.fusion.values[number].dtype.is_integer

    # -- texts --------------------------------------------------------------------------------------------------------

    def _compile(self, text: str, name: str) -> Any:
        scope = {
            **self.calls.names(),
            "bound": self._bound,
            "bind": self._bind,
            "run_workers": self.device.run_stream_workers,
            "stop": _compute(self.loop.stop),
            "size": _compute(self.size),
        }
        return compile_function(text, name, scope, "loop")

    def _parameters(self) -> str:
        return ", ".join(["caller", *map(name_of, self.values)])

    @staticmethod
    def count_text(count: Count, name: str) -> str:
        """Writes a count, computed by the function `name` if it depends on extents."""
        if isinstance(count, int):
            return str(count)
        return f"{name}({{{', '.join(f'{n}: {name_of(n)}' for n in count.reads)}}})"

    def extent_text(self) -> str:
        """Writes the extent of the axis that is cut into chunks."""
        output = self.steps[0].outputs[0]
        return f"{name_of(output.value)}.shape[{output.axis}]"

    def _entry(self) -> Iterator[str]:
        yield f"def loop({self._parameters()}):"
        if self.size is None:
            yield f"    n = {self.count_text(self.loop.stop, 'stop')}"
        else:
            yield f"    z = {self.count_text(self.size, 'size')}"
            yield f"    n = min(-(-{self.extent_text()} // z), {self.count_text(self.loop.stop, 'stop')}) if z else 0"
        yield "    if n < 1:"
        yield "        return"
        key = [text for number in self.wholes for text in self._key_of(name_of(number))]
        key += [name_of(number) for number in self.numbers if self._is_integer(number)]
        yield f"    key = ({', '.join(key)},)"
        yield "    run = bound.get(key)"
        yield "    if run is None:"
        values = "".join(f"{name_of(number)}, " for number in self.values)
        yield f"        run = bind(key, n, ({values}))"
        yield f"    run({', '.join(['caller', 'n', *map(name_of, self.values)])})"

    def _key_of(self, name: str) -> list[str]:
        argument = self.calls.argument_text(name)
        wide = [self.calls.wide_text(name, argument)] if self.device.uses_alignment else []
        return [f"{name}.shape", f"{name}.strides", *wide]

    def _body(self, by_address: tuple[bool, ...]) -> Callable[..., Callable[..., None]]:
        """Compiles the function that builds `run` from the workers of each step, and those of a shorter last chunk."""
        if by_address not in self._bodies:
            text = "\n".join(_Body(self, by_address).lines())
            self._bodies[by_address] = self._compile(text, "make")
        return self._bodies[by_address]

    # -- binding ------------------------------------------------------------------------------------------------------

    def _bind(self, key: Any, n: int, values: Sequence[Any]) -> Callable[..., None]:
        workers, shorter = self.workers(n, values)
        make = self._body(tuple(worker.by_address for worker in workers))
        run = make(self.worker_count(values), *(worker.start for worker in (*workers, *shorter)))
        self._bound[key] = run
        return run

    def iterations(self, values: Sequence[Any]) -> int:
        """Returns the number of iterations for these values."""
        named = dict(zip(self.values, values, strict=True))
        limit = _compute(self.loop.stop)(named)
        if self.size is None:
            return limit
        output, size = self.steps[0].outputs[0], _compute(self.size)(named)
        return min(-(-named[output.value].shape[output.axis] // size), limit) if size else 0

    def worker_count(self, values: Sequence[Any]) -> int:
        """Returns the number of streams that get work, if there are at least as many iterations."""
        arrays = values[: len(self.wholes)]
        return self.device.stream_worker_count(sum(array.nbytes for array in arrays), self.streams)

    def workers(self, n: int, values: Sequence[Any]) -> tuple[list[StreamWorker], list[StreamWorker]]:
        """Returns the worker of each step for n > 0 iterations, and the workers of a shorter last chunk."""
        named = dict(zip(self.values, values, strict=True))
        if self.size is None:
            return self._step_workers(named, 1, range(n)), []
        size = _compute(self.size)(named)
        output = self.steps[0].outputs[0]
        full, rest = divmod(named[output.value].shape[output.axis], size)
        workers = self._step_workers(named, size, range(full)) if full else []
        shorter = self._step_workers(named, size, range(full, full + 1)) if rest else []
        if workers and [worker.by_address for worker in workers] != [
            worker.by_address for worker in shorter or workers
        ]:
            workers = self._step_workers(named, size, range(full), True)
            shorter = self._step_workers(named, size, range(full, n), True)
        return workers or shorter, shorter

    def _step_workers(
        self, named: Mapping[int, Any], size: int, indices: Sequence[int], arrays: bool = False
    ) -> list[StreamWorker]:
        """Returns the worker of each step. arrays: workers that take arrays, not addresses."""
        workers = []
        for step in self.steps:
            arguments = [
                self._slice(operand, named, size, indices) if isinstance(operand, Operand) else named[operand]
                for operand in step.arguments
            ]
            outputs = [self._slice(operand, named, size, indices) for operand in step.outputs]
            workers.append(self._worker(step, arguments, outputs, arrays))
        return workers

    def _slice(self, operand: Operand, named: Mapping[int, Any], size: int, indices: Sequence[int]) -> Any:
        """Returns a slice that is no better aligned than any other.

        The second slice decides, because all further slices are at multiples of its offset.
        """
        array = named[operand.value]
        if operand.axis is None:
            return array
        before = (slice(None),) * operand.axis
        for index in indices[:2] if self.streams > 1 or not operand.in_slot else indices[:1]:
            part = array[(*before, slice(index * size, (index + 1) * size))]
            if not self.device.is_wide(part):
                break
        return part

    def _worker(self, step: LoopStep, arguments: list[Any], outputs: list[Any], arrays: bool) -> StreamWorker:
        if isinstance(step.label, HostCallOnSlices):
            return self._host_worker(step.label, arguments, outputs, arrays)
        run = step.label.run
        assert isinstance(run, OnSlices)
        return run.computation.stream_worker(arguments, outputs, arrays)

    def _host_worker(
        self, label: HostCallOnSlices, arguments: list[Any], outputs: list[Any], arrays: bool
    ) -> StreamWorker:
        call = label.call
        if call.copies and not arrays:
            copier = self.device.copier(arguments[0], outputs[0])
            if copier is not None:
                return StreamWorker(True, copier)

        def run_on_arrays(*tensors: Any) -> None:
            call(list(tensors[:-1]), tensors[-1])

        return StreamWorker(False, lambda stream: run_on_arrays)


class _Body:
    """Writes the iterations of a loop. by_address: for each step, whether its worker takes addresses or arrays."""

    def __init__(self, loop: StreamLoop, by_address: tuple[bool, ...]) -> None:
        self.loop, self.calls = loop, loop.calls
        self.by_address = by_address
        self.slots: dict[str, str] = {}
        self.strides: dict[str, str] = {}

    def lines(self) -> Iterator[str]:
        loop = self.loop
        count = len(loop.steps)
        full, short = [f"full{k}" for k in range(count)], [f"short{k}" for k in range(count)]
        rest = ", ".join(f"{name}=None" for name in short)
        body, last = self._iteration("slice"), self._iteration("last")
        yield f"def make(streams, {', '.join(full)}, {rest}):"
        yield f"    def run({', '.join(['caller', 'n', *map(name_of, loop.values)])}):"
        if loop.size is not None:
            yield f"        z = {loop.count_text(loop.size, 'size')}"
            yield f"        whole = {loop.extent_text()} // z"
        steps = [step for step, address in zip(loop.steps, self.by_address, strict=True) if address]
        for operand in dict.fromkeys(operand for step in steps for operand in step.tensors):
            yield from self._address(operand)
        yield "        def start_worker(stream, j):"
        stream = "stream.ptr" if self.calls.addresses else "None"
        yield from (f"            slice{k} = full{k}({stream})" for k in range(count))
        if loop.size is not None:
            yield from (f"            last{k} = short{k} and short{k}({stream})" for k in range(count))
        yield from (f"            {name} = {text}" for name, text in self.slots.items())
        yield "            def iterate(k):"
        on_stream = self.calls.addresses and not all(self.by_address)
        margin = " " * (20 if on_stream else 16)
        if on_stream:
            yield "                with stream:"
        if loop.size is not None:
            yield f"{margin}if k == whole:"
            yield from (f"{margin}    {line}" for line in last)
            yield f"{margin}    return"
        yield from (f"{margin}{line}" for line in body)
        yield "            return iterate"
        yield "        run_workers(caller, start_worker, n, streams)"
        yield "    return run"

    def _address(self, operand: Operand) -> Iterator[str]:
        name = name_of(operand.value)
        size = "" if self.loop.size is None else " * z"
        stride = f"d{operand.value}_{operand.axis}"
        if operand.axis is not None:
            yield f"        {stride} = {name}.strides[{operand.axis}]{size}"
        yield f"        p{operand.value} = {self.calls.argument_text(name)}"

    def _iteration(self, name: str) -> list[str]:
        """Writes the calls of one iteration, after the slices that they share."""
        parts: dict[str, str] = {}
        calls = []
        for k, (step, address) in enumerate(zip(self.loop.steps, self.by_address, strict=True)):
            tensors = [self._text(operand, address, parts) for operand in step.tensors]
            calls.append(f"{name}{k}({', '.join([*tensors, *map(name_of, step.scalars)])})")
        return [*(f"{part} = {text}" for part, text in parts.items()), *calls]

    def _text(self, operand: Operand, address: bool, parts: dict[str, str]) -> str:
        value, axis = operand.value, operand.axis
        if axis is None:
            return f"p{value}" if address else name_of(value)
        index, table, mark = ("j", self.slots, "s") if operand.in_slot else ("k", parts, "")
        if address:
            part, text = f"q{mark}{value}_{axis}", f"p{value} + {index} * d{value}_{axis}"
        else:
            bounds = f"{index}:{index} + 1" if self.loop.size is None else f"{index} * z:{index} * z + z"
            part, text = f"v{mark}{value}_{axis}", f"{name_of(value)}[{':, ' * axis}{bounds}]"
        table[part] = text
        return part


def _divisor(set_stream: SetStream) -> int | None:
    """Returns the number of streams of the pool that the iterations use."""
    index = getattr(set_stream.stream, "index", None)
    remainder = index.remainder if isinstance(index, Integer) else None
    return None if remainder is None else remainder[1]


def _compute(count: Count | None) -> Callable[[Mapping[int, Any]], int]:
    if isinstance(count, Integer):
        return count.compute
    return lambda values: count or 0
