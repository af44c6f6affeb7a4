"""What a fusion became for the sizes of a call: how each resize is keyed, how each reshape merges and splits.

Knows: fusions and their printing. Must not know: how anything was decided, what is compiled.
"""

from __future__ import annotations

import html
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from tracefuse.dynamic.guards import Guard
from tracefuse.dynamic.regrouping import Group, Transform
from tracefuse.ir.fusion import Fusion


@dataclass(frozen=True, slots=True)
class ResizedAxis:
    """A resized axis. place: (value that is made, position of the operand, axis); operand: the value that is resized.

    sizes: its extent and what is added at the two ends. key: the same where the axis becomes static; (-1, 1, 1) where
    it stays dynamic and has one element, (-1, 2, 2) where it has another number; (-1, -1, -1) where nothing changes.
    """

    place: tuple[int, int, int]
    op: str
    operand: int
    key: tuple[int, int, int]
    sizes: tuple[int, int, int]

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is added or cut."""
        return self.key == (-1, -1, -1)

    @property
    def is_exact(self) -> bool:
        """Whether the axis becomes static."""
        return self.key[0] != -1


@dataclass(frozen=True, slots=True)
class Regrouped:
    """A reshape. value: what it makes, from `operand`; is_dynamic: its groups depend on the sizes of the call.

    groups: axes with equal products. transforms: the steps, with the factors of this call.
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
    """A fusion for the sizes of a call. Prints as the values with their extents, and how the dynamic ones were made.

    original: as it was recorded; fusion: for these sizes. guards: the facts under which other sizes have the same one.
    """

    original: Fusion
    fusion: Fusion
    resizes: tuple[ResizedAxis, ...]
    reshapes: tuple[Regrouped, ...]
    guards: tuple[Guard, ...]

    @cached_property
    def key(self) -> Hashable:
        """Equal keys: equal fusions. Factors of a reshape are in no key, since the same kernels take them all."""
        resizes = tuple((r.place, r.key) for r in self.resizes)
        reshapes = tuple((r.value, r.groups) for r in self.reshapes if r.is_dynamic)
        return resizes, reshapes, frozenset((g.left, g.relation, g.right) for g in self.guards)

    @property
    def is_original(self) -> bool:
        """Whether the fusion serves these sizes as it was recorded."""
        return self.fusion.nodes is self.original.nodes

    def keys_of(self, value: int) -> tuple[tuple[int, int, int], ...]:
        """The keys of the axes that make this value different from what it is made of."""
        return tuple(r.key for r in self.resizes if r.place[0] == value and not r.is_nothing)

    def extents_of(self, value: int) -> tuple[str, ...]:
        """The extents as they are printed: b1 for an axis of one element, a number, or an expression."""
        return tuple("b1" if extent == 1 else str(extent) for extent in self.fusion.values[value].shape)

    def __str__(self) -> str:
        made = {o: node for node in self.fusion.nodes for o in node.outputs}
        kept = [n for n in (*self.fusion.inputs, *made) if self.fusion.values[n].is_tensor]
        lines = []
        for number in kept:
            line = f"T{number} [{', '.join(self.extents_of(number))}]"
            if number in made:
                operands = ", ".join(f"T{n}" for n in made[number].inputs if self.fusion.values[n].is_tensor)
                line += f" = {made[number].op.name}({operands})"
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
