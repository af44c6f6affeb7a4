"""Writes of slices that nobody reads: of `u[1:-1] = a; u[1:-1] = b`, only the second counts.

In a loop that updates the inside of an array, the edges are then read from the array before the loop, and no step
depends on the one before through elements that it overwrites. A slice that shares no element with the slices written
before is read from the array before those writes: `u[1::2] = a; b = u[::2]` reads the even rows of `u` as they were.
A read of the slice that was written last is the value that it was written with.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.op_kinds import Movement
from tracefuse.passes.rewriter import canonical_attribute, renamed, with_nodes
from tracefuse.passes.slice_updates import MOST_UPDATES, are_separate, diagonal_axes


def skip_overwritten(fusion: Fusion) -> Fusion:
    """Skips overwritten slices; reads what a slice was written with, or what was there before."""
    return _with_slices(fusion, moves=True)


def read_written_values(fusion: Fusion) -> Fusion:
    """Reads what a slice was written with, but every other slice where it was read: the order of updates stays."""
    return _with_slices(fusion, moves=False)


def _with_slices(fusion: Fusion, moves: bool) -> Fusion:
    written: dict[int, Node] = {}
    same: dict[int, int] = {}
    nodes: list[Node] = []
    # With more writes than are made in place, each array that a read needs is another array in memory.
    in_place = sum(isinstance(n.op, Movement) and n.op.slices == "written" for n in fusion.nodes) <= MOST_UPDATES
    most = MOST_UPDATES if in_place else 0
    for original in fusion.nodes:
        node = renamed(original, same)
        if isinstance(node.op, Movement) and node.op.slices == "written":
            first = node.operands[0]
            earlier = written.get(first) if isinstance(first, int) else None
            if moves and earlier is not None and isinstance(first, int) and _covers(fusion, node, earlier):
                before = earlier.operands[0]
                if isinstance(before, int) and node.operands[1] != first:
                    node = renamed(node, {first: before})
            written[node.outputs[0]] = node
        elif isinstance(node.op, Movement) and node.op.slices == "read":
            moved = _read_before(fusion, node, written, most)
            number = _written_value(fusion, moved, written)
            node = moved if moves else node
            if number is not None and node.outputs[0] not in fusion.outputs:
                same[node.outputs[0]] = number
                continue
        nodes.append(node)
    return with_nodes(fusion, nodes)


def _read_before(fusion: Fusion, node: Node, written: Mapping[int, Node], most: int) -> Node:
    """Returns a read of a slice from the array before the last `most` writes, while they share no element with it."""
    (first,) = node.inputs[:1]
    number = first
    for _ in range(most):
        write = written.get(number)
        before = None if write is None else write.operands[0]
        if write is None or not isinstance(before, int) or not are_separate(fusion, node, write):
            break
        number = before
    return node if number == first else renamed(node, {first: number})


def _written_value(fusion: Fusion, node: Node, written: Mapping[int, Node]) -> int | None:
    """Returns the value that a slice was written with, if a node reads exactly that slice."""
    write = written.get(node.inputs[0])
    if write is None or diagonal_axes(write) != diagonal_axes(node):
        return None
    value = write.operands[1]
    if not isinstance(value, int) or fusion.values[value].dtype is not fusion.values[node.outputs[0]].dtype:
        return None
    names = ("start_indices", "end_indices", "strides")
    bounds = [canonical_attribute(fusion, tuple(one.attributes[name] for name in names)) for one in (write, node)]
    return value if bounds[0] == bounds[1] and fusion.shape_of(value) == fusion.shape_of(node.outputs[0]) else None


def _covers(fusion: Fusion, later: Node, earlier: Node) -> bool:
    """Whether it is proved that every element that `earlier` writes is written by `later`."""
    if diagonal_axes(later):
        return later.attributes == earlier.attributes
    names = ("start_indices", "end_indices", "strides")
    bounds = [[tuple(map(fusion.canonical, node.attributes[name])) for name in names] for node in (later, earlier)]
    if bounds[0] == bounds[1]:
        return True
    (starts, ends, steps), (first, last, _) = bounds
    if any(step != 1 for step in steps):
        return False
    inside = (fusion.is_nonnegative(inner - outer) for outer, inner in zip(starts, first, strict=True))
    return all(inside) and all(fusion.is_nonnegative(outer - inner) for outer, inner in zip(ends, last, strict=True))
