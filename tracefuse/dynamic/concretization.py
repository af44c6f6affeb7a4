"""The result of concretizing a fusion: the key of each resize, and the merges and splits of each reshape."""

from __future__ import annotations

import html
from collections.abc import Hashable
from functools import cached_property

from segments.lazy_dataclasses import dataclass
from tracefuse.dynamic.guards import Guard
from tracefuse.dynamic.regrouping import Group, Transform
from tracefuse.ir.fusion import Fusion


@dataclass(frozen=True, slots=True)
class ResizedAxis:
    """A resized axis.

    place: (result value, operand position, axis). operand: the value that is resized. sizes: the extent, and the
    elements added at the two ends. key: equal to `sizes` if the axis becomes static; (-1, 1, 1) if it stays dynamic and
    has one element; (-1, 2, 2) if it stays dynamic and has another number of elements; (-1, -1, -1) if the resize
    changes nothing. step: every how many elements are kept, which is static where the axis is.
    """

    place: tuple[int, int, int]
    op: str
    operand: int
    key: tuple[int, int, int]
    sizes: tuple[int, int, int]
    step: int

    @property
    def is_nothing(self) -> bool:
        """Whether the resize adds and removes no elements."""
        return self.key == (-1, -1, -1)

    @property
    def is_exact(self) -> bool:
        """Whether the axis becomes static."""
        return self.key[0] != -1


@dataclass(frozen=True, slots=True)
class Regrouped:
    """A reshape of `operand` to `value`.

    is_dynamic: its groups depend on the sizes of the call. groups: axes with equal products. transforms: the steps,
    with the factors of this call.
    """

    value: int
    operand: int
    is_dynamic: bool
    groups: tuple[Group, ...]
    transforms: tuple[Transform, ...]

    def __str__(self) -> str:
        return " ".join(map(str, self.transforms)) or "nothing"


@dataclass(frozen=True, eq=False)
class Concretization:
    """A fusion concretized for the sizes of a call. Prints the values with their extents, and the keys of resizes.

    original: the recorded fusion. fusion: the concretized fusion. guards: sizes that satisfy them have the same
    concretization.
    """

    original: Fusion
    fusion: Fusion
    resizes: tuple[ResizedAxis, ...]
    reshapes: tuple[Regrouped, ...]
    guards: tuple[Guard, ...]

    @cached_property
    def key(self) -> Hashable:
        """Concretizations with equal keys have equal fusions. Excludes reshape factors, which kernels take as
        parameters."""
        resizes = tuple((r.place, r.key) for r in self.resizes)
        reshapes = tuple((r.value, r.groups) for r in self.reshapes if r.is_dynamic)
        return resizes, reshapes, frozenset((g.left, g.relation, g.right) for g in self.guards)

    @property
    def is_original(self) -> bool:
        """Whether the recorded fusion serves these sizes unchanged."""
        return self.fusion.nodes is self.original.nodes

    def keys_of(self, value: int) -> tuple[tuple[int, int, int], ...]:
        """Returns the keys of the resized axes of a value that differ from its operand."""
        return tuple(r.key for r in self.resizes if r.place[0] == value and not r.is_nothing)

    def extents_of(self, value: int) -> tuple[str, ...]:
        """Returns the printed extents: b1 for an axis of one element, a number, or an expression."""
        return tuple("b1" if extent == 1 else str(extent) for extent in self.fusion.values[value].shape)

    def __str__(self) -> str:
        producers = self.fusion.producers
        tensors = [n for n in (*self.fusion.inputs, *producers) if self.fusion.values[n].is_tensor]
        lines = []
        for number in tensors:
            line = f"T{number} [{', '.join(self.extents_of(number))}]"
            if number in producers:
                operands = ", ".join(f"T{n}" for n in producers[number].inputs if self.fusion.values[n].is_tensor)
                line += f" = {producers[number].op.name}({operands})"
            lines.append(line + self._remark(number))
        dropped = {r.place[0]: r.operand for r in self.resizes if r.place[0] not in self.fusion.values}
        lines += [f"T{number} is T{operand}: the resize changes nothing" for number, operand in dropped.items()]
        return "\n".join(lines)

    def _remark(self, number: int) -> str:
        reshape = next((r for r in self.reshapes if r.value == number), None)
        if reshape is not None:
            return f": {reshape}"
        keys = self.keys_of(number)
        return f": keys {' '.join(map(str, keys))}" if keys else ""

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
