"""Constant folding of host scalars.

Folding produces the bits that the node would have produced. Literals are distinguished by type and bits: 1 from 1.0
from True, 0.0 from -0.0, NaN from NaN.
"""

from __future__ import annotations

from segments.lazy_dataclasses import replace
from tracefuse.errors import FusionError
from tracefuse.ir.extents import Expression
from tracefuse.ir.fusion import Fusion, Literal, Node, Operand
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.ir.reference import evaluate
from tracefuse.passes.rewriter import canonical_attribute, with_nodes


def fold_constants(fusion: Fusion) -> Fusion:
    """Evaluates host scalars of literals alone, and puts literals where they are read.

    The reference implementation computes the value of the node. Halves are not folded, because no Python constant has
    their rounding. A scalar that is an output keeps its node.
    """
    known: dict[int, Literal] = {}
    nodes = []
    for node in fusion.nodes:
        operands = tuple(known.get(o, o) if isinstance(o, int) else o for o in node.operands)
        changed = node if operands == node.operands else replace(node, operands=operands)
        literal = _folded(fusion, changed)
        if literal is not None:
            known[node.outputs[0]] = literal
            if node.outputs[0] not in fusion.outputs:
                continue
        nodes.append(changed)
    return with_nodes(fusion, nodes)


def _folded(fusion: Fusion, node: Node) -> Literal | None:
    output = fusion.values[node.outputs[0]]
    operands: tuple[Operand, ...] = node.operands
    symbolic = any(isinstance(canonical_attribute(fusion, a), Expression) for a in node.attributes.values())
    if output.is_tensor or symbolic or not all(isinstance(o, Literal) for o in operands):
        return None
    if isinstance(node.op, Pointwise) and node.op.varies:
        return None
    if output.dtype.is_half or node.compute.is_half:
        return None
    alone = replace(node, attributes={k: canonical_attribute(fusion, v) for k, v in node.attributes.items()})
    (result,) = evaluate(Fusion({output.number: output}, (), (alone,), (output.number,)), [])
    value = result.item()
    if not isinstance(value, bool | int | float | complex):
        raise FusionError(f"{node.op.name} of constants gave {value!r}, which is not a scalar", where=node.where)
    return Literal(value)
