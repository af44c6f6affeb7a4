"""Which groups to try, in which order, until nothing merges any more.

The whole graph is tried as one group first (unless a predicate or kept boundaries could forbid a part of it), then what
`candidates.py` offers. Each group that has grown is checked as a whole; where the rule refuses one, the last merge is
taken back and the groups grow again, a bounded number of times.

Cheap steps are computed again in each group that reads them, unless somebody needs their stored value; `units.py`
settles that first, so that here every unit has one home.

This module knows what a partition is and when it is done. It must not know what steps are, nor how groups grow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from segments.candidates import Candidates
from segments.graph import Graph
from segments.groups import Groups
from segments.rules import Predicate, Refusal, RefusalCode, RefusalLog, Rule, SegmentationError, Verdict, no
from segments.unions import Unites, unite
from segments.units import Forbids, View, split_into_units

# How often groups grow again after the rule has refused one as a whole. Each time costs as much as the first; what is
# refused after that is taken apart into its units.
MOST_TAKEN_BACK = 8


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
    strict: bool = False,
    unites: Unites | None = None,
) -> Partition:
    """Split `graph` into as few groups as `rule` and `merge` allow.

    `merge(first, second)` is asked last about each pair of groups and can only forbid; it sees `view(steps)` of each
    (by default the tuple of steps). `keep_boundaries` are values whose maker and readers stay in different groups,
    with the reason where it is a mapping. A group that `rule.merge` let grow and `rule.accepts` refuses as a whole is
    an error of the rule: the last merge is taken back, which the refusals say; with `strict` it is raised.
    `unites(a, b)`, on the facts of two groups that did not merge, says whether `rule.accepts` is to be asked for their
    union, once nothing merges any more; a yes carries its facts.

    Raises SegmentationError when the predicate raises or returns neither a bool nor a Verdict, when a kept boundary
    names no value of the graph, or when the rule contradicts itself and `strict` is true.
    """
    unknown = sorted(value for value in keep_boundaries if not graph.has(value))
    if unknown:
        raise SegmentationError(f"keep_boundaries names values that the graph does not have: {unknown}")
    why = "a boundary is kept between them"
    kept = keep_boundaries if isinstance(keep_boundaries, Mapping) else dict.fromkeys(keep_boundaries, why)
    known: list[Refusal] = []
    every_step = tuple(range(len(graph.steps)))
    free = merge is None and not keep_boundaries
    if free and every_step and not any(rule.alone(step) for step in every_step):
        verdict = rule.accepts(every_step) if len(every_step) > 1 else Verdict(True)
        if verdict:
            return _finish(graph, [(every_step, every_step)], {}, RefusalLog())
        known.append(Refusal(every_step, (), verdict))
    groups = _grown(graph, rule, Forbids(merge, view), kept, known, free=free, strict=strict, unites=unites)
    return _finish(graph, groups.ordered_groups(), groups.reasons(), groups.log)


def _grown(
    graph: Graph, rule: Rule, forbids: Forbids, kept: Mapping[int, str], known: list[Refusal], *, free: bool,
    strict: bool, unites: Unites | None,
) -> Groups:  # fmt: skip
    """Return the groups that nothing merges any more and that the rule takes as a whole.

    Where it refuses one, the last merge of that group is taken back: the groups grow again, and that pair stays apart.
    A group that is still refused after a few tries is taken apart into its units.
    """
    apart: dict[tuple[int, int], Verdict] = {}
    for tries in range(MOST_TAKEN_BACK + 1):
        log = RefusalLog(known)
        units = split_into_units(graph, rule, forbids, frozenset(kept), log, checked=tries > 0)
        groups = Groups(graph, rule, forbids, kept, units, apart, log)
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
                apart[units[first].home, units[second].home] = _taken_back(groups.steps(group), verdict)
    return groups.without({group: _taken_back(groups.steps(group), verdict) for group, verdict in refused.items()})


def _taken_back(steps: tuple[int, ...], verdict: Verdict) -> Verdict:
    """Return why a merge was taken back that made a group which the rule refuses as a whole."""
    why = f"merged, they would be part of a group that was refused as a whole: {verdict}"
    return no(why, RefusalCode.TAKEN_BACK, steps=steps)


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
