"""Where a write through a chain of views goes in the array that owns the memory.

A chain of slices, flips, permutations, dropped and new axes selects a slice of the owner, whose elements the view has
in another order: the write is one slice of the owner. Written step by step, each array of the chain would be written in
whole. A diagonal of a flipped array and a slice of a reshaped one are no slices: if they have few elements, the write
goes to their positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import int64
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Extent, ceildiv, product
from tracefuse.ops import REGISTRY
from tracefuse.ops.roles import POSITIONS

FEW = 8
"""An array with this many times the elements of a view, or more, is written at the positions of the view."""


@dataclass(slots=True)
class WrittenSlice:
    """A slice of the owner, and which of its axes the view has.

    starts, ends, steps: the bounds of the slice. counts: its extents. reversed: whether the view goes along an axis of
    the owner from its end. axes: for each axis of the view, that of the owner; None for a new axis.
    """

    starts: list[Extent]
    ends: list[Extent]
    steps: list[Extent]
    counts: list[Extent]
    reversed: list[bool]
    axes: list[int | None]

    def take(self, view: Traced) -> bool:
        """Follows the step to a view; returns False for one after which the view is not known to be a slice."""
        assert view.step is not None
        axes, name = self.axes, _name_of(view)
        if name not in ("slice", "flip", "permute", "squeeze", "broadcast"):
            return False
        attributes: dict[str, Any] = dict(view.step.key[1])
        if name == "slice":
            bounds = zip(axes, *(attributes[key] for key in ("start_indices", "end_indices", "strides")), strict=True)
            return all(self._slice(view, axis, start, end, step) for axis, start, end, step in bounds)
        if name == "flip":
            for axis in (axes[dim] for dim in attributes["dims"]):
                if axis is not None:
                    self.reversed[axis] = not self.reversed[axis]
        elif name == "permute":
            self.axes = [axes[dim] for dim in attributes["dims"]]
        elif name == "squeeze":
            self.axes = [axis for dim, axis in enumerate(axes) if dim not in attributes["dims"]]
        else:
            remaining = iter(axes)
            self.axes = [None if is_new else next(remaining) for is_new in attributes["is_broadcast_dim"]]
        return True

    def _slice(self, view: Traced, axis: int | None, start: Extent, end: Extent, step: Extent) -> bool:
        if axis is None:
            return start == 0 and end == 1
        if (start, end, step) == (0, self.counts[axis], 1):
            return True
        if self.steps[axis] != 1:
            return False
        recorder = view.recorder
        if step != 1 and not recorder.decide(start + 1, "<=", end, "whether a slice has elements"):
            return False
        count = ceildiv(end - start, step)
        first = self.counts[axis] - 1 - start - (count - 1) * step if self.reversed[axis] else start
        end = self.counts[axis] - start if self.reversed[axis] else end
        self.ends[axis] = recorder.simplify(self.starts[axis] + end)
        self.starts[axis] = recorder.simplify(self.starts[axis] + first)
        self.steps[axis], self.counts[axis] = step, recorder.simplify(count)
        return True

    def whole(self, owner: Traced, values: Traced) -> Traced:
        """Returns the elements of the owner after `values` were written to the view."""
        movement, axes = owner.recorder.movement, self.axes
        if new := tuple(dim for dim, axis in enumerate(axes) if axis is None):
            values = movement("squeeze", [values], dims=new)
        kept = [axis for axis in axes if axis is not None]
        order = sorted(range(len(kept)), key=kept.__getitem__)
        if order != list(range(len(kept))):
            values = movement("permute", [values], dims=tuple(order))
        dropped = tuple(axis not in kept for axis in range(len(self.starts)))
        if any(dropped):
            values = movement("broadcast", [values], is_broadcast_dim=dropped)
        if flipped := tuple(axis for axis in kept if self.reversed[axis]):
            values = movement("flip", [values], dims=tuple(sorted(flipped)))
        bounds: dict[str, Any] = {
            "start_indices": tuple(self.starts), "end_indices": tuple(self.ends), "strides": tuple(self.steps)
        }  # fmt: skip
        return movement("slice_scatter", [owner, values], **bounds)  # type: ignore[no-any-return]


def written_owner(chain: Sequence[Traced], values: Traced) -> Traced | None:
    """Returns the elements of the owner of a chain of views after a write to its first name.

    Returns None if each step may as well be written by itself.
    """
    owner = chain[-1]
    if len(chain) < 3 or owner.recorder.body is not None or owner.on_host:
        return None
    views = [view for view in chain[-2::-1] if _name_of(view) != "alias"]
    names = [_name_of(view) for view in views]
    moved = next((k for k, name in enumerate(names) if name != "broadcast"), len(names))
    if not all(name in _MOVEMENTS for name in names) or not any(name in _SELECTIONS for name in names[moved + 1 :]):
        return None
    region = _all_of(owner)
    if all(region.take(view) for view in views):
        return region.whole(owner, values)
    return _at_positions(owner, views, values)


_SELECTIONS = ("slice", "diagonal", "reshape")
_MOVEMENTS = (*_SELECTIONS, "flip", "permute", "squeeze", "broadcast", "flat", "at")
"""The steps to views of the same elements. The first ones select elements of an array, or may lead to a selection."""


def _name_of(view: Traced) -> str:
    assert view.step is not None
    return str(view.step.key[0])


def _all_of(owner: Traced) -> WrittenSlice:
    extents = list(owner.extents)
    rank = len(extents)
    return WrittenSlice([0] * rank, list(extents), [1] * rank, extents, [False] * rank, list(range(rank)))


def _at_positions(owner: Traced, views: Sequence[Traced], values: Traced) -> Traced | None:
    """Writes the elements of a view at their positions in an argument, if they are few."""
    recorder = owner.recorder
    total, count = product(owner.extents), product(values.extents)
    if not touches_few(owner, count):
        return None
    line = recorder.pointwise(POSITIONS, [0, 1], compute_in=int64, length=total)
    places = recorder.movement("reshape", [line], new_shape=owner.extents)
    for view in views:
        assert view.step is not None
        places = view.step.read(places)
    places, values = (recorder.movement("reshape", [x], new_shape=(count,)) for x in (places, values))
    data = recorder.movement("reshape", [owner], new_shape=(total,))
    written = recorder.library(REGISTRY["index_put"], [data, places, values], how="assign")
    return recorder.movement("reshape", [written], new_shape=owner.extents)  # type: ignore[no-any-return]


def touches_few(owner: Traced, count: Extent) -> bool:
    """Whether a write to so many elements of an argument is better done at their positions; guarded.

    On a GPU an update at positions copies the array.
    """
    recorder, total = owner.recorder, product(owner.extents)
    is_argument = owner.parent is None and owner.memory is not None and owner.memory.input is not None
    if not is_argument or recorder.device is not None or recorder.body is not None:
        return False
    if recorder.counters.occur_in(count, total) or recorder.known(FEW * count) > recorder.known(total):
        return False
    return recorder.decide(FEW * count, "<=", total, "whether a write touches few elements of an array")
