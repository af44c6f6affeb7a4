"""The sizes of the call that a schedule is made for, and the guards that its choices leave behind.

A choice that looks at a size records what it saw, whichever way it went: the same plan then serves every call whose
sizes would lead to the same choices, and no other.

Knows: extents and guards. Must not know: what is being scheduled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import Extent, evaluate, substitute, symbols


@dataclass(slots=True)
class Sizes:
    """Actual values by symbol id and, for symbols without one (strides), by name; `guards` grows as facts are used."""

    values: Mapping[int, int]
    named: Mapping[str, int] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)

    def hint(self, extent: Extent) -> int:
        """The value of `extent` in this call, without a guard."""
        if isinstance(extent, int):
            return extent
        known = {s: self.named[s.name] for s in symbols(extent) if s.id is None}
        return evaluate(substitute(extent, known), self.values)

    def at_most(self, extent: Extent, bound: int, reason: str) -> bool:
        """Whether extent <= bound; the answer is guarded. reason: what follows where it holds."""
        if isinstance(extent, int):
            return extent <= bound
        holds = self.hint(extent) <= bound
        if holds:
            self.guards.append(Guard(extent, "<=", bound, reason))
        else:
            self.guards.append(Guard(bound + 1, "<=", extent, f"else {reason}"))
        return holds

    def is_multiple(self, extent: Extent, divisor: int, reason: str) -> bool:
        """Whether divisor divides extent; the answer is guarded."""
        if isinstance(extent, int):
            return extent % divisor == 0
        holds = self.hint(extent) % divisor == 0
        self.guards.append(Guard(extent % divisor, "==" if holds else "!=", 0, reason))
        return holds

    def require(self, left: Extent, relation: str, right: Extent, reason: str) -> None:
        """Guards a fact that is known to hold in this call."""
        if not (isinstance(left, int) and isinstance(right, int)) and left != right:
            self.guards.append(Guard(left, relation, right, reason))
