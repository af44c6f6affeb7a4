"""Which nodes one kernel can hold: the merge rule of tracefuse, pair by pair as groups grow and for a whole region.

Knows: the kinds of op, how facts about loops are united (`loops.py`). Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Callable

from segments import Edge, Graph, Verdict, no, yes
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.indexing import PULLED, use_maps
from tracefuse.ir.op_kinds import Library, Movement, Pointwise
from tracefuse.schedule.kernel_size import MOST_CODE, MOST_PARAMETERS
from tracefuse.schedule.loop_facts import Facts, merge_facts, node_facts

CHEAP_OPERANDS = 1
"""A node that reads at most this many tensors may be cheap: copying one costs its readers no more than one read."""


class RegionRule:
    """The rule for regions of a fusion: `graph` is its tensor nodes as steps, in order (segments.Rule).

    bounded: regions are as large as segments may be, where there is a choice; what is a segment already is taken as
    it is, with its composites written out too.
    """

    def __init__(self, fusion: Fusion, graph: Graph, nodes: tuple[Node, ...], *, bounded: bool = False) -> None:
        self.fusion, self.graph, self.nodes, self.is_bounded = fusion, graph, nodes, bounded
        self.most_code = MOST_CODE if bounded else math.inf
        self._facts: dict[int, Facts] = {}
        self._inputs = frozenset(fusion.inputs)

    def facts(self, step: int) -> Facts:
        found = self._facts.get(step)
        if found is None:
            found = self._facts[step] = node_facts(self.fusion, self.nodes[step])
        return found

    @functools.cached_property
    def fixed(self) -> frozenset[int]:
        """The values that depend on a reduction, in whichever group it will be."""
        found: set[int] = set()
        for step, node in enumerate(self.nodes):
            if self.facts(step).reduced is not None or not (self.alone(step) or found.isdisjoint(node.inputs)):
                found.update(node.outputs)
        return frozenset(found)

    def merge(self, a: object, b: object, edges: tuple[Edge, ...]) -> Verdict:
        assert isinstance(a, Facts)
        assert isinstance(b, Facts)
        return self.bounded(merge_facts(a, b, edges, self.fixed, most_code=self.most_code))

    def bounded(self, verdict: Verdict) -> Verdict:
        """A verdict about a union, which must not take more parameters than a kernel has."""
        facts = verdict.facts
        if self.is_bounded and isinstance(facts, Facts) and facts.parameters > MOST_PARAMETERS:
            return no("a kernel takes no more parameters", parameters=facts.parameters, most=MOST_PARAMETERS)
        return verdict

    def accepts(self, steps: tuple[int, ...]) -> Verdict:
        return judge_region(self, steps)

    @functools.cached_property
    def whole(self) -> Verdict:
        """Whether one kernel can hold all steps; a yes carries their facts."""
        return self.accepts(tuple(range(len(self.nodes))))

    def alone(self, step: int) -> bool:
        return isinstance(self.nodes[step].op, Library)

    def movement(self, step: int) -> bool:
        return isinstance(self.nodes[step].op, Movement)

    def cheap(self, step: int) -> bool:
        """Light work on inputs alone, which each reader may do again: casts, constants, axes added or reordered.

        On what a kernel computes nothing is cheap: its readers would each store what they share.
        """
        node = self.nodes[step]
        tensors = [v for v in node.inputs if self.fusion.values[v].is_tensor]
        if len(tensors) > CHEAP_OPERANDS or not self._inputs.issuperset(tensors):
            return False
        if isinstance(node.op, Movement):
            _, _, reads = use_maps(self.fusion, node)
            return not any(PULLED in axis_map for _, axis_map in reads)
        return isinstance(node.op, Pointwise) and not node.op.expensive

    def stored(self, step: int, inside: frozenset[int]) -> bool:
        """Whether what a step of a region makes must be stored: it is an output, or read outside.

        A cheap step is copied into its readers instead, unless a library call needs it in memory.
        """
        readers = [r for v in self.nodes[step].outputs for r in self.graph.readers(v)]
        if any(self.graph.is_output(v) for v in self.nodes[step].outputs) or any(self.alone(r) for r in readers):
            return True
        return not self.cheap(step) and any(r not in inside for r in readers)


def judge_region(rule: RegionRule, steps: tuple[int, ...], stored: Callable[[int], bool] | None = None) -> Verdict:
    """Whether one kernel can hold the steps: their facts merged from the last node to the first.

    stored: says of a step whether what it makes must be stored, if not the rule does.
    """
    return _Judgement(rule, steps, stored).judge()


class _Judgement:
    """The facts of some steps while they are merged, each step after its readers among them.

    Each result begins a part, and a step joins the part that reads it. Where several do, a step that depends on a
    reduction makes one part of them, since it cannot be chosen along which loops they read it; another step waits until
    they are one. In the end all parts become one. So a part knows along which loops it reads what is fixed before its
    loops are identified with those of others.
    """

    def __init__(self, rule: RegionRule, steps: tuple[int, ...], stored: Callable[[int], bool] | None) -> None:
        self.rule, inside = rule, frozenset(steps)
        self.stored = stored or (lambda step: rule.stored(step, inside))
        maker = {value: step for step in steps for value in rule.nodes[step].outputs}
        self.makers = {step: {maker[v] for v in rule.nodes[step].inputs if v in maker} for step in steps}
        # How many readers of each step are still to be merged.
        self.waiting = dict.fromkeys(steps, 0)
        for step in (step for read in self.makers.values() for step in read):
            self.waiting[step] += 1
        self.results = [step for step in steps if not self.waiting[step]]
        # The steps that depend on a reduction among them, and what they make.
        self.tainted: set[int] = set()
        for step in steps:
            if self.rule.facts(step).reduced is not None or not self.tainted.isdisjoint(self.makers[step]):
                self.tainted.add(step)
        self.fixed = frozenset(value for step in self.tainted for value in rule.nodes[step].outputs)
        # Each part goes by its first result, and has its facts and the steps that it reads and that are not merged yet.
        self.facts: dict[int, Facts] = {}
        self.reads: dict[int, set[int]] = {}
        self.readers: dict[int, set[int]] = {step: set() for step in steps}
        self.ready: list[int] = []

    def judge(self) -> Verdict:
        """The facts of all steps; the parts from the last result to the first."""
        for result in reversed(self.results):
            self.facts[result], self.reads[result] = self.rule.facts(result), set()
            self._merged(result, result)
            verdict = self._pulled()
            if not verdict:
                return verdict
        first, *others = self.facts
        for part in others:
            verdict = self._joined(first, part)
            if verdict:
                verdict = self._pulled()
            if not verdict:
                return verdict
        facts = self.facts[first]
        if facts.pending and facts.pending != facts.reduced:
            missing = tuple(facts.loops[loop] for loop in sorted(facts.pending))
            return no("outputs run over different loops and no reduction joins them", extents=missing)
        return self.rule.bounded(yes(facts))

    def _merged(self, step: int, part: int) -> None:
        """Notes that a step is merged into a part, which reads what the step does."""
        for before in self.makers[step]:
            self.waiting[before] -= 1
            self.reads[part].add(before)
            self.readers[before].add(part)
            self._offer(before)

    def _offer(self, step: int) -> None:
        """Puts a step on the heap once it waits for nothing any more."""
        if self.waiting[step] == 0 and (len(self.readers[step]) == 1 or step in self.tainted):
            self.waiting[step] = -1
            heapq.heappush(self.ready, -step)

    def _pulled(self) -> Verdict:
        """Merges the steps that wait for nothing, the last first."""
        while self.ready:
            step = -heapq.heappop(self.ready)
            first, *others = sorted(self.readers[step], reverse=True)
            for part in others:
                verdict = self._joined(first, part)
                if not verdict:
                    return verdict
            self.reads[first].discard(step)
            facts = self.facts[first]
            exposed = self.stored(step)
            edges = tuple(Edge(v, exposed) for v in self.rule.nodes[step].outputs if v in facts.uses)
            verdict = self._union(self.rule.facts(step), first, edges)
            if not verdict:
                return verdict
            self._merged(step, first)
        return yes()

    def _joined(self, first: int, other: int) -> Verdict:
        """Makes one part of two."""
        verdict = self._union(self.facts.pop(other), first, ())
        if not verdict:
            return verdict
        for step in sorted(self.reads.pop(other)):
            self.readers[step].discard(other)
            self.readers[step].add(first)
            self.reads[first].add(step)
            self._offer(step)
        return verdict

    def _union(self, facts: Facts, part: int, edges: tuple[Edge, ...]) -> Verdict:
        most_code = self.rule.most_code
        verdict = merge_facts(facts, self.facts[part], edges, self.fixed, folding=True, most_code=most_code)
        if verdict:
            assert isinstance(verdict.facts, Facts)
            self.facts[part] = verdict.facts
        return verdict
