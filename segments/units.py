"""The units that partitioning starts from: each home step with the cheap steps that are recomputed for it.

A cheap step floats: it has no home unit and is copied, together with the cheap steps it reads, into every group that
reads it. It gets a home unit like any other step when its value must be stored: the graph returns it, a step that is
never merged reads it, a boundary is kept at it, or a reader's group refuses the copy.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from segments.graph import Graph
from segments.lazy_dataclasses import dataclass
from segments.rules import (
    Edge,
    Predicate,
    RefusalLog,
    Rule,
    SegmentationError,
    Verdict,
    as_verdict,
    predicate_name,
    yes,
)

View = Callable[[tuple[int, ...]], object]


class Forbids:
    """A user's predicate with its view. An exception that it raises is reported with the two groups."""

    __slots__ = ("cache", "predicate", "view")

    def __init__(self, predicate: Predicate | None, view: View | None) -> None:
        self.predicate = predicate
        self.view = view
        self.cache: dict[tuple[int, ...], object] = {}

    def verdict(self, first: Callable[[], tuple[int, ...]], second: Callable[[], tuple[int, ...]]) -> Verdict:
        """Ask the predicate about two groups. They are callables, so no steps are listed without a predicate."""
        if self.predicate is None:
            return yes()
        groups = first(), second()
        try:
            answer = self.predicate(self.seen(groups[0]), self.seen(groups[1]))
            return as_verdict(answer, predicate_name(self.predicate))
        except Exception as error:  # a user's function may raise anything; it is re-raised with the groups' steps
            raise SegmentationError(
                f"the merge predicate {predicate_name(self.predicate)} failed on groups {groups[0]} and {groups[1]}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def seen(self, steps: tuple[int, ...]) -> object:
        """Return the predicate's view of a group. Recent views are cached: the same group is shown many times."""
        if self.view is None:
            return steps
        if steps not in self.cache:
            if len(self.cache) >= 64:
                self.cache.clear()
            self.cache[steps] = self.view(steps)
        return self.cache[steps]


@dataclass(frozen=True, slots=True)
class Unit:
    """A home step and the copies made for it: all `steps`, ascending, the outside values they read, and their facts."""

    home: int
    steps: tuple[int, ...]
    reads: tuple[int, ...]
    facts: object


def split_into_units(
    graph: Graph, rule: Rule, forbids: Forbids, boundaries: frozenset[int], log: RefusalLog, *, checked: bool = False
) -> list[Unit]:
    """Return one unit for each home step, in graph order.

    With `checked`, every unit has passed the rule's full check: for a rule whose `merge` has contradicted it.
    """
    return _Splitting(graph, rule, forbids, boundaries, log, checked).run()


class _Splitting:
    def __init__(
        self, graph: Graph, rule: Rule, forbids: Forbids, boundaries: frozenset[int], log: RefusalLog, checked: bool
    ) -> None:
        self.graph = graph
        self.rule = rule
        self.forbids = forbids
        self.boundaries = boundaries
        self.log = log
        self.checked = checked
        self.floats = [self.may_float(step) for step in range(len(graph.steps))]
        self.holders: dict[int, set[int]] = {}  # floating step -> the home steps whose units hold a copy
        self.units: dict[int, Unit] = {}

    def may_float(self, step: int) -> bool:
        readers = self.graph.readers_of(step)
        return (
            bool(readers)
            and self.rule.cheap(step)
            and not self.rule.alone(step)
            and not any(
                self.graph.is_output(value) or value in self.boundaries for value in self.graph.steps[step].outputs
            )
            and not any(self.rule.alone(reader) for reader in readers)
        )

    def run(self) -> list[Unit]:
        pending = [step for step, floats in enumerate(self.floats) if not floats]
        while pending:
            home = pending.pop()
            for step in self.units[home].steps if home in self.units else ():
                self.holders.get(step, set()).discard(home)
            unit, refused = self.grow(home)
            self.units[home] = unit
            for step in refused:
                # It gets a home unit, and the units that hold a copy are rebuilt without it: a step has one home or
                # copies, never both.
                pending.append(step)
                pending.extend(self.holders.pop(step, ()))
        return [self.units[home] for home in sorted(self.units)]

    def grow(self, home: int) -> tuple[Unit, list[int]]:
        """Copy the floating steps that `home` reads, nearest first; return the unit and the steps that were refused."""
        graph = self.graph
        steps = {home}
        facts = self.rule.facts(home)
        refused: list[int] = []
        reads = dict.fromkeys(graph.steps[home].inputs)
        waiting: list[int] = []
        known: set[int] = set()

        def push(step: int) -> None:
            for producer in graph.producers_of(step):
                if self.floats[producer] and producer not in known:
                    known.add(producer)
                    heapq.heappush(waiting, -producer)

        push(home)
        while waiting:
            step = -heapq.heappop(waiting)
            verdict = self.judge(step, facts, reads, steps)
            if not verdict:
                self.floats[step] = False
                refused.append(step)
                continue
            facts = verdict.facts
            steps.add(step)
            self.holders.setdefault(step, set()).add(home)
            for value in graph.steps[step].outputs:
                reads.pop(value, None)
            reads.update(dict.fromkeys(graph.steps[step].inputs))
            push(step)
        return Unit(home, tuple(sorted(steps)), tuple(reads), facts), refused

    def judge(self, step: int, facts: object, reads: dict[int, None], steps: set[int]) -> Verdict:
        edges = tuple(Edge(value, False) for value in sorted(self.graph.steps[step].outputs) if value in reads)
        verdict = self.rule.merge(self.rule.facts(step), facts, edges)
        if verdict:
            forbidden = self.forbids.verdict(lambda: (step,), lambda: tuple(sorted(steps)))
            if not forbidden:
                verdict = forbidden
        if verdict and self.checked:
            full = self.rule.accepts(tuple(sorted({step, *steps})))
            if not full:
                verdict = full
        if not verdict:
            steps_of_unit = tuple(sorted(steps))
            self.log.add(lambda: (step,), lambda: steps_of_unit, verdict)
        return verdict
