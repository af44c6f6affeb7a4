"""The kind of op that combines the elements so far along one axis: sums, products and extremes.

A scan takes the combiner and the state of a reduction, and keeps every state. It has the types and the reference
implementation of a library op, but kernels compute it: work before and after it joins the same kernel.

Must not know: single ops.
"""

from __future__ import annotations

from dataclasses import field

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.ir.fusion import Fusion, Node, Op
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Reduction


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scan(Library):
    """A scan along the axis `dim`. reduction: the reduction whose combiner joins the elements so far."""

    reduction: Reduction
    kind: str = field(default="scan", init=False)

    def neutral(self, dtype: DType) -> bool | int | float | complex:
        """Returns the number that leaves every number of `dtype` as it is: -0.0 for sums of floats, since 0.0 - 0.0
        is 0.0. Products of complex numbers have none (see has_neutral)."""
        if self.reduction.adds_floats(dtype):
            return -0.0
        if self.reduction.combine == "add" and dtype.is_complex:
            return complex(-0.0, -0.0)
        return self.reduction.neutral(self.reduction.state_parts[0], dtype)

    def has_neutral(self, dtype: DType) -> bool:
        """Returns whether a number leaves every number of `dtype` as it is: 1 times a complex infinity is NaN."""
        return not (self.reduction.combine == "mul" and dtype.is_complex)


def is_library_call(op: Op) -> bool:
    """Returns whether a library runs the op, so that it is a segment by itself."""
    return isinstance(op, Library) and not isinstance(op, Scan)


def scans(fusion: Fusion, node: Node) -> bool:
    """Returns whether a node is a scan that needs a loop, that is, along an axis of an extent other than 1."""
    return isinstance(node.op, Scan) and fusion.shape_of(node.operands[0])[node.attributes["dim"]] != 1


def scans_by_depth(fusion: Fusion) -> tuple[tuple[Node, ...], ...]:
    """Returns the scans in lists, of which each reads results of the lists before it only."""
    depth: dict[int, int] = {}
    lists: list[list[Node]] = []
    for node in fusion.nodes:
        below = max((depth.get(value, 0) for value in node.inputs), default=0)
        if scans(fusion, node):
            if below == len(lists):
                lists.append([])
            lists[below].append(node)
            below += 1
        depth.update(dict.fromkeys(node.outputs, below))
    return tuple(map(tuple, lists))
