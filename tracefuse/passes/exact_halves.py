"""Rounding of float16 and bfloat16 after every op, which the option `exact_half` asks for.

Knows: fusions, the op that casts. Must not know: options, segments, kernels.
"""

from __future__ import annotations

from dataclasses import replace

from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.op_kinds import Movement
from tracefuse.ops.pointwise import cast
from tracefuse.passes.rewriter import Rewriter


def _rounds(fusion: Fusion, node: Node) -> bool:
    """Whether a node computes one half; a movement only passes on elements that are rounded already."""
    return len(node.outputs) == 1 and fusion.values[node.outputs[0]].dtype.is_half and not isinstance(node.op, Movement)


def round_halves(fusion: Fusion) -> Fusion:
    """Rounds every computed half as if it were stored.

    A cast to its own type follows the node, and its result takes over the number.
    """
    if not any(_rounds(fusion, node) for node in fusion.nodes):
        return fusion
    rewriter = Rewriter(fusion)
    for node in fusion.nodes:
        if not _rounds(fusion, node):
            rewriter.keep(node)
            continue
        number = node.outputs[0]
        value = fusion.values[number]
        exact = rewriter.new_number()
        rewriter.values[exact] = replace(value, number=exact, origin=number)
        rewriter.keep(replace(node, outputs=(exact,)))
        rewriter.keep(Node(cast, (exact,), {"dtype": value.dtype}, value.dtype, (number,), node.where))
    return rewriter.build()
