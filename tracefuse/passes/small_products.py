"""Matrix products of few terms as multiplications and a sum, which join the work before and after them in one kernel.

A library runs a product as a call, which costs more than a small product itself, and stores its operands and its
result. A kernel computes the sum of the few terms of an element where the element is needed.

Must not know: segments, kernels, sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion, Literal, Node, Shape
from tracefuse.ir.library_kinds import Library
from tracefuse.ops.roles import ADD, BROADCAST, CAST, MULTIPLY, PERMUTE, SUM
from tracefuse.passes.rewriter import Rewriter


@dataclass(frozen=True, slots=True)
class ProductSizes:
    """The extents of a product of (stacks of) matrices: rows x terms by terms x columns; 1 for a vector's other axis.

    stacked: whether the second operand is a stack of matrices.
    """

    rows: Extent
    terms: Extent
    columns: Extent
    stacked: bool


@dataclass(frozen=True, slots=True)
class ProductBounds:
    """The largest products that become sums on a target.

    terms, rows, columns: of the matrices of a stack. alone: the most terms and columns of the product with a single
    matrix, which a library blocks well; 0 for none. vector: the largest extent of a product with a vector; 0 for none.
    """

    terms: int
    rows: int
    columns: int
    alone: int
    vector: int = 0


def product_sizes(fusion: Fusion, node: Node) -> ProductSizes | None:
    """Returns the extents of a product that can become a sum, None for other nodes."""
    if not isinstance(node.op, Library) or node.op.product is None or len(node.operands) != 2:
        return None
    if node.compute.kind == "bool" or any(fusion.values[o].stream or fusion.values[o].sharding for o in node.outputs):
        return None
    left, right = (tuple(fusion.shape_of(o)[axis] for axis in order) for o, order in operand_orders(fusion, node))
    if not left or not right:
        return None
    return ProductSizes(
        left[-2] if len(left) > 1 else 1, left[-1], right[-1] if len(right) > 1 else 1, len(right) > 2
    )  # fmt: skip


def operand_orders(fusion: Fusion, node: Node) -> list[tuple[int, tuple[int, ...]]]:
    """Returns the operands of a product, each with the order of its axes in it."""
    assert isinstance(node.op, Library)
    result = []
    for position, operand in enumerate(node.operands):
        assert isinstance(operand, int)
        order = tuple(range(len(fusion.shape_of(operand))))
        if node.op.orders:
            order = tuple(node.attributes[node.op.orders[position]])
        elif node.op.product == "ab'" and position and len(order) == 2:
            order = (1, 0)
        result.append((operand, order))
    return result


def with_sums(fusion: Fusion, chosen: Collection[int]) -> tuple[Fusion, dict[int, int]]:
    """Returns the fusion with the products that compute `chosen` as sums, and the terms of each."""
    rewriter, terms = Rewriter(fusion), {}
    for node in fusion.nodes:
        if node.outputs[0] in chosen:
            terms[node.outputs[0]] = _emit(fusion, rewriter, node)
        else:
            rewriter.keep(node)
    return rewriter.build(), terms


def _emit(fusion: Fusion, rewriter: Rewriter, node: Node) -> int:
    """Emits a product; returns its terms."""
    (left, left_order), (right, right_order) = operand_orders(fusion, node)
    number, kind = node.outputs[0], node.compute.compute
    value = fusion.values[number]
    a, b = _ordered(rewriter, node, left, left_order, kind), _ordered(rewriter, node, right, right_order, kind)
    ranks = len(left_order), len(right_order)
    reduced = max(ranks) - 1
    if ranks[1] > 1:  # (rows, terms, 1) by (1, terms, columns)
        a = _with_axis(rewriter, node, a, ranks[0], kind)
        b = _with_axis(rewriter, node, b, ranks[1] - 2, kind) if ranks[0] > 1 else b
        reduced = max(ranks[0], ranks[1] - (ranks[0] == 1)) - 1
    terms = rewriter.node(MULTIPLY, (a, b), {}, kind, (kind,), where=node.where)[0]
    attributes: Mapping[str, object] = {"dims": (reduced,), "keepdim": False}
    total = rewriter.node(SUM, (terms,), attributes, kind, (kind,), where=node.where)[0]
    # A library starts from 0, so that terms of -0 give 0; their sum is -0.
    numbers = (number,) if value.dtype is kind else ()
    total = rewriter.node(ADD, (total, Literal(0)), {}, kind, (kind,), where=node.where, numbers=numbers)[0]
    if value.dtype is not kind:
        rewriter.node(
            CAST, (total,), {"dtype": value.dtype}, value.dtype, (value.dtype,), where=node.where, numbers=(number,)
        )  # fmt: skip
    rewriter.values[number] = value
    return terms


def _ordered(rewriter: Rewriter, node: Node, operand: int, order: tuple[int, ...], kind: DType) -> int:
    """Returns the operand in the type of the sum, with its axes in the order of the product."""
    own = rewriter.values[operand].dtype
    if own is not kind:
        operand = rewriter.node(CAST, (operand,), {"dtype": kind}, kind, (kind,), where=node.where)[0]
    if order != tuple(range(len(order))):
        operand = rewriter.node(PERMUTE, (operand,), {"dims": order}, kind, (kind,), where=node.where)[0]
    return operand


def _with_axis(rewriter: Rewriter, node: Node, operand: int, place: int, kind: DType) -> int:
    """Returns the operand with an axis of extent 1 at `place`."""
    shape: Shape = rewriter.values[operand].shape
    flags = tuple(axis == place for axis in range(len(shape) + 1))
    return rewriter.node(BROADCAST, (operand,), {"is_broadcast_dim": flags}, kind, (kind,), where=node.where)[0]
