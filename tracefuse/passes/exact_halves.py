"""Rounding of float16 and bfloat16 before and after every op, for the option `exact_half`.

Must not know: options, segments, kernels.
"""

from __future__ import annotations

from segments.lazy_dataclasses import replace
from tracefuse.dtypes import DType
from tracefuse.ir.fusion import Fusion, Literal, Node, Operand
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Movement, Pointwise
from tracefuse.ops.roles import CAST
from tracefuse.passes.rewriter import Rewriter
from tracefuse.rounding import round_to_half


def _rounds(fusion: Fusion, node: Node) -> bool:
    """Whether a node computes one half.

    A movement only forwards elements that are already rounded, and an update of rows stores each that it computes.
    """
    computes = not isinstance(node.op, (Library, Movement))
    return len(node.outputs) == 1 and fusion.values[node.outputs[0]].dtype.is_half and computes


def round_halves(fusion: Fusion) -> Fusion:
    """Rounds every computed half as if it were stored.

    A cast to its own type follows the node, and the result of the cast takes over the number.
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
        rewriter.keep(Node(CAST, (exact,), {"dtype": value.dtype}, value.dtype, (number,), node.where))
    return rewriter.build()


def round_scalars(fusion: Fusion) -> Fusion:
    """Rounds numbers and host scalars to the half type of the arithmetic that reads them.

    NumPy also rounds them first. The trace already assigned the types of comparison operands.
    """
    rewriter, changed = Rewriter(fusion), False
    for node in fusion.nodes:
        operands = node.operands
        if isinstance(node.op, Pointwise) and node.compute.is_half and node.op.result not in ("bool", "dtype"):
            first = 1 if node.op.promotion == "where" else 0
            rounded = (_round_scalar(rewriter, operand, node.compute) for operand in operands[first:])
            operands = (*operands[:first], *rounded)
        is_same = all(new is old for new, old in zip(operands, node.operands, strict=True))
        changed = changed or not is_same
        rewriter.keep(node if is_same else replace(node, operands=operands))
    return rewriter.build() if changed else fusion


def _round_scalar(rewriter: Rewriter, operand: Operand, dtype: DType) -> Operand:
    """Rounds a literal or a host scalar to a half type; returns other operands unchanged."""
    if isinstance(operand, Literal):
        rounded = float(round_to_half(operand.value, dtype))
        is_rounded = isinstance(operand.value, float) and (operand.value == rounded or operand.value != operand.value)
        return operand if is_rounded else Literal(rounded)
    value = rewriter.values[operand]
    if value.is_tensor or value.dtype is dtype:
        return operand
    return rewriter.node(CAST, (operand,), {"dtype": dtype}, dtype, (dtype,))[0]
