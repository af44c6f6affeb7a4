"""Why a call needs another trace or plan: the guard that failed, and the size or scalar that changed.

A guard that fails often is reported once by a warning, with the argument and the source line, since its function is
recompiled for sizes that change often.

Must not know: plans, options.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse import source
from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import Binary, Extent, Symbol, symbols
from tracefuse.ir.fusion import Fusion

MANY = 8
"""The number of failures of one guard that triggers the warning."""


@dataclass(frozen=True, slots=True)
class GuardFailure:
    """Why a trace or plan does not serve a call.

    guard: the guard on sizes that failed, or None for any other mismatch. text: describes the change. argument: the
    name of the argument that changed. where: the source line that depends on it.
    """

    guard: Guard | None
    text: str
    argument: str
    where: str | None

    def __str__(self) -> str:
        return self.text


def first_failure(
    fusion: Fusion, guards: Sequence[Guard], before: Mapping[Any, int], now: Mapping[Any, int]
) -> GuardFailure | None:
    """Returns the first guard that fails now. before, now: extents and scalars of the two calls, by id."""
    known = [g for g in guards if all(s.id is not None for s in symbols_of(g))]
    guard = next((g for g in known if not g.holds(now)), None)
    if guard is None:
        return None
    ids = dict.fromkeys(s.id for s in symbols_of(guard))
    changed = next((k for k in ids if before.get(k) != now.get(k)), next(iter(ids)))
    assert changed is not None
    argument, description = _describe(fusion, changed)
    text = f"{description} was {before.get(changed)} ({fact_text(guard)}), now {now.get(changed)}"
    owner = fusion.values.get(_owner(fusion, changed))
    return GuardFailure(guard, text, argument, guard.where or (None if owner is None else owner.where))


def symbols_of(guard: Guard) -> list[Symbol]:
    """Returns every symbol of both sides, in order."""
    return [*symbols(guard.left), *symbols(guard.right)]


def _owner(fusion: Fusion, id: int) -> int:
    return id if id >= 0 else next(value for key, value, _ in fusion.axis_ids() if key == id)


def _describe(fusion: Fusion, id: int) -> tuple[str, str]:
    """Returns the name of the argument that a size belongs to, and a description of the size."""
    if id >= 0:
        name = fusion.values[id].name or f"S{id}"
        return name, f"{name}:"
    value, axis = next((value, axis) for key, value, axis in fusion.axis_ids() if key == id)
    name = fusion.values[value].name or f"T{value}"
    return name, f"{name}: extent of axis {axis}"


def fact_text(guard: Guard) -> str:
    """Describes the fact of a guard, in words if it depends on one size."""
    left, right = guard.left, guard.right
    remainder = _remainder(left)
    if remainder is not None and right == 0 and guard.relation in ("==", "!="):
        return f"{'' if guard.relation == '==' else 'not '}divisible by {remainder.right}"
    if len(set(symbols_of(guard))) == 1 and isinstance(right, int) and guard.relation in ("==", "!="):
        return f"not {right}" if guard.relation == "!=" else "its value is used"
    if guard.relation in ("<=", "<"):
        bound = _bound(right - left - (guard.relation == "<"))
        if bound is not None:
            return bound
    return f"{left} {guard.relation} {right}"


def _bound(slack: Extent) -> str | None:
    """Describes slack >= 0 as a bound on its only size; None if it has several."""
    constant = slack if isinstance(slack, int) else sum(c for monomial, c in slack.terms if not monomial)
    size = slack - constant
    if _is_one_symbol(size):
        return f"at least {-constant}"
    return f"at most {constant}" if _is_one_symbol(-size) else None


def _remainder(extent: Extent) -> Binary | None:
    """Returns the remainder if the extent is x % n for one symbol x, else None."""
    if isinstance(extent, int) or len(extent.terms) != 1:
        return None
    monomial, coefficient = extent.terms[0]
    atom = monomial[0]
    alone = coefficient == 1 and len(monomial) == 1
    is_remainder = alone and isinstance(atom, Binary) and atom.operation == "%" and _is_one_symbol(atom.left)
    return atom if is_remainder and isinstance(atom, Binary) else None


def _is_one_symbol(extent: Extent) -> bool:
    every = list(symbols(extent))
    return len(every) == 1 and str(extent) == every[0].name


class FailureCounts:
    """Counts the failures of each guard."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Extent, str, str, str | None]] = Counter()

    def add(self, failure: GuardFailure, *, warn: bool = True) -> None:
        """Counts a failure; warns when a guard has failed MANY times. warn: False if the user requests each size."""
        guard = failure.guard
        if guard is None:
            return
        key = (guard.left, guard.relation, guard.reason, guard.where)
        self._counts[key] += 1
        if self._counts[key] == MANY and warn:
            where = f" ({failure.where})" if failure.where else ""
            message = (
                f"{failure.argument}{where}: kernels were made again {MANY} times since {guard.reason}; "
                f"last, {failure}\n"
                f"  hint: {hint_of(guard)}"
            )
            frame = source.user_frame()
            if frame is None:
                warnings.warn(message, UserWarning, stacklevel=2)
            else:
                warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno)


def hint_of(guard: Guard) -> str:
    """Returns a hint how to avoid frequent failures of a guard."""
    if guard.relation == "==" and isinstance(guard.right, int) and guard.where is not None:
        return "keep the size symbolic: no int(), range() or list of it; then every value shares the kernels"
    return "pad to sizes that keep it, or see f.explain(*args) for what kernels depend on"
