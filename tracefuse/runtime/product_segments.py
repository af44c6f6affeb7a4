"""Segments that are one product of arrays by the target's library, launched like a kernel from addresses.

The host program allocates the result, so it can live in a slot of an arena and be part of a CUDA graph.

Must not know: kernels, plans.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from segments.lazy_dataclasses import replace
from tracefuse.config import Options
from tracefuse.ir.extents import evaluate, symbols
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.library_kinds import Library
from tracefuse.partition.epilogue_choice import Refusal
from tracefuse.partition.segmentation import Segmentation
from tracefuse.passes.product_epilogues import Epilogue, EpilogueMatch, epilogues_of, readers_of
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
    """Writes the arguments of a product: what it reads, the result, and the shapes of the operands."""

    def __init__(self, interface: SegmentInterface, match: EpilogueMatch) -> None:
        super().__init__(interface, Lowered("library", ()))
        self.match = match

    def arguments(self, names: ArgumentNames) -> Iterator[list[str]]:
        fusion, match = self.interface.part.decomposed, self.match
        tensors = [names.tensor(self.index_map[number]) for number in (*match.operands, match.result)]
        extents = [extent for operand in match.operands[:2] for extent in fusion.shape_of(operand)]
        yield [*tensors, *(self._extent(extent, names) for extent in extents)]


def product_of_segment(
    segmentation: Segmentation, position: int, target: Target, is_contiguous: Callable[[int], bool]
) -> tuple[EpilogueMatch, Any] | None:
    """Returns the product that a segment is and the target's function for it, None if the segment is no such product.

    is_contiguous: whether a value of the fusion is C-contiguous in memory. A segment with an epilogue is one: no
    refusal of `epilogue_refusals` held.
    """
    part = segmentation.segments[position]
    node, fusion = part.library, part.fusion
    if node is None or part.slices is not None or not part.segment.outputs or not isinstance(node.op, Library):
        return None
    if len(node.operands) != 2 or not (node.op.product or node.op.contraction):
        return None
    if len(fusion.nodes) > 1:
        match = epilogues_of(fusion, node, readers_of(fusion))[-1]
        function = target.library.epilogue_product(fusion.values[match.result].dtype, *_forms(fusion, match))
        return match, function
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
    return None if function is None else (EpilogueMatch(node, node.outputs[0]), function)


def epilogue_refusals(
    target: Target, fusion: Fusion, layouts: Sequence[object], values: Mapping[int, int], options: Options
) -> Refusal | None:  # fmt: skip
    """Returns the function that refuses products with epilogues, None if the library of a target computes none.

    layouts: of the tensor inputs, None for C order. values: the sizes of a call, by id.
    """
    if not target.library.has_epilogues or options.disables("product_epilogues"):
        return None
    strided = {number for number, layout in zip(fusion.tensor_inputs, layouts, strict=True) if layout is not None}
    return functools.partial(_refusal, target, strided, values)


def _refusal(
    target: Target, strided: AbstractSet[int], values: Mapping[int, int], fusion: Fusion, match: EpilogueMatch
) -> str | None:  # fmt: skip
    dtype = fusion.values[match.result].dtype
    if any(fusion.values[operand].dtype != dtype for operand in match.operands):
        return "its operands and its result have several types"
    if not strided.isdisjoint(match.operands):
        return "an operand is not contiguous"
    if match.epilogue.bias and match.epilogue.residual and not dtype.is_half:
        return "adding the residual before the bias rounds differently"
    form, epilogue = _forms(fusion, match)
    if not _is_regular(fusion, match.operands[:2], form):
        return "it is several calls of the library"
    left, right = (tuple(evaluate(e, values) for e in fusion.shape_of(operand)) for operand in match.operands[:2])
    if 0 in left or 0 in right:
        return "an operand has no elements"
    return target.library.epilogue_refusal(dtype, form, epilogue, left, right)


def _forms(fusion: Fusion, match: EpilogueMatch) -> tuple[ProductForm, Epilogue]:
    return product_form(fusion, match.product), match.epilogue


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
