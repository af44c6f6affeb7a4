"""Where the variables of a function are bound and read, as its source shows.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from segments.lazy_dataclasses import dataclass
from tracefuse.frontend.tracer.python_code.generated_syntax import at
from tracefuse.frontend.tracer.python_code.statement_flow import SCOPES

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class VariableUses:
    """The uses of variables. stores: how often the code of a function binds each.

    elsewhere: those that functions and comprehensions inside use, that `global`, `nonlocal` or `del` name, or that
    other statements than assignments bind, as `for`, `with`, `except` and `import` do.
    """

    stores: Counter[str]
    elsewhere: frozenset[str]


def nodes_of(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yields the statements and expressions of a function, without those of functions and comprehensions inside."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*SCOPES, *_COMPREHENSIONS)):
            waiting += ast.iter_child_nodes(node)


def uses_of(function: ast.FunctionDef) -> VariableUses:
    """Returns the uses of the variables of a function."""
    stores: Counter[str] = Counter()
    elsewhere: set[str] = set()
    for node in nodes_of(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stores[node.id] += 1
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
            elsewhere.add(node.id)
        elif isinstance(node, (*SCOPES, *_COMPREHENSIONS)):
            elsewhere |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            elsewhere |= {getattr(node, "name", "")}
        else:
            elsewhere |= _bound_otherwise(node)
    return VariableUses(stores, frozenset(elsewhere))


def _bound_otherwise(node: ast.AST) -> set[str]:
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return set(node.names)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(one.asname or one.name).split(".")[0] for one in node.names}
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return {node.name or ""}
    return {node.rest or ""} if isinstance(node, ast.MatchMapping) else set()


def arguments_of(function: ast.FunctionDef) -> list[str]:
    """Returns the names of the arguments of a function."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
    return [one.arg for one in every]


def is_none(value: ast.expr | None) -> bool:
    """Whether a value is the constant `None`."""
    return isinstance(value, ast.Constant) and value.value is None


def tested_for_none(node: ast.AST) -> str | None:
    """Returns the variable of a test `variable is None` or `variable is not None`."""
    is_test = isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.Is, ast.IsNot))
    if not is_test or not isinstance(node, ast.Compare) or not is_none(node.comparators[0]):
        return None
    return node.left.id if isinstance(node.left, ast.Name) else None


def flag_or_not(flag: ast.expr, test: ast.Compare) -> ast.expr:
    """Returns what stands for such a test. flag: whether the variable is `None`."""
    return at(flag if isinstance(test.ops[0], ast.Is) else ast.UnaryOp(ast.Not(), flag), test)
