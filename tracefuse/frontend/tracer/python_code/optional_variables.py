"""Variables that hold `None` or a number: `best = None`, `if best is None or v > best: best = v`.

A loop carries such a variable as a number and a truth value, whether it is `None`. So rewritten code has a variable
for the truth value, binds it with each assignment, and reads it in each test:

    best = None                   best = None; none = True
    best = v                      best = v; none = TWIN.is_none(best)
    best is None                  none
    best + 1                      TWIN.given(best, none) + 1

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator

from tracefuse.frontend.tracer.python_code.generated_syntax import assign, at, call_of_twin, load, none_flag
from tracefuse.frontend.tracer.python_code.statement_flow import Block, OwnCode
from tracefuse.frontend.tracer.python_code.variable_uses import (
    arguments_of,
    flag_or_not,
    is_none,
    nodes_of,
    tested_for_none,
    uses_of,
)


def with_optional_variables(function: ast.FunctionDef, new_name: Callable[[str], str]) -> None:
    """Gives each such variable of a function its truth value. new_name: returns the name of a new variable."""
    names = _optional_variables(function)
    if not names:
        return
    first = function.body[0]
    _Optional(names, new_name).generic_visit(function)
    arguments = [name for name in arguments_of(function) if name in names]
    function.body = [*(at(_flag_of(name), first) for name in arguments), *function.body]


def _optional_variables(function: ast.FunctionDef) -> frozenset[str]:
    """Returns the variables that are bound to `None` and to something else, by assignments alone."""
    are_none: set[str] = set()
    others: set[str] = set()
    assignments: Counter[str] = Counter()
    for node in nodes_of(function):
        for target, value in _assignments(node):
            assignments[target] += 1
            are_none.update((target,) if _may_be_none(value) else ())
            others.update((target,) if not is_none(value) else ())
    uses = uses_of(function)
    return frozenset(
        name for name in are_none & others if uses.stores[name] == assignments[name] and name not in uses.elsewhere
    )


def _may_be_none(value: ast.expr | None) -> bool:
    if isinstance(value, ast.IfExp):
        return _may_be_none(value.body) or _may_be_none(value.orelse)
    return is_none(value)


def _is_not_none(value: ast.expr) -> ast.expr:
    return at(ast.Compare(value, [ast.IsNot()], [ast.Constant(None)]), value)


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yields the variables that a statement assigns, with their values where the statement shows them."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _assigned(target, node.value)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and isinstance(node.target, ast.Name) and node.value:
        yield node.target.id, node.value


def _assigned(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple):
        values = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
        for place, one in enumerate(target.elts):
            yield from _assigned(one, None if values is None else values[place])


def _flag_of(name: str) -> ast.stmt:
    """Returns the statement that finds out whether a variable is `None`."""
    return assign(none_flag(name), call_of_twin("is_none", load(name)))


class _Optional(OwnCode):
    """The reads and assignments of some variables. names: of the variables."""

    def __init__(self, names: frozenset[str], new_name: Callable[[str], str]) -> None:
        self._names, self._new_name = names, new_name

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        name = tested_for_none(node)
        if name not in self._names:
            return self.generic_visit(node)
        return flag_or_not(load(none_flag(name or "")), node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._names or not isinstance(node.ctx, ast.Load):
            return node
        return at(call_of_twin("given", load(node.id), load(none_flag(node.id))), node)

    def visit_If(self, node: ast.If) -> ast.AST:
        node.test = self._condition(node.test)
        return self.generic_visit(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        node.test = self._condition(node.test)
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        node.test = self._condition(node.test)
        return self.generic_visit(node)

    def _condition(self, test: ast.expr) -> ast.expr:
        """Returns a condition in which such variables are true if they are not `None`, and their values are true."""
        if isinstance(test, ast.BoolOp):
            test.values = [self._condition(value) for value in test.values]
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test.operand = self._condition(test.operand)
        elif self._is_variable(test):
            return at(ast.BoolOp(ast.And(), [_is_not_none(test), test]), test)
        return test

    # -- assignments --------------------------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> ast.AST | Block:
        names = [name for target in node.targets for name, _ in _assigned(target, None) if name in self._names]
        if not names:
            return self.generic_visit(node)
        target = node.targets[0]
        if len(node.targets) == 1 and isinstance(target, ast.Name):
            return self._bound(target.id, node.value, node)
        if len(node.targets) == 1 and isinstance(target, ast.Tuple) and self._is_apart(target, node.value):
            return self._each_bound(target, node.value, node)
        self.generic_visit(node)
        return [node, *(at(_flag_of(name), node) for name in names)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | Block:
        if isinstance(node.target, ast.Name) and node.target.id in self._names and node.value is not None:
            return self._bound(node.target.id, node.value, node)
        return self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | Block:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name) or node.target.id not in self._names:
            return node
        name = node.target.id
        given = assign(name, call_of_twin("given", load(name), load(none_flag(name))))
        return [at(given, node), node, at(_flag_of(name), node)]

    def _is_apart(self, target: ast.Tuple, value: ast.expr) -> bool:
        """Whether a tuple of values may be assigned one by one, some of which are `None` or such variables."""
        if not isinstance(value, ast.Tuple) or len(value.elts) != len(target.elts):
            return False
        are_names = all(isinstance(one, ast.Name) for one in target.elts)
        return are_names and any(_may_be_none(one) or self._is_variable(one) for one in value.elts)

    def _is_variable(self, value: ast.expr) -> bool:
        return isinstance(value, ast.Name) and value.id in self._names

    def _each_bound(self, target: ast.Tuple, value: ast.expr, place: ast.stmt) -> Block:
        """Returns the assignments of a tuple, whose values are evaluated before the first of them."""
        assert isinstance(value, ast.Tuple)
        before: Block = []
        after: Block = []
        for one, given in zip(target.elts, value.elts, strict=True):
            assert isinstance(one, ast.Name)
            is_optional = one.id in self._names
            if is_none(given):
                none = at(assign(one.id, ast.Constant(None)), place)
                after += self._bound(one.id, given, place) if is_optional else [none]
                continue
            name = self._new_name("value")
            if is_optional:
                flag = none_flag(name)
                before += self._bound(name, given, place)
                after += [at(assign(one.id, load(name)), place), at(assign(none_flag(one.id), load(flag)), place)]
            else:
                before += [at(assign(name, self._read(given)), place)]
                after += [at(assign(one.id, load(name)), place)]
        return before + after

    def _read(self, value: ast.expr) -> ast.expr:
        result = self.visit(value)
        assert isinstance(result, ast.expr)
        return result

    def _bound(self, name: str, value: ast.expr, place: ast.AST) -> Block:
        """Returns the statements that bind a variable, and its truth value, to a value as the user wrote it."""
        if isinstance(value, ast.IfExp) and _may_be_none(value):
            body, orelse = self._bound(name, value.body, place), self._bound(name, value.orelse, place)
            return [at(ast.If(self._read(value.test), body, orelse), place)]
        if is_none(value):
            statements = [assign(name, ast.Constant(None)), assign(none_flag(name), True)]
        elif isinstance(value, ast.Name) and value.id in self._names:
            statements = [assign(name, load(value.id)), assign(none_flag(name), load(none_flag(value.id)))]
        else:
            statements = [assign(name, self._read(value)), _flag_of(name)]
        return [at(one, place) for one in statements]
