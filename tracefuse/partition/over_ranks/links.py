"""Which axes of the operands and of the result of a node can be split together.

A link joins an axis of the result with an axis of each operand at the same index: ranks that hold part k of the
operands compute part k of the result. A link without an axis of the result joins axes that the op sums over: each rank
computes a part of the sum.

Must not know: single ops, devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from segments import Verdict
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Reduction
from tracefuse.partition.slicing import operand_axes


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """Axes that are split together.

    result: the axis of the result, None if the op combines over the axis. operands: the axis of each operand, by
    position; others are read in full. combine: "sum", "mean", "max" or "min", how parts of the result are combined.
    """

    result: int | None
    operands: Mapping[int, int]
    combine: str | None = None


def links_of(fusion: Fusion, node: Node) -> tuple[Link, ...]:
    """Returns the links of a node, those with axes of the result first. A node with several results has none."""
    if len(node.outputs) != 1 or not fusion.values[node.outputs[0]].is_tensor or node.op.effect:
        return ()
    links = [*_along_result(fusion, node), *_combined(fusion, node)]
    return tuple(links)


def _along_result(fusion: Fusion, node: Node) -> list[Link]:
    links = []
    for axis in range(len(fusion.shape_of(node.outputs[0]))):
        needed = operand_axes(fusion, node, axis)
        if isinstance(needed, Verdict):
            continue
        links.append(Link(axis, {k: a for k, a in needed.items() if a is not None and _is_tensor(fusion, node, k)}))
    return links


def _is_tensor(fusion: Fusion, node: Node, position: int) -> bool:
    operand = node.operands[position] if position < len(node.operands) else None
    return isinstance(operand, int) and fusion.values[operand].is_tensor


def _combined(fusion: Fusion, node: Node) -> list[Link]:
    if isinstance(node.op, Reduction):
        combine = node.op.combine_of_parts
        return [Link(None, {0: axis}, combine) for axis in node.attributes["dims"]] if combine is not None else []
    if isinstance(node.op, Library):
        axes = node.op.contracted([fusion.shape_of(operand) for operand in node.operands])
        return [] if axes is None else [Link(None, dict(enumerate(axes)), "sum")]
    return []
