"""How much memory a plan takes for given sizes, and the error where there is not so much.

Counted is what a call allocates: intermediates, results that are given no memory, and buffers that a segment needs
while it runs. Libraries may take more inside (copies of operands, workspaces).

Knows: plans, extents. Must not know: allocators, frontends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import segments
from segments import AllocateBuffer, Launch, MemoryUse
from tracefuse.errors import OutOfMemoryError
from tracefuse.ir.extents import evaluate, product
from tracefuse.ir.fusion import Fusion
from tracefuse.partition import segment_table
from tracefuse.runtime.compiled_segment import CompiledSegment
from tracefuse.runtime.loop_plans import rooms_of_loops
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.streams.stream_program import SlotAllocation


def tensor_bytes(fusion: Fusion, number: int, sizes: Mapping[Any, int]) -> int:
    """Bytes of the elements of a tensor; 0 for a scalar."""
    value = fusion.values[number]
    if not value.is_tensor:
        return 0
    count = value.dtype.itemsize
    for extent in fusion.shape_of(number):
        count *= evaluate(extent, sizes)
    return count


def memory_of(plan: Plan, sizes: Mapping[Any, int]) -> MemoryUse:
    """What a call of `plan` with these extents (and integer scalars) takes, in bytes."""
    fusion, rooms = plan.segmentation.fusion, plan.rooms
    loops = rooms_of_loops(plan, sizes)

    def scratch_of(launch: Launch) -> int:
        segment = launch.label
        assert isinstance(segment, CompiledSegment)
        if launch.step in loops:
            return loops[launch.step]
        own = enumerate(segment.scratch)
        return sum(
            dtype.itemsize * evaluate(size, sizes) for k, (dtype, size) in own if (launch.step, k) not in rooms.scratch
        )

    slots = {i.value: i.spec for i in plan.program.instructions if isinstance(i, AllocateBuffer)}

    def bytes_of(number: int) -> int:
        if number in rooms.slots:
            return 0
        spec = slots.get(number)
        if isinstance(spec, SlotAllocation):
            return evaluate(product(spec.extents) * spec.dtype.itemsize, sizes)
        return tensor_bytes(fusion, number, sizes)

    use = segments.memory_use(plan.program, bytes_of, scratch_of)
    # Rooms are there from the first launch to the end.
    return replace(use, peak=use.peak + rooms.bytes_of(sizes))


def out_of_memory(plan: Plan, sizes: Mapping[Any, int], step: int | None, error: BaseException) -> OutOfMemoryError:
    """What to raise where memory ran out in front of segment `step`."""
    use = memory_of(plan, sizes)
    what = "the host" if step is None else f"segment {step} ({plan.segments[step]})"
    message = getattr(error, "message", str(error))
    return OutOfMemoryError(
        f"no memory for {what}: {message}; the call needs {segment_table.bytes_text(use.peak)} beside its arguments, "
        f"{segment_table.bytes_text(use.kept)} of it for results",
        hint=getattr(error, "hint", None) or "free arrays, or compute in parts; f.explain(*args) shows what is needed",
    )
