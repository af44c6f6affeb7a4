"""The kind of op that replaces several nodes which one kernel computes as a unit, such as an attention.

A pass replaces the nodes by one node of this kind, which is a segment by itself; extraction of the segment puts the
nodes back. So partitioning sees one step, and lowering, printing and checking see the nodes.

Must not know: single ops, kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import ALL, DType
from tracefuse.ir.fusion import Attributes, Fusion, Node, Require, Shape
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import ReferenceFunction, ShapeRule


def _no_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    raise NotImplementedError


def _not_called(*arrays: object, **attributes: object) -> object:
    raise NotImplementedError("the nodes of the region are evaluated instead")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FusedRegion(Library):
    """An op that replaces nodes.

    Attributes of its nodes: `nodes`, in order; `reads`, the number that each operand has in them; `dtypes` of their
    results, by number; `shapes` of the results of the node; `extents`, all symbolic extents in their attributes.
    """

    shape: ShapeRule = _no_shape
    numpy: ReferenceFunction = _not_called
    domain: tuple[DType, ...] = ALL
    arity: int | None = None
    kind: str = field(default="region", init=False)

    def shapes(self, shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        result: tuple[Shape, ...] = attributes["shapes"]
        return result


def region_of(
    op: FusedRegion, fusion: Fusion, nodes: Sequence[Node], outputs: Collection[int], added: Mapping[int, DType]
) -> Node:  # fmt: skip
    """Returns the node that replaces `nodes`, with the results `outputs`.

    added: the types of results that are no values of the fusion, by number.
    """
    computed = {number for node in nodes for number in node.outputs}
    reads = tuple(dict.fromkeys(v for node in nodes for v in node.inputs if v not in computed))
    results = tuple(number for node in nodes for number in node.outputs if number in outputs)
    attributes = {
        "shapes": tuple(fusion.values[number].shape for number in results),
        "extents": tuple(attribute for node in nodes for attribute in node.attributes.values()),
        "reads": reads,
        "nodes": tuple(nodes),
        "dtypes": tuple((n, added[n] if n in added else fusion.values[n].dtype) for n in sorted(computed)),
    }
    return Node(op, reads, attributes, nodes[-1].compute, results, nodes[-1].where)
