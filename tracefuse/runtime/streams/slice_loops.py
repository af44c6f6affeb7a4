"""Loops over slices as Python functions: what a call and each of its iterations pay for.

A loop of a host program spreads its iterations over streams. Its body is bound once for the shapes and strides of a
call: from then on an iteration computes where its slices are and launches, and streams wait for each other where they
begin and where they end, not at every iteration. The function of a loop takes the caller's stream and the whole arrays.

    def loop(own, t0, t2, e1):                      def run(own, n, t0, t2, e1):
        n = stop({-1: e1})                              p0 = t0.data.ptr ...
        key = (t0.shape, t0.strides, ...)               def lane(stream, j):
        found = kept.get(key)                               one0 = lane0(stream.ptr)
        if found is None:                                   def one(k):
            found = find(key, (t0, t2, e1))                     one0(p0 + k * d0, p2 + k * d2)
        found(own, n, t0, t2, e1)                           return one
                                                        run_lanes(own, lane, n, streams)

Knows: loops of host programs, what computes a slice, the texts that a target gives. Must not know: plans, kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from segments import Count, HostOp, Integer, Launch, Loop, Select, SetStream, name_of
from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.generated_code import compile_function
from tracefuse.ir.fusion import Fusion
from tracefuse.runtime.streams.slices import HostCallOnSlices, Lane, OnSlices
from tracefuse.runtime.targets.target import Target

MOST_KINDS = 256
"""Kinds of arguments for which a loop keeps what it bound; the oldest goes first."""
register(Cache(
    "runtime.streams.slice_loops.SliceLoop._kept", "the bound body of a stream-parallel loop",
    "shapes, strides and integers of the arguments", f"{MOST_KINDS}, the oldest go", "a plan", "with the plan",
))  # fmt: skip
register(Cache(
    "runtime.streams.slice_loops.SliceLoop._bodies", "the Python function that binds the body",
    "which steps take addresses", "2 for each step", "a plan", "with the plan",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operand:
    """An array that an iteration reads or writes: the whole value, or its slice along `axis`; in_slot: the slice at the
    number of the stream, not of the iteration."""

    value: int
    axis: int | None = None
    in_slot: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A computation of an iteration. tensors: what it reads, then what it writes. arguments: everything that it reads,
    in order: operands, and scalars by number. scalars: those that are no integers."""

    label: Any
    tensors: tuple[Operand, ...]
    arguments: tuple[Operand | int, ...]
    outputs: tuple[Operand, ...]
    scalars: tuple[int, ...]


