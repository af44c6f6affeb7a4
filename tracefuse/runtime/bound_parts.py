"""Sub-fusions of loops with their compiled computations, bound once for the layouts of a call.

A step then costs the host its launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.generated_code import compile_function
from tracefuse.ir.fusion import SubFusion
from tracefuse.runtime.streams.slices import Computation, StreamWorker
from tracefuse.runtime.targets.target import Target

MAX_BOUND = 64
"""The number of argument layouts that a sub-fusion stays bound for. Beyond it, the oldest is dropped."""
register(Cache(
    "runtime.bound_parts.BoundPart._workers", "the bound body of a loop",
    "shapes, strides and integers of the arguments", f"{MAX_BOUND}, the oldest go", "a plan", "with the plan",
))  # fmt: skip


class BoundPart:
    """A sub-fusion with its computation, bound for the layouts that its arguments had."""

    def __init__(self, part: SubFusion, computation: Computation, target: Target) -> None:
        self.part, self.computation, self.device = part, computation, target.device
        values = [part.fusion.values[number] for number in part.fusion.inputs]
        positions = dict(enumerate(part.inputs))
        self.tensors = [positions[k] for k, value in enumerate(values) if value.is_tensor]
        self.integers = [
            positions[k] for k, value in enumerate(values) if not value.is_tensor and value.dtype.is_integer
        ]
        self.floats = [
            positions[k] for k, value in enumerate(values) if not value.is_tensor and not value.dtype.is_integer
        ]
        stream = target.calls.stream_text()
        text = f"def stream():\n    return {stream}\n"
        self.stream: Callable[[], Any] = compile_function(text, "stream", target.calls.names(), "stream")
        self._workers: BoundedTable[Any, StreamWorker] = BoundedTable(MAX_BOUND)

    def start(self, operands: Sequence[Any], outputs: Sequence[Any]) -> tuple[bool, Callable[..., None]]:
        """Returns the function of a step, and whether it takes tensors by address.

        The function takes the tensors among the operands, the outputs and the scalars that are not integers. operands,
        outputs: of one step, no better aligned than those of any other.
        """
        arrays = [*(operands[position] for position in self.tensors), *outputs]
        key = (
            *((array.shape, array.strides, self.device.is_wide(array)) for array in arrays),
            *(operands[position] for position in self.integers),
        )
        worker = self._workers.get(key)
        if worker is None:
            worker = self.computation.stream_worker(self.part.select(operands), outputs, False)
            self._workers[key] = worker
        return worker.by_address, worker.start(self.stream())

    def arguments(self, by_address: bool, operands: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the arguments of a step."""
        tensors = [*(operands[position] for position in self.tensors), *outputs]
        if by_address:
            tensors = list(map(self.device.address, tensors))
        return (*tensors, *(operands[position] for position in self.floats))
