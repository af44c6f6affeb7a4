"""The facts of a product of matrices as a segment: its operands, and which of their axes are summed.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, product
from tracefuse.ir.fusion import Fusion, Node, Shape
from tracefuse.ir.row_major import delinearize
from tracefuse.passes.small_products import axis_counts, operand_orders, product_sizes


@dataclass(frozen=True, slots=True)
class ProductFacts:
    """A product of stacks of matrices with what is computed from its result, by the numbers of values.

    left, right: the operands, each with the order of its axes: (stack, rows, terms) and (stack, terms, columns). The
    result has the axes (stack, rows, columns). stack, rows, summed: how many axes the stack, rows and terms are; there
    is one of columns. The terms are counted by one index over their axes. An operand may have fewer axes of the stack,
    or extents of 1 there.
    """

    node: Node
    left: int
    left_order: tuple[int, ...]
    right: int
    right_order: tuple[int, ...]
    stack: int
    rows: int
    summed: int = 1

    @property
    def result(self) -> int:
        return self.node.outputs[0]

    def extents(self, fusion: Fusion) -> tuple[Shape, Shape, Extent, Extent]:
        """Returns the extents of the stack and of the rows, the number of terms and that of columns."""
        shape = fusion.shape_of(self.result)
        return shape[: self.stack], shape[self.stack : -1], product(self._terms(fusion)), shape[-1]

    def _terms(self, fusion: Fusion) -> Shape:
        shape = fusion.shape_of(self.left)
        return tuple(shape[axis] for axis in self.left_order[-self.summed :])

    def left_at(self, fusion: Fusion, stack: Shape, rows: Sequence[Extent], term: Extent) -> Shape:
        """Returns the coordinates of an element of the left operand."""
        return _placed(
            fusion.shape_of(self.left), self.left_order, (*stack, *rows, *delinearize(term, self._terms(fusion)))
        )

    def right_at(self, fusion: Fusion, stack: Shape, term: Extent, column: Extent) -> Shape:
        """Returns the coordinates of an element of the right operand."""
        return _placed(
            fusion.shape_of(self.right), self.right_order, (*stack, *delinearize(term, self._terms(fusion)), column)
        )


def _placed(shape: Shape, order: tuple[int, ...], coordinates: Shape) -> Shape:
    """Returns coordinates in the order of an operand's axes; axes of extent 1 are read at 0."""
    place = dict(zip(order, coordinates[len(coordinates) - len(order) :], strict=True))
    return tuple(0 if extent == 1 else place[axis] for axis, extent in enumerate(shape))


def product_of(fusion: Fusion, node: Node) -> ProductFacts | None:
    """Returns the facts of a product of floats that a kernel can compute in tiles, None for other nodes."""
    if product_sizes(fusion, node) is None or not node.compute.is_floating:
        return None
    if not all(isinstance(o, int) and fusion.values[o].dtype.is_floating for o in node.operands):
        return None
    (left, left_order), (right, right_order) = operand_orders(fusion, node)
    if min(len(left_order), len(right_order)) < 2:
        return None
    rank = len(fusion.shape_of(node.outputs[0]))
    if getattr(node.op, "contraction", ()):
        stack, summed = axis_counts(node)
        if len(right_order) != stack + summed + 1:
            return None
        return ProductFacts(node, left, left_order, right, right_order, stack, rank - 1 - stack, summed)
    # Rows of a stack of matrices that meet one matrix are rows of a single product.
    stack = rank - 2 if len(right_order) > 2 else 0
    return ProductFacts(node, left, left_order, right, right_order, stack, rank - 1 - stack)


def multiplications(fusion: Fusion, facts: ProductFacts) -> Extent:
    """Returns the number of multiplications of a product."""
    stack, rows, terms, columns = facts.extents(fusion)
    return product((*stack, *rows, terms, columns))
