"""Runs loops and branches on the host, around the compiled segments of their sub-fusions.

A loop binds its sub-fusions once for the layouts of a call; a step then costs the host its launches. The carried values
have two buffers each: a step reads one and writes the other, and then they are exchanged, so a step allocates nothing.
A condition is computed on the device and read by the host: on a GPU the host waits for it at every step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.dtypes import bool_, int64
from tracefuse.generated_code import compile_function
from tracefuse.ir.control_flow import Branch, ControlFlow, CountedLoop, RangeLoop, WhileLoop
from tracefuse.ir.extents import evaluate, python_text
from tracefuse.ir.fusion import Fusion, Literal, Node, SubFusion
from tracefuse.ir.reference import extent_values
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.partition.update_phases import in_phases
from tracefuse.runtime.driven_loops import FEWEST_STEPS, DrivenLoop
from tracefuse.runtime.streams.slices import Computation, StreamWorker
from tracefuse.runtime.targets.library_calls import names_of_inputs
from tracefuse.runtime.targets.target import Target

ComputationOf: TypeAlias = Callable[[SubFusion], Computation]
"""Returns the compiled computation of a sub-fusion."""

MAX_BOUND = 64
"""The number of argument layouts that a sub-fusion stays bound for. Beyond it, the oldest is dropped."""
register(Cache(
    "runtime.control_flow_calls.BoundPart._workers", "the bound body of a loop",
    "shapes, strides and integers of the arguments", f"{MAX_BOUND}, the oldest go", "a plan", "with the plan",
))  # fmt: skip

COUNTERS = 4096
"""The number of consecutive counter values that lie in device memory, where kernels read them by address."""


def _same(value: Any) -> Any:
    return value


class ControlFlowRun:
    """A launch that runs a control-flow node and returns new arrays.

    stored: the results that it returns. disk: the cache of compiled drivers. is_driven: drivers may run the loop.
    """

    def __init__(
        self, fusion: Fusion, node: Node, stored: Sequence[int], target: Target, computation_of: ComputationOf,
        disk: DiskCache | None = None, is_driven: bool = True,
    ) -> None:  # fmt: skip
        op = node.op
        assert isinstance(op, ControlFlow)
        self.fusion, self.node = fusion, node
        self._places = [fusion.inputs.index(o) if isinstance(o, int) else None for o in node.operands]
        self._literals = [o.value if isinstance(o, Literal) else None for o in node.operands]
        is_loop = is_driven and not isinstance(op, Branch) and target.compiler.compiles_loops
        bodies = dict(op.sub_fusions(node.attributes))
        if target.compiler.compiles_loops and isinstance(op, RangeLoop):  # its steps round alike on the host
            bodies = {name: in_phases(part) for name, part in bodies.items()}
        self.parts = {name: BoundPart(part, computation_of(part), target) for name, part in bodies.items()}
        self._returned = [node.outputs.index(number) for number in stored]
        self.driven = DrivenLoop(self, target, disk) if is_loop else None
        if isinstance(op, RangeLoop):
            self._bounds = _bounds_function(fusion, node)
        self._run: Callable[[list[Any], Sequence[Any]], Sequence[Any]] = {
            WhileLoop: lambda operands, inputs: _run_while(node, self.parts, operands, self.driven),
            CountedLoop: self._run_counted,
            RangeLoop: lambda operands, inputs: _run_range(
                node, self.parts["body"], operands, inputs, self.driven, self._bounds(inputs)
            ),
            Branch: lambda operands, inputs: _run_branch(self.parts, operands),
        }[type(op)]

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return self.stored(self._run(self.operands(inputs), inputs))

    def operands(self, inputs: Sequence[Any], of_literal: Callable[[Any], Any] = _same) -> list[Any]:
        """Returns the operands of the op. of_literal: makes an operand of a literal."""
        places = zip(self._places, self._literals, strict=True)
        return [of_literal(literal) if place is None else inputs[place] for place, literal in places]

    def stored(self, results: Sequence[Any]) -> list[Any]:
        """Returns the results that the segment stores, of all."""
        return [results[k] for k in self._returned]

    def _run_counted(self, operands: list[Any], inputs: Sequence[Any]) -> Sequence[Any]:
        length = int(operands[1]) - int(operands[0])
        results = None if self.driven is None or length < 1 else self.driven.run(operands, length)
        return (
            _CountedRun(self.fusion, self.node, self.parts["body"], operands, inputs).run()
            if results is None
            else results
        )


class BoundPart:
    """A sub-fusion with its computation, bound for the layouts that its arguments had."""

    def __init__(self, part: SubFusion, computation: Computation, target: Target) -> None:
        self.part, self.computation, self.device = part, computation, target.device
        values = [part.fusion.values[number] for number in part.fusion.inputs]
        positions = dict(enumerate(part.inputs))
        self.tensors = [positions[k] for k, value in enumerate(values) if value.is_tensor]
        self.integers = [
            positions[k] for k, value in enumerate(values) if not value.is_tensor and value.dtype.is_integer
        ]
        self.floats = [
            positions[k] for k, value in enumerate(values) if not value.is_tensor and not value.dtype.is_integer
        ]
        stream = target.calls.stream_text()
        text = f"def stream():\n    return {stream}\n"
        self.stream: Callable[[], Any] = compile_function(text, "stream", target.calls.names(), "stream")
        self._workers: BoundedTable[Any, StreamWorker] = BoundedTable(MAX_BOUND)

    def start(self, operands: Sequence[Any], outputs: Sequence[Any]) -> tuple[bool, Callable[..., None]]:
        """Returns the function of a step, and whether it takes tensors by address.

        The function takes the tensors among the operands, the outputs and the scalars that are not integers. operands,
        outputs: of one step, no better aligned than those of any other.
        """
        arrays = [*(operands[position] for position in self.tensors), *outputs]
        key = (
            *((array.shape, array.strides, self.device.is_wide(array)) for array in arrays),
            *(operands[position] for position in self.integers),
        )
        worker = self._workers.get(key)
        if worker is None:
            worker = self.computation.stream_worker(self.part.select(operands), outputs, False)
            self._workers[key] = worker
        return worker.by_address, worker.start(self.stream())

    def arguments(self, by_address: bool, operands: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the arguments of a step."""
        tensors = [*(operands[position] for position in self.tensors), *outputs]
        if by_address:
            tensors = list(map(self.device.address, tensors))
        return (*tensors, *(operands[position] for position in self.floats))


