"""Statements and expressions of rewritten code, see `rewritten_loops.py`.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
from typing import TypeVar

TWIN = "tracefuse: the twin of control flow"
"""The constant in whose place the code has an object with the methods that it calls."""

CONDITIONS = ("(branch ", "(condition ", "(going ", "(skips ", "(none ")
"""What the names of variables begin with whose values no code reads but to ask for their truth."""

Node = TypeVar("Node", bound=ast.AST)


def load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def assign(name: str, value: ast.expr | bool) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value) if isinstance(value, bool) else value)


def call_of_twin(method: str, *arguments: ast.expr) -> ast.expr:
    """Returns a call of a method of the twin."""
    return ast.Call(ast.Attribute(ast.Constant(TWIN), method, ast.Load()), list(arguments), [])


def is_of_twin(value: ast.AST) -> bool:
    """Whether an expression is a method of the twin, which nothing changes."""
    return isinstance(value, ast.Attribute) and isinstance(value.value, ast.Constant) and value.value.value == TWIN


def is_condition(name: str) -> bool:
    """Whether a variable of rewritten code is only asked for its truth."""
    return name.startswith(CONDITIONS)


def none_flag(name: str) -> str:
    """Returns the name of the variable that tells whether another one is `None`, see `optional_variables.py`."""
    return f"(none {name})"


def at(node: Node, place: ast.AST) -> Node:
    """Gives a new node, and those in it, the line of another."""
    for inner in ast.walk(node):
        if isinstance(inner, (ast.stmt, ast.expr)) and not hasattr(inner, "lineno"):
            ast.copy_location(inner, place)
    return node
