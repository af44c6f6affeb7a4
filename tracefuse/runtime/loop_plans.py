"""What the loops over slices of a plan are for given sizes: how each slice is computed, and the memory that takes.

Kernels of slices are chosen for shapes and strides, which arrays show that stand for those of a call: they have its
shapes and layouts and nearly no memory, and nothing runs on them.

Knows: plans, loops, sizes. Must not know: frontends, what memory is counted for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from segments import Allocate, Loop
from tracefuse.dynamic.layouts import BROADCAST, CONTIGUOUS, UNIT, Strided
from tracefuse.ir.extents import evaluate
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.streams.slice_loops import SliceLoop
from tracefuse.runtime.streams.slices import Lane


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """One loop for given sizes. segments: the positions of those that it runs. lanes: how each of them computes its
    slices; shorter: the last piece, where that is shorter. count: the streams that have work."""

    segments: tuple[int | None, ...]
    lanes: tuple[Lane, ...]
    shorter: tuple[Lane, ...]
    count: int

    @property
    def room(self) -> int:
        """The bytes of what the iterations need while they run."""
        return self.count * sum(lane.room for lane in (*self.lanes, *self.shorter))


def loop_plans(plan: Plan, sizes: Mapping[Any, int]) -> Iterator[LoopPlan]:
    """The loops of a plan in order, for extents and integer scalars by id; a loop without iterations is left out."""
    for instruction in plan.program.instructions:
        if isinstance(instruction, Loop):
            loop = SliceLoop(instruction, plan.segmentation.fusion, plan.target)
            values = [_described(plan, number, sizes) for number in loop.values]
            total = loop.iterations(values)
            if total > 0:
                lanes, shorter = loop.lanes(total, values)
                yield LoopPlan(loop.segments, tuple(lanes), tuple(shorter), min(total, loop.lane_count(values)))


def rooms_of_loops(plan: Plan, sizes: Mapping[Any, int]) -> dict[int, int]:
    """For each segment that runs in a loop, the bytes of what the iterations of that loop need."""
    return {step: loop.room for loop in loop_plans(plan, sizes) for step in loop.segments if step is not None}


def plans_of_slices(plan: Plan, sizes: Mapping[Any, int]) -> dict[int, Plan]:
    """For each segment that runs in a loop, what a slice of it runs; without those that the array library computes."""
    found: dict[int, Plan] = {}
    for loop in loop_plans(plan, sizes):
        for step, lane in zip(loop.segments, loop.lanes, strict=True):
            if step is not None and lane.plan is not None:
                found[step] = lane.plan
    return found


def _described(plan: Plan, number: int, sizes: Mapping[Any, int]) -> Any:
    """What stands for a value of a call: an array, an integer, any number."""
    fusion = plan.segmentation.fusion
    if number < 0:
        return sizes[number]
    value = fusion.values[number]
    if not value.is_tensor:
        if value.dtype.is_integer:
            return sizes.get(number, 1) if value.extent is None else evaluate(value.extent, sizes)
        return value.dtype.numpy.type(0).item()
    specs: dict[int, Any] = {i.value: i.spec for i in plan.program.instructions if isinstance(i, Allocate)}
    extents = specs[number].extents if number in specs else fusion.shape_of(number)
    shape = tuple(evaluate(extent, sizes) for extent in extents)
    layouts = dict(zip(fusion.tensor_inputs, plan.layouts, strict=True))
    return plan.target.device.standing_for(shape, _strides(shape, layouts.get(number)), value.dtype)


def _strides(shape: Sequence[int], layout: Strided | None) -> tuple[int, ...]:
    """Strides in elements that make an array of that layout."""
    result: list[int] = []
    inner = 1
    for axis in range(len(shape) - 1, -1, -1):
        letter = CONTIGUOUS if layout is None else layout.axes[axis]
        apart = letter not in (BROADCAST, CONTIGUOUS, UNIT)
        result.append(0 if letter == BROADCAST else 1 if letter == UNIT else inner * (2 if apart else 1))
        inner = max(inner, result[-1] * max(shape[axis], 1))
    return tuple(reversed(result))