def _copies(part: BoundPart, carried: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Returns two buffers for each carried value; the first has its initial value."""
    device, types = part.device, part.part.fusion
    dtypes = [types.values[number].dtype for number in types.outputs]
    current, other = [], []
    for array, dtype in zip(carried, dtypes, strict=False):
        current.append(device.empty(array.shape, dtype))
        other.append(device.empty(array.shape, dtype))
        device.copy(array, current[-1])
    return current, other


def _run_while(
    node: Node, parts: dict[str, BoundPart], operands: list[Any], driven: DrivenLoop | None
) -> Sequence[Any]:  # fmt: skip
    """Runs a loop: a driver that exists, or the host, which asks for a driver after some steps."""
    condition, body = parts["condition"], parts["body"]
    device = body.device
    if driven is not None and driven.knows():
        results = driven.run(operands, None)
        if results is not None:
            return results
    first = len(operands) - node.attributes["carried"]
    captured = operands[:first]
    current, other = _copies(body, operands[first:])
    flag = device.empty((), bool_)
    by_address, test = condition.start([*captured, *current], [flag])
    test_current = condition.arguments(by_address, [*captured, *current], [flag])
    test_other = condition.arguments(by_address, [*captured, *other], [flag])
    test(*test_current)
    read: Callable[[], Any] = flag.item if isinstance(flag, np.ndarray) else lambda: device.on_host(flag)
    if not read():
        return current
    if driven is not None and driven.contains_loops:
        results = driven.run([*captured, *current], None)
        if results is not None:
            return results
    by_address, step = body.start([*captured, *current], other)
    forward = body.arguments(by_address, [*captured, *current], other)
    backward = body.arguments(by_address, [*captured, *other], current)
    for count in itertools.count(1):
        step(*forward)
        test(*test_other)
        if not read():
            result = other
            break
        step(*backward)
        test(*test_current)
        if not read():
            result = current
            break
        if 2 * count == FEWEST_STEPS and driven is not None:
            results = driven.run([*captured, *current], None)
            if results is not None:
                return results
    if driven is not None and 2 * count < FEWEST_STEPS:
        driven.has_run_on_host(operands, 2 * count)
    return result


class _CountedRun:
    """One run of a counted loop."""

    def __init__(self, fusion: Fusion, node: Node, body: BoundPart, operands: list[Any], inputs: Sequence[Any]) -> None:
        self.body, self.device = body, body.device
        self.start, self.stop = int(operands[0]), int(operands[1])
        self.length = max(self.stop - self.start, 0)
        count, sliced = node.attributes["carried"], node.attributes["sliced"]
        last = len(operands) - sliced
        self.captured, self.sliced = operands[1 : last - count], operands[last:]
        self.current, self.other = _copies(body, operands[last - count : last])
        sizes = extent_values(fusion, inputs)
        dtypes = [body.part.fusion.values[number].dtype for number in body.part.fusion.outputs[count:]]
        shapes = [tuple(evaluate(e, sizes) for e in shape[1:]) for shape in node.attributes["shapes"][count:]]
        self.stacked = [self.device.empty((self.length, *s), d) for s, d in zip(shapes, dtypes, strict=True)]
        self.counter = self.device.empty((), int64)
        self.reverse: bool = node.attributes["reverse"]
        self.steps = range(self.length)[::-1] if self.reverse else range(self.length)

    def run(self) -> Sequence[Any]:
        if self.length == 0:
            return [*self.current, *self.stacked]
        at_least = self._sample()
        by_address, step = self.body.start(*self._operands(self.current, self.other, at_least))
        if 0 in self.body.tensors or self.sliced or self.stacked:
            for arguments in self._by_address() if by_address else self._by_array():
                step(*arguments)
        else:
            (forward, backward), _ = self._ways(by_address)
            for _ in range(self.length // 2):
                step(*forward)
                step(*backward)
            if self.length % 2:
                step(*forward)
        return [*(self.other if self.length % 2 else self.current), *self.stacked]

    def _sample(self) -> int:
        """Returns a step whose slices are aligned no better than those of any other step."""
        if self.length > 1 and not all(self.device.is_wide(array[(1, ...)]) for array in (*self.sliced, *self.stacked)):
            return 1
        return 0

    def _operands(self, read: Sequence[Any], written: Sequence[Any], step: int) -> tuple[list[Any], list[Any]]:
        """Returns the operands and the outputs of one step as arrays."""
        slices = [array[(step, ...)] for array in self.sliced]
        operands = [self.counter, *self.captured, *read, *slices]
        return operands, [*written, *(array[(step, ...)] for array in self.stacked)]

    def _by_array(self) -> Iterator[Sequence[Any]]:
        """Yields the arguments of each step as arrays."""
        counter = self.counter if 0 in self.body.tensors else None
        arguments_by_parity, places = self._ways(False)
        moving = [self._slices(array) for _, array in self._moving()]
        slices: Iterator[tuple[Any, ...]] = zip(*moving, strict=True) if moving else itertools.repeat(())
        for position, k in enumerate(self.steps):
            arguments = arguments_by_parity[position & 1]
            if counter is not None:
                counter[()] = self.start + k
            for place, array in zip(places, next(slices), strict=True):
                arguments[place] = array
            yield arguments

    def _slices(self, array: Any) -> Iterator[Any]:
        """Yields the slice of each step; iteration over an array is the fastest, but gives scalars for one axis."""
        if array.ndim > 1:
            return iter(array[::-1] if self.reverse else array)
        return (array[k, ...] for k in self.steps)

    def _by_address(self) -> Iterator[Sequence[Any]]:
        """Yields the arguments of each step as addresses. Kernels read the counter from an array of its values."""
        arguments_by_parity, places = self._ways(True)
        moving = [(self.device.address(array), array.strides[0]) for _, array in self._moving()]
        counters = [k for k, position in enumerate(self.body.tensors) if position == 0]
        chunk, base = -1, 0
        for position, k in enumerate(self.steps):
            arguments = arguments_by_parity[position & 1]
            if counters:
                if k // COUNTERS != chunk:
                    chunk = k // COUNTERS
                    numbers = self.device.integers(self.start + chunk * COUNTERS, COUNTERS)
                    base = self.device.address(numbers) - chunk * COUNTERS * 8
                for place in counters:
                    arguments[place] = base + 8 * k
            for place, (address, stride) in zip(places, moving, strict=True):
                arguments[place] = address + k * stride
            yield arguments

    def _moving(self) -> list[tuple[int, Any]]:
        """Returns the arrays of which each step uses another slice, with their places among a step's arguments."""
        first = 1 + len(self.captured) + len(self.current)
        read = [(k, self.sliced[p - first]) for k, p in enumerate(self.body.tensors) if p >= first]
        written = len(self.body.tensors) + len(self.current)
        return [*read, *((written + k, array) for k, array in enumerate(self.stacked))]

    def _ways(self, by_address: bool) -> tuple[tuple[list[Any], list[Any]], list[int]]:
        """Returns the arguments of steps that read the first buffers, those of the others, and the places that move."""
        first, second = (
            list(self.body.arguments(by_address, *self._operands(read, written, 0)))
            for read, written in ((self.current, self.other), (self.other, self.current))
        )
        return (first, second), [place for place, _ in self._moving()]


def _bounds_function(fusion: Fusion, node: Node) -> Callable[[Sequence[Any]], tuple[int, int]]:
    """Returns a function from the inputs of a fusion to the first and the end of the integers of its loop."""
    name_of = names_of_inputs(fusion)
    start, stop = (python_text(node.attributes[k], lambda size: f"int({name_of(size)})") for k in ("start", "stop"))
    text = f"def bounds(i):\n    return {start}, {stop}\n"
    return compile_function(text, "bounds", {"min": min, "max": max}, "bounds of a loop")  # type: ignore[no-any-return]


def _run_range(
    node: Node, body: BoundPart, operands: list[Any], inputs: Sequence[Any], driven: DrivenLoop | None,
    bounds: tuple[int, int],
) -> Sequence[Any]:  # fmt: skip
    """Runs a loop whose body updates carried values that are aliases in place; returns new arrays for the others."""
    attributes, op, (start, stop) = node.attributes, node.op, bounds
    assert isinstance(op, RangeLoop)
    condition = attributes.get("condition")
    if driven is not None and stop > start and _begins_compiled(driven, operands, condition, attributes, stop - start):
        driver_results = driven.run(operands, stop - start, inputs, (start, stop))
        if driver_results is not None:
            return driver_results
    part, device, count = body.part, body.device, attributes["carried"]
    first, body_fusion = len(operands) - count, part.fusion
    results: list[Any] = []
    for initial, number in zip(operands[first:], body_fusion.outputs[:count], strict=True):
        results.append(device.empty(initial.shape, body_fusion.values[number].dtype))
        device.copy(initial, results[-1])
    results += [None] * (len(body_fusion.outputs) - count)
    operands[first:] = results[:count]
    for place in range(1, 1 + len(attributes.get("integers", ()))):
        operands[place] = int(device.on_host(operands[place]))
    arguments = part.select(operands)
    counters = [place for place, position in enumerate(part.inputs) if position == 0]
    separate = [place for place, number in enumerate(body_fusion.outputs) if number not in body_fusion.aliases]
    read = {place: [k for k, position in enumerate(part.inputs) if position == first + place] for place in separate}
    steps = op.steps(start, stop, attributes["reverse"])
    position = 0
    for position, step in enumerate(steps):
        if condition is not None:
            if not device.on_host(results[condition]):
                break
            if position == FEWEST_STEPS and driven is not None:
                operands[first:] = results[:count]
                rest = (min(step, steps[-1]), max(step, steps[-1]) + 1)
                driver_results = driven.run(operands, stop - start - position, inputs, rest)
                if driver_results is not None:
                    return driver_results
        for place in counters:
            arguments[place] = step
        returned = body.computation(arguments, None)  # type: ignore[arg-type]
        for place, result in zip(separate, returned, strict=True):
            results[place] = result
            for k in read[place]:
                arguments[k] = result
    else:
        position = len(steps)
    if driven is not None and condition is not None and position < FEWEST_STEPS:
        driven.has_run_on_host(operands, position, inputs, (start, stop))
    return results


def _begins_compiled(
    driven: DrivenLoop, operands: list[Any], condition: int | None, attributes: Mapping[str, Any], most_steps: int
) -> bool:
    """Whether a driver runs all steps. The host runs the first ones of a loop that may end before they are enough."""
    if condition is None or driven.knows():
        return True
    first = len(operands) - attributes["carried"]
    return driven.contains_loops and most_steps > 1 and bool(driven.target.device.on_host(operands[first + condition]))


def _run_branch(parts: dict[str, BoundPart], operands: list[Any]) -> Sequence[Any]:
    predicate = operands[0]
    if hasattr(predicate, "dtype") and not isinstance(predicate, np.ndarray | np.generic):
        predicate = parts["on_true"].device.on_host(predicate)
    part = parts["on_true" if bool(predicate) else "on_false"]
    results: Sequence[Any] = part.computation(part.part.select(operands), None)  # type: ignore[arg-type]
    return results
