"""Where a function reads lists that its loops may fill: local variables that hold new lists alone.

    out = []                        out = TWIN.rows()
    for v in x:                     for v in x:
        out.append(f(v))                out.append(f(v))
    return out, out[0]              return TWIN.returned(out), TWIN.entry(out, 0)

The list holds its entries, or arrays of rows that recorded loops have filled. What reads it goes through the twin,
which gives rows where the number of entries does not matter.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from tracefuse.frontend.tracer.python_code.generated_syntax import at, call_of_twin, load
from tracefuse.frontend.tracer.python_code.rewritten_comprehensions import (
    is_call_of_generator,
    is_comprehension_of_loops,
    method_of_list,
)
from tracefuse.frontend.tracer.python_code.statement_flow import SCOPES

_READERS = ("sum", "any", "all", "max", "min")
"""Functions of Python that read the entries of a list one by one."""


class ListReads(ast.NodeTransformer):
    """Marks where a function reads lists that its loops may fill: the local variables that hold new lists alone."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self._is_before_finally = False
        self._grown = set[str]()  # lists that grow while something iterates over them

    def _keep(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _keep

    def visit_Name(self, node: ast.Name) -> ast.expr:
        is_read = node.id in self.names and isinstance(node.ctx, ast.Load)
        return at(call_of_twin("entries", node), node) if is_read else node

    def visit_Try(self, node: ast.Try) -> ast.AST:
        outside, self._is_before_finally = self._is_before_finally, self._is_before_finally or bool(node.finalbody)
        node = self.generic_visit(node)  # type: ignore[assignment]
        self._is_before_finally = outside
        return node

    def visit_Return(self, node: ast.Return) -> ast.Return:
        if node.value is not None:
            changes = {*map(_list_of_method, ast.walk(node.value))} & self.names
            is_last = not self._is_before_finally and not changes
            node.value = self._returned(node.value) if is_last else self.visit(node.value)
        return node

    def _returned(self, node: ast.expr) -> ast.expr:
        """Returns an expression that a function returns, after which nothing changes the lists in it."""
        if self._is_new_list(node):
            return at(call_of_twin("returned", self._entry(node)), node)
        if isinstance(node, (ast.Tuple, ast.List)):
            node.elts = [*map(self._returned, node.elts)]
        elif isinstance(node, ast.Dict):
            node.keys = [None if key is None else self.visit(key) for key in node.keys]
            pairs = zip(node.keys, node.values, strict=True)
            node.values = [self.visit(value) if key is None else self._returned(value) for key, value in pairs]
        elif not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords or not self._makes_sequence(node):
            return self.visit(node)  # type: ignore[no-any-return]
        elif self._is_new_list(node.args[0]):
            return at(call_of_twin("returned", self._entry(node.args[0]), node.func), node)
        else:
            node.is_returned = True  # type: ignore[attr-defined]
            return self.visit(node)  # type: ignore[no-any-return]
        return node

    def _makes_sequence(self, node: ast.Call) -> bool:
        return isinstance(node.func, ast.Name) and node.func.id in ("list", "tuple")

    def visit_For(self, node: ast.For) -> ast.For:
        outside = self._grown
        self._grown = outside | {*map(_list_of_method, ast.walk(ast.Module(node.body, [])))}
        node.iter = self._iterated(node.iter)
        self._grown = outside
        node.body, node.orelse = [*map(self.visit, node.body)], [*map(self.visit, node.orelse)]
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        node.iter = self._iterated(node.iter)
        node.ifs = [*map(self.visit, node.ifs)]
        return node

    def _visit_test(self, node: ast.AST) -> ast.AST:
        field = "operand" if isinstance(node, ast.UnaryOp) else "test"
        test = getattr(node, field)
        if not self._is_new_list(test) or (isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not)):
            return self.generic_visit(node)
        setattr(node, field, ast.Constant(None))
        node = self.generic_visit(node)
        setattr(node, field, at(call_of_twin("length", self._entry(test)), test))
        return node

    visit_If = visit_While = visit_IfExp = visit_UnaryOp = _visit_test

    def _iterated(self, node: ast.expr) -> ast.expr:
        """Returns what a loop iterates over."""
        if self._is_list(node) or self._is_part(node) or is_list_of_array(node):
            return at(call_of_twin("iterated", self._entry(node)), node)
        return self.visit(node)  # type: ignore[no-any-return]

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        is_read = isinstance(node.ctx, ast.Load) and not isinstance(node.slice, (ast.Slice, ast.Tuple))
        if is_read and self._is_new_list(node.value):
            return at(call_of_twin("entry", self._entry(node.value), self.visit(node.slice)), node)
        if self._is_part(node):
            return at(call_of_twin("entries", self._entry(node)), node)
        return self.generic_visit(node)  # type: ignore[return-value]

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
            method_of_list(function)
            node.args = [self._entry(one) for one in node.args]
            return node
        if is_call_of_generator(node):
            node.args = [self._inside(node.args[0]), *map(self.visit, node.args[1:])]  # type: ignore[arg-type]
            return node
        if is_list_of_array(node) or self._is_sorted(node):
            return at(call_of_twin("entries", self._entry(node)), node)
        if isinstance(function, ast.Attribute) and function.attr == "reverse" and self._is_list(function.value):
            return at(call_of_twin("reverse", function.value, *map(self.visit, node.args)), node)
        is_argument = [self._is_new_list(one) for one in node.args]
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
        if len(node.args) == 1 and not node.keywords and isinstance(function, ast.Name) and function.id in _READERS:
            called.over_entries = self._over_entries(function, node.args[0])  # type: ignore[attr-defined]
        return at(called, node)

    def _over_entries(self, function: ast.Name, entries: ast.expr) -> ast.expr:
        """Returns the call of a function with a generator of entries, which becomes a loop."""
        iterated = call_of_twin("iterated", copy.deepcopy(entries))
        generator = ast.comprehension(ast.Name("(entry)", ast.Store()), iterated, [], 0)
        return at(ast.Call(function, [ast.GeneratorExp(load("(entry)"), [generator])], []), entries)

    def _is_list(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self.names - self._grown

    def _is_part(self, node: ast.expr) -> bool:
        """Whether an expression is a slice of a list, which is a new list."""
        is_slice = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
        is_read = is_slice and isinstance(node.ctx, ast.Load)  # type: ignore[attr-defined]
        return is_read and self._is_new_list(node.value)  # type: ignore[attr-defined]

    def _is_new_list(self, node: ast.expr) -> bool:
        is_other = self._is_part(node) or self._is_sorted(node) or is_list_of_loops(node) or is_list_of_array(node)
        return is_other or self._is_list(node)

    def _is_sorted(self, node: ast.expr) -> bool:
        """Whether an expression is `sorted` of a list, in either order."""
        if not is_call_of_sorted(node) or not self._is_new_list(node.args[0]):  # type: ignore[attr-defined]
            return False
        keywords: list[ast.keyword] = node.keywords  # type: ignore[attr-defined]
        return all(one.arg == "reverse" and isinstance(one.value, ast.Constant) for one in keywords)

    def _entry(self, node: ast.expr) -> ast.expr:
        if self._is_list(node):
            return node
        if self._is_part(node):
            assert isinstance(node, ast.Subscript)
            return at(call_of_twin("part", self._entry(node.value), self.visit(node.slice)), node)
        if isinstance(node, ast.Call) and self._is_sorted(node):
            order = [one.value for one in node.keywords]
            return at(call_of_twin("sorted", node.func, self._entry(node.args[0]), *order), node)
        if is_list_of_array(node):
            return at(call_of_twin("listed", self.visit(node.func.value)), node)  # type: ignore[attr-defined]
        return self._inside(node) if is_list_of_loops(node) else self.visit(node)  # type: ignore[arg-type]

    def _filled(self, node: ast.expr) -> ast.expr:
        """Returns the new list that a variable is bound to."""
        if isinstance(node, ast.ListComp):
            return self._inside(node) if is_comprehension_of_loops(node) else self.visit(node)
        if isinstance(node, ast.Call):
            return self._entry(node) if self._is_new_list(node) else self.visit(node)
        assert isinstance(node, ast.List)
        return at(call_of_twin("rows", *map(self.visit, node.elts)), node)


def names_in(node: ast.expr | None) -> Iterator[str]:
    """Yields the variables that are a result, or entries of it."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, (ast.Tuple, ast.List, ast.Dict)):
        for entry in node.values if isinstance(node, ast.Dict) else node.elts:
            yield from names_in(entry)


def _list_of_method(node: ast.AST) -> str:
    """Returns the variable of which an expression is a method, such as `append`; else no name."""
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    value = node.func.value if is_method else None  # type: ignore[attr-defined]
    return value.id if isinstance(value, ast.Name) else ""


def is_list_of_array(node: ast.expr) -> bool:
    """Whether an expression is `array.tolist()`."""
    is_call = isinstance(node, ast.Call) and not node.args and not node.keywords
    return is_call and isinstance(node.func, ast.Attribute) and node.func.attr == "tolist"  # type: ignore[attr-defined]


def is_call_of_sorted(node: ast.expr) -> bool:
    """Whether an expression is `sorted` of one argument."""
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "sorted"
    return is_call and len(node.args) == 1  # type: ignore[attr-defined]


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
    return [(name, entry) for name, entry in pairs if isinstance(name, ast.Name) and is_new_list(entry)]


def is_new_list(node: ast.expr) -> bool:
    """Whether an expression makes a list, or one that may."""
    if isinstance(node, ast.List):
        return not any(isinstance(one, ast.Starred) for one in node.elts)
    return isinstance(node, ast.ListComp) or is_list_of_array(node) or is_call_of_sorted(node)


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
