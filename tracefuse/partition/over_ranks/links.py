"""Which axes of the operands and of the result of a node can be split together.

A link joins an axis of the result with an axis of each operand at the same index: ranks that hold part k of the
operands compute part k of the result. A link without an axis of the result joins axes that the op sums over: each rank
computes a part of the sum.

Must not know: single ops, devices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from segments import Verdict
from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Attributes, Fusion, Node
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Movement, Reduction
from tracefuse.ir.row_major import axis_groups
from tracefuse.ir.scan_kind import Scan
from tracefuse.partition.over_ranks.windows import Reads, reads_along
from tracefuse.partition.slicing import operand_axes


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """Axes that are split together.

    result: the axis of the result, None if the op combines over the axis. operands: the axis of each operand, by
    position; others are read in full. combine: "sum", "mean", "max" or "min", how parts of the result are combined.
    even: whether the axes are split together only into equal parts. reads: the positions of the operands that the
    result reads, if they are not those of the result. scans: whether each element depends on all before it.
    """

    result: int | None
    operands: Mapping[int, int]
    combine: str | None = None
    even: bool = False
    reads: tuple[Reads, ...] = ()
    scans: bool = False

    @property
    def axis(self) -> int:
        """The axis of the result, which must be there."""
        assert self.result is not None
        return self.result

    @property
    def is_local(self) -> bool:
        """Whether ranks compute their part from their parts alone, also along several mesh axes."""
        return not self.reads and not self.scans


def unmoved(node: Node, attributes: Attributes, axis: int, extent: Extent) -> dict[str, Any] | None:
    """Returns the attributes with which a movement leaves an axis as it is, None if it acts on that axis alone."""
    assert isinstance(node.op, Movement)
    assert node.op.shifts is not None
    return node.op.shifts(attributes, axis, extent)


def links_of(
    fusion: Fusion, node: Node, are_equal: Callable[[Extent, Extent], bool] = operator.eq
) -> tuple[Link, ...]:  # fmt: skip
    """Returns the links of a node, those with axes of the result first. A node with several results has none.

    are_equal: whether two canonical extents are equal.
    """
    if len(node.outputs) != 1 or not fusion.values[node.outputs[0]].is_tensor or node.op.effect:
        return ()
    links = [*_along_result(fusion, node, are_equal), *_combined(fusion, node)]
    return tuple(links)


def _along_result(fusion: Fusion, node: Node, are_equal: Callable[[Extent, Extent], bool]) -> list[Link]:
    links: list[Link] = []
    regrouped = _regrouped(fusion, node)
    for axis in range(len(fusion.shape_of(node.outputs[0]))):
        needed = operand_axes(fusion, node, axis, are_equal)
        if not isinstance(needed, Verdict):
            links.append(Link(axis, {k: a for k, a in needed.items() if a is not None and _is_tensor(fusion, node, k)}))
            continue
        if axis in regrouped:
            links.append(Link(axis, {0: regrouped[axis]}, even=True))
        elif isinstance(node.op, Scan):
            links.append(Link(axis, {0: axis}, scans=True))
        else:
            reads = reads_along(fusion, node, axis)
            axes = {read.operand: read.axis for read in reads or ()}
            if reads and all(axes[read.operand] == read.axis for read in reads):
                links.append(Link(axis, axes, reads=reads))
    return links


def _regrouped(fusion: Fusion, node: Node) -> dict[int, int]:
    """Returns the outermost axis of each group of axes of a reshape, with that of the operand."""
    if not isinstance(node.op, Movement) or not node.op.regroups:
        return {}
    before, after = fusion.shape_of(node.operands[0]), fusion.shape_of(node.outputs[0])
    outermost = {}
    for source_axes, result_axes in node.attributes["groups"] or axis_groups(before, after):
        source = next((axis for axis in source_axes if before[axis] != 1), None)
        target = next((axis for axis in result_axes if after[axis] != 1), None)
        if source is not None and target is not None:
            outermost[target] = source
    return outermost


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
