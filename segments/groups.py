"""The groups of a partition while they merge: their facts, which pairs may merge, and their topological order.

Two groups merge if the kept boundaries, the pairs that an earlier attempt ruled out (`apart`), the rule on their facts,
the graph (no cycle) and finally the user's predicate all allow it. A refusal is cached until either group changes.
`candidates.py` decides which pairs to try.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from segments.graph import Graph, MergePlan, Quotient
from segments.rules import Edge, RefusalCode, RefusalLog, Rule, SegmentationError, Verdict, no
from segments.units import Forbids, Unit

Apart: TypeAlias = Mapping[tuple[int, int], Verdict]
"""Pairs of home steps whose groups must not merge, with the reason."""


def _edges(graph: Graph, units: list[Unit], unit_of: Mapping[int, int]) -> list[dict[int, list[int]]]:
    """For each unit, the units that read its values, with these values."""
    edges: list[dict[int, list[int]]] = [{} for _ in units]
    for position, unit in enumerate(units):
        for value in unit.reads:
            producer = graph.producer(value)
            if producer is not None:
                edges[unit_of[producer]].setdefault(position, []).append(value)
    return edges


class Groups:
    """The groups of units, each identified by its number in the quotient graph."""

    def __init__(
        self,
        graph: Graph,
        rule: Rule,
        forbids: Forbids,
        boundaries: Mapping[int, str],
        units: list[Unit],
        apart: Apart,
        log: RefusalLog,
    ) -> None:
        self.graph = graph
        self.rule = rule
        self.forbids = forbids
        self.boundaries = boundaries
        self.units = units
        self.apart = apart
        self.log = log
        self.unit_of = {unit.home: position for position, unit in enumerate(units)}
        self.quotient = Quotient(_edges(graph, units, self.unit_of))
        self.members = [[position] for position in range(len(units))]
        self.facts = [unit.facts for unit in units]
        self.alone = [rule.alone(unit.home) for unit in units]
        self.movement = [rule.movement(unit.home) for unit in units]
        self.stamps = list(range(len(units)))  # group -> a number that changes whenever the group does
        self.next_stamp = len(units)
        self.refused: dict[tuple[int, int], tuple[int, int, Verdict]] = {}
        self.last_merge: dict[int, tuple[int, int]] = {}  # group -> first units of the two merged groups, for messages
        self.foes: list[dict[int, Verdict]] = [{} for _ in units]  # group -> units it must not contain, with the reason
        for pair, verdict in apart.items():
            first, second = (self.unit_of[home] for home in pair)
            self.foes[first][second] = self.foes[second][first] = verdict
        self.dissolved: dict[int, Verdict] = {}  # unit of a group that the full check refused -> the reason
        self.sealed: set[int] = set()  # accepted whole, without facts to merge further
        self.checked: dict[int, int] = {}  # group -> its stamp when the full check accepted it
        self.positions: dict[int, int] = {}  # group -> its position in the final order, once known
        self.step_cache: dict[int, tuple[int, ...]] = {}  # an entry is invalidated when its group changes
        self.copies = any(len(unit.steps) > 1 for unit in units)

    def steps(self, group: int) -> tuple[int, ...]:
        """Return the steps of a group, ascending, including copies of cheap steps."""
        steps = self.step_cache.get(group)
        if steps is None:
            steps = tuple(sorted({step for unit in self.members[group] for step in self.units[unit].steps}))
            self.step_cache[group] = steps
        return steps

    def attempt(self, first: int, second: int) -> int | None:
        """Merge two groups if nothing forbids it. Return the union, or None after logging the refusal."""
        known = self.refused.get((first, second))
        if known is not None and known[0] == self.stamps[first] and known[1] == self.stamps[second]:
            return None
        verdict, plan = self.judge(first, second)
        if plan is None:
            self.refused[first, second] = (self.stamps[first], self.stamps[second], verdict)
            self.log.add(lambda: self.steps(first), lambda: self.steps(second), verdict)
            return None
        return self.join(plan, verdict.facts, (self.members[first][0], self.members[second][0]))

    def judge(self, first: int, second: int) -> tuple[Verdict, MergePlan | None]:
        """Judge one pair by kept boundaries, the rule, cycles and last the predicate. Accepted pairs have a plan."""
        for group in (first, second):
            if self.alone[group]:
                step = self.units[self.members[group][0]].home
                reason = "this step always runs as a segment of its own"
                return no(reason, RefusalCode.STANDS_ALONE, step=self.graph.describe(step)), None
        for group in (first, second):
            if group in self.sealed:
                reason = "a region accepted as a whole is not merged further"
                return no(reason, RefusalCode.ACCEPTED_WHOLE, steps=self.steps(group)), None
            if group in self.dissolved:
                return self.dissolved[group], None
        undone = self.foe(first, second)
        if undone is not None:
            return undone, None
        values = sorted(self.quotient.values(first, second))
        boundaries = [value for value in values if value in self.boundaries]
        if boundaries:
            return no(self.boundaries[boundaries[0]], RefusalCode.KEPT_BOUNDARY, values=tuple(boundaries)), None
        edges = tuple(
            Edge(value, self.graph.is_output(value) or self.quotient.outside_readers(value) > 1) for value in values
        )
        verdict = self.rule.merge(self.facts[first], self.facts[second], edges)
        if not verdict:
            return verdict, None
        plan = self.quotient.plan(first, second)
        if plan is None:
            return no("merging would create a cycle", RefusalCode.CYCLE), None
        forbidden = self.forbids.verdict(lambda: self.steps(first), lambda: self.steps(second))
        return (verdict, plan) if forbidden else (forbidden, None)

    def foe(self, first: int, second: int) -> Verdict | None:
        """Return why a step of one group must stay apart from a step of the other, or None."""
        if len(self.foes[second]) < len(self.foes[first]):
            first, second = second, first
        reasons = (verdict for unit, verdict in self.foes[first].items() if self.quotient.find(unit) == second)
        return next(reasons, None)

    def join(self, plan: MergePlan, facts: object, parts: tuple[int, int]) -> int:
        """Merge two groups by `plan` and return the union's number."""
        shown = [self.step_cache.get(part) for part in (plan.first, plan.second)]
        group = self.quotient.merge(plan)
        absorbed = plan.second if group == plan.first else plan.first
        smaller, larger = sorted((self.members[group], self.members[absorbed]), key=len)
        larger.extend(smaller)
        self.members[group] = larger
        self.members[absorbed] = []
        self.facts[group] = facts
        self.facts[absorbed] = None
        self.movement[group] = self.movement[group] and self.movement[absorbed]
        fewer, more = sorted((self.foes[group], self.foes[absorbed]), key=len)
        more.update(fewer)
        self.foes[group], self.foes[absorbed] = more, {}
        self.stamps[group] = self.next_stamp
        self.next_stamp += 1
        self.last_merge[group] = parts
        if self.forbids.predicate is not None and shown[0] is not None and shown[1] is not None:
            # The predicate has seen both groups and will see the union; without one, few unions are listed. Sorting two
            # sorted runs is linear.
            steps = shown[0] + shown[1]
            self.step_cache[group] = tuple(sorted(set(steps) if self.copies else steps))
        else:
            self.step_cache.pop(group, None)
        return group

    def join_all(self, units: Sequence[int], facts: object) -> int:
        """Merge units, given ascending and without a cycle through other groups, into one group; return its number."""
        group = units[0]
        for unit in units[1:]:
            plan = self.quotient.plan(group, unit)
            if plan is None:
                raise SegmentationError(
                    f"steps {self.steps(group)} and those of unit {unit} cannot form one group: it would create a cycle"
                )
            group = self.join(plan, facts, (units[0], unit))
        return group

    def refusals(self) -> dict[int, Verdict]:
        """Run the rule's full check on each group of several steps that changed since its last check."""
        refused: dict[int, Verdict] = {}
        for group in self.quotient.groups():
            if len(self.steps(group)) > 1 and self.checked.get(group) != self.stamps[group]:
                verdict = self.rule.accepts(self.steps(group))
                if not verdict:
                    refused[group] = verdict
        return refused

    def halved(self, refused: Mapping[int, Verdict]) -> Groups:
        """Return a copy of the groups in which each group in `refused` is split into halves that the rule accepts."""
        copy = Groups(self.graph, self.rule, self.forbids, self.boundaries, self.units, self.apart, self.log)
        new_number: dict[int, int] = {}
        for group in self.quotient.groups():
            units = sorted(self.members[group])
            if group not in refused:
                new_number[group] = copy.join_all(units, self.facts[group])
                continue
            for part, facts in self._accepted_parts(units):
                copy.dissolved[copy.join_all(part, facts)] = refused[group]
        copy.sealed = {new_number[group] for group in self.sealed if group in new_number}
        for (first, second), (*stamps, verdict) in self.refused.items():
            if first in new_number and second in new_number and stamps == [self.stamps[first], self.stamps[second]]:
                pair = new_number[first], new_number[second]
                copy.refused[pair] = (copy.stamps[pair[0]], copy.stamps[pair[1]], verdict)
        return copy

    def _accepted_parts(self, units: Sequence[int]) -> Iterator[tuple[Sequence[int], object]]:
        """Yield parts of a refused group, in topological order, and their facts.

        The group is halved until the full check accepts each part, at a cost of n log n. With a predicate, which has
        not been asked about such parts, they are single units.
        """
        waiting = [units]
        while waiting:
            part = waiting.pop()
            if len(part) == 1:
                yield part, self.units[part[0]].facts
                continue
            if len(part) < len(units) and self.forbids.predicate is None:
                verdict = self.rule.accepts(tuple(sorted({step for unit in part for step in self.units[unit].steps})))
                if verdict:
                    yield part, verdict.facts
                    continue
            middle = len(part) // 2
            waiting += (part[middle:], part[:middle])

    def describe_growth(self, group: int) -> str:
        parts = self.last_merge.get(group)
        if parts is None:
            unit = self.units[self.members[group][0]]
            copies = tuple(step for step in unit.steps if step != unit.home)
            return f"copies of the cheap steps {copies} into {self.graph.describe(unit.home)}"
        first, second = (self.graph.describe(self.units[unit].home) for unit in parts)
        return f"the last merge, of the group of {first} with that of {second}"

    def ordered_groups(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return (steps, home steps) of each group in topological order, ties broken by the smallest first step."""
        order: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        waiting: dict[int, int] = {}
        for group in self.quotient.groups():
            for consumer in self.quotient.consumers(group):
                waiting[consumer] = waiting.get(consumer, 0) + 1
        ready = [(self.steps(group), group) for group in self.quotient.groups() if not waiting.get(group)]
        heapq.heapify(ready)
        while ready:
            steps, group = heapq.heappop(ready)
            self.positions[group] = len(order)
            order.append((steps, tuple(self.units[unit].home for unit in self.members[group])))
            for consumer in self.quotient.consumers(group):
                waiting[consumer] -= 1
                if not waiting[consumer]:
                    heapq.heappush(ready, (self.steps(consumer), consumer))
        return order

    def reasons(self) -> dict[tuple[int, int], Verdict]:
        """Return why each producer-consumer pair was not merged, keyed by the groups' positions in the order."""
        reasons: dict[tuple[int, int], Verdict] = {}
        for group, position in self.positions.items():
            for consumer in self.quotient.consumers(group):
                known = self.refused.get((group, consumer))
                if known is not None and known[:2] == (self.stamps[group], self.stamps[consumer]):
                    verdict = known[2]
                else:
                    verdict, _ = self.judge(group, consumer)
                reasons[position, self.positions[consumer]] = verdict
        return dict(sorted(reasons.items()))
