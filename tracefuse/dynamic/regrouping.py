"""A reshape for given sizes, as merges and splits of axes.

Both shapes are cut into groups of axes with equal products, as fine as the sizes allow; axes of one element stand
outside. Each group merges its axes and splits the result again. The same transform serves every size that groups so.

Knows: sizes and extents. Must not know: fusions, rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

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
    """The axes that do not have one element."""
    return tuple(axis for axis, size in enumerate(sizes) if size != 1)


def groups_of(source: Sequence[int], target: Sequence[int]) -> tuple[Group, ...]:
    """The groups of two shapes with the same number of elements, which is not 0."""
    rest, wanted = list(wide_axes(source)), list(wide_axes(target))
    groups: list[Group] = []
    while rest:
        mine, theirs = [rest.pop(0)], [wanted.pop(0)]
        while (left := prod(source[k] for k in mine)) != (right := prod(target[k] for k in theirs)):
            if left < right:
                mine.append(rest.pop(0))
            else:
                theirs.append(wanted.pop(0))
        groups.append((tuple(mine), tuple(theirs)))
    return tuple(groups)


def transforms_of(source: Sequence[int], target: Sequence[int]) -> tuple[Transform, ...]:
    """What makes an array of one shape one of the other; () where they are equal. Axes are those at that point."""
    if tuple(source) == tuple(target) or not prod(source):
        return ()
    ones = [axis for axis, size in enumerate(source) if size == 1]
    steps = [Transform("squeeze", axis) for axis in reversed(ones)]
    place = 0
    for mine, theirs in groups_of(source, target):
        steps += [Transform("merge", place)] * (len(mine) - 1)
        for axis in theirs[:-1]:
            steps.append(Transform("outer_split", place, target[axis]))
            place += 1
        place += 1
    return (*steps, *(Transform("broadcast", axis) for axis, size in enumerate(target) if size == 1))
