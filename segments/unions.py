"""Unions of groups that no facts can judge: once nothing grows any more, pairs are shown to the full check.

A rule's facts merge at the cost of the smaller side, and cannot say everything about a union. Which pairs are worth the
full check a function of their facts says; neighbours are asked about first, then groups that read a common value.

This module knows groups and candidates. It must not know what the rule looks at, nor what steps are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from segments.candidates import SIBLINGS_TRIED, Candidates
from segments.groups import Groups

# Whether the union of two groups, of these facts, may be accepted although the rule does not merge them.
Unites: TypeAlias = Callable[[object, object], bool]


def unite(groups: Groups, candidates: Candidates, unites: Unites) -> None:
    """Ask about neighbours and siblings as wholes, until a full round unites nothing."""
    while any(_united(groups, first, second, unites) for first, second in _pairs(groups, candidates)):
        pass


def _pairs(groups: Groups, candidates: Candidates) -> list[tuple[int, int]]:
    """Return the pairs of groups with a value between them, then those that read a common one, in order."""
    quotient = groups.quotient
    own = sorted((group for group in quotient.groups() if not groups.alone[group]), key=quotient.label)
    pairs = [
        (group, consumer) for group in own for consumer in sorted(quotient.consumers(group), key=quotient.label)
    ]  # fmt: skip
    for readers in candidates.common_readers():
        found = sorted({quotient.find(unit) for unit in readers}, key=quotient.label)
        for position, group in enumerate(found):
            pairs += [(other, group) for other in found[max(0, position - SIBLINGS_TRIED) : position]]
    return list(dict.fromkeys(pairs))


def _united(groups: Groups, first: int, second: int, unites: Unites) -> bool:
    """Make two groups one where the full check takes their union; return whether it did."""
    if groups.alone[first] or groups.alone[second] or not unites(groups.facts[first], groups.facts[second]):
        return False
    plan = groups.quotient.plan(first, second)
    crossing = groups.quotient.values(first, second)
    if plan is None or groups.foe(first, second) is not None or any(value in groups.kept for value in crossing):
        return False
    verdict = groups.rule.accepts(tuple(sorted({*groups.steps(first), *groups.steps(second)})))
    forbidden = (
        groups.forbids.verdict(lambda: groups.steps(first), lambda: groups.steps(second)) if verdict else verdict
    )
    if not forbidden:
        groups.log.add(lambda: groups.steps(first), lambda: groups.steps(second), forbidden)
        return False
    group = groups.join(plan, verdict.facts, (groups.members[first][0], groups.members[second][0]))
    groups.checked[group] = groups.stamps[group]
    return True
