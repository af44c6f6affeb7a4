"""Partitioning: merge the steps of a graph into as few groups as the rule allows.

The whole graph is tried as one group first, unless a predicate or kept boundaries could forbid part of it. Otherwise
groups grow by the merges that `candidates.py` proposes. Each grown group then gets the rule's full check; a refusal
undoes the last merge of that group and the groups grow again, a bounded number of times; then it is halved.

Cheap steps are recomputed in each group that reads them unless their value must be stored. `units.py` decides that
first, so every unit here has exactly one home step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from segments.candidates import Candidates
from segments.graph import Graph
from segments.groups import Groups
from segments.lazy_dataclasses import dataclass
from segments.rules import Predicate, Refusal, RefusalCode, RefusalLog, Rule, SegmentationError, Verdict, no
from segments.unions import Unites, unite
from segments.units import Forbids, View, split_into_units

# How often merging restarts after the full check refuses a group. Each restart costs as much as the first attempt;
# a group refused after the last one is split into halves.
MAX_RESTARTS = 2


@dataclass(frozen=True, slots=True)
class Partition:
    """The groups of a graph, and why they were not merged further.

    groups: the step positions of each group, ascending. Groups are in topological order, ties broken by the smallest
        first step.
    stored: for each group, the values it must store because another group reads them or the graph returns them.
    boundaries: for each pair of groups where the second reads a value of the first, why they were not merged.
    refusals: the first refusals during merging; `refusals_dropped` counts the rest.
    """

    groups: tuple[tuple[int, ...], ...]
    stored: tuple[tuple[int, ...], ...]
    boundaries: Mapping[tuple[int, int], Verdict]
    refusals: tuple[Refusal, ...]
    refusals_dropped: int

    def groups_of(self, step: int) -> tuple[int, ...]:
        """Return the positions of the groups that contain the step: several only for a recomputed cheap step."""
        return tuple(position for position, group in enumerate(self.groups) if step in group)


def partition(
    graph: Graph,
    rule: Rule,
    *,
    merge: Predicate | None = None,
    view: View | None = None,
    keep_boundaries: Collection[int] | Mapping[int, str] = (),
    strict: bool = False,
    unites: Unites | None = None,
) -> Partition:
    """Split `graph` into as few groups as `rule` and `merge` allow.

    `merge(first, second)` is a predicate that is asked last about each pair and can only forbid a merge. It gets
    `view(steps)` of each group, by default the tuple of steps. `keep_boundaries` lists values whose producer and
    readers stay in different groups; a mapping gives the reason for each. A group that `rule.merge` let grow and
    `rule.accepts` refuses is an error in the rule: its last merge is undone and listed in the refusals, or raised with
    `strict`. `unites(a, b)` gets the facts of two groups that did not merge and returns whether to ask `rule.accepts`
    about their union once merging has reached its fixed point; the verdict that accepts a union carries its facts.

    Raises SegmentationError when the predicate raises or returns neither a bool nor a Verdict, when `keep_boundaries`
    names a value that is not in the graph, or when the rule contradicts itself and `strict` is true.
    """
    unknown = sorted(value for value in keep_boundaries if not graph.has(value))
    if unknown:
        raise SegmentationError(f"keep_boundaries names values that the graph does not have: {unknown}")
    why = "a boundary is kept between them"
    boundaries = keep_boundaries if isinstance(keep_boundaries, Mapping) else dict.fromkeys(keep_boundaries, why)
    known: list[Refusal] = []
    every_step = tuple(range(len(graph.steps)))
    free = merge is None
    if free and every_step and not boundaries and not any(rule.alone(step) for step in every_step):
        verdict = rule.pays(rule.accepts(every_step)) if len(every_step) > 1 else Verdict(True)
        if verdict:
            return _finish(graph, [(every_step, every_step)], {}, RefusalLog())
        known.append(Refusal(every_step, (), verdict))
    groups = _grow_groups(graph, rule, Forbids(merge, view), boundaries, known, free=free, strict=strict, unites=unites)
    return _finish(graph, groups.ordered_groups(), groups.reasons(), groups.log)


def _grow_groups(
    graph: Graph, rule: Rule, forbids: Forbids, boundaries: Mapping[int, str], known: list[Refusal], *, free: bool,
    strict: bool, unites: Unites | None,
) -> Groups:  # fmt: skip
    """Merge groups to a fixed point at which the rule's full check accepts each of them.

    Where the check refuses a group, the pair of its last merge is kept apart and merging restarts. A group that is
    still refused after `MAX_RESTARTS` is split into halves until the check accepts each.
    """
    apart: dict[tuple[int, int], Verdict] = {}
    for tries in range(MAX_RESTARTS + 1):
        log = RefusalLog(known)
        units = split_into_units(graph, rule, forbids, frozenset(boundaries), log, checked=tries > 0)
        groups = Groups(graph, rule, forbids, boundaries, units, apart, log)
        candidates = Candidates(groups)
        if free:
            candidates.merge_regions()
        candidates.merge_to_fixed_point()
        refused = groups.refusals()
        if not refused:
            if unites is not None:
                unite(groups, candidates, unites)
            return groups
        if strict:
            group, verdict = next(iter(refused.items()))
            raise SegmentationError(
                f"the rule contradicts itself: merge accepted {groups.describe_growth(group)}, "
                f"but accepts refused the whole {groups.steps(group)}: {verdict}"
            )
        known += (Refusal(groups.steps(group), (), verdict) for group, verdict in refused.items())
        for group, verdict in refused.items():
            if group in groups.last_merge:
                first, second = groups.last_merge[group]
                apart[units[first].home, units[second].home] = _undone(groups.steps(group), verdict)
    return groups.halved({group: _undone(groups.steps(group), verdict) for group, verdict in refused.items()})


def _undone(steps: tuple[int, ...], verdict: Verdict) -> Verdict:
    """Return why a merge was undone: it led to a group that the full check refuses."""
    reason = f"merging them leads to a group that is refused as a whole: {verdict}"
    return no(reason, RefusalCode.UNDONE, steps=steps)


def _finish(
    graph: Graph,
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]],
    boundaries: dict[tuple[int, int], Verdict],
    log: RefusalLog,
) -> Partition:
    homes = {step: position for position, (_, at_home) in enumerate(groups) for step in at_home}
    needed: set[int] = {value for value in graph.outputs if graph.producer(value) is not None}
    for steps, _ in groups:
        produced = {value for step in steps for value in graph.steps[step].outputs}
        for step in steps:
            needed.update(value for value in graph.steps[step].inputs if value not in produced)
    stored: list[list[int]] = [[] for _ in groups]
    for step, position in sorted(homes.items()):
        stored[position].extend(value for value in graph.steps[step].outputs if value in needed)
    return Partition(
        groups=tuple(steps for steps, _ in groups),
        stored=tuple(map(tuple, stored)),
        boundaries=MappingProxyType(boundaries),
        refusals=tuple(log.refusals),
        refusals_dropped=log.dropped,
    )
