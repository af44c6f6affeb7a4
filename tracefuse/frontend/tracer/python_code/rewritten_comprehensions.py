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
from tracefuse.frontend.tracer.python_code.statement_flow import SCOPES, Block, contains

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_UNLIKE_STATEMENTS = (ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
"""What depends on the scope of a comprehension."""

_OF_GENERATORS = ("sum", "any", "all", "max", "min", "list", "tuple")
"""Functions of Python that read a generator expression at once."""


def is_comprehension_of_loops(node: ast.AST) -> bool:
    """Whether an expression may become loops: a list, or a call that reads a generator expression at once."""
    if isinstance(node, ast.Call):
        return _is_call_of_generator(node)
    return isinstance(node, ast.ListComp) and _has_own_scope_alone(node)


def _has_own_scope_alone(node: ast.ListComp | ast.GeneratorExp) -> bool:
    targets = all(_is_plain_target(one.target) and not one.is_async for one in node.generators)
    return targets and not contains(node, *_UNLIKE_STATEMENTS)


def _is_call_of_generator(node: ast.Call) -> bool:
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


def _method_of_list(node: ast.Attribute) -> ast.Attribute:
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
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        assert isinstance(node.args[0], (ast.GeneratorExp, ast.ListComp))
        name, generator = node.func.id, node.args[0]
        if name in ("list", "tuple"):
            block, rows = self._rows(generator, node)
            return block, at(call_of_twin("called", node.func, rows), node)
        result, plain = self._new_name("result"), copy.deepcopy(node)
        if name == "sum":
            start = node.args[1] if len(node.args) > 1 else ast.Constant(0)
            block = self._total(generator, result, start)
        elif name in ("max", "min"):
            block, plain = self._extreme(generator, result, ast.Gt() if name == "max" else ast.Lt(), node)
        else:
            block = self._exists(generator, result, name == "any")
        test = call_of_twin("is_builtin", ast.Constant(name), node.func)
        return [at(ast.If(test, block, [assign(result, plain)]), node)], at(load(result), node)

    def _rows(self, node: ast.ListComp | ast.GeneratorExp, place: ast.AST) -> tuple[Block, ast.expr]:
        name = self._new_name("rows")

        def append(entry: ast.expr) -> Block:
            return [ast.Expr(ast.Call(_method_of_list(ast.Attribute(load(name), "append", ast.Load())), [entry], []))]

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
    ) -> tuple[Block, ast.Call]:  # fmt: skip
        block, rows = self._rows(node, node)
        entry = self._new_name("entry")
        choice = ast.If(ast.Compare(load(entry), [relation], [load(result)]), [assign(result, load(entry))], [])
        others = call_of_twin("after_first", copy.deepcopy(rows))
        loop = at(ast.For(ast.Name(entry, ast.Store()), others, [choice], []), node)
        first = at(assign(result, call_of_twin("first", call.func, rows)), node)
        return [*block, first, *self._rewritten(loop)], copy.deepcopy(call)

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


# -- lists of the function --------------------------------------------------------------------------------------------


