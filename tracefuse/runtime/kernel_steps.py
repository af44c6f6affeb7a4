"""The kernels of a segment as statements of a driver: pointers to arrays, integers and scalars are their arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from tracefuse.ir.extents import Expression, substitute
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.loop_driver import DriverStatement, RunKernel
from tracefuse.runtime.driver_parameters import DriverParameters, FromOperand, NotCompiled, StepTensor
from tracefuse.runtime.step_integers import Number, Operand, StepIntegers
from tracefuse.schedule.launch_spec import LaunchSpec


class _Builder(Protocol):
    @property
    def error_flag(self) -> str: ...


class PlacedStep(Protocol):
    """A step of a driver. places: the operands of its values, by number."""

    parameters: DriverParameters
    integers: StepIntegers

    @property
    def builder(self) -> _Builder: ...

    @property
    def places(self) -> Mapping[int, Operand]: ...


def add_kernels(step: PlacedStep, segment: Any, out: list[DriverStatement]) -> None:
    """Adds the kernels of a segment."""
    scratch = [step.parameters.memory((step.integers.most(size),), dtype) for dtype, size in segment.scratch]
    for spec, function in zip(segment.code.lowered.launches, segment.functions, strict=True):
        if any(getattr(s, "cache", "") == "streaming" for s in ir.walk_statements(spec.kernel.body)):
            raise NotCompiled("a kernel of a step stores past the caches")
        flag = step.builder.error_flag if spec.checked_nodes else None
        arguments = [
            *(_pointer(step, segment.code.index_map[number]) for number in spec.tensors),
            *(scratch[k].pointer for k in spec.scratch),
            *([] if flag is None else [flag]),
            *_numbers(step, segment.code, spec),
        ]
        out.append(RunKernel(step.parameters.kernel(spec.kernel, function), tuple(arguments), flag))
    for place in scratch:
        step.parameters.release(place)


def _numbers(step: PlacedStep, code: Any, spec: LaunchSpec) -> Iterator[ir.Expression]:
    """Yields the integers and scalars of a launch."""
    for integer in spec.integers:
        local = substitute(Expression((((integer,), 1),)), code.lowered.derived)
        yield step.integers.code(code.interface.to_original(local))
    scalars = [(n, part) for n in spec.scalars for part in _parts(code, n)]
    for variable, (number, part) in zip(spec.kernel.scalars[len(spec.integers) :], scalars, strict=True):
        scalar_place = step.places[code.index_map[number]]
        assert isinstance(scalar_place, Number)
        if scalar_place.variable is not None:
            yield scalar_place.variable
        elif scalar_place.position is None:
            value = getattr(scalar_place.values[0], part) if part else scalar_place.values[0]
            yield ir.Constant(value, variable.dtype)
        else:
            yield step.parameters.number(FromOperand(scalar_place.position, part), variable.dtype)


def _parts(code: Any, number: int) -> tuple[str, ...]:
    is_complex = code.interface.part.decomposed.values[number].dtype.is_complex
    return ("real", "imag") if is_complex else ("",)


def _pointer(step: PlacedStep, number: int) -> str:
    place = step.places[number]
    assert isinstance(place, StepTensor)
    return place.pointer
