"""Variables of a recorded loop that hold numbers of Python after some iterations, and NumPy's after others.

A branch that a call does not take leaves the number that a variable had before. So the loop carries such a variable in
NumPy's type, and a truth value with it: whether it is a number. After the loop the variable becomes what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracefuse.frontend.control_flow.recorded_carries import CarriedVariable, truth_variable
from tracefuse.frontend.python_numbers import mixed_arithmetic
from tracefuse.frontend.python_numbers.number_questions import assume
from tracefuse.frontend.tracer.array_ops.number_where import number_where, with_numbers
from tracefuse.frontend.tracer.record.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.values.traced import NumberWhere, Traced

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration


def _flag(name: str) -> str:
    """Returns the name of the variable that tells whether another one is a number of Python."""
    return f"({name} is a number)"


class CarriedKinds:
    """The truth values that an iteration carries with variables. flags: by variable. kinds: of their numbers.

    replaced: the variables that every iteration binds to what is no number.
    """

    def __init__(self, iteration: RecordedIteration) -> None:
        self.iteration, self.decisions = iteration, iteration.recorder.loops.decisions
        self.flags: dict[str, CarriedVariable] = {}
        self.kinds: dict[str, str] = {}
        self.replaced: set[str] = set()

    def enter(self) -> None:
        """Adds the placeholders of the truth values, as the iteration begins."""
        for one in self.iteration.variables:
            where = number_where(one.before, one.type.weak)
            known = self.decisions.kinds.get((self.iteration.place, one.name))
            if where is None and known is not None:
                where = NumberWhere(False, known)
            if where is not None:
                self._add(one, where)

    def _add(self, one: CarriedVariable, where: NumberWhere) -> None:
        flag = truth_variable(self.iteration.body, _flag(one.name), where.condition)
        self.flags[one.name], self.kinds[one.name] = flag, where.kind
        if one.inside is not None:
            one.inside.number_where = NumberWhere(flag.inside, where.kind)

    def changed(
        self, changed: Sequence[CarriedVariable], exported: Sequence[str], after: dict[str, Any]
    ) -> tuple[list[CarriedVariable], list[str]]:
        """Returns the truth values that the loop carries, and the names of those that its last iteration computes.

        Adds what they are after the iteration to `after`.
        """
        wheres = {one.name: number_where(after[one.name], one.type.weak) for one in changed if not one.type.shape}
        wheres |= {name: value.number_where for name in exported if isinstance(value := after[name], Traced)}
        for where in wheres.values():
            for condition in where.fits if where is not None else ():
                assume(condition)
        is_used = any(where is not None for where in wheres.values())
        carried = list[CarriedVariable]()
        for one in changed:
            where = wheres.get(one.name)
            if where is None and (one.name not in self.flags or (self.iteration.runs and not is_used)):
                continue
            self._check_kind(one.name, where)
            if one.name not in self.flags:
                assert where is not None
                self._begin(one, where)
            if where is None and self.iteration.runs:
                self.replaced.add(one.name)
            after[_flag(one.name)] = False if where is None else where.condition
            carried.append(self.flags[one.name])
        computed = [name for name in exported if (where := wheres.get(name)) is not None]
        for name in computed:
            self.kinds[name] = wheres[name].kind  # type: ignore[union-attr]
            after[_flag(name)] = wheres[name].condition  # type: ignore[union-attr]
        return carried, list(map(_flag, computed))

    def _check_kind(self, name: str, where: NumberWhere | None) -> None:
        if where is not None and self.kinds.get(name, where.kind) != where.kind:
            raise NotInEveryIteration(f"{name} is a number of two kinds")

    def _begin(self, one: CarriedVariable, where: NumberWhere) -> None:
        """Adds the truth value of a variable that is no number before a branch; else begins the trace again."""
        if not self.iteration.is_branch:
            self.decisions.kinds[self.iteration.place, one.name] = where.kind
            raise AnotherAttempt
        inside = one.inside
        self._add(one, NumberWhere(one.name in self.iteration.undefined, where.kind))
        inside.number_where = None

    def unchanged(self, carried: Sequence[CarriedVariable]) -> dict[int, int]:
        """Returns what the placeholders of truth values hold that the loop does not carry."""
        return {flag.inside.state()[0]: flag.initial.number for flag in self.flags.values() if flag not in carried}

    def leave(self, values: dict[str, Any]) -> None:
        """Tells of results which of them are numbers, and where. values: results by name, without truth values then."""
        for name in {*self.kinds} & values.keys():
            condition = values.pop(_flag(name), None)
            if condition is not None and name not in self.replaced:
                values[name] = with_numbers(values[name], condition, self.kinds[name])

    def settle(self, values: dict[str, Any]) -> None:
        """Makes variables what they are in the call, after the outermost loop."""
        iteration = self.iteration
        if isinstance(iteration.recorder.body, iteration.body_type):
            return
        for name, value in values.items():
            if isinstance(value, Traced) and value.number_where is not None:
                is_read = name in iteration.needed
                values[name] = mixed_arithmetic.settled(value) if is_read else with_numbers(value, False, None)
