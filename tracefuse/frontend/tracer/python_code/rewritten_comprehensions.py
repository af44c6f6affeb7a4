"""Comprehensions, and calls of `sum`, `any`, `all`, `max` and `min` of generator expressions, as loops that append.

    y = np.array([f(v) for v in x if v > t])        rows = TWIN.rows()
                                                    for v in x:
                                                        if v > t:
                                                            rows.append(f(v))
                                                    y = TWIN.called(np.array, rows)

So they are recorded like the loops of `rewritten_loops.py`. The list of a comprehension holds its entries, or arrays of
rows that recorded loops have filled, until it is read: by `TWIN.called` as an argument, else by `TWIN.entries`.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping

from tracefuse.frontend.tracer.python_code.generated_syntax import assign, at, call_of_twin, load
from tracefuse.frontend.tracer.python_code.statement_flow import Block, contains

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_UNLIKE_STATEMENTS = (ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
"""What depends on the scope of a comprehension."""

_OF_GENERATORS = ("sum", "any", "all", "max", "min", "list", "tuple")
"""Functions of Python that read a generator expression at once."""


def is_comprehension_of_loops(node: ast.AST) -> bool:
    """Whether an expression may become loops: a list, or a call that reads a generator expression at once."""
    if isinstance(node, ast.Call):
        return hasattr(node, "over_entries") or is_call_of_generator(node)
    return isinstance(node, ast.ListComp) and _has_own_scope_alone(node)


def _has_own_scope_alone(node: ast.ListComp | ast.GeneratorExp) -> bool:
    targets = all(_is_plain_target(one.target) and not one.is_async for one in node.generators)
    return targets and not contains(node, *_UNLIKE_STATEMENTS)


def is_call_of_generator(node: ast.Call) -> bool:
    """Whether a call reads a generator expression, or the list of a comprehension, at once."""
    is_plain = isinstance(node.func, ast.Name) and node.func.id in _OF_GENERATORS and not node.keywords
    if not is_plain or not node.args or not isinstance(node.args[0], (ast.GeneratorExp, ast.ListComp)):
        return False
    assert isinstance(node.func, ast.Name)
    generator, name = node.args[0], node.func.id
    if isinstance(generator, ast.ListComp) and name != "sum":
        return False  # an argument like others, which is made before the call
    if len(node.args) > (2 if name == "sum" else 1) or any(contains(one, ast.Call) for one in node.args[1:]):
        return False
    return _has_own_scope_alone(generator) and (name not in ("any", "all") or len(generator.generators) == 1)


def method_of_list(node: ast.Attribute) -> ast.Attribute:
    """Marks an expression as a method of a list that only the function knows."""
    node.is_method_of_list = True  # type: ignore[attr-defined]
    return node


def is_method_of_list(node: ast.expr) -> bool:
    """Whether an expression is a method of a list that only the function knows, or one of the twin."""
    is_of_twin = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Constant)
    return is_of_twin or getattr(node, "is_method_of_list", False)


def _is_plain_target(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple):
        return all(map(_is_plain_target, target.elts))
    return isinstance(target, ast.Name)


class RenamedVariables(ast.NodeTransformer):
    """Gives the variables of a comprehension names that the function does not have."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(self.names.get(node.id, node.id), node.ctx), node)

    def _visit_inner(self, node: ast.AST) -> ast.AST:
        generators: list[ast.comprehension] = node.generators  # type: ignore[attr-defined]
        generators[0].iter = self.visit(generators[0].iter)
        inner = {name.id for one in generators for name in ast.walk(one.target) if isinstance(name, ast.Name)}
        rest = RenamedVariables({name: new for name, new in self.names.items() if name not in inner})
        for place, one in enumerate(generators):
            if place:
                one.iter = rest.visit(one.iter)
            one.ifs = [rest.visit(condition) for condition in one.ifs]
        for field in ("elt", "key", "value"):
            if hasattr(node, field):
                setattr(node, field, rest.visit(getattr(node, field)))
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_inner


