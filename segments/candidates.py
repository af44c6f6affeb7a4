"""The candidates for merging, in order, up to a fixed point.

First comes each maximal region between steps that are never merged; then producer-consumer pairs in topological order,
movement steps first, where a merged group continues with its new consumers; last, siblings that read a common value. A
refused pair is retried only after one of its groups has changed.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Collection, Iterator

from segments.groups import Groups

# How many sibling groups each reader of a common value is offered to, newest first. It keeps the pairs tried for a
# value with n readers linear in n.
SIBLINGS_TRIED = 8


class Candidates:
    """Proposes merges to `groups`, which merge the accepted ones."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.quotient = groups.quotient

    def merge_regions(self) -> None:
        """Offer each maximal region between never-merged steps as one group."""
        for region in self.regions():
            steps = tuple(sorted({step for unit in region for step in self.groups.units[unit].steps}))
            if len(steps) == len(self.groups.graph.steps):
                continue  # the whole graph has already been refused
            verdict = self.groups.rule.pays(self.groups.rule.accepts(steps))
            if not verdict:
                self.groups.log.add(functools.partial(tuple, steps), tuple, verdict)
                continue
            final = verdict.facts is None and any(self.groups.facts[unit] is not None for unit in region)
            group = self.groups.join_all(region, verdict.facts)
            self.groups.checked[group] = self.groups.stamps[group]
            if final:
                self.groups.sealed.add(group)

    def regions(self) -> Iterator[list[int]]:
        """Yield the regions of several units, each with its units ascending.

        A region is connected by edges, and the longest path to each of its units has the same number of never-merged
        steps and kept boundaries. So no path leaves the region through one of them and re-enters it.
        """
        depth = [0] * len(self.groups.units)
        parent = list(range(len(self.groups.units)))

        def root(unit: int) -> int:
            while parent[unit] != unit:
                parent[unit] = parent[parent[unit]]
                unit = parent[unit]
            return unit

        alone = self.groups.alone
        for unit in range(len(self.groups.units)):
            for consumer in self.quotient.consumers(unit):
                ends = alone[unit] or self.is_kept(unit, consumer)
                depth[consumer] = max(depth[consumer], depth[unit] + ends)
        for unit in range(len(self.groups.units)):
            for consumer in self.quotient.consumers(unit):
                if not (alone[unit] or alone[consumer]) and depth[unit] == depth[consumer]:
                    parent[root(consumer)] = root(unit)
        regions: dict[int, list[int]] = {}
        for unit in range(len(self.groups.units)):
            regions.setdefault(root(unit), []).append(unit)
        return (region for region in regions.values() if len(region) > 1)

    def is_kept(self, unit: int, consumer: int) -> bool:
        """Return whether a kept boundary lies between two units."""
        boundaries = self.groups.boundaries
        return bool(boundaries) and any(value in boundaries for value in self.quotient.values(unit, consumer))

    def merge_to_fixed_point(self) -> None:
        """Offer pairs, then siblings, until a full round merges nothing."""
        changed = True
        while changed:
            changed = self.merge_pairs(movement_only=True)
            changed = self.merge_pairs(movement_only=False) or changed
            if not changed:
                changed = self.merge_siblings()

    def merge_pairs(self, movement_only: bool) -> bool:
        """Offer each group its consumers once, in topological order; return whether any merged."""
        changed = False
        offered: dict[int, int] = {}
        for unit in range(len(self.groups.units)):
            group = self.quotient.find(unit)
            if self.groups.alone[group] or offered.get(group) == self.groups.stamps[group]:
                continue
            stamp = self.groups.stamps[group]
            group = self.offer_consumers(group, movement_only)
            changed = changed or self.groups.stamps[group] != stamp
            offered[group] = self.groups.stamps[group]
        return changed

    def offer_consumers(self, group: int, movement_only: bool) -> int:
        """Offer a group its consumers, and theirs as they join; return the resulting group's number."""
        find = self.quotient.find
        waiting: list[tuple[bool, int, int]] = []
        tried: set[int] = set()

        def push(consumers: Collection[int]) -> None:
            for consumer in consumers:
                if consumer not in tried and (self.groups.movement[consumer] or not movement_only):
                    tried.add(consumer)
                    heapq.heappush(
                        waiting, (not self.groups.movement[consumer], self.quotient.label(consumer), consumer)
                    )

        push(self.quotient.consumers(group))
        while waiting:
            consumer = heapq.heappop(waiting)[2]
            if find(consumer) == group:
                continue
            further = tuple(self.quotient.consumers(consumer))
            union = self.groups.attempt(group, consumer)
            if union is not None:
                group = union
                push([other for other in further if other != group])
        return group

    def merge_siblings(self) -> bool:
        """Offer groups that read a common value to each other; return whether any merged."""
        changed = False
        for readers in self.common_readers():
            groups = {self.quotient.find(unit) for unit in readers}
            open_groups: list[int] = []
            for group in sorted((group for group in groups if not self.groups.alone[group]), key=self.quotient.label):
                union = self.offer_siblings(open_groups, group)
                if union is None:
                    open_groups = [*open_groups[1 - SIBLINGS_TRIED :], group]
                else:
                    changed = True
        return changed

    def offer_siblings(self, open_groups: list[int], group: int) -> int | None:
        """Offer a group to the open ones, newest first; a union replaces the open group that accepted it."""
        for position in reversed(range(len(open_groups))):
            other = open_groups[position]
            first, second = sorted((other, group), key=self.quotient.label)
            union = self.groups.attempt(first, second)
            if union is not None:
                open_groups[position] = union
                return union
        return None

    def common_readers(self) -> list[list[int]]:
        """Return the reading units of each value with several readers: graph inputs first, then by producer."""
        readers: dict[int, list[int]] = {}
        for position, unit in enumerate(self.groups.units):
            for value in unit.reads:
                if value >= 0:  # extents are not data: a shared extent is no reason to merge
                    readers.setdefault(value, []).append(position)
        shared = [value for value, units in readers.items() if len(units) > 1]
        place = {value: position for position, value in enumerate(self.groups.graph.inputs)}
        inputs = len(place)
        producers = {value: self.groups.graph.producer(value) for value in shared}
        shared.sort(key=lambda value: (place.get(value, inputs), producers[value] or 0, value))
        return [readers[value] for value in shared]
