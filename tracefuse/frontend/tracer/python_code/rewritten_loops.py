"""Other code for functions whose loops ask for computed values: each question becomes a loop that can be recorded.

An `if` iterates over the branches that it takes, a `while` over its steps, and `break` and `continue` become variables:

    if c: A            for branch in TWIN.branches(c):      while c: A      for step in TWIN.steps_while(c):
    else: B                if branch: A                                         A
                           else: B                                              step.follow(c)

Run by Python, the code does what the function does. What TWIN returns may instead show the function both branches, or
one step with placeholders for variables.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence

from tracefuse.frontend.tracer.python_code.chosen_expressions import ChosenExpressions
from tracefuse.frontend.tracer.python_code.generated_syntax import assign, at, call_of_twin, load
from tracefuse.frontend.tracer.python_code.returns_in_loops import with_returns_after_loops
from tracefuse.frontend.tracer.python_code.rewritten_comprehensions import ComprehensionLoops, is_comprehension_of_loops
from tracefuse.frontend.tracer.python_code.statement_flow import (
    JUMPS,
    SCOPES,
    Block,
    contains,
    jumps_in_branches,
    jumps_of,
    leaves,
    may_leave,
    only_raises,
    returned,
)
from tracefuse.frontend.tracer.python_code.truth_values import (
    Steps,
    chosen_by_truth,
    is_chain,
    is_chosen_by_truth,
    is_membership,
    membership,
    pairs_of_chain,
)


class _LoopJumps:
    """A loop whose jumps become variables. going: false after `break`. skips: true after a jump, if it is used."""

    def __init__(self, going: str, skips: str | None) -> None:
        self.going, self.skips = going, skips

    def jump(self, statement: ast.stmt) -> Block:
        """Returns what a `break` or a `continue` does."""
        result = [] if self.skips is None else [assign(self.skips, True)]
        if isinstance(statement, ast.Break):
            result.append(assign(self.going, False))
        return [at(generated, statement) for generated in result] or [ast.copy_location(ast.Pass(), statement)]


class _NeedsVariable(Exception):
    """Statements after a branch run unless it has jumped, which takes a variable."""


class Rewriting:
    """The rewriting of one function."""

    def __init__(self) -> None:
        self._count = 0
        self._comprehensions = ComprehensionLoops(self.new_name, lambda loop: self._statement(loop, None))

    def new_name(self, purpose: str) -> str:
        """Returns the name of a new variable, which no variable of the user has."""
        self._count += 1
        return f"({purpose} {self._count})"

    # -- blocks -------------------------------------------------------------------------------------------------------

    def function(self, body: Block) -> Block:
        """Returns the body of a function. Where all its ends return, it returns at its end."""
        body = self._merged(with_returns_after_loops(body, self.new_name))
        returns = returned(body)
        values = [statement.value for statement in returns or ()]
        if not isinstance(body[-1], ast.If) or not values or any(value is None for value in values):
            return self._block(body, None)
        lengths = {len(value.elts) if isinstance(value, ast.Tuple) else None for value in values}
        length = lengths.pop()
        starred = any(contains(value, ast.Starred) for value in values if value is not None)
        if lengths or starred:
            return self._block(body, None)
        names = [self.new_name("result") for _ in range(1 if length is None else length)]
        last = ast.Return(load(names[0]) if length is None else ast.Tuple(list(map(load, names)), ast.Load()))
        return [*self._block(_with_results(body, names, length), None), at(last, body[-1])]

    def _merged(self, body: Block) -> Block:
        """Returns a block in which what follows a branch that leaves the block is the other branch."""
        for place, statement in enumerate(body):
            if not isinstance(statement, ast.If) or only_raises(statement):
                continue
            rest = body[place + 1 :]
            if rest and leaves(statement.body):
                merged = ast.If(statement.test, statement.body, [*statement.orelse, *rest])
            elif rest and statement.orelse and leaves(statement.orelse):
                merged = ast.If(statement.test, [*statement.body, *rest], statement.orelse)
            else:
                statement.body, statement.orelse = self._merged(statement.body), self._merged(statement.orelse)
                continue
            merged.body, merged.orelse = self._merged(merged.body), self._merged(merged.orelse)
            return [*body[:place], ast.copy_location(merged, statement)]
        return body

    def _block(self, body: Block, loop: _LoopJumps | None) -> Block:
        """Returns the statements of a block. loop: the loop that jumps leave, if they become variables."""
        result: Block = []
        for place, statement in enumerate(body):
            if loop is not None and isinstance(statement, JUMPS):
                return [*result, *loop.jump(statement)]
            result += self._statement(statement, loop)
            rest = body[place + 1 :]
            if loop is not None and rest and may_leave(statement):
                if loop.skips is None:
                    raise _NeedsVariable
                branch = ast.If(load(loop.skips), [ast.Pass()], rest)
                return [*result, *self._statement(at(branch, statement), loop)]
        return result

    def _statement(self, statement: ast.stmt, loop: _LoopJumps | None) -> Block:
        if isinstance(statement, ast.If):
            return self._if(statement, loop)
        if isinstance(statement, ast.While):
            return self._while(statement)
        if isinstance(statement, ast.For):
            return self._for(statement)
        if isinstance(statement, SCOPES):
            return [statement]
        for name, value in ast.iter_fields(statement):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(statement, name, self._block(value, None))
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            part.body = self._block(part.body, None)
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Subscript):
            parts = self._updated_entry(statement, statement.target)
            if parts is not None:
                return [new for part in parts for new in self._statement(at(part, statement), None)]
        return [*self._chosen_values(statement), statement]

    def _updated_entry(self, statement: ast.AugAssign, target: ast.Subscript) -> Block | None:
        """Returns what `x[key] += value` does, if the value becomes statements, after the read of the entry."""
        is_free = not contains(target.slice, ast.Slice, ast.Starred)
        if not is_free or not any(map(_calls_by_choice, ast.walk(statement.value))):
            return None
        base, key, entry = (self.new_name(purpose) for purpose in ("base", "key", "entry"))

        def place(context: ast.expr_context) -> ast.expr:
            return ast.Subscript(load(base), load(key), context)

        return [
            assign(base, target.value), assign(key, target.slice), assign(entry, place(ast.Load())),
            ast.AugAssign(ast.Name(entry, ast.Store()), statement.op, statement.value),
            ast.Assign([place(ast.Store())], load(entry)),
        ]  # fmt: skip

    # -- branches -----------------------------------------------------------------------------------------------------

    def _if(self, statement: ast.If, loop: _LoopJumps | None) -> Block:
        if only_raises(statement) or (loop is None and may_leave(statement)):
            statement.body, statement.orelse = self._block(statement.body, loop), self._block(statement.orelse, loop)
            return [statement]
        before, test = self._test(statement.test)
        return [
            *before,
            self._branches(statement, test, self._block(statement.body, loop), self._block(statement.orelse, loop)),
        ]

    def _branches(self, place: ast.AST, test: ast.expr, body: Block, orelse: Block) -> ast.stmt:
        name = self.new_name("branch")
        choice = ast.If(load(name), body or [ast.Pass()], orelse)
        return at(ast.For(ast.Name(name, ast.Store()), call_of_twin("branches", test), [choice], []), place)

    def _test(self, test: ast.expr) -> tuple[Block, ast.expr]:
        """Returns a condition, and the statements before it."""
        if isinstance(test, ast.BoolOp):
            return self._several(test, [([], value) for value in test.values], isinstance(test.op, ast.And))
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            before, operand = self._test(test.operand)
            return before, at(call_of_twin("negated", operand), test)
        if isinstance(test, ast.Compare) and is_chain(test):
            return self._several(test, pairs_of_chain(test, self.new_name), True)
        if isinstance(test, ast.Compare) and is_membership(test):
            test = membership(test)
        holder = ast.copy_location(ast.Expr(test), test)
        return self._chosen_values(holder), holder.value

    def _several(
        self, place: ast.expr, values: Steps, all_of: bool
    ) -> tuple[Block, ast.expr]:  # fmt: skip
        """Returns `and` or `or` of conditions, each with the statements before it."""
        name = self.new_name("condition")
        result: Block = []
        for number, (first, value) in enumerate(values):
            before, test = self._test(value)
            block = [*first, *before, at(assign(name, call_of_twin("truth", test)), place)]
            if number == 0:
                result = block
            else:
                nothing: Block = [ast.Pass()]
                pair = (block, []) if all_of else (nothing, block)
                result.append(self._branches(place, load(name), *pair))
        return result, at(load(name), place)

    def _chosen_values(self, statement: ast.stmt) -> Block:
        """Returns the statements that choose among values, and makes a statement read the choice."""
        before: Block = []
        order = ("value", "targets") if isinstance(statement, ast.Assign) else statement._fields
        expressions = ChosenExpressions(before, self.new_name, self._choice)
        for name in order:
            value = getattr(statement, name, None)
            if isinstance(value, ast.expr):
                setattr(statement, name, expressions.chosen(value))
        return before

    def _choice(self, value: ast.expr) -> tuple[Block, ast.expr]:
        """Returns the statements before a part of an expression that becomes a variable, and what stands for it."""
        if is_chosen_by_truth(value):
            statements, result = chosen_by_truth(value, self.new_name)
            return self._block(statements, None), result
        if not isinstance(value, ast.IfExp):
            return self._comprehensions.replacement(value)
        names = [self.new_name("value") for _ in range(_length_of_tuples(value.body, value.orelse) or 1)]
        is_tuple = _length_of_tuples(value.body, value.orelse) is not None

        def outcome(context: ast.expr_context) -> ast.expr:
            variables: list[ast.expr] = [ast.Name(name, context) for name in names]
            return ast.Tuple(variables, context) if is_tuple else variables[0]

        branch = ast.If(
            value.test, [ast.Assign([outcome(ast.Store())], value.body)],
            [ast.Assign([outcome(ast.Store())], value.orelse)],
        )  # fmt: skip
        return self._statement(at(branch, value), None), at(outcome(ast.Load()), value)

    # -- loops --------------------------------------------------------------------------------------------------------

    def _body(self, body: Block, going: str) -> Block:
        """Returns the body of a loop, whose jumps become variables."""
        body = self._merged(body)
        if not any(isinstance(jump, JUMPS) for part in body for jump in jumps_of(part)):
            return self._block(body, None)
        count = self._count
        try:
            return self._block(copy.deepcopy(body), _LoopJumps(going, None))
        except _NeedsVariable:
            self._count = count
            loop = _LoopJumps(going, self.new_name("skips"))
            return [at(assign(loop.skips or "", False), body[0]), *self._block(body, loop)]

    def _keeps_jumps(self, loop: ast.For | ast.While) -> bool:
        """Whether the jumps of a loop stay as they are, as other statements than branches are around them."""
        jumps = [jump for part in loop.body for jump in jumps_of(part)]
        return len(jumps) != len(list(jumps_in_branches(loop.body)))

    def _after(self, loop: ast.For | ast.While, going: str, breaks: bool) -> tuple[Block, Block]:
        """Returns the `else` of the loop, and what follows the loop in its place."""
        orelse = self._block(loop.orelse, None)
        if not orelse or not breaks:
            return orelse, []
        return [], [self._branches(loop, load(going), orelse, [])]

    def _while(self, statement: ast.While) -> Block:
        if self._keeps_jumps(statement) or any(map(may_leave, statement.orelse)):
            statement.body, statement.orelse = self._block(statement.body, None), self._block(statement.orelse, None)
            return [statement]
        going, step = self.new_name("going"), self.new_name("step")
        breaks = any(isinstance(jump, ast.Break) for part in statement.body for jump in jumps_of(part))
        repeated_test = copy.deepcopy(statement.test)
        before, test = self._test(statement.test)
        body = self._body(statement.body, going)
        tests, following = self._test(repeated_test)
        if breaks:
            name = self.new_name("condition")
            block = [*tests, at(assign(name, call_of_twin("truth", following)), statement)]
            tests = [at(assign(name, False), statement), self._branches(statement, load(going), block, [])]
            body, following = [at(assign(going, True), statement), *body], load(name)
        follow = ast.Expr(ast.Call(ast.Attribute(load(step), "follow", ast.Load()), [following], []))
        orelse, after = self._after(statement, going, breaks)
        block = [*body, *tests, at(follow, statement)]
        loop = ast.For(ast.Name(step, ast.Store()), call_of_twin("steps_while", test), block, orelse)
        first = [at(assign(going, True), statement)] if breaks else []
        return [*first, *before, at(loop, statement), *after]

    def _for(self, statement: ast.For) -> Block:
        breaks = any(isinstance(jump, ast.Break) for part in statement.body for jump in jumps_of(part))
        if self._keeps_jumps(statement) or any(map(may_leave, statement.orelse)):
            statement.body, statement.orelse = self._block(statement.body, None), self._block(statement.orelse, None)
            return [statement]
        before = self._chosen_values(ast.copy_location(ast.Expr(statement.iter), statement))
        going = self.new_name("going")
        statement.body = self._body(statement.body, going)
        statement.orelse, after = self._after(statement, going, breaks)
        if breaks:
            before.append(at(assign(going, True), statement))
            statement.body.append(at(ast.Expr(call_of_twin("reads", load(going))), statement.body[-1]))
            called = statement.iter
            is_plain = isinstance(called, ast.Call) and not called.keywords and isinstance(called.func, ast.Name)
            nothing: ast.expr = ast.Constant(None)
            parts = [called.func, *called.args] if is_plain and isinstance(called, ast.Call) else [nothing, called]
            statement.iter = at(call_of_twin("steps_of", ast.Constant(going), *parts), statement)
        return [*before, statement, *after]


def _length_of_tuples(*values: ast.expr) -> int | None:
    """Returns the length that all values have as tuples; None if it is 0 or unknown, or if one is no tuple."""
    lengths = {len(one.elts) if isinstance(one, ast.Tuple) and not contains(one, ast.Starred) else 0 for one in values}
    return (lengths.pop() or None) if len(lengths) == 1 else None


def _calls_by_choice(value: ast.AST) -> bool:
    """Whether an expression becomes statements that call functions, which may change what was evaluated before."""
    return is_comprehension_of_loops(value) or (
        isinstance(value, ast.expr)
        and (isinstance(value, ast.IfExp) or is_chosen_by_truth(value))
        and contains(value, ast.Call)
    )


def _with_results(body: Block, names: Sequence[str], length: int | None) -> Block:
    """Returns a block that binds variables where it returns. length: of the tuples that it returns, if it does."""
    *rest, last = body
    if isinstance(last, ast.If):
        last.body = _with_results(last.body, names, length)
        last.orelse = _with_results(last.orelse, names, length)
        return body
    if isinstance(last, ast.Raise):
        return body
    assert isinstance(last, ast.Return)
    assert last.value is not None
    target: ast.expr = ast.Name(names[0], ast.Store())
    if length is not None:
        target = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
    return [*rest, at(ast.Assign([target], last.value), last)]
