"""`match` statements whose patterns compare with values become `if` statements, which loops can record.

    match v:                       subject = v
        case 0 | 1: A              if subject == 0 or subject == 1: A
        case n if n > 5: B         else:
        case _: C                      n = subject
                                       if n > 5: B
                                       else: C

Statements with patterns of other kinds (sequences, mappings, classes) stay as they are.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from tracefuse.frontend.tracer.python_code.generated_syntax import assign, at, load
from tracefuse.frontend.tracer.python_code.statement_flow import Block, OwnCode


class MatchedCases(OwnCode):
    """Replaces the `match` statements of one function. new_name: returns the name of a new variable."""

    def __init__(self, new_name: Callable[[str], str]) -> None:
        self._new_name = new_name

    def visit_Match(self, node: ast.Match) -> ast.AST | Block:
        self.generic_visit(node)
        if not all(map(_can_be_condition, node.cases)):
            return node
        if isinstance(node.subject, ast.Name) and not any(_binds(case, node.subject.id) for case in node.cases):
            return _choices(node.cases, node.subject.id)
        subject = self._new_name("subject")
        return [at(assign(subject, node.subject), node), *_choices(node.cases, subject)]


def _can_be_condition(case: ast.match_case) -> bool:
    """Whether `if` can express a case. (A variable that a pattern binds has no value before its guard.)"""
    is_bound_first = _name(case.pattern) is not None and _condition(case.pattern, "") is not None
    return _compares_with_values(case.pattern) and not (is_bound_first and case.guard is not None)


def _binds(case: ast.match_case, name: str) -> bool:
    """Whether the pattern or the guard of a case may bind a variable."""
    guard = [] if case.guard is None else [*ast.walk(case.guard)]
    return _name(case.pattern) == name or any(isinstance(node, (ast.NamedExpr, ast.Call)) for node in guard)


def _compares_with_values(pattern: ast.pattern) -> bool:
    if isinstance(pattern, ast.MatchOr):
        return all(_compares_with_values(one) and not isinstance(one, ast.MatchAs) for one in pattern.patterns)
    if isinstance(pattern, ast.MatchAs):
        return pattern.pattern is None or _compares_with_values(pattern.pattern)
    return isinstance(pattern, (ast.MatchValue, ast.MatchSingleton))


def _choices(cases: Sequence[ast.match_case], subject: str) -> Block:
    """Returns the statements for some cases, of which the first that fits runs."""
    if not cases:
        return []
    first, rest = cases[0], _choices(cases[1:], subject)
    condition, name, guard = _condition(first.pattern, subject), _name(first.pattern), first.guard
    bound: Block = [] if name is None else [at(assign(name, load(subject)), first.pattern)]
    if condition is None:
        return [*bound, *(first.body if guard is None else [at(ast.If(guard, first.body, rest), first.pattern)])]
    test = condition if guard is None else at(ast.BoolOp(ast.And(), [condition, guard]), first.pattern)
    return [at(ast.If(test, [*bound, *first.body], rest), first.pattern)]


def _name(pattern: ast.pattern) -> str | None:
    """Returns the variable that a pattern binds."""
    return pattern.name if isinstance(pattern, ast.MatchAs) else None


def _condition(pattern: ast.pattern, subject: str) -> ast.expr | None:
    """Returns the condition under which a pattern fits; None if every value does."""
    match pattern:
        case ast.MatchValue():
            return at(ast.Compare(load(subject), [ast.Eq()], [pattern.value]), pattern)
        case ast.MatchSingleton():
            return at(ast.Compare(load(subject), [ast.Is()], [ast.Constant(pattern.value)]), pattern)
        case ast.MatchOr():
            values = [value for one in pattern.patterns if (value := _condition(one, subject)) is not None]
            return at(ast.BoolOp(ast.Or(), values), pattern)
        case ast.MatchAs(pattern=ast.pattern()):
            assert pattern.pattern is not None
            return _condition(pattern.pattern, subject)
    return None
