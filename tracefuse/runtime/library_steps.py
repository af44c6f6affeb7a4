"""Steps of a loop that Python runs: the compiled loop calls a function that runs a library segment on its memory.

The function gets addresses and integers. It makes arrays of the addresses, and copies what the library returns to the
memory of the results.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tracefuse.dtypes import int64
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.loop_driver import CallPython, DriverStatement
from tracefuse.runtime.driver_parameters import DriverParameters, FromOperand, NotCompiled, StepTensor
from tracefuse.runtime.step_integers import Number, Operand

MOST_ARRAYS = 64
"""The number of addresses of an operand for which a function keeps its array; slices have another in each step."""

_Input: TypeAlias = Callable[[int], Any]
"""Returns the input of a segment for the integer of a call."""


def add_library_call(
    parameters: DriverParameters, run: Callable[[Sequence[Any], Sequence[Any]], Any],
    inputs: Sequence[Operand | ir.Expression], results: Sequence[StepTensor], out: list[DriverStatement],
) -> None:  # fmt: skip
    """Adds the call of a segment that Python runs. run: returns its results, new arrays. Raises NotCompiled.

    inputs: in order; an expression is an extent.
    """
    call = _function(run, [_input_of(one) for one in inputs], [_array_of(one) for one in results])
    parameters.kept.append(call)
    arguments = [one.pointer if isinstance(one, StepTensor) else _integer(parameters, one) for one in inputs]
    function = parameters.integer(id(call), ("function", id(call)))
    out.append(CallPython(function, (*arguments, *(one.pointer for one in results))))


def _function(
    run: Callable[[Sequence[Any], Sequence[Any]], Any], inputs: Sequence[_Input], results: Sequence[_Input]
) -> Callable[..., None]:
    """Returns the function that runs a segment."""
    count = len(inputs)

    def call(*integers: int) -> None:
        computed = run([of(integer) for of, integer in zip(inputs, integers, strict=False)], ())
        for array, address, result in zip(results, integers[count:], computed, strict=True):
            array(address)[...] = result

    return call


def _input_of(operand: Operand | ir.Expression) -> _Input:
    return _array_of(operand) if isinstance(operand, StepTensor) else _same


def _same(number: int) -> int:
    return number


def _array_of(place: StepTensor) -> _Input:
    """Returns a function that returns the array of a place at an address."""
    layout = place.array
    shape, dtype, strides = layout.shape, layout.dtype, layout.strides
    if not layout.size:
        return lambda address: np.empty(shape, dtype)
    ends = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    before = -sum(end for end in ends if end < 0)
    memory = ctypes.c_char * (before + sum(end for end in ends if end > 0) + layout.itemsize)
    known: dict[int, Any] = {}

    def array(address: int) -> Any:
        found = known.get(address)
        if found is None:
            if len(known) == MOST_ARRAYS:
                known.clear()
            found = np.ndarray(shape, dtype, memory.from_address(address - before), before, strides)
            known[address] = found
        return found

    return array


def _integer(parameters: DriverParameters, number: Number | ir.Expression) -> ir.Expression:
    """Returns an integer of a step as an argument of a call."""
    if not isinstance(number, Number):
        return number
    if number.variable is not None:
        return number.variable
    if not isinstance(number.values[0], int):
        raise NotCompiled("a library gets a number that is no integer")
    if number.position is not None:
        return parameters.number(FromOperand(number.position), int64)
    return parameters.integer(number.values[0], ("number", number.values[0]))
