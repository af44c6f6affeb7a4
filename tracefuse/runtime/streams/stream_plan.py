"""The segments of a plan as calls of a program with streams: which are host operations, which run on slices.

In such a program a segment of one operation that the array library has is run by the library, with no kernel.

Knows: compiled segments, host operations, slices. Must not know: how anything was lowered, targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tracefuse.ir.fusion import Fusion
from tracefuse.partition.segmentation import Part
from tracefuse.runtime.host_ops import HostCall, host_call
from tracefuse.runtime.streams.slices import HostCallOnSlices, Lane, cut_axes
from tracefuse.runtime.streams.stream_program import SegmentCall

Run: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], Any]
"""Called with what a segment reads and the memory that its results go into."""


def host_op_of(part: Part) -> HostCall | None:
    """The operation that a part is, if the array library runs it."""
    if len(part.fusion.nodes) != 1 or not part.segment.outputs:
        return None
    (node,) = part.fusion.nodes
    return host_call(part.fusion, node)


def segment_call(
    position: int, part: Part, inputs: tuple[int, ...], label: Any, fills: bool, *, watched: bool = False
) -> SegmentCall:
    """A segment as the program runs it; `label` is what a launch of it is called with.

    watched: the label is to run it in any case, also where the array library could.
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
    """Slices that the array library computes by a function of its own inputs and of the memory of the results.

    fusion: of one slice. read: what the function takes, by number. It is a `Computation`.
    """

    def __init__(self, run: Run, fusion: Fusion, read: Sequence[int]) -> None:
        self.run = run
        self.places = [fusion.inputs.index(number) for number in read]
        self.tensors = [k for k, number in enumerate(fusion.inputs) if fusion.values[number].is_tensor]

    def __call__(self, arguments: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Writes the results into `outputs`."""
        self.run([arguments[place] for place in self.places], outputs)

    def lane(self, arguments: Sequence[Any], outputs: Sequence[Any], arrays: bool) -> Lane:
        """What computes slices like these, from arrays."""
        fixed = [None if k in self.tensors else value for k, value in enumerate(arguments)]

        def on_arrays(*given: Any) -> None:
            own = list(fixed)
            for place, array in zip(self.tensors, given, strict=False):
                own[place] = array
            self(own, given[len(self.tensors) : len(self.tensors) + len(outputs)])

        return Lane(False, lambda stream: on_arrays)


def _original_axes(part: Part) -> Mapping[int, int | None] | None:
    if part.slices is None:
        return None
    return {part.segment.index_map[number]: axis for number, axis in part.slices.axes.items()}
