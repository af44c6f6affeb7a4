"""Guards: facts about sizes that tracing, scheduling or emission relied on. They are checked at every call.

A guard failure selects or builds another plan; it is never a user error, unlike a violated Requirement of the IR.
`compile_guards` compiles a list of guards to one Python function, since the check is part of every call's overhead.

Must not know: plans.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.generated_code import compile_expression, made_when_called
from tracefuse.ir.extents import Extent, Symbol, evaluate, python_text

_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class Guard:
    """The fact `left relation right`. relation: "==", "!=", "<=" or "<". reason: the decision that relied on it.

    where: the source line, if any.
    """

    left: Extent
    relation: str
    right: Extent
    reason: str
    where: str | None = None

    def holds(self, values: Mapping[int, int]) -> bool:
        return self.compares(evaluate(self.left, values), evaluate(self.right, values))

    def compares(self, left: int, right: int) -> bool:
        """Returns whether the relation holds for these values of the two sides."""
        return _RELATIONS[self.relation](left, right)

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.left} {self.relation} {self.right}: {self.reason}{where}"


def divisible(extent: Extent, divisor: int, reason: str) -> Guard:
    """Makes the guard that `extent` is a multiple of `divisor`."""
    return Guard(extent % divisor, "==", 0, reason)


def compile_guards(guards: Sequence[Guard]) -> Callable[[Mapping[Any, int]], bool]:
    """Compiles a function of the extent values (by id; strides by name) that returns whether all guards hold."""
    if not guards:
        return lambda values: True

    def name(symbol: Symbol) -> str:
        return f"v[{(symbol.name if symbol.id is None else symbol.id)!r}]"

    def compiled() -> Callable[[Mapping[Any, int]], bool]:
        tests = dict.fromkeys(f"{python_text(g.left, name)} {g.relation} {python_text(g.right, name)}" for g in guards)
        return compile_expression("v", " and ".join(tests), "guards")

    return made_when_called(compiled)
