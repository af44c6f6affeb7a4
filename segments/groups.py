"""Groups of steps while they grow together: what is known of each, who may merge with whom, and the order they have.

Two groups merge when all agree: the kept boundaries, what an earlier try has found out (`apart`), the rule on their
facts, the graph (no cycle), and a user's predicate, asked last. A refusal is remembered until one of the two changes.

This module knows rules and predicates as things that answer, and groups of units. It must not know which pairs are
worth an offer, nor what steps are.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from segments.graph import Graph, MergePlan, Quotient
from segments.rules import Edge, RefusalCode, RefusalLog, Rule, SegmentationError, Verdict, no
from segments.units import Forbids, Unit

Apart: TypeAlias = Mapping[tuple[int, int], Verdict]
"""Pairs of steps at home whose groups must not merge, with the reason."""


class Groups:
    """The units while they grow together. A group goes by the number that the quotient gives it."""

    def __init__(
        self,
        graph: Graph,
        rule: Rule,
        forbids: Forbids,
        kept: Mapping[int, str],
        units: list[Unit],
        apart: Apart,
        log: RefusalLog,
    ) -> None:
        self.graph = graph
        self.rule = rule
        self.forbids = forbids
        self.kept = kept
        self.units = units
        self.apart = apart
        self.log = log
        self.unit_of = {unit.home: position for position, unit in enumerate(units)}
        edges: list[dict[int, list[int]]] = [{} for _ in units]
        for position, unit in enumerate(units):
            for value in unit.reads:
                maker = graph.producer(value)
                if maker is not None:
                    edges[self.unit_of[maker]].setdefault(position, []).append(value)
        self.quotient = Quotient(edges)
        self.members = [[position] for position in range(len(units))]
        self.facts = [unit.facts for unit in units]
        self.alone = [rule.alone(unit.home) for unit in units]
        self.movement = [rule.movement(unit.home) for unit in units]
        self.stamps = list(range(len(units)))  # changes whenever the group does
        self.next_stamp = len(units)
        self.refused: dict[tuple[int, int], tuple[int, int, Verdict]] = {}
        self.last_merge: dict[int, tuple[int, int]] = {}  # group -> the two groups' first units, for messages
        self.foes: list[dict[int, Verdict]] = [{} for _ in units]  # group -> units that it must not get, and why not
        for pair, verdict in apart.items():
            first, second = (self.unit_of[home] for home in pair)
            self.foes[first][second] = self.foes[second][first] = verdict
        self.dissolved: dict[int, Verdict] = {}  # units of a group that was refused whole, and why it was
        self.sealed: set[int] = set()  # accepted whole, with no facts to grow on from
        self.checked: dict[int, int] = {}  # group -> its stamp when the full check accepted it
        self.positions: dict[int, int] = {}  # group -> its place in the order, once that is known
        self.step_cache: dict[int, tuple[int, ...]] = {}  # dropped when the group changes
        self.copies = any(len(unit.steps) > 1 for unit in units)

    def steps(self, group: int) -> tuple[int, ...]:
        """Return the steps of a group, ascending, copies of cheap ones included."""
        steps = self.step_cache.get(group)
        if steps is None:
            steps = tuple(sorted({step for unit in self.members[group] for step in self.units[unit].steps}))
            self.step_cache[group] = steps
        return steps

    def attempt(self, first: int, second: int) -> int | None:
        """Merge two groups if all agree; returns the union, or None after noting why not."""
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
        """Ask about one pair: kept boundaries, the rule, cycles, and the predicate last. A plan means yes."""
        for group in (first, second):
            if self.alone[group]:
                step = self.units[self.members[group][0]].home
                why = "a step that stands alone is never merged"
                return no(why, RefusalCode.STANDS_ALONE, step=self.graph.describe(step)), None
        for group in (first, second):
            if group in self.sealed:
                why = "a region was accepted whole, without facts to grow on from"
                return no(why, RefusalCode.ACCEPTED_WHOLE, steps=self.steps(group)), None
            if group in self.dissolved:
                return self.dissolved[group], None
        taken_back = self.foe(first, second)
        if taken_back is not None:
            return taken_back, None
        values = sorted(self.quotient.values(first, second))
        held = [value for value in values if value in self.kept]
        if held:
            return no(self.kept[held[0]], RefusalCode.KEPT_BOUNDARY, values=tuple(held)), None
        edges = tuple(
            Edge(value, self.graph.is_output(value) or self.quotient.outside_readers(value) > 1) for value in values
        )
        verdict = self.rule.merge(self.facts[first], self.facts[second], edges)
        if not verdict:
            return verdict, None
        plan = self.quotient.plan(first, second)
        if plan is None:
            return no("merging would make a cycle", RefusalCode.CYCLE), None
        forbidden = self.forbids.verdict(lambda: self.steps(first), lambda: self.steps(second))
        return (verdict, plan) if forbidden else (forbidden, None)

    def foe(self, first: int, second: int) -> Verdict | None:
        """Return why a step of one group must not be with a step of the other, or None."""
        if len(self.foes[second]) < len(self.foes[first]):
            first, second = second, first
        found = (verdict for unit, verdict in self.foes[first].items() if self.quotient.find(unit) == second)
        return next(found, None)

    def join(self, plan: MergePlan, facts: object, parts: tuple[int, int]) -> int:
        """Carry out a merge and return the union's number."""
        shown = [self.step_cache.get(part) for part in (plan.first, plan.second)]
        group = self.quotient.merge(plan)
        gone = plan.second if group == plan.first else plan.first
        smaller, larger = sorted((self.members[group], self.members[gone]), key=len)
        larger.extend(smaller)
        self.members[group] = larger
        self.members[gone] = []
        self.facts[group] = facts
        self.facts[gone] = None
        self.movement[group] = self.movement[group] and self.movement[gone]
        fewer, more = sorted((self.foes[group], self.foes[gone]), key=len)
        more.update(fewer)
        self.foes[group], self.foes[gone] = more, {}
        self.stamps[group] = self.next_stamp
        self.next_stamp += 1
        self.last_merge[group] = parts
        if shown[0] is not None and shown[1] is not None:
            # Both were shown to a predicate, and the union will be: joining two sorted runs is the cheap way.
            steps = shown[0] + shown[1]
            self.step_cache[group] = tuple(sorted(set(steps) if self.copies else steps))
        else:
            self.step_cache.pop(group, None)
        return group

    def join_all(self, units: Sequence[int], facts: object) -> int:
        """Make one group of units, ascending, that an order of the groups allows; returns its number."""
        group = units[0]
        for unit in units[1:]:
            plan = self.quotient.plan(group, unit)
            if plan is None:
                raise SegmentationError(f"the steps {self.steps(group)} and those of unit {unit} cannot be one group")
            group = self.join(plan, facts, (units[0], unit))
        return group

    def refusals(self) -> dict[int, Verdict]:
        """Run the rule's full check on each group of more than one step that it has not seen as it is."""
        refused: dict[int, Verdict] = {}
        for group in self.quotient.groups():
            if len(self.steps(group)) > 1 and self.checked.get(group) != self.stamps[group]:
                verdict = self.rule.accepts(self.steps(group))
                if not verdict:
                    refused[group] = verdict
        return refused

    def without(self, refused: Mapping[int, Verdict]) -> Groups:
        """Return the same groups, those that `refused` names taken apart into their units."""
        again = Groups(self.graph, self.rule, self.forbids, self.kept, self.units, self.apart, self.log)
        now: dict[int, int] = {}
        for group in self.quotient.groups():
            units = sorted(self.members[group])
            if group in refused:
                again.dissolved.update(dict.fromkeys(units, refused[group]))
            else:
                now[group] = again.join_all(units, self.facts[group])
        again.sealed = {now[group] for group in self.sealed if group in now}
        for (first, second), (*stamps, verdict) in self.refused.items():
            if first in now and second in now and stamps == [self.stamps[first], self.stamps[second]]:
                pair = now[first], now[second]
                again.refused[pair] = (again.stamps[pair[0]], again.stamps[pair[1]], verdict)
        return again

    def describe_growth(self, group: int) -> str:
        parts = self.last_merge.get(group)
        if parts is None:
            unit = self.units[self.members[group][0]]
            copies = tuple(step for step in unit.steps if step != unit.home)
            return f"copies of the cheap steps {copies} into {self.graph.describe(unit.home)}"
        first, second = (self.graph.describe(self.units[unit].home) for unit in parts)
        return f"the last merge, of the group of {first} with that of {second}"

    def ordered_groups(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return (steps, steps at home) of each group, in topological order, the smallest first step first."""
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
        """Return why each pair of groups with a value between them is two, by the groups' places in the order."""
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
