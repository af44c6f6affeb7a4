"""Variables that hold one of a few strings: `state = "idle"`, `if state == "idle" and x[i] > 1: state = "busy"`.

Loops carry numbers. So in rewritten code such a variable holds the position of its string among those that the
function assigns to such variables. Comparisons are those of positions, and other reads get the string:

    state = "busy"                state = 1
    state == "idle"               state == 0
    before = state                before = state
    f(state)                      f(TWIN.named(state, "idle", "busy"))

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence

from tracefuse.frontend.tracer.python_code.generated_syntax import at, call_of_twin
from tracefuse.frontend.tracer.python_code.statement_flow import OwnCode
from tracefuse.frontend.tracer.python_code.variable_uses import arguments_of, nodes_of, uses_of

_OTHER = -1
"""The position of strings that a variable never holds."""


def with_positions_of_names(function: ast.FunctionDef) -> None:
    """Replaces such variables of a function, in place."""
    variables = _variables(function)
    if variables:
        texts = dict.fromkeys(text for values in variables.values() for value in values for text in _texts(value))
        rewriting = _NamedStates(frozenset(variables), {text: place for place, text in enumerate(texts)})
        rewriting.generic_visit(function)


def _variables(function: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    """Returns the values of each variable that strings, and other such variables, alone are assigned to."""
    values: dict[str, list[ast.expr]] = {}
    assignments: Counter[str] = Counter()
    compared: set[str] = set()
    for node in nodes_of(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            values.setdefault(node.targets[0].id, []).append(node.value)
            assignments[node.targets[0].id] += 1
        elif isinstance(node, ast.Compare):
            compared.update(one.id for one in (node.left, *node.comparators) if isinstance(one, ast.Name))
    uses, arguments = uses_of(function), arguments_of(function)
    known = {
        name: found for name, found in values.items()
        if uses.stores[name] == assignments[name] and name in compared and name not in (*uses.elsewhere, *arguments)
    }  # fmt: skip
    while unfit := {name for name, found in known.items() if not all(_is_state(one, known) for one in found)}:
        known = {name: found for name, found in known.items() if name not in unfit}
    return known


def _is_state(value: ast.expr, variables: Mapping[str, object]) -> bool:
    """Whether a value is a string, or that of another such variable."""
    if isinstance(value, ast.IfExp):
        return _is_state(value.body, variables) and _is_state(value.orelse, variables)
    return _is_text(value) or (isinstance(value, ast.Name) and value.id in variables)


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _texts(value: ast.expr) -> list[str]:
    return [node.value for node in ast.walk(value) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


class _NamedStates(OwnCode):
    """The assignments and reads of such variables. positions: of all strings."""

    def __init__(self, variables: frozenset[str], positions: Mapping[str, int]) -> None:
        self._variables, self._positions = variables, positions

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._variables or not isinstance(node.ctx, ast.Load):
            return node
        return at(call_of_twin("named", node, *map(ast.Constant, self._positions)), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target = node.targets[0]
        if isinstance(target, ast.Name) and target.id in self._variables:
            node.value = self._position(node.value)
            return node
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        operands = [node.left, *node.comparators]
        is_read = any(isinstance(one, ast.Name) and one.id in self._variables for one in operands)
        if not is_read or len(operands) != 2:
            return self.generic_visit(node)
        right = node.comparators[0]
        if isinstance(node.ops[0], (ast.Eq, ast.NotEq)) and self._are_states(operands):
            positions = [self._position(one) for one in operands]
        elif isinstance(node.ops[0], (ast.In, ast.NotIn)) and isinstance(right, (ast.Tuple, ast.List, ast.Set)):
            if not all(map(_is_text, right.elts)):
                return self.generic_visit(node)
            entries = ast.Tuple([self._position(one) for one in right.elts], ast.Load())
            positions = [self._position(node.left), at(entries, right)]
        else:
            return self.generic_visit(node)
        return at(ast.Compare(positions[0], node.ops, positions[1:]), node)

    def _are_states(self, values: Sequence[ast.expr]) -> bool:
        return all(_is_text(one) or (isinstance(one, ast.Name) and one.id in self._variables) for one in values)

    def _position(self, value: ast.expr) -> ast.expr:
        if isinstance(value, ast.IfExp):
            test = self.visit(value.test)
            assert isinstance(test, ast.expr)
            parts = self._position(value.body), self._position(value.orelse)
            return ast.copy_location(ast.IfExp(test, *parts), value)
        if isinstance(value, ast.Name):
            return value
        assert isinstance(value, ast.Constant)
        return ast.copy_location(ast.Constant(self._positions.get(str(value.value), _OTHER)), value)
