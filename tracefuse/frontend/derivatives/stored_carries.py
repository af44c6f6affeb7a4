"""The carried values that reverse mode makes a recorded loop with a trip count store: those at the start of each step.

The loop gets further stacked results, in its place in the recording, so that it runs once.

Must not know: compilation.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

from segments.lazy_dataclasses import replace
from tracefuse.frontend.derivatives.applications import RecordedApplication
from tracefuse.ir.fusion import Fusion, Node, Shape, SubFusion, Type, Value
from tracefuse.ops.roles import COPY


class StoredStarts:
    """What the steps of a loop start from, as arrays with one slice a step.

    arrays: by the position of the carried operand, for those that the body reads. length: the number of steps, or a
    size. A loop stores nothing before `store`.
    """

    def __init__(self, node: RecordedApplication, carried: Sequence[int], length: Any) -> None:
        recorder = node.recorder
        self._node, self._length = node, recorder.plain(length)
        self._known: dict[int, int] = recorder.stored_starts.setdefault(node.node.outputs[0], {})
        part: SubFusion = node.attributes["body"]
        self._read = {position: local for local, position in zip(part.fusion.inputs, part.inputs, strict=True)}
        self._types = {k: part.fusion.values[self._read[k]].dtype for k in carried if k in self._read}
        self.arrays = {k: recorder.traced_type(recorder, self._number(k)) for k in self._types}

    def _number(self, position: int) -> int:
        """Returns the number of an array, which is a new value of the recording if the loop does not store it yet."""
        if position in self._known:
            return self._known[position]
        builder, where = self._node.recorder.builder, self._node.node.where
        number = builder.new_number()
        stacked = Type(self._types[position], self._shape(position))
        builder.values[number] = Value(number, stacked, "tensor", None, None, "starts of steps", where)
        return number

    def _shape(self, position: int) -> Shape:
        return (self._length, *self._node.shapes[position])

    def store(self, first: int) -> None:
        """Makes the loop, in its place in the recording, store the arrays that the nodes from `first` on read."""
        builder = self._node.recorder.builder
        read = {number for node in builder.nodes[first:] for number in node.inputs}
        new = {k: array.number for k, array in self.arrays.items() if array.number in read and k not in self._known}
        self._known.update(new)
        place = bisect.bisect_left(builder.nodes, self._node.node.outputs[0], key=lambda later: later.outputs[0])
        loop = builder.nodes[place]
        assert loop.outputs[0] == self._node.node.outputs[0]
        part: SubFusion = loop.attributes["body"]
        body = SubFusion(_with_copies(part.fusion, [self._read[k] for k in new]), part.inputs)
        shapes = (*loop.attributes["shapes"], *map(self._shape, new))
        attributes = {**loop.attributes, "body": body, "shapes": shapes}
        builder.nodes[place] = replace(loop, outputs=(*loop.outputs, *new.values()), attributes=attributes)


def _with_copies(fusion: Fusion, inputs: Sequence[int]) -> Fusion:
    """Returns a fusion with copies of some inputs as further outputs."""
    first = max(fusion.values) + 1
    copies = dict(enumerate(inputs, first))
    values = {number: replace(fusion.values[local], number=number, layout=None) for number, local in copies.items()}
    nodes = [_copy(fusion, local, number) for number, local in copies.items()]
    return replace(
        fusion, values={**fusion.values, **values}, nodes=(*fusion.nodes, *nodes), outputs=(*fusion.outputs, *copies)
    )


def _copy(fusion: Fusion, local: int, number: int) -> Node:
    return Node(COPY, (local,), dict(COPY.attributes), fusion.values[local].dtype, (number,))