class ListReads(ast.NodeTransformer):
    """Marks where a function reads lists that its loops may fill: the local variables that hold new lists alone."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def _keep(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _keep

    def visit_Name(self, node: ast.Name) -> ast.expr:
        is_read = node.id in self.names and isinstance(node.ctx, ast.Load)
        return at(call_of_twin("entries", node), node) if is_read else node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        lists = [value for name, value in new_lists(node) if name.id in self.names]
        if isinstance(node.value, ast.Tuple) and lists:
            node.value.elts = [self._filled(one) if one in lists else self.visit(one) for one in node.value.elts]
        elif lists:
            node.value = self._filled(node.value)
        else:
            node.value = self.visit(node.value)
        node.targets = [self.visit(target) for target in node.targets]
        return node

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        result = self._inside(node)
        return at(call_of_twin("entries", result), node) if is_comprehension_of_loops(node) else result

    def _inside(self, node: ast.ListComp | ast.GeneratorExp) -> ast.ListComp:
        inner = node.elt
        node.elt = ast.Constant(None)
        node = self.generic_visit(node)  # type: ignore[assignment]
        is_list = isinstance(inner, ast.ListComp) and is_comprehension_of_loops(inner)
        node.elt = self._inside(inner) if is_list else self.visit(inner)  # type: ignore[arg-type]
        return node  # type: ignore[return-value]

    def visit_Call(self, node: ast.Call) -> ast.expr:
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "append" and self._is_list(function.value):
            _method_of_list(function)
            node.args = [self._entry(one) for one in node.args]
            return node
        if _is_call_of_generator(node):
            node.args = [self._inside(node.args[0]), *map(self.visit, node.args[1:])]  # type: ignore[arg-type]
            return node
        is_argument = [self._is_list(one) or is_list_of_loops(one) for one in node.args]
        if not any(is_argument):
            return self.generic_visit(node)  # type: ignore[return-value]
        node.args = [
            (self._entry(one) if is_list else self.visit(one))
            for one, is_list in zip(node.args, is_argument, strict=True)
        ]
        node.keywords = [self.visit(one) for one in node.keywords]
        called = call_of_twin("called", self.visit(function), *node.args)
        assert isinstance(called, ast.Call)
        called.keywords = node.keywords
        return at(called, node)

    def _is_list(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self.names

    def _entry(self, node: ast.expr) -> ast.expr:
        if self._is_list(node):
            return node
        return self._inside(node) if is_list_of_loops(node) else self.visit(node)  # type: ignore[arg-type]

    def _filled(self, node: ast.expr) -> ast.expr:
        """Returns the new list that a variable is bound to."""
        if isinstance(node, ast.ListComp):
            return self._inside(node) if is_comprehension_of_loops(node) else self.visit(node)
        assert isinstance(node, ast.List)
        return at(call_of_twin("rows", *map(self.visit, node.elts)), node)


def is_list_of_loops(node: ast.expr) -> bool:
    return isinstance(node, ast.ListComp) and is_comprehension_of_loops(node)


_SHOWING_VARIABLES = ("locals", "vars", "eval", "exec", "dir")


def lists_of(function: ast.FunctionDef) -> frozenset[str]:
    """Returns the local variables of a function that each of its assignments binds to a new list."""
    arguments = function.args
    other = {one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    other |= {one.arg for one in (arguments.vararg, arguments.kwarg) if one is not None}
    found = set[str]()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in _SHOWING_VARIABLES:
            return frozenset()
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            other |= set(node.names)
        found |= {name.id for name, _ in new_lists(node)}
    return frozenset(found - other - _bound_otherwise(function))


def new_lists(statement: ast.AST) -> list[tuple[ast.Name, ast.expr]]:
    """Returns the names to which an assignment binds new lists, with the expressions of these."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return []
    target, value = statement.targets[0], statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = [*zip(target.elts, value.elts, strict=True)]
    return [(name, entry) for name, entry in pairs if isinstance(name, ast.Name) and _is_new_list(entry)]


def _is_new_list(node: ast.expr) -> bool:
    if isinstance(node, ast.List):
        return not any(isinstance(one, ast.Starred) for one in node.elts)
    return isinstance(node, ast.ListComp)


def _bound_otherwise(function: ast.FunctionDef) -> set[str]:
    """Returns the names that a function binds to other objects than new lists, or that functions in it bind."""
    plain = {id(name) for node in ast.walk(function) for name, _ in new_lists(node)}
    result = {
        node.id for node in ast.walk(function)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in plain
    }  # fmt: skip
    for inner in ast.walk(function):
        if isinstance(inner, SCOPES) and inner is not function:
            result |= {node.id for node in ast.walk(inner) if isinstance(node, ast.Name)}
            result.add(getattr(inner, "name", ""))
        if isinstance(inner, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and inner.name is not None:
            result.add(inner.name)
        if isinstance(inner, ast.alias):
            result.add((inner.asname or inner.name).split(".")[0])
    return result
