"""Counts the arithmetic operations of a fusion, as it is written.

A pointwise op counts one for each element of its result, a reduction or scan one for each element that it reads, and a
matrix product a multiply and an add for each of its terms. Movement and copies count nothing. What a library function
does beyond products is unknown and counts nothing. Kernels may recompute values, which this count leaves out.

Must not know: kernels, single ops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from tracefuse.ir.extents import Extent, evaluate
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Pointwise, Reduction


def operations_of(fusion: Fusion, nodes: Iterable[Node], sizes: Mapping[Any, int]) -> int:
    """Returns the operations of some nodes of a fusion. sizes: the values of its extents and integer scalars by id."""
    return sum(_operations(fusion, node, sizes) for node in nodes)


def is_transcendental(node: Node) -> bool:
    """Whether a node computes a function such as exp or log, elementwise and of floating-point or complex numbers."""
    is_smooth = node.compute.is_floating or node.compute.is_complex
    return isinstance(node.op, Pointwise) and node.op.expensive and is_smooth


def _operations(fusion: Fusion, node: Node, sizes: Mapping[Any, int]) -> int:
    def elements(number: int) -> int:
        return math.prod(evaluate(extent, sizes) for extent in fusion.shape_of(number))

    if isinstance(node.op, Pointwise):
        return 0 if node.op.is_copy else elements(node.outputs[0])
    if isinstance(node.op, Reduction) or node.op.kind == "scan":
        return elements(node.inputs[0]) if node.inputs else 0
    terms = _terms(fusion, node)
    return 0 if terms is None else 2 * elements(node.outputs[0]) * evaluate(terms, sizes)


def _terms(fusion: Fusion, node: Node) -> Extent | None:
    """Returns the number of terms of each element of a matrix product; None for another op."""
    if not isinstance(node.op, Library) or node.op.product is None:
        return None
    shape = fusion.shape_of(node.operands[0])
    order = node.attributes[node.op.orders[0]] if node.op.orders else range(len(shape))
    return shape[order[-1]] if len(order) else None
