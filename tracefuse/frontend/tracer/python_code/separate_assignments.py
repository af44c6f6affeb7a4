"""Assignments of several values become one for each variable: `best, found = None, []`.

What rewritten code makes of a variable depends on the values that are assigned to it.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast

from tracefuse.frontend.tracer.python_code.statement_flow import SCOPES, Block, contains


class SeparateAssignments(ast.NodeTransformer):
    """Replaces such assignments of one function, where the order of what they do makes no difference."""

    def visit(self, node: ast.AST) -> ast.AST | Block:
        if isinstance(node, SCOPES):
            return node
        result: ast.AST | Block = super().visit(node)
        return result

    def visit_Assign(self, node: ast.Assign) -> ast.AST | Block:
        target, value = node.targets[0], node.value
        if (
            len(node.targets) > 1
            and all(isinstance(one, ast.Name) for one in node.targets)
            and isinstance(value, ast.Constant)
        ):
            return [ast.copy_location(ast.Assign([one], value), node) for one in node.targets]
        if len(node.targets) > 1 or not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
            return node
        names = {one.id for one in target.elts if isinstance(one, ast.Name)}
        read = {inner.id for inner in ast.walk(value) if isinstance(inner, ast.Name)}
        is_plain = len(names) == len(target.elts) == len(value.elts) and not names & read
        is_plain = is_plain and not contains(value, ast.Call, ast.NamedExpr, ast.Starred, ast.Lambda)
        if not is_plain or not any(map(_is_constant, value.elts)):
            return node
        pairs = zip(target.elts, value.elts, strict=True)
        return [ast.copy_location(ast.Assign([one], part), node) for one, part in pairs]


def _is_constant(value: ast.expr) -> bool:
    is_empty = isinstance(value, (ast.List, ast.Dict)) and not any(True for _ in ast.iter_child_nodes(value))
    return isinstance(value, ast.Constant) or is_empty
