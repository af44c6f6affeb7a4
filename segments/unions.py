"""The last merging pass: pairs of groups that the rule's facts refuse, offered to the rule's full check.

Facts merge at the cost of the smaller side, so they can refuse a union that the full check would accept. Once merging
reaches its fixed point, a function of two groups' facts selects the pairs worth a full check. Producer-consumer pairs
are tried first, then groups that read a common value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from segments.candidates import SIBLINGS_TRIED, Candidates
from segments.groups import Groups

# Whether two groups with these facts, which the rule does not merge, are worth a full check of their union.
Unites: TypeAlias = Callable[[object, object], bool]


def unite(groups: Groups, candidates: Candidates, unites: Unites) -> None:
    """Offer the union of each selected pair to the full check, in rounds, until a full round accepts none.

    A union takes the place of both its parts in the rest of the round. A pair is offered again only after one of its
    groups has changed.
    """
    find, label = groups.quotient.find, groups.quotient.label
    offered: set[tuple[int, int]] = set()
    changed = True
    while changed:
        changed = False
        for pair in _list_pairs(groups, candidates):
            first, second = sorted(map(find, pair), key=label)
            stamps = groups.stamps[first], groups.stamps[second]
            if first != second and stamps not in offered:
                offered.add(stamps)
                changed = _try_union(groups, first, second, unites) or changed


def _list_pairs(groups: Groups, candidates: Candidates) -> list[tuple[int, int]]:
    """Return the producer-consumer pairs, then the pairs that read a common value, each pair once."""
    quotient = groups.quotient
    mergeable = sorted((group for group in quotient.groups() if not groups.alone[group]), key=quotient.label)
    pairs = [
        (group, consumer) for group in mergeable for consumer in sorted(quotient.consumers(group), key=quotient.label)
    ]  # fmt: skip
    for readers in candidates.common_readers():
        siblings = sorted({quotient.find(unit) for unit in readers}, key=quotient.label)
        for position, group in enumerate(siblings):
            pairs += [(other, group) for other in siblings[max(0, position - SIBLINGS_TRIED) : position]]
    return list(dict.fromkeys(pairs))


def _try_union(groups: Groups, first: int, second: int, unites: Unites) -> bool:
    """Merge two groups if the full check accepts their union; return whether it did."""
    if groups.alone[first] or groups.alone[second] or not unites(groups.facts[first], groups.facts[second]):
        return False
    plan = groups.quotient.plan(first, second)
    crossing = groups.quotient.values(first, second)
    if plan is None or groups.foe(first, second) is not None or any(value in groups.boundaries for value in crossing):
        return False
    verdict = groups.rule.pays(groups.rule.accepts(tuple(sorted({*groups.steps(first), *groups.steps(second)}))))
    forbidden = (
        groups.forbids.verdict(lambda: groups.steps(first), lambda: groups.steps(second)) if verdict else verdict
    )
    if not forbidden:
        groups.log.add(lambda: groups.steps(first), lambda: groups.steps(second), forbidden)
        return False
    group = groups.join(plan, verdict.facts, (groups.members[first][0], groups.members[second][0]))
    groups.checked[group] = groups.stamps[group]
    return True
