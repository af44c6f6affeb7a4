"""Matrix products that read an operand directly in place of its permuted copy.

Must not know: segments, kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

from segments.lazy_dataclasses import replace
from tracefuse.errors import InternalError
from tracefuse.ir.extents import Extent, symbol
from tracefuse.ir.fusion import Fusion, Node, Operand, Shape
from tracefuse.ir.indexing import sources
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Movement
from tracefuse.ops import REGISTRY
from tracefuse.passes.rewriter import with_nodes


def read_transposed(fusion: Fusion) -> Fusion:
    """Passes operands with permuted axes to BLAS without a copy.

    BLAS reads a matrix with either order of its axes, and stacks of matrices with any stride between them. The op for
    the product "ab'" replaces the op for "ab" if only the second of two matrices is transposed; other permutations
    become attributes of the product. The permuted copy stays if other nodes read it.
    """
    producers = fusion.producers
    return with_nodes(fusion, [_with_transposed(fusion, node, producers) for node in fusion.nodes])


def _with_transposed(fusion: Fusion, node: Node, producers: Mapping[int, Node]) -> Node:
    if not isinstance(node.op, Library) or node.op.product != "ab" or node.op.orders:
        return node
    if any(fusion.values[o].stream or fusion.values[o].sharding for o in node.outputs):
        return node
    (left, left_order), (right, right_order) = (_without_copy(fusion, o, producers) for o in node.operands)
    if left_order is None and right_order is None:
        return replace(node, operands=(left, right))
    if left_order is None and right_order == (1, 0):
        other = next(op for op in REGISTRY.values() if isinstance(op, Library) and op.product == "ab'")
        return Node(other, (left, right), dict(other.attributes), node.compute, node.outputs, node.where)
    other = next(op for op in REGISTRY.values() if isinstance(op, Library) and op.product == "ab" and op.orders)
    ranks = (len(fusion.shape_of(left)), len(fusion.shape_of(right)))
    orders = (left_order or tuple(range(ranks[0])), right_order or tuple(range(ranks[1])))
    attributes = dict(zip(other.orders, orders, strict=True))
    return Node(other, (left, right), attributes, node.compute, node.outputs, node.where)


def _without_copy(
    fusion: Fusion, operand: Operand, producers: Mapping[int, Node]
) -> tuple[Operand, tuple[int, ...] | None]:
    """Returns the value that a permuted copy reads and the order of its axes; None for axes in their own order."""
    producer = producers.get(operand) if isinstance(operand, int) else None
    if producer is None or not isinstance(producer.op, Movement) or len(producer.operands) != 1:
        return operand, None
    if any(fusion.values[o].stream or fusion.values[o].sharding for o in producer.outputs):
        return operand, None
    order = _permutation(fusion, producer)
    if order is None:
        return operand, None
    return producer.operands[0], None if order == tuple(range(len(order))) else order


def _permutation(fusion: Fusion, node: Node) -> tuple[int, ...] | None:
    """Returns the order in which a movement permutes the axes of its operand; None if it does anything else."""
    shape = fusion.shape_of(node.operands[0])
    result = tuple(fusion.canonical(e) for e in fusion.values[node.outputs[0]].shape)
    if len(shape) < 2 or len(result) != len(shape):
        return None
    axes = tuple(symbol(f"axis{k}") for k in range(len(result)))
    read = sources(fusion, node, axes, _no_positions)
    if len(read) != 1 or read[0].conditions:
        return None
    order: list[int | None] = [None] * len(axes)
    for axis, coordinate in enumerate(read[0].coordinates):
        if coordinate in axes:
            order[axes.index(coordinate)] = axis
        elif coordinate != 0 or shape[axis] != 1:
            return None
    # Axes of extent 1 are interchangeable.
    unused = iter([axis for axis in range(len(axes)) if axis not in order])
    permutation = tuple(next(unused) if axis is None else axis for axis in order)
    is_permuted = all(shape[axis] == extent for axis, extent in zip(permutation, result, strict=True))
    return permutation if is_permuted else None


def _no_positions(operand: int, coordinates: Shape) -> Extent:
    raise InternalError("an op with one operand has no index operands")
