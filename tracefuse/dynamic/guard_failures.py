"""Why a call needs another trace or plan: the guard that failed, and which size or scalar it was that changed.

A guard that is missed again and again is warned of once, with the argument and
the line: its function is compiled anew for sizes that it meets often.

Knows: fusions, guards, sizes of two calls. Must not know: plans, traces, options.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracefuse import source
from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import Binary, Extent, Symbol, symbols
from tracefuse.ir.fusion import Fusion

MANY = 8
"""Misses of one guard after which its function is warned of."""


@dataclass(frozen=True, slots=True)
class Miss:
    """What does not fit. guard: the one that failed, or None where it is no guard about sizes; text: what changed;
    argument: the name of what did; where: the line that asked."""

    guard: Guard | None
    text: str
    argument: str
    where: str | None

    def __str__(self) -> str:
        return self.text


def first_miss(
    fusion: Fusion, guards: Sequence[Guard], before: Mapping[Any, int], now: Mapping[Any, int]
) -> Miss | None:
    """The first guard that does not hold now; before, now: extents and scalars by id, of the two calls."""
    known = [g for g in guards if all(s.id is not None for s in symbols_of(g))]
    guard = next((g for g in known if not g.holds(now)), None)
    if guard is None:
        return None
    ids = dict.fromkeys(s.id for s in symbols_of(guard))
    changed = next((k for k in ids if before.get(k) != now.get(k)), next(iter(ids)))
    assert changed is not None
    argument, what = _named(fusion, changed)
    text = f"{what} was {before.get(changed)} ({fact_text(guard)}), now {now.get(changed)}"
    owner = fusion.values.get(_owner(fusion, changed))
    return Miss(guard, text, argument, guard.where or (None if owner is None else owner.where))


def symbols_of(guard: Guard) -> list[Symbol]:
    """Every symbol of both sides, in order."""
    return [*symbols(guard.left), *symbols(guard.right)]


def _owner(fusion: Fusion, id: int) -> int:
    return id if id >= 0 else next(value for key, value, _ in fusion.axis_ids() if key == id)


def _named(fusion: Fusion, id: int) -> tuple[str, str]:
    """The argument that a size belongs to, and what to say of the size."""
    if id >= 0:
        name = fusion.values[id].name or f"S{id}"
        return name, f"{name}:"
    value, axis = next((value, axis) for key, value, axis in fusion.axis_ids() if key == id)
    name = fusion.values[value].name or f"T{value}"
    return name, f"{name}: extent of axis {axis}"


def fact_text(guard: Guard) -> str:
    """What a guard says of the size in it, in words where there is one size alone."""
    left, right = guard.left, guard.right
    one = _remainder(left)
    if one is not None and right == 0 and guard.relation in ("==", "!="):
        return f"{'' if guard.relation == '==' else 'not '}divisible by {one.right}"
    if len(set(symbols_of(guard))) == 1 and isinstance(right, int) and guard.relation in ("==", "!="):
        return f"not {right}" if guard.relation == "!=" else "its value is used"
    if guard.relation in ("<=", "<"):
        bound = _bound(right - left - (guard.relation == "<"))
        if bound is not None:
            return bound
    return f"{left} {guard.relation} {right}"


def _bound(slack: Extent) -> str | None:
    """What "slack is not negative" says of the one size in it."""
    constant = slack if isinstance(slack, int) else sum(c for monomial, c in slack.terms if not monomial)
    size = slack - constant
    if _is_one_symbol(size):
        return f"at least {-constant}"
    return f"at most {constant}" if _is_one_symbol(-size) else None


def _remainder(extent: Extent) -> Binary | None:
    """x % n of one symbol."""
    if isinstance(extent, int) or len(extent.terms) != 1:
        return None
    monomial, coefficient = extent.terms[0]
    atom = monomial[0]
    alone = coefficient == 1 and len(monomial) == 1
    is_remainder = alone and isinstance(atom, Binary) and atom.operation == "%" and _is_one_symbol(atom.left)
    return atom if is_remainder and isinstance(atom, Binary) else None


def _is_one_symbol(extent: Extent) -> bool:
    found = list(symbols(extent))
    return len(found) == 1 and str(extent) == found[0].name


class Misses:
    """Counts the guards that failed."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Extent, str, str, str | None]] = Counter()

    def note(self, miss: Miss, *, warn: bool = True) -> None:
        """Counts a guard's miss; warns of one missed too often. warn: false where each size is asked for."""
        guard = miss.guard
        if guard is None:
            return
        key = (guard.left, guard.relation, guard.reason, guard.where)
        self._counts[key] += 1
        if self._counts[key] == MANY and warn:
            where = f" ({miss.where})" if miss.where else ""
            message = (
                f"{miss.argument}{where}: kernels were made again {MANY} times since {guard.reason}; last, {miss}\n"
                f"  hint: {hint_of(guard)}"
            )
            frame = source.user_frame()
            if frame is None:
                warnings.warn(message, UserWarning, stacklevel=2)
            else:
                warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno)


def hint_of(guard: Guard) -> str:
    """What to do about a guard that is missed often."""
    if guard.relation == "==" and isinstance(guard.right, int) and guard.where is not None:
        return "keep the size symbolic: no int(), range() or list of it; then every value shares the kernels"
    return "pad to sizes that keep it, or see f.explain(*args) for what kernels depend on"
