"""The parts of op definitions: sources of elements, resizes, states of reductions, and the types of their rules.

The kinds of op in `op_kinds` have fields of these types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Attributes, Require, Shape

ReferenceFunction: TypeAlias = Callable[..., Any]
IndexOf: TypeAlias = Callable[[int, Shape], Extent]


@dataclass(frozen=True, slots=True)
class Within:
    """low <= index < high."""

    index: Extent
    low: Extent
    high: Extent


@dataclass(frozen=True, slots=True)
class Source:
    """The source of an element: `operand` at `coordinates`, if all conditions hold."""

    operand: int
    coordinates: Shape
    conditions: tuple[Within, ...] = ()


@dataclass(frozen=True, slots=True)
class StatePart:
    """One variable of a reduction's state.

    lift: its value for one element `a` at the row-major position `index` in the reduced axes. combine: scalar code over
    the parts of the earlier state by name, and the parts of the later state with the prefix `later_`. initial: as for
    `Reduction`. dtype: None for the type of the elements.
    """

    name: str
    lift: str
    combine: str
    initial: bool | int | float | str
    dtype: DType | None = None


SliceRule: TypeAlias = Callable[[int, Sequence[Shape], Attributes], "dict[int, int | None] | None"]
ShapeRule: TypeAlias = Callable[[Sequence[Shape], Attributes, Require], Shape]
PullRule: TypeAlias = Callable[[Shape, Sequence[Shape], Shape, Attributes, IndexOf], tuple[Source, ...]]


@dataclass(frozen=True, slots=True)
class Resize:
    """How an op resizes one axis of one operand.

    left, right: the elements added at the two ends; negative values remove elements. step: the stride. moves: elements
    that leave at one end enter at the other, so the extent does not change.
    """

    operand: int
    axis: int
    left: Extent
    right: Extent
    step: Extent = 1
    moves: bool = False


ResizeRule: TypeAlias = Callable[[Sequence[Shape], Attributes], tuple[Resize, ...]]
