"""Matrix products that read a matrix directly in place of its transposed copy.

Must not know: BLAS, segments, kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracefuse.errors import InternalError
from tracefuse.ir.extents import Extent, symbol
from tracefuse.ir.fusion import Fusion, Node, Shape
from tracefuse.ir.indexing import sources
from tracefuse.ir.op_kinds import Library, Movement, Source
from tracefuse.ops import REGISTRY
from tracefuse.passes.rewriter import with_nodes


def read_transposed(fusion: Fusion) -> Fusion:
    """Passes BLAS the matrix itself in place of a transposed copy.

    The op for the product "ab'" replaces the op for "ab". The transpose stays if other nodes read it.
    """
    producers = fusion.producers
    return with_nodes(fusion, [_with_transposed(fusion, node, producers) for node in fusion.nodes])


def _with_transposed(fusion: Fusion, node: Node, producers: Mapping[int, Node]) -> Node:
    if not isinstance(node.op, Library) or node.op.product != "ab":
        return node
    left, right = node.operands
    producer = producers.get(right) if isinstance(right, int) else None
    if producer is None or not isinstance(producer.op, Movement) or not _is_transpose(fusion, producer):
        return node
    if any(fusion.values[o].stream or fusion.values[o].sharding for o in (*producer.outputs, *node.outputs)):
        return node
    other = next(op for op in REGISTRY.values() if isinstance(op, Library) and op.product == "ab'")
    return Node(other, (left, producer.operands[0]), dict(other.attributes), node.compute, node.outputs, node.where)


def _is_transpose(fusion: Fusion, node: Node) -> bool:
    """Whether a movement transposes a matrix."""
    shapes = [fusion.shape_of(operand) for operand in node.operands]
    if len(shapes) != 1 or len(shapes[0]) != 2 or 1 in shapes[0]:
        return False
    row, column = symbol("row"), symbol("column")
    result = tuple(fusion.canonical(e) for e in fusion.values[node.outputs[0]].shape)
    read = sources(fusion, node, (row, column), _no_positions) if len(result) == 2 else ()
    return len(read) == 1 and read[0] == Source(0, (column, row)) and result == shapes[0][::-1]


def _no_positions(operand: int, coordinates: Shape) -> Extent:
    raise InternalError("an op with one operand has no index operands")
