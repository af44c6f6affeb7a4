"""Memory of a step that nothing reads after a launch, so that a loop which the launch runs may update it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from segments import Alias, CopyBuffer, Instruction, Launch
from tracefuse.ir.fusion import Fusion
from tracefuse.runtime.driver_parameters import StepTensor
from tracefuse.runtime.memory.buffer_facts import OutputBuffer
from tracefuse.runtime.step_integers import Operand


class MemoryOfStep(Protocol):
    """A step of a driver, as `_PlannedStep`.

    places: the operands of values. slices: the buffers of slices of arguments. allocated: values with own memory.
    """

    fusion: Fusion
    plan: Any
    slices: Sequence[OutputBuffer]
    allocated: set[int]

    @property
    def places(self) -> Mapping[int, Operand]: ...


def dying_pointers(step: MemoryOfStep, launch: Launch, later: Sequence[Instruction]) -> set[str]:
    """Returns the pointers to memory of the driver that nothing reads after a launch."""
    read = [
        n for instruction in later if isinstance(instruction, Launch) for n in instruction.inputs if _is_tensor(step, n)
    ]
    read += [instruction.source for instruction in later if isinstance(instruction, CopyBuffer)]
    places = [step.places[n] for n in (*read, *step.plan.program.outputs) if n in step.places]
    result_pointers = {place.pointer for place in places if isinstance(place, StepTensor)}
    read_places = [step.places[n] for n in launch.inputs if n in step.places]  # not extents of other arrays
    updated = {_place(step, owner).pointer for owner in step.fusion.aliases.values()}
    updated |= {_place(step, value).pointer for value in step.allocated if value in step.places}
    return {
        instruction.pointer for instruction in read_places if isinstance(instruction, StepTensor)
    } & updated - result_pointers - _written(step, launch, later)


def _written(step: MemoryOfStep, launch: Launch, later: Sequence[Instruction]) -> set[str]:
    """Returns the pointers to memory that a later kernel writes, or a copy before the last reader of a result.

    A plan takes the results of a launch to lie apart from its inputs. The copy of a result that a loop computes in
    the memory of its initial value to that memory does nothing.
    """
    results, pointers, updated = {*launch.outputs}, set[str](), _initial_values(step, launch)
    for position, instruction in enumerate(later):
        if isinstance(instruction, Alias):
            pointers |= _pointers_of(step, instruction.original)
        elif isinstance(instruction, CopyBuffer):
            targets = _pointers_of(step, instruction.target)
            if targets == _pointers_of(step, updated.get(instruction.source, -1)):
                continue
            rest = later[position + 1 :]
            if any(isinstance(other, Launch) and not results.isdisjoint(other.inputs) for other in rest) or any(
                isinstance(other, CopyBuffer) and other.source in results for other in rest
            ):
                pointers |= targets
    return pointers


def _initial_values(step: MemoryOfStep, launch: Launch) -> dict[int, int]:
    """Returns the initial value of each result that a loop carries."""
    segment: Any = launch.label
    node, index_map = segment.run.node, segment.part.segment.index_map
    count = node.attributes.get("carried", 0)  # a branch carries nothing
    initial = node.operands[len(node.operands) - count - node.attributes.get("sliced", 0) :]
    return {
        index_map[result]: index_map[value]
        for result, value in zip(node.outputs[:count], initial, strict=False)
        if isinstance(value, int) and result in index_map and value in index_map
    }


def _pointers_of(step: MemoryOfStep, memory: int) -> set[str]:
    """Returns the pointer to a buffer, or to the argument of which it is a slice."""
    owner = next((buffer.owner for buffer in step.slices if buffer.memory == memory), None)
    place = step.places.get(memory if owner is None else owner)
    return {place.pointer} if isinstance(place, StepTensor) else set()


def _is_tensor(step: MemoryOfStep, number: int) -> bool:
    return number >= 0 and step.fusion.values[number].is_tensor


def _place(step: MemoryOfStep, number: int | None) -> StepTensor:
    assert number is not None
    place = step.places[number]
    assert isinstance(place, StepTensor)
    return place
