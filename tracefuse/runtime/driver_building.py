"""Builds the driver of a loop from the plans of its sub-fusions: kernels with their arguments, and loops in loops.

A driver runs loops whose steps are kernels alone. The plans are those of the first step, at the layouts and integers of
one call; a driver serves every call that has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from segments import Alias, AllocateBuffer, CopyBuffer, Launch, Release
from tracefuse.dtypes import bool_, int64
from tracefuse.dynamic.layouts import STRIDE_NAME
from tracefuse.ir.control_flow import ControlFlow, CountedLoop, WhileLoop
from tracefuse.ir.extents import Expression, Extent, evaluate, substitute, symbols
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.reference import evaluate_scalars, extent_values
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.kernel_ir import Variable
from tracefuse.kernel.loop_driver import (
    ConditionalSteps,
    CopyMemory,
    CountedSteps,
    DriverStatement,
    ExchangePointers,
    NamePointer,
    OffsetPointer,
    RunKernel,
    StoreNumber,
)
from tracefuse.runtime.driver_parameters import DriverParameters, FromOperand, NotCompiled, StepTensor, constant
from tracefuse.schedule.launch_spec import LaunchSpec


@dataclass(frozen=True, slots=True)
class Number:
    """A host scalar of a step. value: in the call that the driver is built for. position: of the operand that it is."""

    value: Any
    position: int | None = None


Operand: TypeAlias = StepTensor | Number


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
class Built:
    """The statements of a loop, the number of its steps, and the memory of each result after an even and an odd one."""

    statements: tuple[DriverStatement, ...]
    steps: ir.Expression
    results: tuple[tuple[StepTensor, StepTensor], ...]


class DriverBuilder:
    """Builds the statements of one loop, with the loops in its steps.

    parameters: of the driver. A method that adds statements takes the list that it adds them to.
    """

    def __init__(self, parameters: DriverParameters) -> None:
        self.parameters = parameters
        self._flag: StepTensor | None = None
        self._numbers = 0

    def build(self, run: LoopRun, operands: Sequence[Operand]) -> Built:
        """Builds the outermost loop. Raises NotCompiled."""
        out: list[DriverStatement] = []
        steps, carries, stacked = self._loop(run, operands, out)
        results: list[tuple[StepTensor, StepTensor]] = []
        for carry in carries:
            if carry.current.is_local:
                result = self.parameters.memory(carry.current.array.shape, carry.current.dtype)
                out.append(self.copy(result, carry.current))
                results.append((result, result))
            else:
                results.append((carry.first, carry.second))
        results += [(place, place) for place in stacked]
        return Built((*self.parameters.locals, *out), steps, tuple(results))

    def copy(self, target: StepTensor, source: StepTensor) -> CopyMemory:
        """Returns the copy of an array to another."""
        for place in (target, source):
            if not place.array.flags.c_contiguous:
                raise NotCompiled("it copies an array that is not contiguous")
        return CopyMemory(target.pointer, source.pointer, self._integer(target.array.nbytes, target.is_local))

    def _integer(self, value: int, is_constant: bool = False) -> ir.Expression:
        return constant(value) if is_constant else self.parameters.integer(value, ("number", value))

    def next_number(self) -> int:
        """Returns another number at each call."""
        self._numbers += 1
        return self._numbers

    def _name(self, prefix: str) -> str:
        return f"{prefix}{self.next_number()}"

    # -- loops --------------------------------------------------------------------------------------------------------

    def _loop(
        self, run: LoopRun, operands: Sequence[Operand], out: list[DriverStatement]
    ) -> tuple[ir.Expression, list[_CarriedMemory], list[StepTensor]]:
        """Adds a loop; returns the number of its steps, its carried values and its stacked results."""
        if isinstance(run.node.op, CountedLoop):
            return self._counted(run.node, run.parts["body"], operands, out)
        if isinstance(run.node.op, WhileLoop):
            return self._while(run.node, run.parts, operands, out)
        raise NotCompiled(f"a step runs {run.node.op.name}")

    def _counted(
        self, node: Node, body: Any, operands: Sequence[Operand], out: list[DriverStatement]
    ) -> tuple[ir.Expression, list[_CarriedMemory], list[StepTensor]]:
        count, last = node.attributes["carried"], len(operands) - node.attributes["sliced"]
        start, stop = (self._bound(operand) for operand in operands[:2])
        length = operands[1].value - operands[0].value  # type: ignore[union-attr]
        if length <= 0:
            raise NotCompiled("it has no steps")
        carries = self._carries(body, operands[last - count : last], out)
        counter, inside = Variable(self._name("k"), int64), list[DriverStatement]()
        position = ir.call("sub", counter, start)
        currents = [carry.current for carry in carries]
        slices = [self._slice(array, position, inside) for array in operands[last:]]
        given = [self._counter(counter, body, inside), *operands[1 : last - count], *currents, *slices]
        stacked = self._stacked(body, given, count, length)
        rows = [self._slice(place, position, inside) for place in stacked]
        self._step(body, given, [*(carry.following for carry in carries), *rows], inside)
        self._advance(carries, inside)
        out.append(CountedSteps(counter, start, stop, node.attributes["reverse"], tuple(inside)))
        return ir.call("sub", stop, start), carries, stacked

    def _while(
        self, node: Node, parts: Mapping[str, Any], operands: Sequence[Operand], out: list[DriverStatement]
    ) -> tuple[ir.Expression, list[_CarriedMemory], list[StepTensor]]:
        first = len(operands) - node.attributes["carried"]
        carries = self._carries(parts["body"], operands[first:], out)
        given = [*operands[:first], *(carry.current for carry in carries)]
        flag = self.parameters.memory((), bool_, is_constant=True)
        condition, inside = list[DriverStatement](), list[DriverStatement]()
        self._step(parts["condition"], given, [flag], condition)
        self._step(parts["body"], given, [carry.following for carry in carries], inside)
        self._advance(carries, inside)
        count = Variable(self._name("k"), int64)
        out.append(ConditionalSteps(tuple(condition), flag.pointer, count, tuple(inside)))
        return count, carries, []

    def _bound(self, operand: Operand) -> ir.Expression:
        assert isinstance(operand, Number)
        if operand.position is None:
            return constant(operand.value)
        return self.parameters.number(FromOperand(operand.position), int64)

    def _counter(self, counter: Variable, body: Any, inside: list[DriverStatement]) -> Operand:
        if 0 not in body.tensors:
            return Number(0)
        place = self.parameters.memory((), int64, is_constant=True)
        inside.append(StoreNumber(place.pointer, counter))
        return place

    def _carries(self, body: Any, carried: Sequence[Operand], out: list[DriverStatement]) -> list[_CarriedMemory]:
        fusion, carries = body.part.fusion, list[_CarriedMemory]()
        for initial, number in zip(carried, fusion.outputs, strict=False):
            assert isinstance(initial, StepTensor)
            value, shape = fusion.values[number], initial.array.shape
            is_constant = all(isinstance(extent, int) for extent in value.shape)
            first, second = (self.parameters.memory(shape, value.dtype, is_constant=is_constant) for _ in range(2))
            if first.is_local:
                carries.append(_CarriedMemory(first, second, first, first))
            else:
                current, following = (
                    StepTensor(self._name("c"), place.array, value.dtype) for place in (first, second)
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
        stride = self._integer(operand.array.strides[0])
        pointer = self._name("p")
        inside.append(OffsetPointer(pointer, operand.pointer, ir.call("mul", position, stride)))
        return StepTensor(pointer, operand.array[(0, ...)], operand.dtype)

    def _stacked(self, body: Any, given: Sequence[Operand], count: int, length: int) -> list[StepTensor]:
        fusion = body.part.fusion
        sizes = extent_values(fusion, list(map(_sample, body.part.select(given))))
        places = []
        for number in fusion.outputs[count:]:
            shape = tuple(evaluate(extent, sizes) for extent in fusion.shape_of(number))
            places.append(self.parameters.memory((length, *shape), fusion.values[number].dtype))
        return places

    # -- steps --------------------------------------------------------------------------------------------------------

    def _step(
        self, part: Any, operands: Sequence[Operand], outputs: Sequence[StepTensor], out: list[DriverStatement]
    ) -> None:
        """Adds what the plan of a sub-fusion does."""
        arguments = part.part.select(operands)
        if any(isinstance(one, StepTensor) and one.array.size == 0 for one in (*arguments, *outputs)):
            raise NotCompiled("an array is empty")
        worker = part.computation.stream_worker(list(map(_sample, arguments)), list(map(_sample, outputs)), False)
        if worker.plan is None:
            raise NotCompiled("a step is no plan")
        _PlannedStep(self, worker.plan, arguments, outputs).add(out)

    def inner_loop(self, run: LoopRun, inputs: Sequence[Operand], out: list[DriverStatement]) -> list[StepTensor]:
        """Adds a loop of a step, and returns its stored results."""
        _, carries, stacked = self._loop(run, run.operands(inputs, Number), out)
        return run.stored([*(carry.current for carry in carries), *stacked])

    @property
    def error_flag(self) -> str:
        """The pointer to the error flag of all kernels, as the first error ends the driver."""
        if self._flag is None:
            self._flag = self.parameters.memory((), int64, is_constant=True)
        return self._flag.pointer


def _sample(operand: Operand) -> Any:
    return operand.array if isinstance(operand, StepTensor) else operand.value


class _PlannedStep:
    """The statements of one plan. places: the operands of its values, by number. sizes: extents and integers by id."""

    def __init__(
        self, builder: DriverBuilder, plan: Any, arguments: Sequence[Operand], outputs: Sequence[StepTensor]
    ) -> None:  # fmt: skip
        self.builder, self.parameters, self.plan = builder, builder.parameters, plan
        self.fusion: Fusion = plan.segmentation.fusion
        numbers = (*self.fusion.inputs, *plan.memory)
        self.places: dict[int, Operand] = dict(zip(numbers, (*arguments, *outputs), strict=True))
        self.sizes: dict[int, int] = extent_values(self.fusion, list(map(_sample, arguments)))
        self.allocated: set[int] = set()
        self.number = builder.next_number()
        self._compute_scalars(arguments)

    def _compute_scalars(self, arguments: Sequence[Operand]) -> None:
        values = self.fusion.values
        nodes = [node for node in self.fusion.nodes if not values[node.outputs[0]].is_tensor]
        if not nodes:
            return
        scalars = self.fusion.scalar_inputs
        if not all(values[number].dtype.is_integer for number in scalars):
            raise NotCompiled("a step computes a number of the host")
        known = {number: _sample(self.places[number]) for number in scalars}
        for node, value in zip(nodes, evaluate_scalars(self.fusion, nodes, known, self.sizes), strict=True):
            self.places[node.outputs[0]] = Number(value)
            if values[node.outputs[0]].dtype.is_integer:
                self.sizes[node.outputs[0]] = int(value)

    def add(self, out: list[DriverStatement]) -> None:
        for instruction in self.plan.program.instructions:
            match instruction:
                case AllocateBuffer(value, spec):
                    shape = [evaluate(extent, self.sizes) for extent in spec.extents]  # type: ignore[attr-defined]
                    is_constant = all(isinstance(extent, int) for extent in spec.extents)  # type: ignore[attr-defined]
                    dtype = spec.dtype  # type: ignore[attr-defined]
                    self.places[value] = self.parameters.memory(shape, dtype, is_constant=is_constant)
                    self.allocated.add(value)
                case Alias(value, original):
                    self.places[value] = self.places[original]
                case CopyBuffer(source, target):
                    out.append(self.builder.copy(self._place(target), self._place(source)))
                case Release(value):
                    if value in self.allocated:
                        self.parameters.release(self._place(value))
                case Launch():
                    self._launch(instruction, out)
                case _:
                    raise NotCompiled(f"a step runs `{instruction}`")

    def _place(self, number: int) -> StepTensor:
        place = self.places[number]
        assert isinstance(place, StepTensor)
        return place

    def _launch(self, launch: Launch, out: list[DriverStatement]) -> None:
        segment: Any = launch.label
        if segment.code is not None:
            self._kernels(segment, out)
            return
        library = segment.part.library
        if library is None or not isinstance(library.op, ControlFlow) or not hasattr(segment.run, "parts"):
            raise NotCompiled(f"a step runs {segment.template if library is None else library.op.name}")
        inputs = [self.places[number] for number in launch.inputs]
        results = self.builder.inner_loop(segment.run, inputs, out)
        self.places.update(zip(launch.outputs, results, strict=True))

    def _kernels(self, segment: Any, out: list[DriverStatement]) -> None:
        scratch = [
            self.parameters.memory((evaluate(self._known(size), self.sizes),), dtype) for dtype, size in segment.scratch
        ]
        for spec, function in zip(segment.code.lowered.launches, segment.functions, strict=True):
            if any(getattr(s, "cache", "") == "streaming" for s in ir.walk_statements(spec.kernel.body)):
                raise NotCompiled("a kernel of a step stores past the caches")
            flag = self.builder.error_flag if spec.checked_nodes else None
            arguments = [
                *(self._place(segment.code.index_map[number]).pointer for number in spec.tensors),
                *(scratch[k].pointer for k in spec.scratch),
                *([] if flag is None else [flag]),
                *self._numbers(segment.code, spec),
            ]
            out.append(RunKernel(self.parameters.kernel(spec.kernel, function), tuple(arguments), flag))
        for place in scratch:
            self.parameters.release(place)

    def _numbers(self, code: Any, spec: LaunchSpec) -> Iterator[ir.Expression]:
        """Yields the integers and scalars of a launch."""
        for one in spec.integers:
            extent = self._known(
                code.interface.to_original(substitute(Expression((((one,), 1),)), code.lowered.derived))
            )
            if isinstance(extent, int):
                yield constant(extent)
            else:
                yield self.parameters.integer(evaluate(extent, self.sizes), (self.number, extent))
        scalars = [(n, part) for n in spec.scalars for part in self._parts(code, n)]
        for variable, (number, part) in zip(spec.kernel.scalars[len(spec.integers) :], scalars, strict=True):
            given = self.places[code.index_map[number]]
            assert isinstance(given, Number)
            if given.position is None:
                value = getattr(given.value, part) if part else given.value
                yield ir.Constant(value, variable.dtype)
            else:
                yield self.parameters.number(FromOperand(given.position, part), variable.dtype)

    def _parts(self, code: Any, number: int) -> tuple[str, ...]:
        is_complex = code.interface.part.decomposed.values[number].dtype.is_complex
        return ("real", "imag") if is_complex else ("",)

    def _known(self, extent: Extent) -> Extent:
        """Returns an extent with the strides of this call."""
        strides = {}
        for one in symbols(extent):
            match = STRIDE_NAME.fullmatch(one.name)
            if one.id is None and match is not None:
                number, axis = map(int, match.groups())
                array = self._place(number).array
                strides[one] = array.strides[axis] // array.itemsize
        return substitute(extent, strides)
