"""Which groups to try, in which order, until nothing merges any more.

Candidates, in this order: the whole graph; each maximal region between steps that stand alone (both only when
neither a predicate nor kept boundaries could forbid a part of them); then pairs of producer and consumer along the
edges in topological order, movement steps first, a merged group being offered on at once; last, siblings that read
a common value. A refused pair is asked again only after one of the two has changed.

Cheap steps are computed again in each group that reads them, unless somebody needs their stored value; `units.py`
settles that first, so that here every unit has one home.

This module knows rules and predicates as things that answer, and groups of steps. It must not know what steps are.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from segments.graph import Graph, MergePlan, Quotient
from segments.rules import Edge, Predicate, Refusal, RefusalLog, Rule, SegmentationError, Verdict, no
from segments.units import Forbids, Unit, View, split_into_units

# How many open groups a further reader of a common value is offered to, the newest first. It bounds the siblings
# tried for a value with n readers to a multiple of n, where all pairs would be n * n.
SIBLINGS_TRIED = 8


@dataclass(frozen=True, slots=True)
class Partition:
    """How a graph splits.

    `groups`: positions of steps, ascending in each group, the groups in topological order (the smallest first step
    first where that leaves a choice). `stored`: for each group the values that it must store, because another group
    reads them or because they are outputs of the graph. `boundaries`: for each pair of groups with a value that
    crosses from the first to the second, why they are two. `refusals`: the first refusals on the way, and
    `refusals_dropped` how many more there were.
    """

    groups: tuple[tuple[int, ...], ...]
    stored: tuple[tuple[int, ...], ...]
    boundaries: Mapping[tuple[int, int], Verdict]
    refusals: tuple[Refusal, ...]
    refusals_dropped: int

    def groups_of(self, step: int) -> tuple[int, ...]:
        """Return the positions of the groups that have the step: more than one only for a copied cheap step."""
        return tuple(position for position, group in enumerate(self.groups) if step in group)


def partition(
    graph: Graph,
    rule: Rule,
    *,
    merge: Predicate | None = None,
    view: View | None = None,
    keep_boundaries: Collection[int] | Mapping[int, str] = (),
) -> Partition:
    """Split `graph` into as few groups as `rule` and `merge` allow.

    `merge(first, second)` is asked last about each pair of groups and can only forbid; it sees `view(steps)` of each
    (by default the tuple of steps). `keep_boundaries` are values whose maker and readers stay in different groups,
    with the reason where it is a mapping.

    Raises SegmentationError when the predicate raises or returns neither a bool nor a Verdict, when a group that
    `rule.merge` let grow is refused by `rule.accepts`, or when a kept boundary names no value of the graph.
    """
    unknown = sorted(value for value in keep_boundaries if not graph.has(value))
    if unknown:
        raise SegmentationError(f"keep_boundaries names values that the graph does not have: {unknown}")
    why = "a boundary is kept between them"
    kept = keep_boundaries if isinstance(keep_boundaries, Mapping) else dict.fromkeys(keep_boundaries, why)
    log = RefusalLog()
    every_step = tuple(range(len(graph.steps)))
    free = merge is None and not keep_boundaries
    if free and every_step and not any(rule.alone(step) for step in every_step):
        verdict = rule.accepts(every_step) if len(every_step) > 1 else Verdict(True)
        if verdict:
            return _finish(graph, [(every_step, every_step)], {}, log)
        log.add(lambda: every_step, tuple, verdict)
    forbids = Forbids(merge, view)
    units = split_into_units(graph, rule, forbids, frozenset(kept), log)
    merging = _Merging(graph, rule, forbids, kept, units, log)
    if free:
        merging.merge_regions()
    merging.merge_to_fixed_point()
    merging.check_groups()
    return _finish(graph, merging.ordered_groups(), merging.reasons(), log)


class _Merging:
    """The units while they grow together. A group goes by the number that the quotient gives it."""

    def __init__(
        self,
        graph: Graph,
        rule: Rule,
        forbids: Forbids,
        kept: Mapping[int, str],
        units: list[Unit],
        log: RefusalLog,
    ) -> None:
        self.graph = graph
        self.rule = rule
        self.forbids = forbids
        self.kept = kept
        self.units = units
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

    # --- one pair ---------------------------------------------------------------------------------------------

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
                return no("a step that stands alone is never merged", step=self.graph.describe(step)), None
        for group in (first, second):
            if group in self.sealed:
                return no("a region was accepted whole, without facts to grow on from", steps=self.steps(group)), None
        values = sorted(self.quotient.values(first, second))
        held = [value for value in values if value in self.kept]
        if held:
            return no(self.kept[held[0]], values=tuple(held)), None
        edges = tuple(
            Edge(value, self.graph.is_output(value) or self.quotient.outside_readers(value) > 1) for value in values
        )
        verdict = self.rule.merge(self.facts[first], self.facts[second], edges)
        if not verdict:
            return verdict, None
        plan = self.quotient.plan(first, second)
        if plan is None:
            return no("merging would make a cycle"), None
        forbidden = self.forbids.verdict(lambda: self.steps(first), lambda: self.steps(second))
        return (verdict, plan) if forbidden else (forbidden, None)

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

    # --- candidates -------------------------------------------------------------------------------------------

    def merge_regions(self) -> None:
        """Offer each maximal region between steps that stand alone as one group."""
        for region in self.regions():
            steps = tuple(sorted({step for unit in region for step in self.units[unit].steps}))
            if len(steps) == len(self.graph.steps):
                continue  # this is the whole graph, and was refused
            verdict = self.rule.accepts(steps)
            if not verdict:
                self.log.add(functools.partial(tuple, steps), tuple, verdict)
                continue
            final = verdict.facts is None and any(self.facts[unit] is not None for unit in region)
            group = region[0]
            for unit in region[1:]:
                plan = self.quotient.plan(group, unit)
                if plan is None:
                    raise SegmentationError(f"region {steps} cannot be ordered as one group")
                group = self.join(plan, verdict.facts, (region[0], unit))
            self.checked[group] = self.stamps[group]
            if final:
                self.sealed.add(group)

    def regions(self) -> Iterator[list[int]]:
        """Yield the regions of more than one unit, each with its units ascending.

        A region is connected by edges, and all its units have the same number of alone steps on the longest path to
        them: no path can leave it through an alone step and come back.
        """
        depth = [0] * len(self.units)
        parent = list(range(len(self.units)))

        def root(unit: int) -> int:
            while parent[unit] != unit:
                parent[unit] = parent[parent[unit]]
                unit = parent[unit]
            return unit

        for unit in range(len(self.units)):
            for consumer in self.quotient.consumers(unit):
                depth[consumer] = max(depth[consumer], depth[unit] + self.alone[unit])
        for unit in range(len(self.units)):
            for consumer in self.quotient.consumers(unit):
                if not (self.alone[unit] or self.alone[consumer]) and depth[unit] == depth[consumer]:
                    parent[root(consumer)] = root(unit)
        regions: dict[int, list[int]] = {}
        for unit in range(len(self.units)):
            regions.setdefault(root(unit), []).append(unit)
        return (region for region in regions.values() if len(region) > 1)

    def merge_to_fixed_point(self) -> None:
        """Offer pairs and siblings until a full round merges nothing."""
        changed = True
        while changed:
            changed = self.merge_pairs(movement_only=True)
            changed = self.merge_pairs(movement_only=False) or changed
            if not changed:
                changed = self.merge_siblings()

    def merge_pairs(self, movement_only: bool) -> bool:
        """Offer each group its consumers once, in topological order; returns whether any merged."""
        changed = False
        offered: dict[int, int] = {}
        for unit in range(len(self.units)):
            group = self.quotient.find(unit)
            if self.alone[group] or offered.get(group) == self.stamps[group]:
                continue
            stamp = self.stamps[group]
            group = self.offer_consumers(group, movement_only)
            changed = changed or self.stamps[group] != stamp
            offered[group] = self.stamps[group]
        return changed

    def offer_consumers(self, group: int, movement_only: bool) -> int:
        """Grow one group over its consumers, and theirs as they join it; returns the group's number in the end."""
        find = self.quotient.find
        waiting: list[tuple[bool, int, int]] = []
        tried: set[int] = set()

        def push(consumers: Collection[int]) -> None:
            for consumer in consumers:
                if consumer not in tried and (self.movement[consumer] or not movement_only):
                    tried.add(consumer)
                    heapq.heappush(waiting, (not self.movement[consumer], self.quotient.label(consumer), consumer))

        push(self.quotient.consumers(group))
        while waiting:
            consumer = heapq.heappop(waiting)[2]
            if find(consumer) == group:
                continue
            further = tuple(self.quotient.consumers(consumer))
            union = self.attempt(group, consumer)
            if union is not None:
                group = union
                push([other for other in further if other != group])
        return group

    def merge_siblings(self) -> bool:
        """Offer groups that read a common value to each other; returns whether any merged."""
        changed = False
        for readers in self.common_readers():
            groups = {self.quotient.find(unit) for unit in readers}
            open_groups: list[int] = []
            for group in sorted((group for group in groups if not self.alone[group]), key=self.quotient.label):
                union = self.offer_siblings(open_groups, group)
                if union is None:
                    open_groups = [*open_groups[1 - SIBLINGS_TRIED :], group]
                else:
                    changed = True
        return changed

    def offer_siblings(self, open_groups: list[int], group: int) -> int | None:
        """Offer a group to the open ones, the newest first; the union takes the place of the one that took it."""
        for position in reversed(range(len(open_groups))):
            other = open_groups[position]
            first, second = sorted((other, group), key=self.quotient.label)
            union = self.attempt(first, second)
            if union is not None:
                open_groups[position] = union
                return union
        return None

    def common_readers(self) -> list[list[int]]:
        """Return the units that read each value with several readers: inputs of the graph first, then by maker."""
        readers: dict[int, list[int]] = {}
        for position, unit in enumerate(self.units):
            for value in unit.reads:
                if value >= 0:  # an extent is no data: reading the same one joins nothing
                    readers.setdefault(value, []).append(position)
        shared = [value for value, units in readers.items() if len(units) > 1]
        place = {value: position for position, value in enumerate(self.graph.inputs)}
        inputs = len(place)
        makers = {value: self.graph.producer(value) for value in shared}
        shared.sort(key=lambda value: (place.get(value, inputs), makers[value] or 0, value))
        return [readers[value] for value in shared]

    # --- the end ----------------------------------------------------------------------------------------------

    def check_groups(self) -> None:
        """Run the rule's full check on each group of more than one step that it has not seen as it is."""
        for group in self.quotient.groups():
            steps = self.steps(group)
            if len(steps) == 1 or self.checked.get(group) == self.stamps[group]:
                continue
            verdict = self.rule.accepts(steps)
            if not verdict:
                raise SegmentationError(
                    f"the rule contradicts itself: merge accepted {self.describe_growth(group)}, "
                    f"but accepts refused the whole {steps}: {verdict}"
                )

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


def _finish(
    graph: Graph,
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]],
    boundaries: dict[tuple[int, int], Verdict],
    log: RefusalLog,
) -> Partition:
    homes = {step: position for position, (_, at_home) in enumerate(groups) for step in at_home}
    needed: set[int] = {value for value in graph.outputs if graph.producer(value) is not None}
    for steps, _ in groups:
        made = {value for step in steps for value in graph.steps[step].outputs}
        for step in steps:
            needed.update(value for value in graph.steps[step].inputs if value not in made)
    stored: list[list[int]] = [[] for _ in groups]
    for step, position in sorted(homes.items()):
        stored[position].extend(value for value in graph.steps[step].outputs if value in needed)
    return Partition(
        groups=tuple(steps for steps, _ in groups),
        stored=tuple(map(tuple, stored)),
        boundaries=MappingProxyType(boundaries),
        refusals=tuple(log.kept),
        refusals_dropped=log.dropped,
    )
