"""Expresses a reshape for concrete sizes as merges and splits of axes.

Both shapes are divided into the smallest groups of axes with equal products; axes of one element belong to no group.
Each group merges its axes and splits the merged axis. The transforms serve all sizes with the same groups.

Must not know: fusions, ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, divide_exactly

Group: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Axes of the operand and axes of the result with equal products."""


@dataclass(frozen=True, slots=True)
class Transform:
    """One step: "squeeze", "merge" (with the axis after it), "outer_split" (by a factor) or "broadcast" of an axis."""

    name: str
    axis: int
    factor: int | None = None

    def __str__(self) -> str:
        return f"{self.name}({self.axis})" if self.factor is None else f"{self.name}({self.axis}, {self.factor})"


def wide_axes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the axes that do not have one element."""
    return tuple(axis for axis, size in enumerate(sizes) if size != 1)


def groups_of(source: Sequence[int], target: Sequence[int]) -> tuple[Group, ...]:
    """Returns the groups of two shapes with the same, nonzero, number of elements."""
    source_axes, target_axes = list(wide_axes(source)), list(wide_axes(target))
    groups: list[Group] = []
    while source_axes:
        merged, split = [source_axes.pop(0)], [target_axes.pop(0)]
        while (left := prod(source[k] for k in merged)) != (right := prod(target[k] for k in split)):
            if left < right:
                merged.append(source_axes.pop(0))
            else:
                split.append(target_axes.pop(0))
        groups.append((tuple(merged), tuple(split)))
    return tuple(groups)


def common_factors(source: Sequence[Extent], target: Sequence[Extent]) -> tuple[Extent, ...] | None:
    """Returns the factors, in row-major order, of which the extents of both shapes are products; None if unknown."""
    left, right = list(source), list(target)
    factors: list[Extent] = []
    while left and right:
        if left[0] == right[0]:
            factors.append(left.pop(0))
            right.pop(0)
        elif (quotient := divide_exactly(right[0], left[0])) is not None:
            factors.append(left.pop(0))
            right[0] = quotient
        elif (quotient := divide_exactly(left[0], right[0])) is not None:
            factors.append(right.pop(0))
            left[0] = quotient
        else:
            return None
    return None if left or right else tuple(factors)


def transforms_of(source: Sequence[int], target: Sequence[int]) -> tuple[Transform, ...]:
    """Returns the steps that reshape `source` to `target`; () if they are equal. Axes count at the time of the step."""
    if tuple(source) == tuple(target) or not prod(source):
        return ()
    ones = [axis for axis, size in enumerate(source) if size == 1]
    steps = [Transform("squeeze", axis) for axis in reversed(ones)]
    place = 0
    for merged, split in groups_of(source, target):
        steps += [Transform("merge", place)] * (len(merged) - 1)
        for axis in split[:-1]:
            steps.append(Transform("outer_split", place, target[axis]))
            place += 1
        place += 1
    return (*steps, *(Transform("broadcast", axis) for axis, size in enumerate(target) if size == 1))
