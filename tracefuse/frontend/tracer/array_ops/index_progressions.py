"""Integer arrays in a key that count on in equal steps, as `np.arange(n)` in `x[i, i + 1]`.

Along one axis, their elements are a slice. Along several axes, they are a diagonal of a slice. Both are movements,
which a write updates in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import int64
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Literal, Node, Operand
from tracefuse.ops.roles import POSITIONS

_MOST_STEPS = 8
"""The operations between the integers that np.arange gives and an index that are followed."""


@dataclass(frozen=True, slots=True)
class RegularElements:
    """The elements at integer arrays of a key as a movement: a slice, or a diagonal whose axis the result has last.

    attributes: of the movement. order: the axes of its result in NumPy's order.
    """

    name: str
    attributes: dict[str, Any]
    order: tuple[int, ...]

    def view(self, x: Traced) -> Traced:
        """Returns the elements as a view, through which a write goes to x."""
        view = views.take_view(self.name, x, **self.attributes)
        return view if self._is_ordered else views.take_view("permute", view, dims=self.order)

    def elements(self, x: Traced) -> Traced:
        """Returns the elements as an array of their own, as NumPy does."""
        result: Traced = x.recorder.movement(self.name, [x], **self.attributes)
        return result if self._is_ordered else x.recorder.movement("permute", [result], dims=self.order)

    @property
    def _is_ordered(self) -> bool:
        return self.order == tuple(range(len(self.order)))


def regular_elements(x: Traced, arrays: Mapping[int, Any], together: bool) -> RegularElements | None:
    """Returns the elements that integer arrays select, if each of them counts on in equal steps inside of its axis.

    arrays: by axis of x, in the order of the axes. together: whether the axes of the arrays stay where they are.
    """
    recorder, extents = x.recorder, x.extents
    lines = {axis: _line_of(recorder, index) for axis, index in arrays.items()}
    starts, ends, steps = [0] * len(extents), list(extents), [1] * len(extents)
    first = None
    for axis, line in lines.items():
        if line is None or (first is not None and line[2] != first[2]):
            return None
        first = line
        start, step, count = line
        if not _is_inside(recorder, line, extents[axis]):
            return None
        starts[axis], ends[axis], steps[axis] = start, start + (count - 1) * step + 1, step
    axes = list(arrays)
    attributes = {"start_indices": tuple(starts), "end_indices": tuple(ends), "strides": tuple(steps)}
    lead, rank = axes[0] if together else 0, len(extents) - len(axes) + 1
    if len(axes) == 1:
        rest = [axis for axis in range(rank) if axis != axes[0]]
        return RegularElements("slice", attributes, (*rest[:lead], axes[0], *rest[lead:]))
    order = (*range(lead), rank - 1, *range(lead, rank - 1))
    return RegularElements("diagonal", {**attributes, "dims": tuple(axes)}, order)


def _is_inside(recorder: Recorder, line: tuple[Any, int, Extent], extent: Extent) -> bool:
    """Whether all positions lie in an axis, without wrapping; guarded."""
    start, step, count = line
    end, reason = start + (count - 1) * step + 1, "whether positions that count on are inside of their axis"
    if recorder.counters.occur_in(start, end):
        return False
    return (
        recorder.decide(1, "<=", count, reason)
        and recorder.decide(0, "<=", start, reason)
        and recorder.decide(end, "<=", extent, reason)
    )


def _line_of(recorder: Recorder, index: Any) -> tuple[Any, int, Extent] | None:
    """Returns (first, step, count) of an array whose integers count on in equal steps; None for other arrays."""
    if isinstance(index, np.ndarray) and not isinstance(index, Traced):
        line = _line_of_constant(index, 1) if index.ndim == 1 and index.dtype.kind in "iu" else None
        return None if line is None else (*line, len(index))
    if not isinstance(index, Traced) or index.on_host or len(index.extents) != 1 or index.value.dtype is not int64:
        return None
    number, scale = index.number, 1
    shift: Any = 0
    for _ in range(_MOST_STEPS):
        if number in recorder.builder.constants and number not in recorder.builder.of_state:
            line = _line_of_constant(recorder.builder.constants[number], scale)
            return None if line is None else (line[0] * scale + shift, line[1] * scale, index.extents[0])
        node = recorder.builder.makers.get(number)
        if node is None or node.compute is not int64:
            return None
        if node.op is POSITIONS:
            start, step = (_integer_of(recorder, operand) for operand in node.operands)
            if start is None or not isinstance(step, int) or scale * step < 1:
                return None
            return start * scale + shift, step * scale, index.extents[0]
        following = _before(recorder, node)
        if following is None:
            return None
        number, factor, offset = following
        scale, shift = scale * factor, shift + scale * offset
    return None


def _line_of_constant(values: Any, scale: int) -> tuple[int, int] | None:
    """Returns (first, step) of known integers that count on in equal steps, which `scale` makes positive."""
    integers = np.asarray(values)
    steps = np.diff(integers)
    if not len(integers) or len(set(steps.tolist())) > 1:
        return None
    step = int(steps[0]) if len(steps) else scale
    return (int(integers[0]), step) if step * scale > 0 else None


def _before(recorder: Recorder, node: Node) -> tuple[int, int, Any] | None:
    """Returns (value, factor, offset) so that a node computes value * factor + offset; None for other nodes."""
    name, operands = node.op.name, node.operands
    if name in ("set", "ordered_set", "cast") and isinstance(operands[0], int):
        return operands[0], 1, 0
    if name == "neg" and isinstance(operands[0], int):
        return operands[0], -1, 0
    if name not in ("add", "sub", "mul"):
        return None
    arrays = [k for k, operand in enumerate(operands) if _integer_of(recorder, operand) is None]
    if len(arrays) != 1 or not isinstance(operands[arrays[0]], int):
        return None
    number = operands[arrays[0]]
    assert isinstance(number, int)
    other = _integer_of(recorder, operands[1 - arrays[0]])
    if name == "mul":
        return (number, other, 0) if isinstance(other, int) else None
    if name == "add":
        return number, 1, other
    return (number, 1, -other) if arrays[0] == 0 else (number, -1, other)


def _integer_of(recorder: Recorder, operand: Operand) -> Any:
    """Returns an operand as an extent if it is an integer or a size; None for others."""
    if isinstance(operand, Literal):
        value = operand.value
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    return recorder.builder.values[operand].extent
