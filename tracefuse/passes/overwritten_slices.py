"""Writes of slices that a later write covers: of `u[1:-1] = a; u[1:-1] = b`, only the second counts.

In a loop that updates the inside of an array, the edges are then read from the array before the loop, and no step
depends on the one before through elements that it overwrites.
"""

from __future__ import annotations

from tracefuse.ir.extents import is_nonnegative
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.op_kinds import Movement
from tracefuse.passes.rewriter import renamed, with_nodes


def skip_overwritten(fusion: Fusion) -> Fusion:
    """Skips a write of a slice that a later write covers."""
    written: dict[int, Node] = {}
    nodes: list[Node] = []
    for node in fusion.nodes:
        if isinstance(node.op, Movement) and node.op.slices == "written":
            first = node.operands[0]
            earlier = written.get(first) if isinstance(first, int) else None
            if earlier is not None and isinstance(first, int) and _covers(fusion, node, earlier):
                before = earlier.operands[0]
                if isinstance(before, int) and node.operands[1] != first:
                    node = renamed(node, {first: before})
            written[node.outputs[0]] = node
        nodes.append(node)
    return with_nodes(fusion, nodes)


def _covers(fusion: Fusion, later: Node, earlier: Node) -> bool:
    """Whether it is proved that every element that `earlier` writes is written by `later`."""
    names = ("start_indices", "end_indices", "strides")
    bounds = [[tuple(map(fusion.canonical, node.attributes[name])) for name in names] for node in (later, earlier)]
    if bounds[0] == bounds[1]:
        return True
    (starts, ends, steps), (first, last, _) = bounds
    if any(step != 1 for step in steps):
        return False
    inside = (is_nonnegative(inner - outer) for outer, inner in zip(starts, first, strict=True))
    return all(inside) and all(is_nonnegative(outer - inner) for outer, inner in zip(ends, last, strict=True))
