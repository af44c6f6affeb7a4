"""Dicts of new lists that only their function knows, as a variable for each list.

    history = {"loss": [], "step": []}              loss, step = [], []
    for k in range(n):                              for k in range(n):
        history["loss"].append(f(k))                    loss.append(f(k))
    return history                                  return {"loss": loss, "step": step}

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import TypeAlias

from tracefuse.frontend.tracer.python_code.generated_syntax import assign, at, load
from tracefuse.frontend.tracer.python_code.list_reads import is_new_list, names_in
from tracefuse.frontend.tracer.python_code.statement_flow import SCOPES, Block

Entries: TypeAlias = Mapping[str, str]
"""The variable of each list, by the key that it has in the dict."""


def with_variables_for_entries(function: ast.FunctionDef, new_name: Callable[[str], str]) -> None:
    """Puts variables in the place of the entries of dicts. new_name: returns the name of a new variable."""
    dicts: dict[str, Entries] = {}
    for statement in function.body:
        found = _dict_of_lists(statement)
        if found is not None and _is_known_alone(function, *found):
            name, keys = found
            dicts[name] = {key: new_name(f"{name} {key}") for key in keys}
    if dicts:
        rewriting = _WithVariablesForEntries(dicts)
        function.body = [new for statement in function.body for new in rewriting.statement(statement)]


def _dict_of_lists(statement: ast.stmt) -> tuple[str, list[str]] | None:
    """Returns the variable to which a statement binds a dict of new lists, and the keys; None for another statement."""
    if (
        not isinstance(statement, ast.Assign)
        or len(statement.targets) != 1
        or not isinstance(statement.value, ast.Dict)
    ):
        return None
    target, value = statement.targets[0], statement.value
    keys = [key.value for key in value.keys if isinstance(key, ast.Constant) and type(key.value) is str]
    is_plain = isinstance(target, ast.Name) and 0 < len({*keys}) == len(value.values)
    if not is_plain or not all(map(is_new_list, value.values)):
        return None
    assert isinstance(target, ast.Name)
    return target.id, keys


def _is_known_alone(function: ast.FunctionDef, name: str, keys: list[str]) -> bool:
    """Whether a function reads a dict by its keys alone, until it returns it."""
    allowed = set[int]()
    for node in ast.walk(function):
        if isinstance(node, SCOPES) and node is not function and any(_is_name(one, name) for one in ast.walk(node)):
            return False
        if isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
            return False
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant):
            if node.slice.value in keys:
                allowed.add(id(node.value))
        elif isinstance(node, ast.Return) and [*names_in(node.value)].count(name) == 1:
            allowed |= {id(one) for one in ast.walk(node) if _is_name(one, name)}
    arguments = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
    uses = [node for node in ast.walk(function) if _is_name(node, name) and id(node) not in allowed]
    return len(uses) == 1 and name not in arguments  # the assignment


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


class _WithVariablesForEntries(ast.NodeTransformer):
    def __init__(self, dicts: Mapping[str, Entries]) -> None:
        self.dicts = dicts

    def statement(self, statement: ast.stmt) -> Block:
        """Returns the statements in the place of one."""
        found = _dict_of_lists(statement)
        if found is None or found[0] not in self.dicts:
            return [self.visit(statement)]
        assert isinstance(statement, ast.Assign)
        assert isinstance(statement.value, ast.Dict)
        entries = self.dicts[found[0]]
        pairs = zip(found[1], statement.value.values, strict=True)
        return [at(assign(entries[key], self.visit(value)), statement) for key, value in pairs]

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id in self.dicts:
            assert isinstance(node.slice, ast.Constant)
            return at(load(self.dicts[node.value.id][node.slice.value]), node)  # type: ignore[index]
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Name(self, node: ast.Name) -> ast.expr:
        entries = self.dicts.get(node.id)
        if entries is None:
            return node
        keys: list[ast.expr | None] = [ast.Constant(key) for key in entries]
        return at(ast.Dict(keys, [*map(load, entries.values())]), node)
