"""Statements and expressions of rewritten code, see `rewritten_loops.py`.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
from typing import TypeVar

TWIN = "tracefuse: the twin of control flow"
"""The constant in whose place the code has an object with the methods that it calls."""

Node = TypeVar("Node", bound=ast.AST)


def load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def assign(name: str, value: ast.expr | bool) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value) if isinstance(value, bool) else value)


def call_of_twin(method: str, *arguments: ast.expr) -> ast.expr:
    """Returns a call of a method of the twin."""
    return ast.Call(ast.Attribute(ast.Constant(TWIN), method, ast.Load()), list(arguments), [])


def at(node: Node, place: ast.AST) -> Node:
    """Gives a new node, and those in it, the line of another."""
    for inner in ast.walk(node):
        if isinstance(inner, (ast.stmt, ast.expr)) and not hasattr(inner, "lineno"):
            ast.copy_location(inner, place)
    return node
