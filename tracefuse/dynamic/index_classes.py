"""Index classes: the sets of (axis, use) that share an index.

A use is an op that reads or writes an axis. In one op, axes along the same loop share an index. Each use of an axis has
a separate index, since every consumer pulls the value at its own coordinates; this makes `x + roll(x)` correct in one
kernel. An axis of extent 1 has index 0 in all of its uses.

Must not know: kernels.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.indexing import AxisMap, is_along, use_maps
from tracefuse.ir.op_kinds import Pointwise


@dataclass(frozen=True, order=True)
class AxisUse:
    """One axis of a tensor in one use.

    value, axis: the axis. result: of the op that uses it; it may be `value` itself. op: the name of the op.
    read: the number of the read, from 0 on, if the op reads the value at several places.
    """

    result: int
    value: int
    axis: int
    op: str
    read: int = 0

    def __str__(self) -> str:
        read = f" read {self.read}" if self.read else ""
        return f"T{self.value}.{self.axis} in T{self.result} = {self.op}{read}"


@dataclass(frozen=True, eq=False)
class Indexing:
    """The index classes of a fusion, in the order of its ops. Prints one class per line."""

    classes: tuple[tuple[AxisUse, ...], ...]

    def class_of(self, value: int, axis: int, result: int, read: int = 0) -> tuple[AxisUse, ...]:
        """Returns the class of an axis in the op that computes `result`. Raises KeyError if there is no such use."""
        for members in self.classes:
            if any((u.value, u.axis, u.result, u.read) == (value, axis, result, read) for u in members):
                return members
        raise KeyError(f"axis {axis} of T{value} is not used by the op that computes T{result}")

    def __str__(self) -> str:
        return "\n".join("{" + "; ".join(map(str, members)) + "}" for members in self.classes)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def index_classes(fusion: Fusion) -> Indexing:
    """Finds the index classes of all tensors of a fusion."""
    class_of: dict[AxisUse, list[AxisUse]] = {}
    of_axis: dict[tuple[int, int], AxisUse] = {}
    for node in fusion.nodes:
        if not fusion.values[node.outputs[0]].is_tensor:
            continue
        by_index: dict[tuple[object, ...], AxisUse] = {}
        for use, index, extent in _uses(fusion, node):
            class_of.setdefault(use, [use])
            _join(class_of, by_index.setdefault(index, use), use)
            if extent == 1:
                _join(class_of, of_axis.setdefault((use.value, use.axis), use), use)
    classes = {id(members): members for members in class_of.values()}
    return Indexing(tuple(tuple(sorted(members)) for members in classes.values()))


def _join(class_of: dict[AxisUse, list[AxisUse]], first: AxisUse, second: AxisUse) -> None:
    class_of_first, class_of_second = class_of[first], class_of[second]
    if class_of_first is not class_of_second:
        class_of_first += class_of_second
        class_of.update(dict.fromkeys(class_of_second, class_of_first))


def _uses(fusion: Fusion, node: Node) -> Iterator[tuple[AxisUse, tuple[object, ...], object]]:
    """Yields (use, key of its index, extent) for every axis that a node writes and reads. Equal keys: equal indices."""
    _, result, reads = use_maps(fusion, node)
    output = node.outputs[0]
    rank = len(fusion.shape_of(output))
    places: Counter[int] = Counter()
    known: dict[tuple[int, AxisMap], int] = {}
    for value, axis_map in [*((written, result) for written in node.outputs), *reads]:
        if not fusion.values[value].is_tensor:
            continue
        # Reads along the same loops are one read; a pulled read has a separate index.
        read = known.get((value, axis_map)) if all(map(is_along, axis_map)) else None
        if read is None:
            read = known[(value, axis_map)] = places[value]
            places[value] += 1
        lead = rank - len(axis_map)
        for axis, (entry, extent) in enumerate(zip(axis_map, fusion.shape_of(value), strict=True)):
            use = AxisUse(output, value, axis, node.op.name, read)
            if entry is None:
                aligned = isinstance(node.op, Pointwise)
                yield use, ("one", lead + axis) if aligned else ("one", value, axis), extent
            elif not is_along(entry):
                yield use, ("pulled", value, axis, read), extent
            else:
                yield use, ("loop", entry), extent
