"""The sizes of the call that a schedule is built for, and the guards that its decisions record.

Every query of a size records a guard for its answer, positive or negative. The plan is then reused exactly for the
calls whose sizes lead to the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from segments.lazy_dataclasses import dataclass
from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import Extent, evaluate, substitute, symbols


@dataclass(slots=True)
class Sizes:
    """The sizes of a call: by symbol id, and by name for symbols without an id (strides).

    guards: the facts used so far, in order and without duplicates.
    """

    values: Mapping[int, int]
    named: Mapping[str, int] = field(default_factory=dict)
    guards: dict[Guard, None] = field(default_factory=dict)

    def hint(self, extent: Extent) -> int:
        """Returns the value of `extent` in this call, without a guard."""
        if isinstance(extent, int):
            return extent
        known = {s: self.named[s.name] for s in symbols(extent) if s.id is None}
        return evaluate(substitute(extent, known), self.values)

    def knows(self, extent: Extent) -> bool:
        """Returns whether `hint` can tell the value of `extent`."""
        return all(s.name in self.named if s.id is None else s.id in self.values for s in symbols(extent))

    def at_most(self, extent: Extent, bound: int, reason: str) -> bool:
        """Returns whether extent <= bound; guards the answer. reason: the consequence of a positive answer."""
        if isinstance(extent, int):
            return extent <= bound
        holds = self.hint(extent) <= bound
        guard = Guard(extent, "<=", bound, reason) if holds else Guard(bound + 1, "<=", extent, f"else {reason}")
        self.guards[guard] = None
        return holds

    def is_multiple(self, extent: Extent, divisor: int, reason: str) -> bool:
        """Returns whether divisor divides extent; guards the answer."""
        if isinstance(extent, int):
            return extent % divisor == 0
        holds = self.hint(extent) % divisor == 0
        self.guards[Guard(extent % divisor, "==" if holds else "!=", 0, reason)] = None
        return holds

    def power_of_two_above(self, extent: Extent, when_equal: str, reason: str) -> tuple[int, bool]:
        """Returns the least power of two that is not below `extent`, and whether they are equal; guards both."""
        bound = 1 << max(self.hint(extent) - 1, 0).bit_length()
        if self.hint(extent) == bound:
            self.require(extent, "==", bound, when_equal)
            return bound, True
        self.at_most(extent, bound - 1, reason)
        self.at_most(extent, bound // 2, reason)
        return bound, False

    def bucket(self, extent: Extent, most: int, reason: str) -> int:
        """Returns the least power of two that is not below `extent`, or `most` if that is less; guards the answer.

        most: a power of two.
        """
        bucket = most
        while bucket > 1 and self.hint(extent) <= bucket // 2:
            bucket //= 2
        if bucket < most:
            self.at_most(extent, bucket, reason)
        if bucket > 1:
            self.at_most(extent, bucket // 2, reason)
        return bucket

    def require(self, left: Extent, relation: str, right: Extent, reason: str) -> None:
        """Guards a fact that is known to hold in this call."""
        if not (isinstance(left, int) and isinstance(right, int)) and left != right:
            self.guards[Guard(left, relation, right, reason)] = None
