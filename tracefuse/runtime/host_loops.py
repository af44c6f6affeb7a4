"""Loops that the host runs step by step, around the compiled segments of their bodies.

The carried values have two buffers each: a step reads one and writes the other, and then they are exchanged, so a step
allocates nothing. A condition is computed on the device and read by the host: on a GPU the host waits for it at every
step. After some steps the host asks for a driver, which runs the rest of the loop as one compiled function.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tracefuse.dtypes import bool_, int64
from tracefuse.ir.control_flow import RangeLoop
from tracefuse.ir.extents import evaluate
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.reference import extent_values
from tracefuse.runtime.bound_parts import BoundPart
from tracefuse.runtime.driven_loops import FEWEST_STEPS, DrivenLoop

COUNTERS = 4096
"""The number of consecutive counter values that lie in device memory, where kernels read them by address."""


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


def run_while(
    node: Node, parts: dict[str, BoundPart], operands: list[Any], driven: DrivenLoop | None
) -> Sequence[Any]:  # fmt: skip
    """Runs a loop: a driver that exists, or the host, which asks for a driver after some steps."""
    if driven is not None and driven.knows():
        results = driven.run(operands, None)
        if results is not None:
            return results
    return _run_while_on_host(parts, operands, len(operands) - node.attributes["carried"], driven)


def _run_while_on_host(
    parts: dict[str, BoundPart], operands: list[Any], first: int, driven: DrivenLoop | None
) -> Sequence[Any]:  # fmt: skip
    """first: the position of the first carried value among the operands."""
    condition, body, device = parts["condition"], parts["body"], parts["body"].device
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


class CountedRun:
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


class RangeRun:
    """One run of a loop over a range, whose body updates carried values that are aliases in place.

    bounds: the first and the end of the integers that the loop counts.
    """

    def __init__(
        self, node: Node, body: BoundPart, operands: list[Any], inputs: Sequence[Any], driven: DrivenLoop | None,
        bounds: tuple[int, int],
    ) -> None:  # fmt: skip
        assert isinstance(node.op, RangeLoop)
        self.body, self.operands, self.inputs, self.driven, self.bounds = body, operands, inputs, driven, bounds
        self.condition: int | None = node.attributes.get("condition")
        self.integers = len(node.attributes.get("integers", ()))
        self.first = len(operands) - node.attributes["carried"]
        self.length = bounds[1] - bounds[0]
        self.steps = node.op.steps(*bounds, node.attributes["reverse"])

    def run(self) -> Sequence[Any]:
        """Returns the carried values, in new arrays."""
        results = self._driver_results(self.bounds) if self._begins_compiled() else None
        return self._run_on_host() if results is None else results

    def _begins_compiled(self) -> bool:
        """Whether a driver runs all steps. The host runs the first ones of a loop that may end before a driver pays."""
        if self.driven is None or self.length <= 0:
            return False
        if self.condition is None or self.driven.knows():
            return True
        flag = self.operands[self.first + self.condition]
        return self.driven.contains_loops and self.length > 1 and bool(self.body.device.on_host(flag))

    def _driver_results(self, bounds: tuple[int, int], done: int = 0) -> Sequence[Any] | None:
        """Returns the results of a driver that runs the steps within the bounds; None if there is none. done: steps."""
        assert self.driven is not None
        return self.driven.run(self.operands, self.length - done, self.inputs, bounds)

    def _run_on_host(self) -> Sequence[Any]:
        part, device, condition, steps = self.body.part, self.body.device, self.condition, self.steps
        outputs, aliases, first = part.fusion.outputs, part.fusion.aliases, self.first
        results = self._carried_copies()
        self.operands[first:] = results[: len(self.operands) - first]
        for place in range(1, 1 + self.integers):
            self.operands[place] = int(device.on_host(self.operands[place]))
        arguments = part.select(self.operands)
        counters = [place for place, position in enumerate(part.inputs) if position == 0]
        separate = [place for place, number in enumerate(outputs) if number not in aliases]
        read = {place: [k for k, position in enumerate(part.inputs) if position == first + place] for place in separate}
        position = 0
        for position, step in enumerate(steps):
            if condition is not None:
                if not device.on_host(results[condition]):
                    break
                if position == FEWEST_STEPS and self.driven is not None:
                    self.operands[first:] = results[: len(self.operands) - first]
                    rest = (min(step, steps[-1]), max(step, steps[-1]) + 1)
                    driver_results = self._driver_results(rest, position)
                    if driver_results is not None:
                        return driver_results
            for place in counters:
                arguments[place] = step
            returned = self.body.computation(arguments, None)  # type: ignore[arg-type]
            for place, result in zip(separate, returned, strict=True):
                results[place] = result
                for k in read[place]:
                    arguments[k] = result
        else:
            position = len(steps)
        if self.driven is not None and condition is not None and position < FEWEST_STEPS:
            self.driven.has_run_on_host(self.operands, position, self.inputs, self.bounds)
        return results

    def _carried_copies(self) -> list[Any]:
        """Returns a new array with the initial value of each carried value, and None for each other result."""
        device, fusion, results = self.body.device, self.body.part.fusion, list[Any]()
        for initial, number in zip(self.operands[self.first :], fusion.outputs, strict=False):
            results.append(device.empty(initial.shape, fusion.values[number].dtype))
            device.copy(initial, results[-1])
        return results + [None] * (len(fusion.outputs) - len(results))
