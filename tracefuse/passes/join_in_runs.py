"""Splits associative ops with more operands than a kernel takes, such as long concatenations."""

from __future__ import annotations

from collections.abc import Sequence

from segments.lazy_dataclasses import replace
from tracefuse.ir.fusion import Fusion, Node, Operand
from tracefuse.ir.op_kinds import Movement
from tracefuse.passes.rewriter import Rewriter

MOST_OPERANDS = 32
"""Operands of an associative op at most. Each is a branch and a parameter of its kernel, and a kernel takes a bounded
number of them; a run of this many goes through memory once more."""


def join_in_runs(fusion: Fusion) -> Fusion:
    """Applies an associative op with many operands to runs of them, and then to the results."""
    if not any(_is_long(node) for node in fusion.nodes):
        return fusion
    rewriter = Rewriter(fusion)
    for node in fusion.nodes:
        operands = node.operands
        while _is_long(node) and len(operands) > MOST_OPERANDS:
            runs = [operands[first : first + MOST_OPERANDS] for first in range(0, len(operands), MOST_OPERANDS)]
            operands = tuple(_apply_to_run(rewriter, fusion, node, run) for run in runs)
        rewriter.keep(node if operands == node.operands else replace(node, operands=operands))
    return rewriter.build()


def _is_long(node: Node) -> bool:
    """Whether a node is associative and has more operands than a kernel takes."""
    return isinstance(node.op, Movement) and node.op.associative and len(node.operands) > MOST_OPERANDS


def _apply_to_run(rewriter: Rewriter, fusion: Fusion, node: Node, run: Sequence[Operand]) -> Operand:
    """Applies a node's op to some of its operands, and returns the result."""
    if len(run) == 1:
        return run[0]
    dtype = fusion.values[node.outputs[0]].dtype
    (result,) = rewriter.node(node.op, run, node.attributes, node.compute, [dtype], where=node.where)
    return result
