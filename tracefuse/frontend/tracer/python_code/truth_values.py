"""Expressions that Python evaluates by asking for the truth of their parts, outside of conditions.

`a or b`, `a and b`, `not a`, `a < b < c` and `a in b` become branches that choose a value:

    y = a or b      side = a
                    if side: value = side
                    else: value = b
                    y = value

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tracefuse.frontend.tracer.python_code.generated_syntax import assign, at, call_of_twin, load
from tracefuse.frontend.tracer.python_code.statement_flow import Block

RELATIONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip

Steps: TypeAlias = Sequence[tuple[Block, ast.expr]]
"""The parts of `and` or `or`, each with the statements before it."""


def is_chosen_by_truth(value: ast.expr) -> bool:
    """Whether Python asks for the truth of parts of an expression, or of a comparison in it."""
    if isinstance(value, ast.Compare):
        return is_chain(value) or is_membership(value)
    return isinstance(value, ast.BoolOp) or (isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not))


def is_chain(test: ast.Compare) -> bool:
    """Whether a comparison is a chain such as `a < b < c`."""
    return len(test.ops) > 1 and all(type(operator) in RELATIONS for operator in test.ops)


def is_membership(test: ast.Compare) -> bool:
    """Whether a comparison is `a in b` or `a not in b`."""
    return len(test.ops) == 1 and isinstance(test.ops[0], (ast.In, ast.NotIn))


def membership(test: ast.Compare) -> ast.expr:
    """Returns the condition `a in b` or `a not in b` as calls of the twin."""
    result = call_of_twin("contained", test.left, test.comparators[0])
    return at(result if isinstance(test.ops[0], ast.In) else call_of_twin("negated", result), test)


def pairs_of_chain(test: ast.Compare, new_name: Callable[[str], str]) -> Steps:
    """Returns the comparisons of a chain, each with the statements before it."""
    sides = [test.left, *test.comparators]
    result: list[tuple[Block, ast.expr]] = []
    left = sides[0]
    for place, op in enumerate(test.ops):
        before: Block = []
        right = sides[place + 1]
        if place + 1 < len(test.ops) and not isinstance(right, ast.Constant):
            names = [new_name("side") for _ in range(2)]
            before = [at(assign(name, side), test) for name, side in zip(names, (left, right), strict=True)]
            left, right = (at(load(name), test) for name in names)
        result.append((before, ast.copy_location(ast.Compare(left, [op], [right]), test)))
        left = copy.copy(right)
    return result


def chosen_by_truth(value: ast.expr, new_name: Callable[[str], str]) -> tuple[Block, ast.expr]:
    """Returns the branches that choose the value of an expression, and what stands for it."""
    if isinstance(value, ast.BoolOp):
        steps: Steps = [([], operand) for operand in value.values]
        return _joined(value, steps, isinstance(value.op, ast.And), new_name)
    if isinstance(value, ast.Compare) and is_chain(value):
        return _joined(value, pairs_of_chain(value, new_name), True, new_name)
    name = new_name("value")
    test, truth = (value.operand, False) if isinstance(value, ast.UnaryOp) else (value, True)
    branch = ast.If(test, [assign(name, truth)], [assign(name, not truth)])
    return [at(branch, value)], at(load(name), value)


def _joined(place: ast.expr, steps: Steps, all_of: bool, new_name: Callable[[str], str]) -> tuple[Block, ast.expr]:
    """Returns `and` or `or` of values: the first that decides it, or the last."""
    name = new_name("value")
    before, last = steps[-1]
    result: Block = [*before, assign(name, last)]
    for before, value in reversed(steps[:-1]):
        side = new_name("side")
        decided: Block = [assign(name, load(side))]
        branches = (result, decided) if all_of else (decided, result)
        result = [*before, assign(side, value), ast.If(load(side), *branches)]
    return [at(statement, place) for statement in result], at(load(name), place)
