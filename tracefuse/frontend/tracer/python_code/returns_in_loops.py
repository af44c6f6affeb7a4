"""Loops that return, in rewritten code: they break, and return after the loop.

    for v in x:                        returned = False
        if v > t:                      for v in x:
            return v * 2                   if v > t:
                                               result = v * 2; returned = True; break
                                       if returned: return result

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from tracefuse.frontend.tracer.python_code.statement_flow import SCOPES, Block, contains


def with_returns_after_loops(body: Block, new_name: Callable[[str], str]) -> Block:
    """Returns a block whose loops return after they have ended. new_name: returns the name of a new variable."""
    result: Block = []
    for one in body:
        if isinstance(one, ast.If):
            one.body = with_returns_after_loops(one.body, new_name)
            one.orelse = with_returns_after_loops(one.orelse, new_name)
        if isinstance(one, (ast.For, ast.While)):
            one.body = with_returns_after_loops(one.body, new_name)
            result += _without_returns(one, new_name)
        else:
            result.append(one)
    return result


def _without_returns(loop: ast.For | ast.While, new_name: Callable[[str], str]) -> Block:
    returns = list(_returns_in_branches(loop.body))
    if not returns or len(returns) < sum(1 for one in loop.body for _ in _returns(one)):
        return [loop]
    values = [ast.Constant(None) if one.value is None else one.value for one in returns]
    lengths = {len(value.elts) if isinstance(value, ast.Tuple) else None for value in values}
    if len(lengths) > 1 or any(contains(value, ast.Starred) for value in values):
        return [loop]
    length = lengths.pop()
    is_constant = isinstance(values[0], ast.Constant) and len({ast.dump(value) for value in values}) == 1
    names = [] if is_constant else [new_name("result") for _ in range(1 if length is None else length)]
    flag = new_name("returned")
    loop.body = _with_breaks(loop.body, names, length, flag)
    given: ast.expr = values[0] if is_constant else ast.Name((names or [""])[0], ast.Load())
    if length is not None:
        given = ast.Tuple([ast.Name(name, ast.Load()) for name in names], ast.Load())
    after = ast.If(ast.Name(flag, ast.Load()), [ast.Return(given)], [])
    return [_at(_assign(flag, False), loop), loop, _at(after, loop)]


def _with_breaks(block: Block, names: list[str], length: int | None, flag: str) -> Block:
    """Returns a block of a loop with a `break` in the place of each `return`."""
    result: Block = []
    for one in block:
        if isinstance(one, ast.If):
            one.body = _with_breaks(one.body, names, length, flag)
            one.orelse = _with_breaks(one.orelse, names, length, flag)
        if not isinstance(one, ast.Return):
            result.append(one)
            continue
        if names:
            target: ast.expr = ast.Name(names[0], ast.Store())
            if length is not None:
                target = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
            result.append(_at(ast.Assign([target], one.value or ast.Constant(None)), one))
        result += [_at(_assign(flag, True), one), ast.copy_location(ast.Break(), one)]
    return result


def _returns_in_branches(block: Block) -> Iterator[ast.Return]:
    """Yields the `return` statements that only `if` statements are around."""
    for one in block:
        if isinstance(one, ast.Return):
            yield one
        elif isinstance(one, ast.If):
            yield from _returns_in_branches(one.body)
            yield from _returns_in_branches(one.orelse)


def _returns(node: ast.AST) -> Iterator[ast.Return]:
    """Yields every `return` statement, without those of functions in a statement."""
    if isinstance(node, ast.Return):
        yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, SCOPES):
            yield from _returns(child)


def _assign(name: str, value: bool) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value))


def _at(statement: ast.stmt, place: ast.stmt) -> ast.stmt:
    """Gives a new statement the line of another."""
    for one in ast.walk(statement):
        if isinstance(one, (ast.stmt, ast.expr)) and not hasattr(one, "lineno"):
            ast.copy_location(one, place)
    return statement
