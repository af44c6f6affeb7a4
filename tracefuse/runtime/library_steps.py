"""Steps of a loop that Python runs: the compiled loop calls a function that runs a library segment on its memory.

The function gets addresses and integers. It makes arrays of the addresses, and copies what the library returns to the
memory of the results.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse.dtypes import int64
from tracefuse.generated_code import compile_function
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.loop_driver import CallPython, DriverStatement
from tracefuse.runtime.driver_parameters import DriverParameters, FromOperand, NotCompiled, StepTensor
from tracefuse.runtime.step_integers import Number, Operand

MOST_ARRAYS = 64
"""The number of addresses of an operand for which a function keeps its array; slices have another in each step."""


def add_library_call(
    parameters: DriverParameters, run: Callable[[Sequence[Any], Sequence[Any]], Any],
    inputs: Sequence[Operand | ir.Expression], results: Sequence[StepTensor], out: list[DriverStatement],
) -> None:  # fmt: skip
    """Adds the call of a segment that Python runs. run: returns its results, new arrays. Raises NotCompiled.

    inputs: in order; an expression is an extent.
    """
    call = _function(run, inputs, results)
    parameters.kept.append(call)
    arguments = [one.pointer if isinstance(one, StepTensor) else _integer(parameters, one) for one in inputs]
    function = parameters.integer(id(call), ("function", id(call)))
    out.append(CallPython(function, (*arguments, *(one.pointer for one in results))))


def _function(
    run: Callable[[Sequence[Any], Sequence[Any]], Any],
    inputs: Sequence[Operand | ir.Expression], results: Sequence[StepTensor],
) -> Callable[..., None]:  # fmt: skip
    """Returns the function that runs a segment: of the integers of a call, in the order of its inputs and results."""
    places = {k: one for k, one in enumerate((*inputs, *results)) if isinstance(one, StepTensor)}
    scope: dict[str, Any] = {"run": run}
    lines = [f"def call({', '.join(f'n{k}' for k in range(len(inputs) + len(results)))}):"]
    for k, place in places.items():
        known: dict[int, Any] = {}
        scope |= {f"known{k}": known.get, f"new{k}": _arrays_at(place, known)}
        lines += [f"    x{k} = known{k}(n{k})", f"    if x{k} is None:", f"        x{k} = new{k}(n{k})"]
    operands = "".join(f"{'x' if k in places else 'n'}{k}, " for k in range(len(inputs)))
    computed = "".join(f"y{k}, " for k in range(len(inputs), len(inputs) + len(results)))
    lines.append(f"    {computed or '()'} = run(({operands}), ())")
    lines += [f"    x{k}[...] = y{k}" for k in range(len(inputs), len(inputs) + len(results))]
    return compile_function("\n".join([*lines, ""]), "call", scope, "step of a loop")  # type: ignore[no-any-return]


def _arrays_at(place: StepTensor, known: dict[int, Any]) -> Callable[[int], Any]:
    """Returns a function that makes the array of a place at an address, and keeps it in `known`."""
    layout = place.array
    shape, dtype, strides = layout.shape, layout.dtype, layout.strides
    if not layout.size:
        return lambda address: np.empty(shape, dtype)
    ends = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    before = -sum(end for end in ends if end < 0)
    memory = ctypes.c_char * (before + sum(end for end in ends if end > 0) + layout.itemsize)

    def array(address: int) -> Any:
        if len(known) == MOST_ARRAYS:
            known.clear()
        found = known[address] = np.ndarray(shape, dtype, memory.from_address(address - before), before, strides)
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
