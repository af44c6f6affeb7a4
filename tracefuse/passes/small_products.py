"""Matrix products of few terms as multiplications and a sum, which join the work before and after them in one kernel.

A library runs a product as a call, which costs more than a small product itself, and stores its operands and its
result. A kernel computes the sum of the few terms of an element where the element is needed.

Must not know: segments, kernels, sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent, product
from tracefuse.ir.fusion import Fusion, Literal, Node
from tracefuse.ir.library_kinds import Library
from tracefuse.ops.roles import ADD, BROADCAST, CAST, MULTIPLY, PERMUTE, SUM
from tracefuse.passes.rewriter import Rewriter


@dataclass(frozen=True, slots=True)
class ProductSizes:
    """The extents of a product of (stacks of) matrices: rows x terms by terms x columns; 1 for a vector's other axis.

    Several axes of rows, summed terms or columns count as one. stacked: whether the second operand is a stack of
    matrices.
    """

    rows: Extent
    terms: Extent
    columns: Extent
    stacked: bool

    @property
    def work(self) -> Extent:
        """The multiplications in one matrix of the result."""
        return product((self.rows, self.terms, self.columns))


@dataclass(frozen=True, slots=True)
class ProductBounds:
    """The largest products that become sums on a target. The product of two vectors always does.

    terms, rows, columns: of the matrices of a stack. alone: the most terms and columns of the product with a single
    matrix, which a library blocks well; 0 for none. vector: the largest extent of a product with a vector; 0 for none.
    vector_terms: the most terms of that of a matrix of any rows with a vector, complex_terms: of complex numbers.
    work: the most multiplications of a product of any extents, for one matrix of its result; 0 for none.
    """

    terms: int
    rows: int
    columns: int
    alone: int
    vector: int = 0
    vector_terms: int = 0
    complex_terms: int = 0
    work: int = 0


def product_sizes(fusion: Fusion, node: Node) -> ProductSizes | None:
    """Returns the extents of a product that can become a sum, None for other nodes."""
    if not isinstance(node.op, Library) or len(node.operands) != 2 or not (node.op.product or node.op.contraction):
        return None
    if node.compute.kind == "bool" or any(fusion.values[o].stream or fusion.values[o].sharding for o in node.outputs):
        return None
    left, right = (tuple(fusion.shape_of(o)[axis] for axis in order) for o, order in operand_orders(fusion, node))
    if not left or not right:
        return None
    if node.op.contraction:
        stack, summed = axis_counts(node)
        if not summed:
            return None
        rows, terms = left[stack : len(left) - summed], left[len(left) - summed :]
        return ProductSizes(product(rows), product(terms), product(right[stack + summed :]), stack > 0)
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
        orders = node.op.orders or node.op.contraction
        if orders:
            order = tuple(node.attributes[orders[position]])
        elif node.op.product == "ab'" and position and len(order) == 2:
            order = (1, 0)
        result.append((operand, order))
    return result


def axis_counts(node: Node) -> tuple[int, int]:
    """Returns the numbers of axes of the stack and of summed ones of a contraction."""
    assert isinstance(node.op, Library)
    stack, summed = (node.attributes[name] for name in node.op.contraction[2:])
    return stack, summed


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
    assert isinstance(node.op, Library)
    if node.op.contraction:
        a, b, reduced = _spread(rewriter, node, a, b, kind)
    else:
        a, b, reduced = _beside(rewriter, node, (a, len(left_order)), (b, len(right_order)), kind)
    terms = rewriter.node(MULTIPLY, (a, b), {}, kind, (kind,), where=node.where)[0]
    attributes: Mapping[str, object] = {"dims": reduced, "keepdim": False}
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


def _beside(
    rewriter: Rewriter, node: Node, left: tuple[int, int], right: tuple[int, int], kind: DType
) -> tuple[int, int, tuple[int, ...]]:
    """Returns the factors of a matrix product as (rows, terms, 1) and (1, terms, columns), and the axis to sum over.

    left, right: the operands with their ranks.
    """
    (a, left_rank), (b, right_rank) = left, right
    if right_rank == 1:
        return a, b, (max(left_rank, right_rank) - 1,)
    a = _with_axes(rewriter, node, a, (left_rank,), left_rank + 1, kind)
    b = _with_axes(rewriter, node, b, (right_rank - 2,), right_rank + 1, kind) if left_rank > 1 else b
    return a, b, (max(left_rank, right_rank - (left_rank == 1)) - 1,)


def _spread(rewriter: Rewriter, node: Node, a: int, b: int, kind: DType) -> tuple[int, int, tuple[int, ...]]:
    """Returns the factors of a contraction as (stack, rows, summed, 1) and (stack, 1, summed, columns), and the axes to
    sum over.
    """
    stack, summed = axis_counts(node)
    left, right = (len(rewriter.values[o].shape) for o in (a, b))
    rows, columns = left - stack - summed, right - stack - summed
    rank, first = left + columns, stack + rows
    a = _with_axes(rewriter, node, a, range(left, rank), rank, kind)
    b = _with_axes(rewriter, node, b, range(stack, first), rank, kind)
    return a, b, tuple(range(first, first + summed))


def _ordered(rewriter: Rewriter, node: Node, operand: int, order: tuple[int, ...], compute: DType) -> int:
    """Returns the operand in the type of the sum, with its axes in the order of the product."""
    operand_dtype = rewriter.values[operand].dtype
    if operand_dtype is not compute:
        operand = rewriter.node(CAST, (operand,), {"dtype": compute}, compute, (compute,), where=node.where)[0]
    if order != tuple(range(len(order))):
        operand = rewriter.node(PERMUTE, (operand,), {"dims": order}, compute, (compute,), where=node.where)[0]
    return operand


def _with_axes(rewriter: Rewriter, node: Node, operand: int, places: Collection[int], rank: int, kind: DType) -> int:
    """Returns the operand as one of `rank` axes, with axes of extent 1 at `places`."""
    if not places:
        return operand
    flags = tuple(axis in places for axis in range(rank))
    return rewriter.node(BROADCAST, (operand,), {"is_broadcast_dim": flags}, kind, (kind,), where=node.where)[0]
