"""Matrix products of halves whose extents are padded with zeros, so that a library reads aligned rows.

Libraries multiply halves several times slower if the rows of a matrix do not start at multiples of 16 bytes. Zeros
after the terms change no sum, and columns after the last are cut from the result. The kernels that make the operands
write the zeros, and those that read the result skip the columns, so few arrays are copied for it.

Must not know: segments, kernels, sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Extent, ceildiv
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ops.roles import PAD, SLICE
from tracefuse.passes.rewriter import Rewriter
from tracefuse.passes.small_products import operand_orders


@dataclass(frozen=True, slots=True)
class PaddingBounds:
    """The products of halves that a target pads.

    multiple: of the terms and of the columns, in elements. least: the least rows and columns of products whose terms
    are padded, for which both operands are copied. work: the least number of multiplications.
    """

    multiple: int
    least: int
    work: int


@dataclass(frozen=True, slots=True)
class Padding:
    """Which axes of a product are padded, to a multiple of so many elements."""

    multiple: int
    terms: bool
    columns: bool


def with_padding(fusion: Fusion, chosen: Mapping[int, Padding]) -> Fusion:
    """Returns the fusion in which the products that compute `chosen` are padded, and their results cut."""
    rewriter = Rewriter(fusion)
    for node in fusion.nodes:
        padding = chosen.get(node.outputs[0]) if len(node.outputs) == 1 else None
        if padding is None:
            rewriter.keep(node)
        else:
            _emit(fusion, rewriter, node, padding)
    return rewriter.build()


def _emit(fusion: Fusion, rewriter: Rewriter, node: Node, padding: Padding) -> None:
    """Emits a padded product, and the slice of its result that has the number of the original."""
    (left, left_order), (right, right_order) = operand_orders(fusion, node)
    terms = {left_order[-1]} if padding.terms else set()
    a = _padded(fusion, rewriter, node, left, terms, padding.multiple)
    axes = {right_order[-2]} if padding.terms else set()
    axes |= {right_order[-1]} if padding.columns else set()
    b = _padded(fusion, rewriter, node, right, axes, padding.multiple)
    number = node.outputs[0]
    if not padding.columns:
        rewriter.keep(replace(node, operands=(a, b)))
        return
    value, attributes = fusion.values[number], dict(node.attributes)
    wide = rewriter.node(node.op, (a, b), attributes, node.compute, (value.dtype,), where=node.where)[0]
    shape = fusion.shape_of(number)
    bounds = {"start_indices": (0,) * len(shape), "end_indices": shape, "strides": (1,) * len(shape)}
    rewriter.node(SLICE, (wide,), bounds, value.dtype, (value.dtype,), where=node.where, numbers=(number,))
    rewriter.values[number] = value


def _padded(
    fusion: Fusion, rewriter: Rewriter, node: Node, operand: int, axes: set[int], multiple: int
) -> int:  # fmt: skip
    """Returns the operand with zeros at the ends of some axes."""
    if not axes:
        return operand
    widths: list[Extent] = []
    for axis, extent in enumerate(fusion.shape_of(operand)):
        widths += [0, ceildiv(extent, multiple) * multiple - extent if axis in axes else 0]
    dtype = fusion.values[operand].dtype
    attributes = {"pad_widths": tuple(widths), "value": 0}
    return rewriter.node(PAD, (operand,), attributes, dtype, (dtype,), where=node.where)[0]
