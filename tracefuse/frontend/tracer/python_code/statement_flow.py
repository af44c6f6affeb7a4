"""Blocks of statements of one function, and how statements leave them: `break`, `continue`, `return` and `raise`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, TypeAlias

Block: TypeAlias = list[ast.stmt]

JUMPS = (ast.Break, ast.Continue)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class OwnCode(ast.NodeTransformer):
    """Transforms the code of one function, which `generic_visit` begins with, not that of functions inside it."""

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, SCOPES) else super().visit(node)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the statements and expressions in a statement, without those of functions in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, SCOPES):
            yield child


def jumps_of(statement: ast.AST) -> Iterator[ast.AST]:
    """Yields the `break` and `continue` in a statement that leave a loop around it."""
    if isinstance(statement, JUMPS):
        yield statement
    elif isinstance(statement, (ast.For, ast.While)):
        for inner in statement.orelse:
            yield from jumps_of(inner)
    else:
        for child in _children(statement):
            yield from jumps_of(child)


def jumps_in_branches(block: Block) -> Iterator[ast.AST]:
    """Yields those that only `if` statements are around."""
    for statement in block:
        if isinstance(statement, JUMPS):
            yield statement
        elif isinstance(statement, ast.If):
            yield from jumps_in_branches(statement.body)
            yield from jumps_in_branches(statement.orelse)


def leaves(block: Block) -> bool:
    """Whether nothing after a block runs."""
    if not block:
        return False
    last = block[-1]
    if isinstance(last, ast.If):
        return leaves(last.body) and leaves(last.orelse)
    return isinstance(last, (*JUMPS, ast.Return, ast.Raise))


def may_leave(statement: ast.stmt) -> bool:
    return any(True for _ in jumps_of(statement))


def only_raises(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Raise) and not statement.orelse


def contains(node: ast.AST, *kinds: type[ast.AST]) -> bool:
    return any(isinstance(inner, kinds) for inner in ast.walk(node))


def returned(block: Block) -> list[ast.Return] | None:
    """Returns the `return` statements at all ends of a block; None if it ends otherwise."""
    last = block[-1] if block else None
    if isinstance(last, ast.Return):
        return [last]
    if isinstance(last, ast.Raise):
        return []
    if not isinstance(last, ast.If):
        return None
    first, second = returned(last.body), returned(last.orelse)
    return None if first is None or second is None else first + second
