"""Variables of a loop that exchange their arrays, which iterations write: `new[1:-1] = f(old)`, `old, new = new, old`.

In the iteration each variable has a placeholder for the contents of its array. After the loop every variable is bound
to the array that it has in Python, by the number of iterations modulo the length of the cycle, which the trace guards;
that array holds what the loop has computed for the variable.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tracefuse.frontend.control_flow.recorded_carries import CarriedVariable
from tracefuse.frontend.tracer.array_ops.in_place import into, note_update
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.frontend.tracer.values.views import owner_of
from tracefuse.ir.extents import mod

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration

MOST_ROTATED = 8
"""The longest cycle of variables."""

REBOUND = "in-place change of an array that each iteration rebinds"


class RotatedArrays:
    """The variables that exchange their arrays in an iteration. sources: the variable whose array each one gets.

    after: the variables after the iteration.
    """

    def __init__(self, iteration: RecordedIteration, after: Mapping[str, Any]) -> None:
        self.iteration, self.recorder = iteration, iteration.recorder
        self.variables: dict[str, CarriedVariable] = {}
        self.sources: dict[str, str] = {}
        if iteration.place not in self.recorder.loops.decisions.rotating or iteration.is_branch:
            return
        known = {id(one.inside): one for one in iteration.variables if one.is_writable}
        sources = {one.name: known[id(after[one.name])].name for one in known.values() if id(after[one.name]) in known}
        self.sources = _cycles(sources)
        self.variables = {one.name: one for one in known.values() if one.name in self.sources}
        self.is_written = any(one.is_written for one in known.values())
        if any(one.is_written and one.name not in self.sources for one in known.values()):
            raise NotInEveryIteration(REBOUND)
        if self.variables:
            self._check()

    def _check(self) -> None:
        """Raises NotInEveryIteration unless the variables begin as arrays of their own, and all iterations run."""
        iteration = self.iteration
        befores = [one.before for one in self.variables.values()]
        if not iteration.runs or iteration.condition is not None:
            raise NotInEveryIteration(f"{REBOUND}, and values decide how many iterations there are")
        if not all(isinstance(before, Traced) for before in befores):
            raise NotInEveryIteration(REBOUND)
        if len({id(owner_of(before)) for before in befores}) < len(befores):
            raise NotInEveryIteration(f"{REBOUND}, which shares its memory with another one")

    @property
    def changed(self) -> list[CarriedVariable]:
        """The variables that the loop carries."""
        return [
            one for one in self.variables.values() if self.sources[one.name] != one.name or one.is_written
        ]  # fmt: skip

    def check_read(self, read: tuple[int, ...]) -> None:
        """Raises NotInEveryIteration if the body reads the arrays by other names. read: the values that it reads."""
        owners = {id(owner_of(one.before)) for one in self.changed}
        numbers = {one.initial.number for one in self.changed}
        numbers |= {one.placeholder for one in self.iteration.body.arrays if id(owner_of(one.array)) in owners}
        if not numbers.isdisjoint(read):
            raise NotInEveryIteration(f"{REBOUND}, and reads by another name")

    def leave(self, values: dict[str, Any]) -> None:
        """Writes the results of the loop to the arrays. values: what variables hold after the loop; then, those."""
        changed = {one.name for one in self.changed}
        if not changed:
            return
        turns = self._turns()
        names = {name: name for name in self.sources}
        for _ in range(turns):
            names = {name: names[source] for name, source in self.sources.items()}
        for name, origin in names.items():
            before = self.variables[origin].before
            if name in changed:
                note_update(before)
                values[name] = into(before, values[name])

    def _turns(self) -> int:
        """Returns the number of iterations modulo that after which each variable has its first array again."""
        length, decide, reason = (
            self.iteration.length,
            self.recorder.decide,
            "the order of arrays that a loop exchanges",
        )
        order = math.lcm(*map(self._length, self.sources))
        if not decide(order, "<=", length, reason):
            raise NotInEveryIteration(f"{REBOUND} fewer times than there are arrays")
        return next(turn for turn in range(order) if decide(mod(length, order), "==", turn, reason))

    def _length(self, name: str) -> int:
        """Returns the length of the cycle of a variable."""
        around = name
        for length in itertools.count(1):
            around = self.sources[around]
            if around == name:
                return length
        raise AssertionError


def _cycles(sources: Mapping[str, str]) -> dict[str, str]:
    """Returns the entries of a mapping that form cycles of at most MOST_ROTATED names."""
    result = {}
    for name in sources:
        around = [name]
        while len(around) <= MOST_ROTATED and (following := sources.get(around[-1])) not in (None, name):
            around.append(str(following))
        if sources.get(around[-1]) == name:
            result[name] = sources[name]
    return result
