"""Replaces several reductions over a row by one that takes a single pass.

The definition of a reduction may give an equivalent in terms of other ops (`decomposed`). If a region's rows are too
long to stay on chip, each pass reads memory again, so the reduction replaces its equivalent. Values keep their
numbers; values that are no longer read are dropped.

Must not know: single ops.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from segments.lazy_dataclasses import replace
from tracefuse.caches import memoized
from tracefuse.ir.fusion import Fusion, Node, Operand
from tracefuse.ops import REGISTRY, Reduction
from tracefuse.ops.roles import BROADCAST
from tracefuse.passes.dead_code import drop_dead_tensors
from tracefuse.passes.decompose import OPERATORS
from tracefuse.passes.rewriter import with_nodes


@memoized("patterns of single-pass reductions", key="none", most=1, clears=False)
def _equivalents() -> tuple[tuple[Reduction, ast.expr], ...]:
    reductions = (op for op in REGISTRY.values() if isinstance(op, Reduction) and op.decomposed)
    return tuple((op, ast.parse(str(op.decomposed), mode="eval").body) for op in reductions)


def reduce_in_one_pass(fusion: Fusion) -> Fusion:
    """Replaces reductions over a row by one that takes a single pass over it."""
    makers = {number: node for node in fusion.nodes for number in node.outputs}
    replaced: dict[int, Node] = {}
    for node in fusion.nodes:
        for op, equivalent in _equivalents():
            match = _Match(fusion, makers, node)
            if match.node(node, equivalent) and match.element is not None:
                replaced[node.outputs[0]] = replace(node, op=op, operands=(match.element,))
    if not replaced:
        return fusion
    result = drop_dead_tensors(with_nodes(fusion, [replaced.get(node.outputs[0], node) for node in fusion.nodes]))
    return replace(fusion, values=result.values, nodes=result.nodes)


class _Match:
    """Matches nodes against an equivalent; after a match `element` is the operand that the equivalent calls `a`."""

    def __init__(self, fusion: Fusion, makers: Mapping[int, Node], last: Node) -> None:
        self.fusion, self.makers, self.last = fusion, makers, last
        self.element: Operand | None = None

    def node(self, node: Node, equivalent: ast.expr) -> bool:
        match equivalent:
            case ast.BinOp(left, operator, right):
                name, parts = OPERATORS[type(operator)], [left, right]
            case ast.Call(ast.Name(name), parts):
                pass
            case _:
                return False
        if node.op is not REGISTRY[name] or len(node.operands) != len(parts):
            return False
        if isinstance(node.op, Reduction) and node.attributes["dims"] != self.last.attributes["dims"]:
            return False
        return all(self.operand(operand, part) for operand, part in zip(node.operands, parts, strict=True))

    def operand(self, operand: Operand, equivalent: ast.expr) -> bool:
        if isinstance(equivalent, ast.Name):
            if self.element is None:
                self.element = operand
            return isinstance(operand, int) and operand == self.element
        if not isinstance(operand, int) or operand not in self.makers:
            return False
        if operand in self.fusion.outputs and self.fusion.values[operand].dtype.is_half:
            return False  # later readers get its rounded value
        return self.node(self._kept(self.makers[operand]), equivalent)

    def _kept(self, node: Node) -> Node:
        """Returns the reduction behind a broadcast that restores its reduced axes; else the node."""
        inner = (
            self.makers.get(node.operands[0]) if node.op is BROADCAST and isinstance(node.operands[0], int) else None
        )
        if inner is None or not isinstance(inner.op, Reduction) or inner.attributes["keepdim"]:
            return node
        axes = tuple(k for k, new in enumerate(node.attributes["is_broadcast_dim"]) if new)
        return inner if axes == inner.attributes["dims"] else node
