"""Reductions that take one pass over a row where what a fusion spells takes several.

A row of the registry may say how it is spelled with other rows (`spelled`). Where a region's rows are too long to be
held, each pass reads memory again, and the region that spells such a row gets the row instead. Values keep their
numbers; what is no longer read is dropped.

Knows: the language that rows are spelled in. Must not know: which rows there are, templates.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from tracefuse.caches import memoized
from tracefuse.ir.fusion import Fusion, Node, Operand
from tracefuse.ops import REGISTRY, Reduction
from tracefuse.ops.movement import broadcast
from tracefuse.passes.decompose import OPERATORS
from tracefuse.passes.rewrite import drop_dead_tensors, with_nodes


@memoized("patterns of one-pass reductions", key="none", most=1)
def _spellings() -> tuple[tuple[Reduction, ast.expr], ...]:
    rows = (row for row in REGISTRY.values() if isinstance(row, Reduction) and row.spelled)
    return tuple((row, ast.parse(str(row.spelled), mode="eval").body) for row in rows)


def in_one_pass(fusion: Fusion) -> Fusion | None:
    """`fusion` with such rows in the place of what spells them; None where nothing does."""
    makers = {number: node for node in fusion.nodes for number in node.outputs}
    found: dict[int, Node] = {}
    for node in fusion.nodes:
        for row, spelling in _spellings():
            match = _Match(fusion, makers, node)
            if match.node(node, spelling) and match.element is not None:
                found[node.outputs[0]] = replace(node, op=row, operands=(match.element,))
    if not found:
        return None
    kept = drop_dead_tensors(with_nodes(fusion, [found.get(node.outputs[0], node) for node in fusion.nodes]))
    return replace(fusion, values=kept.values, nodes=kept.nodes)


class _Match:
    """Whether nodes are a spelling; `element` is then what it calls `a`."""

    def __init__(self, fusion: Fusion, makers: Mapping[int, Node], last: Node) -> None:
        self.fusion, self.makers, self.last = fusion, makers, last
        self.element: Operand | None = None

    def node(self, node: Node, spelling: ast.expr) -> bool:
        match spelling:
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

    def operand(self, operand: Operand, spelling: ast.expr) -> bool:
        if isinstance(spelling, ast.Name):
            if self.element is None:
                self.element = operand
            return isinstance(operand, int) and operand == self.element
        if not isinstance(operand, int) or operand not in self.makers:
            return False
        if operand in self.fusion.outputs and self.fusion.values[operand].dtype.is_half:
            return False  # it is read on in its rounded form
        return self.node(self._kept(self.makers[operand]), spelling)

    def _kept(self, node: Node) -> Node:
        """The reduction behind a broadcast that gives it back the axes that it reduced; else the node."""
        inner = (
            self.makers.get(node.operands[0]) if node.op is broadcast and isinstance(node.operands[0], int) else None
        )
        if inner is None or not isinstance(inner.op, Reduction) or inner.attributes["keepdim"]:
            return node
        axes = tuple(k for k, new in enumerate(node.attributes["is_broadcast_dim"]) if new)
        return inner if axes == inner.attributes["dims"] else node
