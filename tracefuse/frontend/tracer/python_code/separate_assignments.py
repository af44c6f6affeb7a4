"""Assignments of several values become one for each variable: `best, found = None, []`.

What rewritten code makes of a variable depends on the values that are assigned to it.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast

from tracefuse.frontend.tracer.python_code.statement_flow import Block, OwnCode, contains


class SeparateAssignments(OwnCode):
    """Replaces such assignments of one function, where the order of what they do makes no difference.

    elsewhere: the variables that functions inside use, which calls may read and bind. Assignments inside of `try` and
    `with` stay whole: if a value raises an exception that is caught there, they bind none of the variables.
    """

    def __init__(self, elsewhere: frozenset[str]) -> None:
        self._elsewhere = elsewhere

    def visit_Try(self, node: ast.Try) -> ast.AST:
        return node

    def visit_TryStar(self, node: ast.TryStar) -> ast.AST:
        return node

    def visit_With(self, node: ast.With) -> ast.AST:
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | Block:
        target, value = node.targets[0], node.value
        if len(node.targets) > 1 and isinstance(value, ast.Constant):
            is_plain = all(isinstance(one, ast.Name) for one in node.targets)
            return [ast.copy_location(ast.Assign([one], value), node) for one in node.targets] if is_plain else node
        if len(node.targets) > 1 or not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
            return node
        names = {one.id for one in target.elts if isinstance(one, ast.Name)}
        read = {inner.id for inner in ast.walk(value) if isinstance(inner, ast.Name)} | self._elsewhere
        is_plain = len(names) == len(target.elts) == len(value.elts) and not names & read
        if not is_plain or contains(value, ast.NamedExpr, ast.Starred) or not any(map(_decides, value.elts)):
            return node
        pairs = zip(target.elts, value.elts, strict=True)
        return [ast.copy_location(ast.Assign([one], part), node) for one, part in pairs]


def _decides(value: ast.expr) -> bool:
    """Whether what becomes of a variable may depend on a value that is assigned to it."""
    if isinstance(value, ast.List):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, (ast.Constant, ast.Tuple, ast.IfExp))
