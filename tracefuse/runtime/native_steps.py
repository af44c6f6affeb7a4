"""Steps of a loop that call functions of C libraries, as statements of its driver."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tracefuse.dtypes import dtype_of, float64, int64
from tracefuse.ir.extents import Expression, Extent
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.kernel_ir import Variable
from tracefuse.kernel.loop_driver import (
    CallFunction,
    CallInnerLoop,
    ChooseStatements,
    CountedSteps,
    DriverStatement,
    LoadedNumber,
    OffsetPointer,
    RequireNumber,
    StoreNumber,
)
from tracefuse.ops.native_ufuncs import InnerLoop, NativeUfuncs, inner_loop
from tracefuse.runtime.driver_parameters import (
    DriverParameters,
    FromOperand,
    FromState,
    NotCompiled,
    StepTensor,
    constant,
)
from tracefuse.runtime.step_integers import Number, Operand


class NumberedBuilder(Protocol):
    """What a step needs of the builder of its loop; see `DriverBuilder`."""

    parameters: DriverParameters

    def next_number(self) -> int: ...


def add_draw(
    builder: NumberedBuilder, draw: Any, operands: Sequence[Operand], code: Callable[[Extent], ir.Expression],
    drawn: StepTensor, out: list[DriverStatement],
) -> None:  # fmt: skip
    """Adds a draw of random numbers into memory.

    draw: a `NativeDraw`. operands: what it has places of. code: returns an extent as an integer of the driver.
    """
    parameters = builder.parameters
    function = parameters.integer(draw.function, ("function", draw.function))
    state = parameters.number(FromState(draw.source), int64)
    count = math.prod(drawn.array.shape)
    if draw.bounds is not None:
        low, high = (_integer(parameters, one, operands, code) for one in draw.bounds)
        largest = ir.call("sub", ir.call("sub", high, low), constant(1))
        call = CallFunction(function, (state, low, largest, constant(count), constant(0), drawn.pointer), None)
        out.append(ChooseStatements((((ir.call("ge", largest, constant(0)),), (call,)),)))
    elif draw.fills:
        out.append(CallFunction(function, (state, constant(count), drawn.pointer), None))
    else:
        numbers = tuple(_float(parameters, one, operands) for one in draw.numbers)
        index, pointer = Variable(f"k{builder.next_number()}", int64), f"p{builder.next_number()}"
        step = (
            OffsetPointer(pointer, drawn.pointer, ir.call("mul", index, constant(drawn.array.itemsize))),
            CallFunction(function, (state, *numbers), pointer),
        )
        out.append(CountedSteps(index, constant(0), constant(count), False, step))


def add_ufuncs(
    builder: NumberedBuilder, native: NativeUfuncs, operands: Sequence[Operand], results: Sequence[StepTensor],
    out: list[DriverStatement],
) -> None:  # fmt: skip
    """Adds the calls of ufuncs that compute results. Raises NotCompiled."""
    if not all(isinstance(operand, StepTensor) for operand in operands):
        raise NotCompiled("a library gets a number")
    places = [*(one for one in operands if isinstance(one, StepTensor)), *results]
    calls = native.plan([place.array for place in places[: len(operands)]], [place.array for place in results])
    loops = None if calls is None else [inner_loop(call) for call in calls]
    if not loops or not all(loops):
        raise NotCompiled("a library gets arrays of other types or layouts than its C function takes")
    for loop in loops:
        assert loop is not None
        _add_inner_loop(builder.parameters, loop, places, out)
    if native.fails:
        _require_numbers(builder, results[0], out)


def _add_inner_loop(
    parameters: DriverParameters, loop: InnerLoop, places: Sequence[StepTensor], out: list[DriverStatement]
) -> None:
    pointers = list[str]()
    for argument in loop.arguments:
        if isinstance(argument, int):
            pointers.append(places[argument].pointer)
        else:
            value, dtype = argument[0], dtype_of(argument[1])
            number = parameters.memory((), dtype, is_constant=True)
            out.append(StoreNumber(number.pointer, ir.Constant(value, dtype)))
            pointers.append(number.pointer)
    function, data = (parameters.integer(one, ("function", one)) for one in (loop.function, loop.data))
    extents, strides = (
        tuple(parameters.integer(one, ("number", one)) for one in numbers) for numbers in (loop.extents, loop.strides)
    )
    out.append(CallInnerLoop(function, data, tuple(pointers), extents, strides))


def _require_numbers(builder: NumberedBuilder, result: StepTensor, out: list[DriverStatement]) -> None:
    """Adds the end of the driver where a function failed, which fills its result, or one of a stack, with NaN.

    The steps on the host then raise the exception.
    """
    array, first = result.array, max(result.array.ndim - 2, 0)
    count = math.prod(array.shape[:first])
    if count == 1:
        out.append(RequireNumber(result.pointer, result.dtype))
        return
    index, pointer = Variable(f"k{builder.next_number()}", int64), f"p{builder.next_number()}"
    offset = ir.call("mul", index, constant(array.nbytes // count))
    step = (OffsetPointer(pointer, result.pointer, offset), RequireNumber(pointer, result.dtype))
    out.append(CountedSteps(index, constant(0), constant(count), False, step))


def _integer(
    parameters: DriverParameters, value: Any, operands: Sequence[Operand], code: Callable[[Extent], ir.Expression]
) -> ir.Expression:
    if isinstance(value, int):
        return constant(value)
    if isinstance(value, Expression):
        return code(value)
    operand = operands[value.position]
    if isinstance(operand, Number) and operand.variable is not None:
        return operand.variable
    if isinstance(operand, Number) and operand.position is not None:
        return parameters.number(FromOperand(operand.position), int64)
    if isinstance(operand, Number) and isinstance(operand.values[0], int):
        return parameters.integer(operand.values[0], ("number", operand.values[0]))
    raise NotCompiled("it draws integers whose bounds a step computes")


def _float(parameters: DriverParameters, value: Any, operands: Sequence[Operand]) -> ir.Expression | LoadedNumber:
    if isinstance(value, float):
        return ir.Constant(value, float64)
    operand = operands[value.position]
    if isinstance(operand, Number) and operand.variable is None:
        if operand.position is not None:
            return parameters.number(FromOperand(operand.position), float64)
        return ir.Constant(float(operand.values[0]), float64)
    if isinstance(operand, StepTensor) and operand.dtype is float64 and operand.array.shape == ():
        return LoadedNumber(operand.pointer, float64)
    raise NotCompiled("it draws numbers of a distribution whose parameters a step computes")
