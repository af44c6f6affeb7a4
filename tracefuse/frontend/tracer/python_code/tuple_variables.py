"""Variables that hold tuples of one length: `pair = (0, 1)`, `if d < best: pair = (i, j)`.

Loops carry numbers and arrays. So rewritten code has a variable for each entry, and makes the tuple where it is read:

    pair = (i, j)                 first, second = i, j
    pair[0]                       first
    f(pair)                       f((first, second))

If the variable is `None` at times, a truth value says so, as in `optional_variables.py`.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping

from tracefuse.frontend.tracer.python_code.generated_syntax import assign, at, call_of_twin, load, none_flag
from tracefuse.frontend.tracer.python_code.statement_flow import Block, OwnCode, contains
from tracefuse.frontend.tracer.python_code.variable_uses import (
    arguments_of,
    flag_or_not,
    is_none,
    nodes_of,
    tested_for_none,
    uses_of,
)


def with_variables_for_entries_of_tuples(function: ast.FunctionDef) -> None:
    """Replaces such variables of a function, in place."""
    lengths = _lengths(function)
    if lengths:
        _TupleEntries(*lengths).generic_visit(function)


def _lengths(function: ast.FunctionDef) -> tuple[dict[str, int], frozenset[str]] | None:
    """Returns the lengths of such variables, and which of them are `None` at times; None if there are no such ones."""
    lengths: dict[str, set[int]] = {}
    assignments: Counter[str] = Counter()
    are_none: set[str] = set()
    for node in nodes_of(function):
        if not isinstance(node, ast.Assign) or len(node.targets) > 1 or not isinstance(node.targets[0], ast.Name):
            continue
        name = node.targets[0].id
        assignments[name] += 1
        if is_none(node.value):
            are_none.add(name)
        else:
            lengths.setdefault(name, set()).add(_length(node.value))
    uses, arguments = uses_of(function), arguments_of(function)
    known = {
        name: min(found) for name, found in lengths.items()
        if len(found) == 1 and min(found) and uses.stores[name] == assignments[name] > 1
        and name not in (*uses.elsewhere, *arguments)
    }  # fmt: skip
    return (known, frozenset(are_none & known.keys())) if known else None


def _length(value: ast.expr) -> int:
    """Returns the length of a tuple whose entries may be variables; 0 for other values."""
    if not isinstance(value, ast.Tuple) or contains(value, ast.Starred) or any(map(is_none, value.elts)):
        return 0
    return len(value.elts)


class _TupleEntries(OwnCode):
    """The assignments and reads of such variables. lengths: by variable. optional: those that are `None` at times."""

    def __init__(self, lengths: Mapping[str, int], optional: frozenset[str]) -> None:
        self._lengths, self._optional = lengths, optional

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        name = tested_for_none(node)
        if name not in self._lengths:
            return self.generic_visit(node)
        return flag_or_not(load(none_flag(name or "")) if name in self._optional else ast.Constant(False), node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._lengths or not isinstance(node.ctx, ast.Load):
            return node
        entries = [load(one) for one in self._entries(node.id)]
        whole: ast.expr = ast.Tuple(entries, ast.Load())
        if node.id in self._optional:
            whole = ast.IfExp(load(none_flag(node.id)), ast.Constant(None), whole)
        return at(whole, node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        base, key = node.value, node.slice
        if not isinstance(base, ast.Name) or base.id not in self._lengths or not isinstance(key, ast.Constant):
            return self.generic_visit(node)
        is_entry = type(key.value) is int and isinstance(node.ctx, ast.Load)
        if not is_entry or not 0 <= key.value < self._lengths[base.id]:  # type: ignore[operator]
            return self.generic_visit(node)
        entry = load(self._entries(base.id)[key.value])  # type: ignore[index]
        if base.id in self._optional:
            entry = call_of_twin("entry_given", entry, load(none_flag(base.id)))
        return at(entry, node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | Block:
        self.generic_visit(node)
        target = node.targets[0]
        if not isinstance(target, ast.Name) or target.id not in self._lengths:
            return node
        names = self._entries(target.id)
        if is_none(node.value):
            bound = [assign(name, ast.Constant(None)) for name in names]
            return [at(one, node) for one in (*bound, assign(none_flag(target.id), True))]
        entries = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
        bound = [ast.Assign([entries], node.value)]
        if target.id in self._optional:
            bound.append(assign(none_flag(target.id), False))
        return [at(one, node) for one in bound]

    def _entries(self, name: str) -> list[str]:
        return [f"(entry {place} of {name})" for place in range(self._lengths[name])]
