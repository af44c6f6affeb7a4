"""Computes the peak memory of a plan at given sizes, and the error for a call that runs out of memory.

The count includes intermediates, results without an output buffer, scratch buffers, and both buffers of what a loop
carries. It excludes the intermediates inside of a step, and what libraries allocate internally, such as copies of
operands and workspaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import segments
from segments import AllocateBuffer, Instruction, Launch, MemoryUse
from segments.lazy_dataclasses import replace
from tracefuse.errors import OutOfMemoryError
from tracefuse.ir.extents import evaluate, product
from tracefuse.ir.fusion import Fusion
from tracefuse.partition import segment_table
from tracefuse.runtime.compiled_segment import CompiledSegment
from tracefuse.runtime.loop_plans import loop_scratch_bytes
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.streams.stream_program import SlotAllocation


def tensor_bytes(fusion: Fusion, number: int, sizes: Mapping[Any, int]) -> int:
    """Returns the bytes of a tensor's elements, 0 for a scalar."""
    value = fusion.values[number]
    if not value.is_tensor:
        return 0
    count = value.dtype.itemsize
    for extent in fusion.shape_of(number):
        count *= evaluate(extent, sizes)
    return count


def memory_of(plan: Plan, sizes: Mapping[Any, int]) -> MemoryUse:
    """Returns the memory that a call of `plan` uses, in bytes. sizes: extents and integer scalars by id."""
    use = segments.memory_use(plan.program, *_sizes_of(plan, sizes))
    # Arenas live from the first launch to the end of the call.
    return replace(use, peak=use.peak + plan.arena_plan.bytes_of(sizes))


def timeline_of(plan: Plan, sizes: Mapping[Any, int]) -> Iterator[tuple[Instruction, int]]:
    """Yields each instruction of `plan` with the bytes live while it runs; arenas count all the time."""
    arenas = plan.arena_plan.bytes_of(sizes)
    for instruction, live in segments.memory_timeline(plan.program, *_sizes_of(plan, sizes)):
        yield instruction, live + arenas


def _sizes_of(plan: Plan, sizes: Mapping[Any, int]) -> tuple[Callable[[int], int], Callable[[Launch], int]]:
    """Returns functions of the bytes of a value's buffer and of a launch's temporary memory."""
    fusion, arena_plan = plan.segmentation.fusion, plan.arena_plan
    loops = loop_scratch_bytes(plan, sizes)

    def scratch_of(launch: Launch) -> int:
        segment = launch.label
        assert isinstance(segment, CompiledSegment)
        if launch.step in loops:
            return loops[launch.step]
        return _second_buffers(segment) + sum(
            dtype.itemsize * evaluate(size, sizes)
            for k, (dtype, size) in enumerate(segment.scratch)
            if (launch.step, k) not in arena_plan.scratch
        )

    def _second_buffers(segment: CompiledSegment) -> int:
        """Returns the bytes of the second buffers of the values that a loop carries."""
        node, value_map = segment.part.library, segment.part.segment.value_map
        count = 0 if node is None else node.attributes.get("carried", 0)
        return sum(tensor_bytes(fusion, value_map[n], sizes) for n in (node.outputs[:count] if node else ()))

    specs = {i.value: i.spec for i in plan.program.instructions if isinstance(i, AllocateBuffer)}

    def bytes_of(number: int) -> int:
        if number in arena_plan.slots:
            return 0
        spec = specs.get(number)
        if isinstance(spec, SlotAllocation):
            return evaluate(product(spec.extents) * spec.dtype.itemsize, sizes)
        return tensor_bytes(fusion, number, sizes)

    return bytes_of, scratch_of


def out_of_memory(plan: Plan, sizes: Mapping[Any, int], step: int | None, error: BaseException) -> OutOfMemoryError:
    """Builds the error for a call that ran out of memory before segment `step`."""
    use = memory_of(plan, sizes)
    consumer = "the host" if step is None else f"segment {step} ({plan.segments[step]})"
    message = getattr(error, "message", str(error))
    return OutOfMemoryError(
        f"out of memory at {consumer}: {message}; the call needs {segment_table.bytes_text(use.peak)} in addition "
        f"to its arguments, {segment_table.bytes_text(use.outputs)} of it for results",
        hint=getattr(error, "hint", None)
        or "free arrays, or compute in parts; f.explain(*args) shows the memory of each segment",
    )
