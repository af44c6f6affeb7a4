"""Turns the segments of a plan into calls of a program with streams: launches, host operations, and either on slices.

In such a program, the array library runs each segment that consists of one host operation, without a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tracefuse.ir.fusion import Fusion
from tracefuse.partition.segmentation import Part
from tracefuse.runtime.host_ops import HostCall, host_call
from tracefuse.runtime.streams.slices import HostCallOnSlices, StreamWorker, cut_axes
from tracefuse.runtime.streams.stream_program import SegmentCall

Run: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], Any]
"""Called with a segment's inputs and output buffers."""


def host_op_of(part: Part) -> HostCall | None:
    """Returns the host operation of a part, None if the part is not exactly one."""
    if len(part.fusion.nodes) != 1 or not part.segment.outputs:
        return None
    (node,) = part.fusion.nodes
    return host_call(part.fusion, node)


def segment_call(
    position: int, part: Part, inputs: tuple[int, ...], label: Any, fills: bool, *, watched: bool = False
) -> SegmentCall:
    """Returns a segment as the program runs it. label: the label of its launch.

    watched: a launch runs the segment even if the array library could.
    """
    outputs = part.segment.original_outputs
    axes = _original_axes(part)
    operation = None if watched else host_op_of(part)
    if operation is None:
        return SegmentCall(position, inputs, outputs, label, fills, axes=axes)
    (node,) = part.fusion.nodes
    index_map = part.segment.index_map
    read = tuple(index_map[o] for o in node.operands if isinstance(o, int))
    if part.slices is None:
        return SegmentCall(position, read, outputs, operation, False, is_host_op=True)
    places = dict(zip(part.slices.fusion.inputs, cut_axes(part.slices)[0], strict=True))
    cut = tuple(places[o] for o in node.operands if isinstance(o, int))
    on_slices = HostCallOnSlices(operation, cut, cut_axes(part.slices)[1][0])
    return SegmentCall(position, read, outputs, on_slices, True, is_host_op=True, axes=axes)


class HostSlices:
    """A `Computation` of slices by the array library.

    run: called with its inputs and output buffers. fusion: the fusion of one slice. read: the inputs of `run`, by
    number.
    """

    def __init__(self, run: Run, fusion: Fusion, read: Sequence[int]) -> None:
        self.run = run
        self.places = [fusion.inputs.index(number) for number in read]
        self.tensors = [k for k, number in enumerate(fusion.inputs) if fusion.values[number].is_tensor]

    def __call__(self, arguments: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Writes the results into `outputs`."""
        self.run([arguments[place] for place in self.places], outputs)

    def stream_worker(self, arguments: Sequence[Any], outputs: Sequence[Any], arrays: bool) -> StreamWorker:
        """Returns the worker for slices of this layout, which takes arrays."""
        fixed = [None if k in self.tensors else value for k, value in enumerate(arguments)]

        def run_on_arrays(*tensors: Any) -> None:
            filled = list(fixed)
            for place, array in zip(self.tensors, tensors, strict=False):
                filled[place] = array
            self(filled, tensors[len(self.tensors) : len(self.tensors) + len(outputs)])

        return StreamWorker(False, lambda stream: run_on_arrays)


def _original_axes(part: Part) -> Mapping[int, int | None] | None:
    if part.slices is None:
        return None
    return {part.segment.index_map[number]: axis for number, axis in part.slices.axes.items()}
