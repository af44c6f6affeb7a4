"""Builds the driver of a loop from the plans of its sub-fusions: kernels with their arguments, and loops in loops.

A driver runs loops whose steps consist of kernels and of such loops. The plans are those of the first step, at the
layouts and integers of one call; a driver serves every call that has them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import bool_, int64
from tracefuse.ir.control_flow import CountedLoop, RangeLoop, WhileLoop
from tracefuse.ir.extents import evaluate
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.reference import extent_values
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.kernel_ir import Variable
from tracefuse.kernel.loop_driver import (
    ChooseStatements,
    ConditionalSteps,
    CopyMemory,
    CountedSteps,
    DriverStatement,
    ExchangePointers,
    NamePointer,
    OffsetPointer,
    StoreNumber,
)
from tracefuse.runtime.driver_parameters import (
    DriverParameters,
    FromBounds,
    FromOperand,
    NotCompiled,
    StepTensor,
    constant,
)
from tracefuse.runtime.integer_samples import numbers_of_steps, sampled_steps
from tracefuse.runtime.planned_steps import add_planned_step
from tracefuse.runtime.step_integers import Number, Operand, StepIntegers, sample_of


class LoopRun(Protocol):
    """A segment that runs a control-flow op; see `ControlFlowRun`."""

    fusion: Fusion
    node: Node

    @property
    def parts(self) -> Mapping[str, Any]:
        """The sub-fusions by name, as `BoundPart`s."""
        ...

    def operands(self, inputs: Sequence[Any], of_literal: Callable[[Any], Any] = ...) -> list[Any]:
        """Returns the operands of the op. of_literal: makes an operand of a literal."""
        ...

    def stored(self, results: Sequence[Any]) -> list[Any]:
        """Returns the results that the segment stores."""
        ...


@dataclass(frozen=True, slots=True)
class _CarriedMemory:
    """The memory of a carried value: a step reads `current` and writes `following`, and then they are exchanged."""

    current: StepTensor
    following: StepTensor
    first: StepTensor
    second: StepTensor


@dataclass(frozen=True, slots=True)
class BuiltLoop:
    """The statements of a loop, the number of its steps, and the memory of each result after an even and an odd one."""

    statements: tuple[DriverStatement, ...]
    steps: ir.Expression
    results: tuple[tuple[StepTensor, StepTensor], ...]


class DriverBuilder:
    """Builds the statements of one loop, with the loops in its steps.

    parameters: of the driver. samples: the number of sampled steps. active: those that reach the current statement.
    dying: memory that the loop may update. is_in_branch: whether a condition decides if the current statement runs. A
    method that adds statements takes the list that it adds them to.
    """

    def __init__(self, parameters: DriverParameters) -> None:
        self.parameters, self.samples, self.active = parameters, 1, [0]
        self.dying: Collection[str] = ()
        self.is_in_branch = False
        self._flag: StepTensor | None = None
        self._depth = 0
        self._numbers = 0

    def build(self, run: LoopRun, inputs: Sequence[Operand], operands: Sequence[Operand]) -> BuiltLoop:
        """Builds the outermost loop. inputs: of the fusion of the op. Raises NotCompiled."""
        out: list[DriverStatement] = []
        steps, carries, stacked = self._loop(run, inputs, operands, out)
        results: list[tuple[StepTensor, StepTensor]] = []
        carries += [_CarriedMemory(place, place, place, place) for place in stacked]
        for carry in carries:
            if carry.current.is_local:
                result = self.parameters.memory(carry.current.array.shape, carry.current.dtype)
                out.append(self.copy(result, carry.current))
                results.append((result, result))
            else:
                results.append((carry.first, carry.second))
        return BuiltLoop((*self.parameters.locals, *out), steps, tuple(results))

    def copy(self, target: StepTensor, source: StepTensor) -> CopyMemory:
        """Returns the copy of an array to another."""
        for place in (target, source):
            if not place.array.flags.c_contiguous:
                raise NotCompiled("it copies an array that is not contiguous")
        is_constant = target.is_local or target.array.ndim == 0
        return CopyMemory(target.pointer, source.pointer, self._integer(target.array.nbytes, is_constant))

    def _integer(self, value: int, is_constant: bool = False) -> ir.Expression:
        return constant(value) if is_constant else self.parameters.integer(value, ("number", value))

    def offset_pointer(
        self, base: StepTensor, positions: Sequence[ir.Expression], out: list[DriverStatement],
        extents: Sequence[ir.Expression] = (),
    ) -> str:  # fmt: skip
        """Adds the pointer to the element of an array at a position, or to the slice at the first indices; names it.

        Kernels read elements by the same arithmetic, so that a driver shows which of them a step has written.
        extents: the strides of an array without gaps, in elements, as kernels that read it compute them.
        """
        strides, size = base.array.strides, base.array.itemsize
        in_bytes = base.dtype.is_complex or any(stride % size for stride in strides)
        size, element = (1, None) if in_bytes else (size, base.dtype)
        offset: ir.Expression = constant(0)
        for axis, (position, stride) in enumerate(zip(positions, strides, strict=False)):
            distance = self._integer(stride // size, is_constant=stride == size)
            if extents and not in_bytes:
                distance = extents[axis]
            offset = ir.call("add", offset, ir.call("mul", position, distance))
        pointer = self._name("p")
        out.append(OffsetPointer(pointer, base.pointer, offset, element))
        return pointer

    def next_number(self) -> int:
        """Returns a number that no earlier call has returned."""
        self._numbers += 1
        return self._numbers

    def _name(self, prefix: str) -> str:
        return f"{prefix}{self.next_number()}"

    # -- loops --------------------------------------------------------------------------------------------------------

    def _loop(
        self, run: LoopRun, inputs: Sequence[Operand], operands: Sequence[Operand], out: list[DriverStatement]
    ) -> tuple[ir.Expression, list[_CarriedMemory], list[StepTensor]]:
        """Adds a loop; returns the number of its steps, its carried values and its stacked results."""
        if isinstance(run.node.op, CountedLoop):
            return self._counted(run.node, run.parts["body"], operands, out)
        if isinstance(run.node.op, RangeLoop):
            return self._range(run, inputs, operands, out)
        if isinstance(run.node.op, WhileLoop):
            return self._while(run.node, run.parts, operands, out)
        raise NotCompiled(f"a step runs {run.node.op.name}")

    def _counted(
        self, node: Node, body: Any, operands: Sequence[Operand], out: list[DriverStatement]
    ) -> tuple[ir.Expression, list[_CarriedMemory], list[StepTensor]]:
        count, last = node.attributes["carried"], len(operands) - node.attributes["sliced"]
        start, stop = (self._bound(operand) for operand in operands[:2])
        lengths = {sample_of(operands[1], k) - sample_of(operands[0], k) for k in range(self.samples)}
        length = max(lengths)
        if length <= 0 or (len(lengths) > 1 and len(node.outputs) > count):
            raise NotCompiled("the number of its steps differs between steps of an outer loop")
        carries = self._carries(body, operands[last - count : last], out)
        counter, inside = Variable(self._name("k"), int64), list[DriverStatement]()
        position = ir.call("sub", counter, start)
        currents = [carry.current for carry in carries]
        slices = [self._slice(array, position, inside) for array in operands[last:]]
        step_operands = [self._counter(counter, body, inside), *operands[1 : last - count], *currents, *slices]
        stacked = self._stacked(body, step_operands, count, length)
        rows = [self._slice(place, position, inside) for place in stacked]
        self.step(body, step_operands, [*(carry.following for carry in carries), *rows], inside)
        self._advance(carries, inside)
        out.append(CountedSteps(counter, start, stop, node.attributes["reverse"], tuple(inside)))
        return ir.call("sub", stop, start), carries, stacked

    def _while(
        self, node: Node, parts: Mapping[str, Any], operands: Sequence[Operand], out: list[DriverStatement]
    ) -> tuple[ir.Expression, list[_CarriedMemory], list[StepTensor]]:
        first = len(operands) - node.attributes["carried"]
        carries = self._carries(parts["body"], operands[first:], out)
        step_operands = [*operands[:first], *(carry.current for carry in carries)]
        flag = self.parameters.memory((), bool_, is_constant=True)
        condition, inside = list[DriverStatement](), list[DriverStatement]()
        self.step(parts["condition"], step_operands, [flag], condition)
        self.step(parts["body"], step_operands, [carry.following for carry in carries], inside)
        self._advance(carries, inside)
        count = Variable(self._name("k"), int64)
        out.append(ConditionalSteps(tuple(condition), flag.pointer, count, tuple(inside)))
        return count, carries, []

    def _bound(self, operand: Operand) -> ir.Expression:
        assert isinstance(operand, Number)
        if operand.variable is not None:
            return operand.variable
        if operand.position is None:
            return self._integer(operand.values[0])
        return self.parameters.number(FromOperand(operand.position), int64)

    def _counter(self, counter: Variable, body: Any, inside: list[DriverStatement]) -> Operand:
        if 0 not in body.tensors:
            return Number((0,))
        place = self.parameters.memory((), int64, is_constant=True)
        inside.append(StoreNumber(place.pointer, counter))
        return place

    def _carries(
        self, body: Any, carried: Sequence[Operand], out: list[DriverStatement], position: int = 0
    ) -> list[_CarriedMemory]:
        """Adds memory for carried values. position: of the first of them."""
        fusion, carries = body.part.fusion, list[_CarriedMemory]()
        for initial, number in zip(carried, fusion.outputs[position:], strict=False):
            assert isinstance(initial, StepTensor)
            value, shape = fusion.values[number], initial.array.shape
            is_constant = all(isinstance(extent, int) for extent in value.shape)
            first, second = (self.parameters.memory(shape, value.dtype, is_constant=is_constant) for _ in range(2))
            if first.is_local:
                carries.append(_CarriedMemory(first, second, first, first))
            else:
                current, following = (
                    StepTensor(self._name("c"), place.array, value.dtype, varying=initial.varying)
                    for place in (first, second)
                )
                out += [NamePointer(c.pointer, p.pointer) for c, p in ((current, first), (following, second))]
                carries.append(_CarriedMemory(current, following, first, second))
            out.append(self.copy(carries[-1].current, initial))
        return carries

    def _advance(self, carries: Sequence[_CarriedMemory], inside: list[DriverStatement]) -> None:
        """Adds the end of a step, after which `current` is what the step computed."""
        for carry in carries:
            if carry.current.is_local:
                inside.append(self.copy(carry.current, carry.following))
            else:
                inside.append(ExchangePointers(carry.current.pointer, carry.following.pointer))

    def _slice(self, operand: Operand, position: ir.Expression, inside: list[DriverStatement]) -> StepTensor:
        """Adds the pointer to the slice of a step."""
        assert isinstance(operand, StepTensor)
        if operand.varying:
            raise NotCompiled("an inner loop takes slices of an array whose shape depends on a counter")
        pointer = self.offset_pointer(operand, [position], inside)
        return StepTensor(pointer, operand.array[(0, ...)], operand.dtype)

    def _stacked(self, body: Any, step_operands: Sequence[Operand], count: int, length: int) -> list[StepTensor]:
        fusion, arguments = body.part.fusion, body.part.select(step_operands)
        if len(fusion.outputs) > count and any(isinstance(one, StepTensor) and one.varying for one in arguments):
            raise NotCompiled("an inner loop stacks values and has an array whose shape depends on a counter")
        sizes = extent_values(fusion, [sample_of(operand, 0) for operand in arguments])
        places = []
        for number in fusion.outputs[count:]:
            shape = tuple(evaluate(extent, sizes) for extent in fusion.shape_of(number))
            places.append(self.parameters.memory((length, *shape), fusion.values[number].dtype))
        return places

    # -- loops whose bodies have the counter as a number --------------------------------------------------------------

    def _range(
        self, run: LoopRun, inputs: Sequence[Operand], operands: Sequence[Operand], out: list[DriverStatement]
    ) -> tuple[ir.Expression, list[_CarriedMemory], list[StepTensor]]:
        """Adds a loop whose steps update carried values in place, except those that `_carries` makes."""
        node, body = run.node, run.parts["body"]
        fusion, count = body.part.fusion, node.attributes["carried"]
        bounds = StepIntegers(self.parameters, run.fusion, inputs, self.samples, self.next_number())
        start, stop = (bounds.code(node.attributes[name]) for name in ("start", "stop"))
        count_of_steps = Variable(self._name("k"), int64) if self._depth == 0 else None
        if count_of_steps is not None:
            start, stop = (self.parameters.number(FromBounds(k), int64) for k in range(2))
        self._depth += 1
        starts, stops = (bounds.values(node.attributes[name]) for name in ("start", "stop"))
        carries = [
            self._in_place(first, operands, out)
            if number in fusion.aliases
            else self._carries(body, [first], out, k)[0]
            for k, (first, number) in enumerate(zip(operands[len(operands) - count :], fusion.outputs, strict=False))
        ]
        counter, inside = Variable(self._name("k"), int64), list[DriverStatement]()
        parents, steps = sampled_steps(starts, stops, self.active)
        if not steps:  # as in every step that reaches the loop
            out.append(ChooseStatements((((ir.call("le", stop, start),), ()),)))
            return constant(0), carries, self._last_results_of_none(fusion, count)
        condition = node.attributes.get("condition")
        names = iter(lambda: self._name("m"), None)
        parents, numbers = numbers_of_steps(node, operands, bounds, parents, steps, counter, names, out)
        with self._inside(len(parents), condition is not None and self._depth > 1):
            captured = [operand.for_samples(parents) for operand in operands[len(numbers) : -count or None]]
            currents = [carry.current.for_samples(parents) for carry in carries]
            step_operands = [*numbers, *captured, *currents]
            rest = self._last_results(body, step_operands, count)
            written = [
                carry.following.for_samples(parents)
                for carry, number in zip(carries, fusion.outputs, strict=False)
                if number not in fusion.aliases
            ]
            self.step(body, step_operands, [*written, *rest], inside)
        self._advance([carry for carry in carries if carry.current is not carry.following], inside)
        flag = None if condition is None else carries[condition].current.pointer
        out.append(CountedSteps(counter, start, stop, node.attributes["reverse"], tuple(inside), flag, count_of_steps))
        return count_of_steps or constant(0), carries, rest

    @contextlib.contextmanager
    def _inside(self, samples: int, is_branch: bool) -> Iterator[None]:
        """Builds a body for so many sampled steps. is_branch: the loop is a branch, which may have no step."""
        outside = self.samples, self.active, self.is_in_branch
        self.samples, self.active = samples, list(range(samples))
        self.is_in_branch = self.is_in_branch or is_branch
        yield
        self.samples, self.active, self.is_in_branch = outside

    def _in_place(self, initial: Operand, operands: Sequence[Operand], out: list[DriverStatement]) -> _CarriedMemory:
        """Returns the memory of a value that steps update: that of its initial value, if nothing else reads it.

        operands: of the loop, among which the memory may occur twice, as that of equal constants.
        """
        assert isinstance(initial, StepTensor)
        readers = sum(isinstance(one, StepTensor) and one.pointer == initial.pointer for one in operands)
        if initial.pointer in self.dying and readers == 1:
            return _CarriedMemory(initial, initial, initial, initial)
        memory = self.parameters.memory(initial.array.shape, initial.dtype, is_constant=initial.array.ndim == 0)
        memory = replace(memory, varying=initial.varying)
        out.append(self.copy(memory, initial))
        return _CarriedMemory(memory, memory, memory, memory)

    def _last_results_of_none(self, fusion: Fusion, count: int) -> list[StepTensor]:
        if len(fusion.outputs) > count:
            raise NotCompiled("it has no steps")
        return []

    def _last_results(self, body: Any, step_operands: Sequence[Operand], count: int) -> list[StepTensor]:
        """Returns the memory of the values of which the last step gives the results."""
        fusion = body.part.fusion
        sizes = StepIntegers(self.parameters, fusion, body.part.select(step_operands), self.samples, self.next_number())
        places = []
        for number in fusion.outputs[count:]:
            shapes = [sizes.values(extent) for extent in fusion.shape_of(number)]
            if any(len(set(column)) > 1 for column in shapes):
                raise NotCompiled("the shape of a result differs between steps")
            shape, dtype = [column[0] for column in shapes], fusion.values[number].dtype
            is_constant = all(isinstance(extent, int) for extent in fusion.shape_of(number))
            places.append(self.parameters.memory(shape, dtype, is_constant=is_constant))
        return places

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(
        self, part: Any, operands: Sequence[Operand], outputs: Sequence[StepTensor], out: list[DriverStatement]
    ) -> None:
        """Adds what the plans of a sub-fusion do."""
        arguments = part.part.select(operands)
        if any(isinstance(operand, StepTensor) and operand.array.size == 0 for operand in (*arguments, *outputs)):
            raise NotCompiled("an array is empty")
        add_planned_step(self, part.computation, arguments, outputs, out)

    def inner_loop(
        self, run: LoopRun, inputs: Sequence[Operand], dying: Collection[str], out: list[DriverStatement]
    ) -> list[StepTensor]:
        """Adds a loop of a step, and returns its stored results. dying: memory that nothing reads afterwards."""
        self.dying = dying
        _, carries, stacked = self._loop(run, inputs, run.operands(inputs, _literal), out)
        return run.stored([*(carry.current for carry in carries), *stacked])

    @property
    def error_flag(self) -> str:
        """The pointer to the error flag of all kernels, as the first error ends the driver."""
        if self._flag is None:
            self._flag = self.parameters.memory((), int64, is_constant=True)
        return self._flag.pointer


def _literal(value: Any) -> Number:
    return Number((value,))
