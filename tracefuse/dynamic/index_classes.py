"""Which axes share an index: the classes of (axis, use).

A use is one op in which an axis is read or written. Within an op, axes that run along one loop have one index. From one
op to the next an axis of more than one element has an index of its own for each use, since each reader pulls the value
from where it needs it; that is what makes `x + roll(x)` right in one kernel. An axis of extent 1 has index 0 in all of
its uses.

Knows: index maps. Must not know: kernels, how segments are found.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.indexing import PULLED, AxisMap, use_maps
from tracefuse.ir.op_kinds import Pointwise


@dataclass(frozen=True, order=True)
class AxisUse:
    """One axis of a tensor in one use.

    value, axis: which. made: the result of the op that uses it, an output of which `value` may be itself. op: its name.
    read: 0, or a number where the op reads the value at several places.
    """

    made: int
    value: int
    axis: int
    op: str
    read: int = 0

    def __str__(self) -> str:
        again = f" read {self.read}" if self.read else ""
        return f"T{self.value}.{self.axis} in T{self.made} = {self.op}{again}"


@dataclass(frozen=True, eq=False)
class Indexing:
    """The classes of a fusion, in the order of its ops; prints as text, one class a line."""

    classes: tuple[tuple[AxisUse, ...], ...]

    def class_of(self, value: int, axis: int, made: int, read: int = 0) -> tuple[AxisUse, ...]:
        """All that has the index of an axis in the op that makes `made`. Raises KeyError where there is no such use."""
        for members in self.classes:
            if any((u.value, u.axis, u.made, u.read) == (value, axis, made, read) for u in members):
                return members
        raise KeyError(f"axis {axis} of T{value} is not used by the op that makes T{made}")

    def __str__(self) -> str:
        return "\n".join("{" + "; ".join(map(str, members)) + "}" for members in self.classes)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def index_classes(fusion: Fusion) -> Indexing:
    """The classes of all tensors of a fusion."""
    found: dict[AxisUse, list[AxisUse]] = {}
    of_axis: dict[tuple[int, int], AxisUse] = {}
    for node in fusion.nodes:
        if not fusion.values[node.outputs[0]].is_tensor:
            continue
        by_index: dict[tuple[object, ...], AxisUse] = {}
        for use, index, extent in _uses(fusion, node):
            found.setdefault(use, [use])
            _join(found, by_index.setdefault(index, use), use)
            if extent == 1:
                _join(found, of_axis.setdefault((use.value, use.axis), use), use)
    classes = {id(members): members for members in found.values()}
    return Indexing(tuple(tuple(sorted(members)) for members in classes.values()))


def _join(found: dict[AxisUse, list[AxisUse]], first: AxisUse, second: AxisUse) -> None:
    one, other = found[first], found[second]
    if one is not other:
        one += other
        found.update(dict.fromkeys(other, one))


def _uses(fusion: Fusion, node: Node) -> Iterator[tuple[AxisUse, tuple[object, ...], object]]:
    """(use, what is equal where the index is, the axis' extent) for every axis that a node writes and reads."""
    _, result, reads = use_maps(fusion, node)
    made = node.outputs[0]
    rank = len(fusion.shape_of(made))
    places: Counter[int] = Counter()
    known: dict[tuple[int, AxisMap], int] = {}
    for value, axis_map in [*((output, result) for output in node.outputs), *reads]:
        if not fusion.values[value].is_tensor:
            continue
        # Reads along loops alone are one; one that is pulled elsewhere has an index of its own.
        read = None if PULLED in axis_map else known.get((value, axis_map))
        if read is None:
            read = known[(value, axis_map)] = places[value]
            places[value] += 1
        lead = rank - len(axis_map)
        for axis, (entry, extent) in enumerate(zip(axis_map, fusion.shape_of(value), strict=True)):
            use = AxisUse(made, value, axis, node.op.name, read)
            if entry is None:
                aligned = isinstance(node.op, Pointwise)
                yield use, ("one", lead + axis) if aligned else ("one", value, axis), extent
            elif entry == PULLED:
                yield use, ("pulled", value, axis, read), extent
            else:
                yield use, ("loop", entry), extent
