"""The merge rule for regions: decides which nodes fit in one kernel, for pairs of groups and for whole regions.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Callable

from segments import Edge, Graph, Verdict, yes
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.indexing import is_along, use_maps
from tracefuse.ir.op_kinds import Movement, Pointwise
from tracefuse.ir.scan_kind import is_library_call
from tracefuse.schedule.kernel_size import MOST_CODE, MOST_PARAMETERS
from tracefuse.schedule.loop_facts import Facts, LoopRefusal, many_orders, node_facts
from tracefuse.schedule.loop_union import merge_facts
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.work_after_exchanges import after_exchanges

CHEAP_OPERANDS = 1
"""A node that reads at most this many tensors may be cheap: recomputing it costs each consumer at most one read."""

SLACK = 8
"""A check of a whole region accepts one part in so many more code than a merge: it meets the nodes in another order and
counts a little more or less, and a group that it refuses starts the merging over."""


class RegionRule:
    """The merge rule for the regions of a fusion; implements segments.Rule.

    graph: the fusion's tensor nodes as steps, in order. bounded: limit regions to the largest segment, while the
    partition is still open. An existing segment is accepted at any size, since decomposing its composites makes it
    larger.
    """

    def __init__(self, fusion: Fusion, graph: Graph, nodes: tuple[Node, ...], *, bounded: bool = False) -> None:
        self.fusion, self.graph, self.nodes, self.is_bounded = fusion, graph, nodes, bounded
        self.most_code = MOST_CODE if bounded else math.inf
        self.most_code_of_whole = MOST_CODE + MOST_CODE // SLACK if bounded else math.inf
        self._facts: dict[int, Facts] = {}
        self._inputs = frozenset(fusion.inputs)

    def facts(self, step: int) -> Facts:
        facts = self._facts.get(step)
        if facts is None:
            facts = self._facts[step] = node_facts(self.fusion, self.nodes[step])
        return facts

    @functools.cached_property
    def fixed(self) -> frozenset[int]:
        """The values that depend on a reduction or a scan, in this group or any other."""
        dependent: set[int] = set()
        for step, node in enumerate(self.nodes):
            if self.facts(step).reduced is not None or not (self.alone(step) or dependent.isdisjoint(node.inputs)):
                dependent.update(node.outputs)
        return frozenset(dependent)

    def merge(self, a: object, b: object, edges: tuple[Edge, ...]) -> Verdict:
        assert isinstance(a, Facts)
        assert isinstance(b, Facts)
        return self.bounded(merge_facts(a, b, edges, self.fixed, most_code=self.most_code))

    def bounded(self, verdict: Verdict) -> Verdict:
        """Returns the verdict on a union, refused if it exceeds the number of parameters of a kernel."""
        facts = verdict.facts
        if self.is_bounded and isinstance(facts, Facts) and facts.parameters > MOST_PARAMETERS:
            return RegionRefusal.TOO_MANY_PARAMETERS(parameters=facts.parameters, most=MOST_PARAMETERS)
        return verdict

    def accepts(self, steps: tuple[int, ...]) -> Verdict:
        too_long = self.too_long(steps)
        return judge_region(self, steps) if too_long is None else too_long

    def too_long(self, steps: tuple[int, ...]) -> Verdict | None:
        """Refuses steps that alone emit more than a kernel may; each emits at least one op."""
        if len(steps) <= self.most_code_of_whole:
            return None
        return LoopRefusal.TOO_MUCH_CODE(code=len(steps), most=self.most_code_of_whole)

    def pays(self, accepted: Verdict) -> Verdict:
        """Refuses a region that would read or store arrays across the order of its loops."""
        return self.in_one_order(accepted, accepted.facts)

    def in_one_order(self, accepted: Verdict, facts: object) -> Verdict:
        """Returns a verdict, or a refusal if a region with these facts has accesses across its loops."""
        refusal = many_orders(facts) if isinstance(facts, Facts) else None
        return accepted if refusal is None else refusal

    @functools.cached_property
    def whole(self) -> Verdict:
        """Whether one kernel can hold all steps; a positive verdict carries their facts."""
        return self.accepts(tuple(range(len(self.nodes))))

    def alone(self, step: int) -> bool:
        return is_library_call(self.nodes[step].op)

    def movement(self, step: int) -> bool:
        return isinstance(self.nodes[step].op, Movement)

    def cheap(self, step: int) -> bool:
        """Returns whether consumers may recompute a step: a cast, a constant, or axes added or permuted.

        Only steps on what is in memory are cheap: inputs, or what `after_exchanges` returns. Recomputing a step on a
        kernel's result would make each consumer store that result.
        """
        node = self.nodes[step]
        if node.outputs[0] in self._after_exchanges:
            return True
        tensors = [v for v in node.inputs if self.fusion.values[v].is_tensor]
        if len(tensors) > CHEAP_OPERANDS or not self._inputs.issuperset(tensors):
            return False
        if isinstance(node.op, Movement):
            _, _, reads = use_maps(self.fusion, node)
            return all(is_along(entry) for _, axis_map in reads for entry in axis_map)
        return isinstance(node.op, Pointwise) and not node.op.expensive

    @functools.cached_property
    def _after_exchanges(self) -> frozenset[int]:
        return after_exchanges(self.fusion, self.nodes)

    def stored(self, step: int, inside: frozenset[int]) -> bool:
        """Returns whether a step's result must be stored: it is an output, or a step outside the region reads it.

        Consumers recompute a cheap step instead, unless a library call needs its result in memory.
        """
        readers = [r for v in self.nodes[step].outputs for r in self.graph.readers(v)]
        if any(self.graph.is_output(v) for v in self.nodes[step].outputs) or any(self.alone(r) for r in readers):
            return True
        return not self.cheap(step) and any(r not in inside for r in readers)


def judge_region(rule: RegionRule, steps: tuple[int, ...], stored: Callable[[int], bool] | None = None) -> Verdict:
    """Judges whether one kernel can hold the steps, by merging their facts from the last node to the first.

    stored: returns whether a step's result must be stored; defaults to `rule.stored`.
    """
    return _Judgement(rule, steps, stored).judge()


class _Judgement:
    """Merges the facts of steps in reverse order: each step after its consumers.

    Each result starts a part, and a step joins the part that reads it. If several parts read a step that depends on a
    reduction, they are joined first, since the loops along which they read it are fixed. Any other step waits until its
    consumers are in one part. Finally, all parts are joined. A part therefore knows the loops along which it reads
    fixed values before its loops are matched with those of another part.
    """

    def __init__(self, rule: RegionRule, steps: tuple[int, ...], stored: Callable[[int], bool] | None) -> None:
        self.rule, inside = rule, frozenset(steps)
        self.stored = stored or (lambda step: rule.stored(step, inside))
        producer = {value: step for step in steps for value in rule.nodes[step].outputs}
        self.producers = {step: {producer[v] for v in rule.nodes[step].inputs if v in producer} for step in steps}
        # The number of consumers of each step that are not merged yet.
        self.waiting = dict.fromkeys(steps, 0)
        for step in (step for read in self.producers.values() for step in read):
            self.waiting[step] += 1
        self.results = [step for step in steps if not self.waiting[step]]
        # The steps that depend on a reduction of the region, and their values.
        self.tainted: set[int] = set()
        for step in steps:
            if self.rule.facts(step).reduced is not None or not self.tainted.isdisjoint(self.producers[step]):
                self.tainted.add(step)
        self.fixed = frozenset(value for step in self.tainted for value in rule.nodes[step].outputs)
        # A part is identified by its first result. reads: the steps that it reads and that are not merged yet.
        self.facts: dict[int, Facts] = {}
        self.reads: dict[int, set[int]] = {}
        self.readers: dict[int, set[int]] = {step: set() for step in steps}
        self.ready: list[int] = []

    def judge(self) -> Verdict:
        """Merges all steps; starts parts from the last result to the first."""
        for result in reversed(self.results):
            self.facts[result], self.reads[result] = self.rule.facts(result), set()
            self._add(result, result)
            verdict = self._pull()
            if not verdict:
                return verdict
        first, *following = self.facts
        for part in following:
            verdict = self._join(first, part)
            if verdict:
                verdict = self._pull()
            if not verdict:
                return verdict
        facts = self.facts[first]
        if facts.pending and facts.pending != facts.reduced:
            missing = tuple(facts.loops[loop] for loop in sorted(facts.pending))
            return RegionRefusal.OUTPUTS_NOT_JOINED(extents=missing)
        return self.rule.bounded(yes(facts))

    def _add(self, step: int, part: int) -> None:
        """Records that a step is merged into a part, which now reads the step's operands."""
        for before in self.producers[step]:
            self.waiting[before] -= 1
            self.reads[part].add(before)
            self.readers[before].add(part)
            self._offer(before)

    def _offer(self, step: int) -> None:
        """Pushes a step on the heap once all its consumers are merged."""
        if self.waiting[step] == 0 and (len(self.readers[step]) == 1 or step in self.tainted):
            self.waiting[step] = -1
            heapq.heappush(self.ready, -step)

    def _pull(self) -> Verdict:
        """Merges the ready steps, last first."""
        while self.ready:
            step = -heapq.heappop(self.ready)
            first, *following = sorted(self.readers[step], reverse=True)
            for part in following:
                verdict = self._join(first, part)
                if not verdict:
                    return verdict
            self.reads[first].discard(step)
            facts = self.facts[first]
            exposed = self.stored(step)
            edges = tuple(Edge(v, exposed) for v in self.rule.nodes[step].outputs if v in facts.uses)
            verdict = self._union(self.rule.facts(step), first, edges)
            if not verdict:
                return verdict
            self._add(step, first)
        return yes()

    def _join(self, first: int, other: int) -> Verdict:
        """Joins part `other` into part `first`."""
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
        most_code = self.rule.most_code_of_whole
        verdict = merge_facts(facts, self.facts[part], edges, self.fixed, folding=True, most_code=most_code)
        if verdict:
            assert isinstance(verdict.facts, Facts)
            self.facts[part] = verdict.facts
        return verdict
