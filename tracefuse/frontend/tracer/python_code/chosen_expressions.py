"""Expressions in which parts become variables, which statements before them bind: conditional expressions,
comprehensions, and what Python evaluates by the truth of values.

What Python evaluates before such a part, and the statements may change, is bound to variables first:

    y = f(x[0]) + sum(x[i] for i in range(n))       value = f(x[0])
                                                    total = ...
                                                    y = value + total

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from tracefuse.frontend.tracer.python_code.generated_syntax import assign, at, call_of_twin, is_of_twin, load
from tracefuse.frontend.tracer.python_code.rewritten_comprehensions import (
    COMPREHENSIONS,
    is_comprehension_of_loops,
    is_method_of_list,
)
from tracefuse.frontend.tracer.python_code.statement_flow import Block, contains
from tracefuse.frontend.tracer.python_code.truth_values import RELATIONS, is_chosen_by_truth

_KEPT = (ast.Lambda, ast.Starred, ast.NamedExpr, *COMPREHENSIONS)
"""Expressions of which Python may evaluate no part, or in another order."""


class ChosenExpressions:
    """The expressions of one statement, in the order in which Python evaluates them.

    before: gets the statements. new_name: returns the name of a new variable. choice: returns the statements before a
    part that becomes a variable, and what stands for it.
    """

    def __init__(
        self, before: Block, new_name: Callable[[str], str], choice: Callable[[ast.expr], tuple[Block, ast.expr]]
    ) -> None:  # fmt: skip
        self._before, self._new_name, self._choice = before, new_name, choice
        # What has been evaluated, as places in nodes.
        self._evaluated: list[EvaluatedPart] = []

    def chosen(self, value: ast.expr) -> ast.expr:
        """Returns an expression with variables for the choices in it."""
        holder = ast.Expr(value)
        self._visit(EvaluatedPart(holder, "value", None))
        return holder.value

    def _visit(self, part: EvaluatedPart) -> None:
        value = part.get()
        if isinstance(value, ast.IfExp) or is_comprehension_of_loops(value) or is_chosen_by_truth(value):
            if self._may_precede(value):
                statements, result = self._choice(value)
                self._before += statements
                part.set(result)
            else:
                self._evaluated.append(part)
            return
        is_mixed = isinstance(value, ast.Dict) and not all(isinstance(key, ast.Constant) for key in value.keys)
        if is_mixed or isinstance(value, _KEPT) or len(getattr(value, "ops", ())) > 1:
            self._evaluated.append(part)
            return
        first = len(self._evaluated)
        for inner in _parts_of(value):
            self._visit(inner)
        if isinstance(value, (ast.Slice, ast.Tuple)):
            return
        # The value itself is evaluated last, and stands for its parts.
        del self._evaluated[first:]
        if isinstance(value, ast.Compare) and type(value.ops[0]) in RELATIONS:
            relation = ast.Constant(RELATIONS[type(value.ops[0])])
            part.set(at(call_of_twin("compared", relation, value.left, *value.comparators), value))
        if not isinstance(value, (ast.Name, ast.Constant)) and not is_method_of_list(value) and not is_of_twin(value):
            self._evaluated.append(part)

    def _may_precede(self, value: ast.expr) -> bool:
        """Whether statements may evaluate a part before the rest of the statement; binds what precedes it."""
        calls = contains(value, ast.Call, *COMPREHENSIONS)
        conflicts = [part for part in self._evaluated if calls or contains(part.get(), ast.Call, ast.NamedExpr)]
        if not all(part.can_be_variable for part in conflicts) or contains(value, ast.NamedExpr):
            return False
        for part in conflicts:
            one, name = part.get(), self._new_name("value")
            self._before.append(at(assign(name, one), one))
            part.set(at(load(name), one))
        self._evaluated = [part for part in self._evaluated if part not in conflicts]
        return True


class EvaluatedPart:
    """An expression in a field of a node. place: in a list of expressions; None if the field is one."""

    def __init__(self, node: ast.AST, field: str, place: int | None) -> None:
        self.node, self.field, self.place = node, field, place

    def get(self) -> ast.expr:
        value = getattr(self.node, self.field)
        return value if self.place is None else value[self.place]  # type: ignore[no-any-return]

    def set(self, value: ast.expr) -> None:
        if self.place is None:
            setattr(self.node, self.field, value)
        else:
            getattr(self.node, self.field)[self.place] = value

    @property
    def can_be_variable(self) -> bool:
        """Whether a variable may stand for the expression."""
        value = self.get()
        return isinstance(getattr(value, "ctx", ast.Load()), ast.Load) and not isinstance(value, ast.Starred)


def _parts_of(value: ast.AST) -> list[EvaluatedPart]:
    """Returns the expressions in an expression, in the order in which Python evaluates them."""
    result: list[EvaluatedPart] = []
    for field, part in ast.iter_fields(value):
        if isinstance(part, ast.expr):
            result.append(EvaluatedPart(value, field, None))
        elif isinstance(part, list):
            for place, one in enumerate(part):
                if isinstance(one, ast.expr):
                    result.append(EvaluatedPart(value, field, place))
                elif isinstance(one, ast.keyword):
                    result.append(EvaluatedPart(one, "value", None))
    return result
