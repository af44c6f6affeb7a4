"""What a trace took for granted about sizes: the answers that it gave to the function, each a guard.

A question about sizes is proved where it holds for all of them, and else answered from the sizes of the call at hand
and written down: an outcome (`decide`) or a value (`pin`).

Knows: extents, guards, the builder's requirements. Must not know: operands, rows, names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tracefuse import source
from tracefuse.dynamic.guards import Guard
from tracefuse.frontend.tracer.operands import Facts
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import Extent, as_symbol, evaluate, is_nonnegative, substitute


@dataclass(frozen=True, slots=True)
class ScalarGuard:
    """A value computed from scalar arguments that the function asked for: `read(facts)` was `expected`."""

    read: Callable[[Facts], Any]
    expected: Any
    reason: str
    where: str | None

    def holds(self, facts: Facts) -> bool:
        found = self.read(facts)
        return bool(found == self.expected) or (found != found and self.expected != self.expected)

    def __str__(self) -> str:
        return f"a scalar is {self.expected!r}: {self.reason}" + (f" ({self.where})" if self.where else "")


class Assumptions(ABC):
    """hints: the sizes and scalars of the call that is being traced."""

    builder: FusionBuilder

    def __init__(self) -> None:
        self.hints: dict[int, Any] = {}
        self.guards: dict[Guard, None] = {}
        self._pinned: dict[Any, Extent] = {}

    @abstractmethod
    def check_alive(self) -> None:
        """TraceError once the trace is over."""

    def simplify(self, extent: Extent) -> Extent:
        """`extent` with every size whose value is guarded replaced by that value."""
        return substitute(extent, self._pinned) if self._pinned and not isinstance(extent, int) else extent

    def known(self, extent: Extent) -> int:
        """The value in the call at hand, with nothing recorded."""
        return evaluate(extent, self.hints)

    def decide(self, left: Extent, relation: str, right: Extent, reason: str) -> bool:
        """left == right or left <= right: proved, or as in the call at hand and guarded."""
        self.check_alive()
        left, right = self.simplify(left), self.simplify(right)
        difference = right - left
        if relation == "==":
            if difference == 0:
                return True
            if is_nonnegative(difference - 1) or is_nonnegative(-difference - 1) or self._never_one(left, right):
                return False
            outcome = self.known(left) == self.known(right)
            self._guard(left, "==" if outcome else "!=", right, reason)
            return outcome
        if is_nonnegative(difference):
            return True
        if is_nonnegative(-difference - 1):
            return False
        outcome = self.known(left) <= self.known(right)
        if outcome:
            self._guard(left, "<=", right, reason)
        else:
            self._guard(right, "<", left, reason)
        return outcome

    def _never_one(self, left: Extent, right: Extent) -> bool:
        """An axis of an input that is symbolic is not of extent 1: that is in the key of the trace."""
        symbol = as_symbol(left) if right == 1 else as_symbol(right) if left == 1 else None
        return symbol is not None and symbol.id is not None and symbol.id < 0

    def _guard(self, left: Extent, relation: str, right: Extent, reason: str) -> None:
        self.guards[Guard(left, relation, right, reason, source.user_line())] = None

    def pin(self, extent: Extent, reason: str) -> int:
        """The value of an extent; guarded, and from here on a constant of the trace."""
        self.check_alive()
        extent = self.simplify(extent)
        if isinstance(extent, int):
            return extent
        value = self.known(extent)
        self._guard(extent, "==", value, reason)
        self.builder.require(extent, "==", value, f"{extent} is {{left}}", f"it was {value} while tracing")
        symbol = as_symbol(extent)
        if symbol is not None:
            self._pinned[symbol] = value
        return value
