"""Finds the workers of a plan's stream-parallel loops at given sizes, and the memory that they need.

The kernels of a slice depend on shapes and strides. Placeholder arrays provide these: they have the shapes and layouts
of the arrays of a call, and the memory of one element. Nothing runs on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from segments import AllocateBuffer, HostLoop
from segments.lazy_dataclasses import dataclass
from tracefuse.dynamic.layouts import BROADCAST, CONTIGUOUS, UNIT, Strided, axis_within
from tracefuse.ir.extents import evaluate
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.streams.slices import StreamWorker
from tracefuse.runtime.streams.stream_loops import StreamLoop


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """A stream-parallel loop at given sizes.

    segments: the positions of the segments that it runs. workers: one for each of them. shorter: the workers of a
    shorter last chunk. count: the number of streams that have work.
    """

    segments: tuple[int | None, ...]
    workers: tuple[StreamWorker, ...]
    shorter: tuple[StreamWorker, ...]
    count: int

    @property
    def scratch_bytes(self) -> int:
        """The scratch memory of all streams, in bytes."""
        return self.count * sum(worker.scratch_bytes for worker in (*self.workers, *self.shorter))


def loop_plans(plan: Plan, sizes: Mapping[Any, int]) -> Iterator[LoopPlan]:
    """Yields the loops of a plan in order, without those that have no iterations.

    sizes: extents and integer scalars by id.
    """
    for instruction in plan.program.instructions:
        if isinstance(instruction, HostLoop):
            loop = StreamLoop(instruction, plan.segmentation.fusion, plan.target)
            values = [_placeholder(plan, number, sizes) for number in loop.values]
            total = loop.iterations(values)
            if total > 0:
                workers, shorter = loop.workers(total, values)
                yield LoopPlan(loop.segments, tuple(workers), tuple(shorter), min(total, loop.worker_count(values)))


def loop_scratch_bytes(plan: Plan, sizes: Mapping[Any, int]) -> dict[int, int]:
    """Returns, for each segment in a loop, the scratch memory of that loop in bytes."""
    return {step: loop.scratch_bytes for loop in loop_plans(plan, sizes) for step in loop.segments if step is not None}


def slice_plans(plan: Plan, sizes: Mapping[Any, int]) -> dict[int, Plan]:
    """Returns the plan of one slice for each segment in a loop, except those that the array library computes."""
    plans: dict[int, Plan] = {}
    for loop in loop_plans(plan, sizes):
        for step, worker in zip(loop.segments, loop.workers, strict=True):
            if step is not None and worker.plan is not None:
                plans[step] = worker.plan
    return plans


def _placeholder(plan: Plan, number: int, sizes: Mapping[Any, int]) -> Any:
    """Returns a placeholder for a value of a call: an array without data, an extent or a number."""
    fusion = plan.segmentation.fusion
    if number < 0:
        return sizes[number]
    value = fusion.values[number]
    if not value.is_tensor:
        if value.dtype.is_integer:
            return sizes.get(number, 1) if value.extent is None else evaluate(value.extent, sizes)
        return value.dtype.numpy.type(0).item()
    specs: dict[int, Any] = {i.value: i.spec for i in plan.program.instructions if isinstance(i, AllocateBuffer)}
    extents = specs[number].extents if number in specs else fusion.shape_of(number)
    shape = tuple(evaluate(extent, sizes) for extent in extents)
    layouts = dict(zip(fusion.tensor_inputs, plan.layouts, strict=True))
    return plan.target.device.standing_for(shape, _strides(shape, layouts.get(number)), value.dtype)


def _strides(shape: Sequence[int], layout: Strided | None) -> tuple[int, ...]:
    """Returns strides, in elements, that give an array of `shape` the layout."""
    axes = CONTIGUOUS * len(shape) if layout is None else layout.axes
    within = [axis_within(axes, axis) for axis in range(len(shape))]
    free = [inner is None and axes[axis] not in (BROADCAST, CONTIGUOUS, UNIT) for axis, inner in enumerate(within)]
    strides: dict[int, int] = {}
    reach = 1  # in elements, of the axes that have a stride
    while len(strides) < len(shape):
        ready = [
            a for a in reversed(range(len(shape))) if a not in strides and (within[a] is None or within[a] in strides)
        ]
        axis = min(ready, key=free.__getitem__)
        inner = within[axis]
        if inner is not None:
            strides[axis] = strides[inner] * max(shape[inner], 1)
        elif free[axis]:
            strides[axis] = 2 * reach  # so no axis is contiguous with another
        else:
            strides[axis] = int(axes[axis] != BROADCAST)
        reach = max(reach, strides[axis] * max(shape[axis], 1))
    return tuple(strides[axis] for axis in range(len(shape)))
