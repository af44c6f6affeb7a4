"""What a loop driver takes as arguments, and where each argument of a call comes from.

The layouts and integers of a call fix the integers that kernels take, so they are the same for every call that a driver
serves. Arrays and other scalars are operands of the loop. Memory that steps use is allocated before the loop.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import DType, int64
from tracefuse.kernel.kernel_ir import Buffer, Constant, Expression, Kernel, Variable
from tracefuse.kernel.loop_driver import LocalMemory, same_code
from tracefuse.runtime.targets.array_device import ArrayDevice

MOST_LOCAL_BYTES = 64
"""The bytes of an array of constant shape up to which a driver keeps it in local memory, or in registers."""


class NotCompiled(Exception):
    """A loop has a step that a driver cannot run; the message names it."""


@dataclass(frozen=True, slots=True)
class FixedNumber:
    """The same integer in every call."""

    value: int


@dataclass(frozen=True, slots=True)
class FromOperand:
    """An operand of the loop, or the `real` or `imag` part of one."""

    position: int
    part: str = ""


@dataclass(frozen=True, slots=True)
class NewMemory:
    """An array that is allocated for a call. number: distinguishes arrays of equal types."""

    number: int
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class FromBounds:
    """The first (0) or the end (1) of the integers of the loop."""

    position: int


@dataclass(frozen=True, slots=True)
class FromState:
    """The address of the state of a random generator. source: gives the generator of the call."""

    source: Any


Source: TypeAlias = FixedNumber | FromOperand | FromBounds | FromState | NewMemory


@dataclass(frozen=True, slots=True)
class VaryingExtent:
    """An extent of an array that differs between steps.

    variable: of the driver. values: in each sampled step. The array of the `StepTensor` has the largest one.
    """

    axis: int
    variable: Variable
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepTensor:
    """A tensor of a step.

    pointer: its name in the driver. array: one of its layout. is_local: in `LocalMemory`. varying: the extents of a
    contiguous array that differ between steps.
    """

    pointer: str
    array: Any
    dtype: DType
    is_local: bool = False
    varying: tuple[VaryingExtent, ...] = ()

    def at(self, sample: int) -> Any:
        """Returns an array of its layout in a sampled step."""
        if not self.varying:
            return self.array
        shape = list(self.array.shape)
        for extent in self.varying:
            shape[extent.axis] = extent.values[sample]
        return self.array.reshape(-1)[: math.prod(shape)].reshape(shape)

    def for_samples(self, parents: Sequence[int]) -> StepTensor:
        """Returns the tensor in sampled steps of an inner loop. parents: the outer step of each."""
        return replace(
            self, varying=tuple(replace(e, values=tuple(e.values[p] for p in parents)) for e in self.varying)
        )


class DriverParameters:
    """The parameters of a driver, with the sources of their arguments, and its kernels.

    parameters, sources: in order. kernels, functions: the distinct kernels that steps run, compiled. kept: what must
    live as long as the driver, since it has the addresses.
    """

    def __init__(self, device: ArrayDevice) -> None:
        self.device = device
        self.parameters: list[Buffer | Variable] = []
        self.sources: list[Source] = []
        self.kernels: list[Kernel] = []
        self.functions: list[Any] = []
        self.locals: list[LocalMemory] = []
        self.kept: list[Any] = []
        self.fits_bounds = False
        self._names: dict[Hashable, Any] = {}
        self._free: dict[tuple[tuple[int, ...], DType], list[StepTensor]] = {}

    def operand(self, position: int, array: Any, dtype: DType) -> StepTensor:
        """Returns the place of an operand that is an array."""
        source = FromOperand(position)
        if source not in self._names:
            buffer = Buffer(f"a{position}", dtype, written=True, exclusive=False)
            self._names[source] = StepTensor(self._add(buffer, source), array, dtype)
        place: StepTensor = self._names[source]
        return place

    def number(self, source: Source, dtype: DType) -> Variable:
        """Returns the parameter of a number that is no integer, or that differs between calls."""
        key = source, dtype
        if key not in self._names:
            self._names[key] = variable = Variable(f"s{len(self.parameters)}", dtype)
            self._add(variable, source)
        declared: Variable = self._names[key]
        return declared

    def integer(self, value: int, key: Hashable) -> Expression:
        """Returns an integer of a call. key: the same for equal expressions, so that they share a parameter."""
        if key not in self._names:
            self._names[key] = variable = Variable(f"n{len(self.parameters)}", int64)
            self._add(variable, FixedNumber(value))
        declared: Variable = self._names[key]
        return declared

    def memory(self, shape: Sequence[int], dtype: DType, *, is_constant: bool = False) -> StepTensor:
        """Returns memory for an array. is_constant: every call has this shape."""
        shape = tuple(shape)
        array = self.device.empty(shape, dtype)
        if is_constant and math.prod(shape) * dtype.itemsize <= MOST_LOCAL_BYTES:
            pointer = f"v{len(self.locals)}"
            self.locals.append(LocalMemory(pointer, max(math.prod(shape), 1) * dtype.itemsize))
            return StepTensor(pointer, array, dtype, True)
        free = self._free.get((shape, dtype))
        if free:
            return free.pop()
        number = len(self.parameters)
        pointer = self._add(Buffer(f"t{number}", dtype, written=True), NewMemory(number, shape, dtype))
        return StepTensor(pointer, array, dtype)

    def release(self, place: StepTensor) -> None:
        """Makes the memory of a value available to values of later statements."""
        if not place.is_local:
            self._free.setdefault((place.array.shape, place.dtype), []).append(replace(place, varying=()))

    def kernel(self, kernel: Kernel, function: Any) -> int:
        """Returns the position of a kernel among those of the driver."""
        for position, known in enumerate(self.kernels):
            if known is kernel or same_code(known, kernel):
                return position
        self.kernels.append(kernel)
        self.functions.append(function)
        return len(self.kernels) - 1

    def _add(self, parameter: Buffer | Variable, source: Source) -> str:
        self.parameters.append(parameter)
        self.sources.append(source)
        return parameter.name


def constant(value: int) -> Constant:
    """Returns an integer of the driver's code."""
    return Constant(value, int64)
