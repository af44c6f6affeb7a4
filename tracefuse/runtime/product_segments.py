"""Segments that are one product of arrays by the target's library, launched like a kernel from addresses.

The host program allocates the result, so it can live in a slot of an arena and be part of a CUDA graph.

Must not know: kernels, plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracefuse.ir.extents import evaluate, symbols
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.library_kinds import Library
from tracefuse.partition.segmentation import Segmentation
from tracefuse.passes.small_products import axis_counts, operand_orders
from tracefuse.runtime.devices.gemm_calls import ProductForm, contiguous_strides, first_batch, matmul_form
from tracefuse.runtime.launch_code import ArgumentNames, LaunchCode, SegmentInterface
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.launch_spec import Lowered

_SAMPLES = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173, 179, 181, 191, 193, 197, 199)
"""Extents, in place of symbols, at which axes lie like one axis only if they do at all sizes."""
MOST_LOOPED_AXES = 1
"""The axes along which calls of the library repeat. An operand of a product with more is copied."""


class ProductCode(LaunchCode):
    """Writes the arguments of a product: the operands, the result, and the shapes of the operands."""

    def __init__(self, interface: SegmentInterface, node: Node) -> None:
        super().__init__(interface, Lowered("library", ()))
        self.node = node

    def arguments(self, names: ArgumentNames) -> Iterator[list[str]]:
        fusion = self.interface.part.decomposed
        operands = [operand for operand in self.node.operands if isinstance(operand, int)]
        tensors = [names.tensor(self.index_map[number]) for number in (*operands, self.node.outputs[0])]
        extents = [extent for operand in operands for extent in fusion.shape_of(operand)]
        yield [*tensors, *(self._extent(extent, names) for extent in extents)]


def product_of_segment(
    segmentation: Segmentation, position: int, target: Target, is_contiguous: Callable[[int], bool]
) -> tuple[Node, Any] | None:
    """Returns the product that a segment is and the target's function for it, None if the segment is no such product.

    is_contiguous: whether a value of the fusion is C-contiguous in memory.
    """
    part = segmentation.segments[position]
    node, fusion = part.library, part.fusion
    if node is None or part.slices is not None or not part.segment.outputs or not isinstance(node.op, Library):
        return None
    if len(node.operands) != 2 or not (node.op.product or node.op.contraction):
        return None
    operands = [operand for operand in node.operands if isinstance(operand, int)]
    dtype = fusion.values[node.outputs[0]].dtype
    if len(operands) < 2 or any(fusion.values[operand].dtype != dtype for operand in operands):
        return None
    if not all(is_contiguous(part.segment.index_map[operand]) for operand in operands):
        return None
    form = product_form(fusion, node)
    if not _is_regular(fusion, operands, form):
        return None
    function = target.library.prepared_product(dtype, form)
    return None if function is None else (node, function)


def product_form(fusion: Fusion, node: Node) -> ProductForm:
    """Returns the axes of a product."""
    (_, left), (_, right) = operand_orders(fusion, node)
    if node.op.contraction:  # type: ignore[attr-defined]
        stack, terms = axis_counts(node)
        return ProductForm(left, right, len(left) - stack - terms, terms, len(right) - stack - terms)
    return replace(matmul_form(len(left), len(right), transposed=False), left_order=left, right_order=right)


def _is_regular(fusion: Fusion, operands: Sequence[int], form: ProductForm) -> bool:
    """Whether a library computes the product from contiguous operands in calls that repeat along few axes."""
    sizes = _sample_sizes(fusion, operands)
    left, right = ([evaluate(extent, sizes) for extent in fusion.shape_of(operand)] for operand in operands)
    batch = first_batch(form, left, right, contiguous_strides(left), contiguous_strides(right))
    return batch is not None and len(batch[1]) <= MOST_LOOPED_AXES


def _sample_sizes(fusion: Fusion, operands: Sequence[int]) -> Mapping[int, int]:
    ids = dict.fromkeys(
        symbol.id for operand in operands for extent in fusion.shape_of(operand) for symbol in symbols(extent)
    )
    return {number: _SAMPLES[k % len(_SAMPLES)] for k, number in enumerate(ids) if number is not None}