class SliceLoop:
    """One loop of a program. values: what it takes after the stream, by number. segments: those that it runs.

    fusion: what the numbers belong to. Calling it runs it; the caller's stream goes on after all of its iterations.
    """

    def __init__(self, loop: Loop, fusion: Fusion, target: Target) -> None:
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
        self._kept: BoundedTable[Any, Callable[..., None]] = BoundedTable(MOST_KINDS)
        self._bodies: dict[tuple[bool, ...], Callable[..., Callable[..., None]]] = {}
        self.text = "\n".join(self._entry())
        self.call: Callable[..., None] = self._made(self.text, "loop")

    def __call__(self, own: Any, *values: Any) -> None:
        self.call(own, *values)

    # -- what it is made of -------------------------------------------------------------------------------------------

    def _operand(self, value: int) -> Operand:
        select = self._selects.get(value)
        if select is None:
            return Operand(value)
        assert isinstance(select.index, Integer)
        return Operand(select.original, select.axis, select.index.remainder is not None)

    def _step(self, launch: Launch | HostOp) -> Step:
        if isinstance(launch, HostOp):
            operands, target = tuple(map(self._operand, launch.inputs)), self._operand(launch.output)
            return Step(launch.label, (*operands, target), operands, (target,), ())
        taken = [self._operand(v) if self._is_tensor(v) else v for v in launch.inputs]
        made = tuple(map(self._operand, launch.outputs))
        read = tuple(one for one in taken if isinstance(one, Operand))
        scalars = tuple(n for n in taken if isinstance(n, int) and not self._is_integer(n))
        return Step(launch.label, (*read, *made), tuple(taken), made, scalars)

    def _is_tensor(self, number: int) -> bool:
        return number in self._selects or (number >= 0 and self.fusion.values[number].is_tensor)

    def _is_integer(self, number: int) -> bool:
        return number < 0 or self.fusion.values[number].dtype.is_integer

    # -- texts --------------------------------------------------------------------------------------------------------

    def _made(self, text: str, name: str) -> Any:
        scope = {
            **self.calls.names(), "kept": self._kept, "find": self._find, "run_lanes": self.device.run_lanes,
            "stop": _computed(self.loop.stop), "size": _computed(self.size),
        }  # fmt: skip
        return compile_function(text, name, scope, "loop")

    def _given(self) -> str:
        return ", ".join(["own", *map(name_of, self.values)])

    @staticmethod
    def count_text(count: Count, name: str) -> str:
        if isinstance(count, int):
            return str(count)
        return f"{name}({{{', '.join(f'{n}: {name_of(n)}' for n in count.reads)}}})"

    def extent_text(self) -> str:
        """The extent of the axis that is cut into pieces."""
        made = self.steps[0].outputs[0]
        return f"{name_of(made.value)}.shape[{made.axis}]"

    def _entry(self) -> Iterator[str]:
        yield f"def loop({self._given()}):"
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
        yield "    found = kept.get(key)"
        yield "    if found is None:"
        values = "".join(f"{name_of(number)}, " for number in self.values)
        yield f"        found = find(key, n, ({values}))"
        yield f"    found({', '.join(['own', 'n', *map(name_of, self.values)])})"

    def _key_of(self, name: str) -> list[str]:
        argument = self.calls.argument_text(name)
        wide = [self.calls.wide_text(name, argument)] if self.device.uses_alignment else []
        return [f"{name}.shape", f"{name}.strides", *wide]

    def _body(self, by_address: tuple[bool, ...]) -> Callable[..., Callable[..., None]]:
        """What makes the function of all iterations from the lanes of each step, and those of a shorter last piece."""
        if by_address not in self._bodies:
            text = "\n".join(_Body(self, by_address).lines())
            self._bodies[by_address] = self._made(text, "make")
        return self._bodies[by_address]

    # -- binding ------------------------------------------------------------------------------------------------------

    def _find(self, key: Any, n: int, values: Sequence[Any]) -> Callable[..., None]:
        lanes, shorter = self.lanes(n, values)
        made = self._body(tuple(lane.by_address for lane in lanes))
        found = made(self.lane_count(values), *(lane.make for lane in lanes), *(lane.make for lane in shorter))
        self._kept[key] = found
        return found

    def iterations(self, values: Sequence[Any]) -> int:
        """How many iterations there are for these values."""
        named = dict(zip(self.values, values, strict=True))
        most = _computed(self.loop.stop)(named)
        if self.size is None:
            return most
        made, size = self.steps[0].outputs[0], _computed(self.size)(named)
        return min(-(-named[made.value].shape[made.axis] // size), most) if size else 0

    def lane_count(self, values: Sequence[Any]) -> int:
        """How many streams get work, where there are so many iterations."""
        arrays = values[: len(self.wholes)]
        return self.device.lanes_of(sum(array.nbytes for array in arrays), self.streams)

    def lanes(self, n: int, values: Sequence[Any]) -> tuple[list[Lane], list[Lane]]:
        """The lane of each step for n > 0 iterations on these values; and those of a last piece that is shorter."""
        named = dict(zip(self.values, values, strict=True))
        if self.size is None:
            return self._lanes(named, 1, range(n)), []
        size = _computed(self.size)(named)
        made = self.steps[0].outputs[0]
        full, rest = divmod(named[made.value].shape[made.axis], size)
        lanes = self._lanes(named, size, range(full)) if full else []
        shorter = self._lanes(named, size, range(full, full + 1)) if rest else []
        if lanes and [lane.by_address for lane in lanes] != [lane.by_address for lane in shorter or lanes]:
            lanes, shorter = self._lanes(named, size, range(full), True), self._lanes(named, size, range(full, n), True)
        return lanes or shorter, shorter

    def _lanes(
        self, named: Mapping[int, Any], size: int, indices: Sequence[int], arrays: bool = False
    ) -> list[Lane]:  # fmt: skip
        """arrays: of those that take arrays."""
        found = []
        for step in self.steps:
            arguments = [
                self._slice(one, named, size, indices) if isinstance(one, Operand) else named[one]
                for one in step.arguments
            ]
            outputs = [self._slice(one, named, size, indices) for one in step.outputs]
            found.append(self._lane(step, arguments, outputs, arrays))
        return found

    def _slice(self, operand: Operand, named: Mapping[int, Any], size: int, indices: Sequence[int]) -> Any:
        """A slice that is no more aligned than any other one: if the second is, so are those that follow."""
        whole = named[operand.value]
        if operand.axis is None:
            return whole
        before = (slice(None),) * operand.axis
        for index in indices[:2] if self.streams > 1 or not operand.in_slot else indices[:1]:
            found = whole[(*before, slice(index * size, (index + 1) * size))]
            if not self.device.is_wide(found):
                break
        return found

    def _lane(self, step: Step, arguments: list[Any], outputs: list[Any], arrays: bool) -> Lane:
        if isinstance(step.label, HostCallOnSlices):
            return self._host_lane(step.label, arguments, outputs, arrays)
        run = step.label.run
        assert isinstance(run, OnSlices)
        return run.computation.lane(arguments, outputs, arrays)

    def _host_lane(self, label: HostCallOnSlices, arguments: list[Any], outputs: list[Any], arrays: bool) -> Lane:
        call = label.call
        if call.copies and not arrays:
            copier = self.device.copier(arguments[0], outputs[0])
            if copier is not None:
                return Lane(True, copier)

        def on_arrays(*given: Any) -> None:
            call(list(given[:-1]), given[-1])

        return Lane(False, lambda stream: on_arrays)


class _Body:
    """The text of the iterations of a loop, for computations that take addresses or arrays."""

    def __init__(self, loop: SliceLoop, by_address: tuple[bool, ...]) -> None:
        self.loop, self.calls = loop, loop.calls
        self.by_address = by_address
        self.slots: dict[str, str] = {}
        self.strides: dict[str, str] = {}

    def lines(self) -> Iterator[str]:
        loop = self.loop
        count = len(loop.steps)
        full, short = [f"full{k}" for k in range(count)], [f"short{k}" for k in range(count)]
        rest = ", ".join(f"{name}=None" for name in short)
        body, last = self._iteration("one"), self._iteration("last")
        yield f"def make(streams, {', '.join(full)}, {rest}):"
        yield f"    def run({', '.join(['own', 'n', *map(name_of, loop.values)])}):"
        if loop.size is not None:
            yield f"        z = {loop.count_text(loop.size, 'size')}"
            yield f"        whole = {loop.extent_text()} // z"
        steps = [step for step, address in zip(loop.steps, self.by_address, strict=True) if address]
        for operand in dict.fromkeys(operand for step in steps for operand in step.tensors):
            yield from self._address(operand)
        yield "        def lane(stream, j):"
        stream = "stream.ptr" if self.calls.addresses else "None"
        yield from (f"            one{k} = full{k}({stream})" for k in range(count))
        if loop.size is not None:
            yield from (f"            last{k} = short{k} and short{k}({stream})" for k in range(count))
        yield from (f"            {name} = {text}" for name, text in self.slots.items())
        yield "            def one(k):"
        on_stream = self.calls.addresses and not all(self.by_address)
        margin = " " * (20 if on_stream else 16)
        if on_stream:
            yield "                with stream:"
        if loop.size is not None:
            yield f"{margin}if k == whole:"
            yield from (f"{margin}    {line}" for line in last)
            yield f"{margin}    return"
        yield from (f"{margin}{line}" for line in body)
        yield "            return one"
        yield "        run_lanes(own, lane, n, streams)"
        yield "    return run"

    def _address(self, operand: Operand) -> Iterator[str]:
        name = name_of(operand.value)
        size = "" if self.loop.size is None else " * z"
        stride = f"d{operand.value}_{operand.axis}"
        if operand.axis is not None:
            yield f"        {stride} = {name}.strides[{operand.axis}]{size}"
        yield f"        p{operand.value} = {self.calls.argument_text(name)}"

    def _iteration(self, name: str) -> list[str]:
        """The calls of one iteration, with the slices that they share before them."""
        parts: dict[str, str] = {}
        calls = []
        for k, (step, address) in enumerate(zip(self.loop.steps, self.by_address, strict=True)):
            given = [self._text(operand, address, parts) for operand in step.tensors]
            calls.append(f"{name}{k}({', '.join([*given, *map(name_of, step.scalars)])})")
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
    """How many streams of the pool the iterations go to."""
    index = getattr(set_stream.stream, "index", None)
    remainder = index.remainder if isinstance(index, Integer) else None
    return None if remainder is None else remainder[1]


def _computed(count: Count | None) -> Callable[[Mapping[int, Any]], int]:
    if isinstance(count, Integer):
        return count.compute
    return lambda values: count or 0
