"""Products with a bias as a product and a sum.

A library's epilogue, or the kernel that reads the result, then adds the bias.

Must not know: segments, kernels.
"""

from __future__ import annotations

from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.library_kinds import Library
from tracefuse.ops.roles import ADD, BROADCAST
from tracefuse.passes.rewriter import Rewriter


def separate_biases(fusion: Fusion) -> Fusion:
    """Returns a fusion in which an op of its own adds the bias of a product."""
    if not any(_has_bias(fusion, node) for node in fusion.nodes):
        return fusion
    rewriter = Rewriter(fusion)
    for node in fusion.nodes:
        if _has_bias(fusion, node):
            _separate(fusion, rewriter, node)
        else:
            rewriter.keep(node)
    return rewriter.build()


def _has_bias(fusion: Fusion, node: Node) -> bool:
    """Whether a node is a product of an array and a matrix, with one number more for each column."""
    if not isinstance(node.op, Library) or not node.op.product or len(node.operands) != 3:
        return False
    used = [fusion.values[number] for number in (*node.inputs, *node.outputs)]
    is_of_matrix = [len(fusion.shape_of(operand)) for operand in node.operands[1:]] == [2, 1]
    return is_of_matrix and not any(value.stream or value.sharding for value in used)


def _separate(fusion: Fusion, rewriter: Rewriter, node: Node) -> None:
    (result,) = node.outputs
    left, right, bias = (operand for operand in node.operands if isinstance(operand, int))
    original, where = rewriter.values[result], node.where
    (product,) = rewriter.node(
        node.op, [left, right], node.attributes, node.compute, [original.dtype], where=where
    )  # fmt: skip
    rewriter.mark(product, result)
    outer = len(original.shape) - 1
    if outer:
        is_new, dtype = (*[True] * outer, False), fusion.values[bias].dtype
        (bias,) = rewriter.node(BROADCAST, [bias], {"is_broadcast_dim": is_new}, dtype, [dtype], where=where)
        rewriter.mark(bias, result)
    rewriter.node(ADD, [product, bias], {}, node.compute, [original.dtype], where=where, numbers=[result])
    rewriter.values[result] = original
