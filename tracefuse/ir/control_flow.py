"""Ops that run other fusions: a loop with a condition, loops with a trip count, and a choice of two branches.

Such an op has sub-fusions among its attributes, and is a segment by itself. A sub-fusion reads operands of the op by
position; in a loop, the positions of the carried operands stand for their values in the current step. All operands are
tensors or host scalars, and all results are tensors.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.collective_kinds import Collective
from tracefuse.ir.fusion import Attributes, Node, Require, Shape, SubFusion
from tracefuse.ir.library_kinds import Library

Evaluate: TypeAlias = Callable[[SubFusion, Sequence[Any]], Sequence[Any]]
"""Computes the outputs of a sub-fusion from the operands of the op."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ControlFlow(Library):
    """An op that runs sub-fusions. Its attribute `shapes` holds the shapes of its results.

    parts: the names of the attributes that are sub-fusions. on_host: what the host does, for `explain`. conditions: of
    the parts, those whose result decides what runs. stacks: whether results after the carried ones have a row for each
    step.
    """

    parts: tuple[str, ...]
    on_host: str
    conditions: tuple[str, ...] = ()
    stacks: bool = False
    arity: int | None = None
    distinct: bool = True
    kind: str = field(default="control flow", init=False)

    def shapes(self, shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        result: tuple[Shape, ...] = attributes["shapes"]
        return result

    def sub_fusions(self, attributes: Attributes) -> Iterator[tuple[str, SubFusion]]:
        """Yields the sub-fusions with their names."""
        for name in self.parts:
            yield name, attributes[name]

    def carried(self, count: int, attributes: Attributes) -> range:
        """Returns the positions of the operands that each step replaces by its first results. count: of operands."""
        return range(count, count)

    def sliced(self, count: int, attributes: Attributes) -> range:
        """Returns the positions of the operands of which a step reads one slice along axis 0. count: of operands."""
        return range(count, count)

    def decides(self, attributes: Attributes) -> range:
        """Returns the positions of the operands that decide what runs."""
        return range(0)

    def with_operands(
        self, operands: Sequence[Any], attributes: Attributes, more: Sequence[Any]
    ) -> tuple[list[Any], dict[str, Any]]:  # fmt: skip
        """Returns the operands with `more` before the carried ones, and the attributes for them."""
        first = self.carried(len(operands), attributes).start
        parts = {
            name: SubFusion(part.fusion, tuple(p + len(more) if p >= first else p for p in part.inputs))
            for name, part in self.sub_fusions(attributes)
        }
        return [*operands[:first], *more, *operands[first:]], {**attributes, **parts}

    @abstractmethod
    def evaluate(self, run: Evaluate, operands: Sequence[Any], attributes: Attributes) -> Sequence[Any]:
        """Computes the results in NumPy, as the reference implementation."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WhileLoop(ControlFlow):
    """Runs `body` while `condition` is true. The last `carried` operands are the initial values that it carries."""

    def carried(self, count: int, attributes: Attributes) -> range:
        return range(count - attributes["carried"], count)

    def evaluate(self, run: Evaluate, operands: Sequence[Any], attributes: Attributes) -> Sequence[Any]:
        first = len(operands) - attributes["carried"]
        captured, carried = list(operands[:first]), list(operands[first:])
        while bool(run(attributes["condition"], [*captured, *carried])[0]):
            carried = list(run(attributes["body"], [*captured, *carried]))
        return carried


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CountedLoop(ControlFlow):
    """Runs `body` once for each integer from operand 0 up to operand 1, which it does not include.

    The last `carried + sliced` operands are the initial values that it carries, and the arrays of which each step reads
    one slice along axis 0. In the body, operand 0 is the current integer. Its outputs are the carried values and the
    slices of the results that the loop stacks along axis 0. reverse: from the last integer down.
    """

    def carried(self, count: int, attributes: Attributes) -> range:
        last = count - attributes["sliced"]
        return range(last - attributes["carried"], last)

    def sliced(self, count: int, attributes: Attributes) -> range:
        return range(count - attributes["sliced"], count)

    def evaluate(self, run: Evaluate, operands: Sequence[Any], attributes: Attributes) -> Sequence[Any]:
        count, sliced = attributes["carried"], attributes["sliced"]
        start, stop = int(operands[0]), int(operands[1])
        last = len(operands) - sliced
        captured, carried, arrays = operands[1 : last - count], list(operands[last - count : last]), operands[last:]
        stacked = [np.empty(shape, dtype) for shape, dtype in self.stacked_types(attributes, stop - start)]
        steps = range(start, stop)
        for k in reversed(steps) if attributes["reverse"] else steps:
            slices = [array[k - start] for array in arrays]
            results = run(attributes["body"], [np.int64(k), *captured, *carried, *slices])
            carried = list(results[:count])
            for array, result in zip(stacked, results[count:], strict=True):
                array[k - start] = result
        return [*carried, *stacked]

    def stacked_types(self, attributes: Attributes, length: int) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Yields the shape and the NumPy dtype of each stacked result. The shapes are those of a call."""
        body, count = attributes["body"].fusion, attributes["carried"]
        for shape, number in zip(attributes["shapes"][count:], body.outputs[count:], strict=True):
            yield (max(length, 0), *shape[1:]), body.values[number].dtype.numpy


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RangeLoop(ControlFlow):
    """Runs `body` once for each integer from the attribute `start` up to `stop`, which it does not include.

    start, stop: extents. reverse: from the last integer down. Operand 0 is the literal 0; in the body it is the current
    integer, a host scalar, on which extents of the body may depend. The last `carried` operands are the initial values
    that it carries. The outputs of the body are the carried values, and values of which the last step gives the
    results; a loop with such values has a step. An output of the body that is an alias of an input is a carried value
    that the body updates in place. condition: if the op has this attribute, the position among the carried values of a
    bool that ends the loop: no step runs unless it is true. integers: if the op has this attribute, the operands after
    operand 0 are integers that the loop reads from arrays without axes before its first step: host scalars of the body,
    on which its extents may depend. For each, the attribute has the smallest and the largest value, and the position of
    an integer before it that counts against the largest one, or -1.
    """

    def carried(self, count: int, attributes: Attributes) -> range:
        return range(count - attributes["carried"], count)

    def evaluate(self, run: Evaluate, operands: Sequence[Any], attributes: Attributes) -> Sequence[Any]:
        count = attributes["carried"]
        first = len(operands) - count
        integers = len(attributes.get("integers", ()))
        captured, results = list(operands[1:first]), list(operands[first:])
        captured[:integers] = [np.int64(value) for value in captured[:integers]]
        condition = attributes.get("condition")
        for k in self.steps(attributes["start"], attributes["stop"], attributes["reverse"]):
            if condition is not None and not bool(results[condition]):
                break
            results = list(run(attributes["body"], [np.int64(k), *captured, *results[:count]]))
        return results

    def steps(self, start: int, stop: int, reverse: bool) -> range:
        """Returns the integers of the steps, in order."""
        steps = range(start, stop)
        return steps[::-1] if reverse else steps


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Branch(ControlFlow):
    """Runs `on_true` if operand 0 is true, else `on_false`."""

    def decides(self, attributes: Attributes) -> range:
        return range(1)

    def evaluate(self, run: Evaluate, operands: Sequence[Any], attributes: Attributes) -> Sequence[Any]:
        return run(attributes["on_true" if bool(operands[0]) else "on_false"], operands)


def exchanges_data(node: Node) -> bool:
    """Whether a node is an exchange between ranks, or runs one in a body."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if isinstance(current.op, Collective):
            return True
        if isinstance(current.op, ControlFlow):
            waiting += [inner for _, part in current.op.sub_fusions(current.attributes) for inner in part.fusion.nodes]
    return False