class ComprehensionLoops:
    """The loops in the place of comprehensions. new_name: returns the name of a new variable.

    rewritten: returns a statement with what loops that can be recorded take.
    """

    def __init__(self, new_name: Callable[[str], str], rewritten: Callable[[ast.stmt], Block]) -> None:
        self._new_name, self._rewritten = new_name, rewritten

    def replacement(self, node: ast.expr) -> tuple[Block, ast.expr]:
        """Returns the statements before an expression that `is_comprehension_of_loops`, and what stands for it."""
        if isinstance(node, ast.ListComp):
            return self._rows(node, node)
        plain = copy.deepcopy(node)
        node = getattr(node, "over_entries", node)
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        assert isinstance(node.args[0], (ast.GeneratorExp, ast.ListComp))
        name, generator = node.func.id, node.args[0]
        if name in ("list", "tuple"):
            block, rows = self._rows(generator, node)
            if getattr(node, "is_returned", False):
                return block, at(call_of_twin("returned", rows, node.func), node)
            return block, at(call_of_twin("called", node.func, rows), node)
        result = self._new_name("result")
        if name == "sum":
            start = node.args[1] if len(node.args) > 1 else ast.Constant(0)
            block = self._total(generator, result, start)
        elif name in ("max", "min"):
            block = self._extreme(generator, result, ast.Gt() if name == "max" else ast.Lt(), node)
        else:
            block = self._exists(generator, result, name == "any")
        test = call_of_twin("is_builtin", ast.Constant(name), node.func)
        return [at(ast.If(test, block, [assign(result, plain)]), node)], at(load(result), node)

    def _rows(self, node: ast.ListComp | ast.GeneratorExp, place: ast.AST) -> tuple[Block, ast.expr]:
        name = self._new_name("rows")

        def append(entry: ast.expr) -> Block:
            return [ast.Expr(ast.Call(method_of_list(ast.Attribute(load(name), "append", ast.Load())), [entry], []))]

        loops = self._loops(node, append)
        return [at(assign(name, call_of_twin("rows")), place), *loops], at(load(name), place)

    def _total(self, node: ast.ListComp | ast.GeneratorExp, result: str, start: ast.expr) -> Block:
        def add(entry: ast.expr) -> Block:
            return [assign(result, ast.BinOp(load(result), ast.Add(), entry))]

        return [at(assign(result, start), node), *self._loops(node, add)]

    def _exists(self, node: ast.ListComp | ast.GeneratorExp, result: str, is_any: bool) -> Block:
        def leave(entry: ast.expr) -> Block:
            test = entry if is_any else ast.UnaryOp(ast.Not(), entry)
            return [ast.If(test, [assign(result, is_any), ast.Break()], [])]

        return [at(assign(result, not is_any), node), *self._loops(node, leave)]

    def _extreme(
        self, node: ast.ListComp | ast.GeneratorExp, result: str, relation: ast.cmpop, call: ast.Call
    ) -> Block:  # fmt: skip
        block, rows = self._rows(node, node)
        entry = self._new_name("entry")
        choice = ast.If(ast.Compare(load(entry), [relation], [load(result)]), [assign(result, load(entry))], [])
        others = call_of_twin("after_first", copy.deepcopy(rows))
        loop = at(ast.For(ast.Name(entry, ast.Store()), others, [choice], []), node)
        first = at(assign(result, call_of_twin("first", call.func, rows)), node)
        return [*block, first, *self._rewritten(loop)]

    def _loops(self, node: ast.ListComp | ast.GeneratorExp, innermost: Callable[[ast.expr], Block]) -> Block:
        node = copy.deepcopy(node)
        targets = {name.id for one in node.generators for name in ast.walk(one.target) if isinstance(name, ast.Name)}
        renaming = RenamedVariables({name: self._new_name(name) for name in sorted(targets)})
        first = node.generators[0].iter
        statement: ast.stmt | None = None
        body = innermost(renaming.visit(node.elt))
        for place, one in reversed([*enumerate(node.generators)]):
            for condition in reversed(one.ifs):
                body = [ast.If(renaming.visit(condition), body, [])]
            iterated = first if place == 0 else renaming.visit(one.iter)
            statement = ast.For(renaming.visit(one.target), iterated, body, [])
            body = [statement]
        assert statement is not None
        return self._rewritten(at(statement, node))
