"""The last entries of lists that loops append to and read, as variables.

    out = [x[0]]                                    out = [x[0]]; last = out[-1]
    for v in x:                                     for v in x:
        out.append(0.9 * out[-1] + v)                   new = 0.9 * last + v; out.append(new); last = new

A recorded loop carries the variables, so it reads no list. The list has these entries wherever the function reads them:
nothing but `append` changes it, and functions of NumPy and Python that only read lists get it.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from tracefuse.frontend.tracer.python_code.generated_syntax import assign, at, load
from tracefuse.frontend.tracer.python_code.list_reads import new_lists
from tracefuse.frontend.tracer.python_code.statement_flow import SCOPES, Block

MOST_LAST = 4
"""The most variables for one list."""

_MODULES = ("np", "numpy")
_READERS = ("len", "sum", "max", "min", "list", "tuple", "sorted", "print")


def with_last_entries(function: ast.FunctionDef, lists: frozenset[str], new_name: Callable[[str], str]) -> Block:
    """Returns the body of a function in which variables hold the last entries of lists.

    lists: the variables to which only new lists are bound. new_name: returns the name of a new variable.
    """
    uses = _Uses(lists)
    for statement in function.body:
        uses.visit(statement)
    depths = {
        name: depth for name, depth in uses.depths.items() if name not in uses.others and uses.least[name] >= depth
    }
    if not depths:
        return function.body
    names = {name: [new_name(f"last {k} of {name}") for k in range(1, depth + 1)] for name, depth in depths.items()}
    rewriting = _WithVariables(names, new_name)
    return [new for statement in function.body for new in rewriting.block([statement])]


def _position_from_end(node: ast.AST, names: frozenset[str] | Mapping[str, list[str]]) -> tuple[str, int] | None:
    """Returns the list and the k of `list[-k]`; None for another expression."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return None
    index = node.slice
    if not isinstance(node.value, ast.Name) or node.value.id not in names or not isinstance(index, ast.UnaryOp):
        return None
    constant = index.operand.value if isinstance(index.operand, ast.Constant) else None
    is_from_end = isinstance(index.op, ast.USub) and type(constant) is int and 0 < constant <= MOST_LAST
    return (node.value.id, constant) if is_from_end else None  # type: ignore[return-value]


def _appended_to(node: ast.AST, names: frozenset[str] | Mapping[str, list[str]]) -> str | None:
    """Returns the list to which a statement `list.append(value)` appends."""
    call = node.value if isinstance(node, ast.Expr) else None
    function = call.func if isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords else None
    if not isinstance(function, ast.Attribute) or function.attr != "append" or not isinstance(function.value, ast.Name):
        return None
    return function.value.id if function.value.id in names else None


class _Uses(ast.NodeVisitor):
    """How a function uses lists: how deep it reads from the end, the fewest entries of a new one, and the others."""

    def __init__(self, lists: frozenset[str]) -> None:
        self.lists = lists
        self.depths = dict[str, int]()
        self.least = dict.fromkeys(lists, MOST_LAST)
        self.others = set[str]()
        self._bound = set[int]()

    def visit_Name(self, node: ast.Name) -> None:
        if id(node) not in self._bound:
            self.others.add(node.id)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        found = _position_from_end(node, self.lists)
        if found is not None:
            self.depths[found[0]] = max(found[1], self.depths.get(found[0], 0))
        elif isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name):
            self.visit(node.slice)
        else:
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if _appended_to(node, self.lists) is None:
            self.generic_visit(node)
        else:
            assert isinstance(node.value, ast.Call)
            self.visit(node.value.args[0])

    def visit_Assign(self, node: ast.Assign) -> None:
        for name, value in new_lists(node):
            if name.id in self.lists:
                entries = value.elts if isinstance(value, ast.List) else []
                self.least[name.id] = min(self.least[name.id], len(entries))
                self._bound.add(id(name))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        is_of_numpy = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
        is_reader = isinstance(function, ast.Name) and function.id in _READERS
        if is_reader or (is_of_numpy and function.value.id in _MODULES):  # type: ignore[attr-defined]
            for one in (*node.args, *node.keywords):
                if not isinstance(one, ast.Name):
                    self.visit(one)
        else:
            self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        """Nothing reads an entry after it."""
        for inner in ast.walk(node):
            found = _position_from_end(inner, self.lists)
            if found is not None:
                self.depths[found[0]] = max(found[1], self.depths.get(found[0], 0))


class _WithVariables(ast.NodeTransformer):
    """Puts variables in the place of last entries. names: the variables of each list, that of its last entry first."""

    def __init__(self, names: Mapping[str, list[str]], new_name: Callable[[str], str]) -> None:
        self.names, self._new_name = names, new_name

    def block(self, body: Block) -> Block:
        result: Block = []
        for statement in body:
            result += self._statement(statement)
        return result

    def _statement(self, statement: ast.stmt) -> Block:
        if isinstance(statement, SCOPES):
            return [statement]
        for field, value in ast.iter_fields(statement):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(statement, field, self.block(value))
            elif isinstance(value, ast.expr):
                setattr(statement, field, self.visit(value))
            elif isinstance(value, list):
                value[:] = [self.visit(one) if isinstance(one, (ast.expr, ast.withitem)) else one for one in value]
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            part.body = self.block(part.body)
        appended = _appended_to(statement, self.names)
        if appended is not None:
            return self._append(statement, appended)
        lasts = [
            at(assign(variable, _entry(name.id, k)), statement)
            for name, _ in new_lists(statement) for k, variable in enumerate(self.names.get(name.id, ()), 1)
        ]  # fmt: skip
        return [statement, *lasts]

    def _append(self, statement: ast.stmt, appended: str) -> Block:
        assert isinstance(statement, ast.Expr)
        assert isinstance(statement.value, ast.Call)
        new, lasts = self._new_name("new"), self.names[appended]
        first = at(assign(new, statement.value.args[0]), statement)
        statement.value.args = [at(load(new), statement)]
        pairs = [*zip(lasts[1:], lasts, strict=False)][::-1]
        moves = [at(assign(later, load(one)), statement) for later, one in [*pairs, (lasts[0], new)]]
        return [first, statement, *moves]

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        found = _position_from_end(node, self.names)
        if found is not None:
            return ast.copy_location(load(self.names[found[0]][found[1] - 1]), node)
        return self.generic_visit(node)  # type: ignore[return-value]


def _entry(name: str, position: int) -> ast.expr:
    return ast.Subscript(load(name), ast.UnaryOp(ast.USub(), ast.Constant(position)), ast.Load())
