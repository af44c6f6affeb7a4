"""Which nodes one kernel can hold: the merge rule of tracefuse, on facts that merge at the cost of the smaller side.

A region has loops, the extents that its kernel runs over. Some may be reduced (R), the others are kept (K). What the
region must store (its exposed values) and what its reductions read or make is anchored: each axis is one loop, a full
value has all loops, a reduced one the K loops. Everything else is pulled: computed at whatever coordinates a reader
needs, so a pointwise or movement producer joins any reader unless somebody else needs it stored. A reduction joins
where its result is read along the K loops, and no other loop's coordinates.

Two regions become one when their loops can be identified: through the values that cross, then by equal extents in
order; a region without R loops may also be what comes before or after the reductions of the other, over K alone.

Knows: facts about loops. Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from segments import Edge, Graph, Verdict, no, yes
from tracefuse.extents import Extent
from tracefuse.indexing import PULLED, AxisMap, reduces, use_maps
from tracefuse.ir import Fusion, Node
from tracefuse.ops.row import Library, Movement, Pointwise

Uses: TypeAlias = Mapping[int, frozenset[AxisMap]]

CHEAP_OPERANDS = 1
"""A node that reads at most this many tensors may be cheap: copying one costs its readers no more than one read."""

PERHAPS_EQUAL = "the reduced loops and those of the reader are not known to be equal"
"""The refusal that a guard can lift: `y + x.sum(-1, keepdims=True)` is one kernel where x and y have equal rows."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rule knows of a region.

    loops: extents. reduced: the R loops, None where nothing reduces. outputs: the map of each value that is stored or
    read further down. uses: how values from outside are read. tainted: outputs that depend on a reduction in here.
    pending: loops that must turn out to be reduced, only while a whole region is judged node by node.
    """

    loops: tuple[Extent, ...]
    reduced: frozenset[int] | None
    outputs: Mapping[int, AxisMap]
    uses: Uses
    tainted: frozenset[int]
    pending: frozenset[int] = frozenset()
    library: str | None = None


class FusionRule:
    """The rule for a fusion: `graph` is its tensor nodes as steps, in order (segments.Rule)."""

    def __init__(self, fusion: Fusion, graph: Graph, nodes: tuple[Node, ...]) -> None:
        self.fusion, self.graph, self.nodes = fusion, graph, nodes
        self._facts: dict[int, Facts] = {}
        self._inputs = frozenset(fusion.inputs)

    def facts(self, step: int) -> Facts:
        found = self._facts.get(step)
        if found is None:
            found = self._facts[step] = node_facts(self.fusion, self.nodes[step])
        return found

    def merge(self, a: object, b: object, edges: tuple[Edge, ...]) -> Verdict:
        assert isinstance(a, Facts)
        assert isinstance(b, Facts)
        return merge_facts(a, b, edges)

    def accepts(self, steps: tuple[int, ...]) -> Verdict:
        return judge_region(self, steps, folding=True)

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


def node_facts(fusion: Fusion, node: Node) -> Facts:
    """The facts of a single node."""
    extents, result, reads = use_maps(fusion, node)
    uses: dict[int, frozenset[AxisMap]] = {}
    for value, axis_map in reads:
        if fusion.values[value].is_tensor:
            uses[value] = uses.get(value, frozenset()) | {axis_map}
    reduced = None
    if reduces(fusion, node):
        reduced = frozenset(range(len(extents))) - {loop for loop in result if loop is not None}
    tainted = frozenset(node.outputs) if reduced is not None else frozenset[int]()
    library = node.op.name if isinstance(node.op, Library) else None
    return Facts(tuple(extents), reduced, dict.fromkeys(node.outputs, result), uses, tainted, frozenset(), library)


def judge_region(rule: FusionRule, steps: tuple[int, ...], *, folding: bool) -> Verdict:
    """Whether one kernel can hold the steps: their facts merged from the last node to the first.

    Where extents are equal the order decides which loops are taken to be the same; one order that fits is enough.
    """
    verdict = _Judgement(rule, steps, folding).judge(from_first=False)
    return verdict if verdict else _Judgement(rule, steps, folding).judge(from_first=True) or verdict


class _Judgement:
    """The facts of some steps while they are merged, each step after its readers among them.

    What one result alone depends on is merged first, and then that part with what there is: it finds its loops among
    those along which its operands are read already.
    """

    def __init__(self, rule: FusionRule, steps: tuple[int, ...], folding: bool) -> None:
        self.rule, self.folding, self.inside = rule, folding, frozenset(steps)
        maker = {value: step for step in steps for value in rule.nodes[step].outputs}
        self.makers = {step: {maker[v] for v in rule.nodes[step].inputs if v in maker} for step in steps}
        # How many readers of each step are still to be merged.
        self.waiting = dict.fromkeys(steps, 0)
        for step in (step for read in self.makers.values() for step in read):
            self.waiting[step] += 1
        self.results = [step for step in steps if not self.waiting[step]]
        # The steps that earlier parts read, and (as a heap, last first) those that wait for nothing any more.
        self.shared: set[int] = set()
        self.ready: list[int] = []

    def judge(self, *, from_first: bool) -> Verdict:
        """from_first: the results in order; else the last one first."""
        facts: Facts | None = None
        for result in self.results if from_first else reversed(self.results):
            verdict = self._pulled([-result], None)
            if verdict and facts is not None:
                assert isinstance(verdict.facts, Facts)
                verdict = merge_facts(verdict.facts, facts, (), folding=self.folding)
            if verdict:
                assert isinstance(verdict.facts, Facts)
                verdict = self._pulled(self.ready, verdict.facts)
            if not verdict:
                return verdict
            assert isinstance(verdict.facts, Facts)
            facts = verdict.facts
        if facts is not None and facts.pending and facts.pending != facts.reduced:
            missing = tuple(facts.loops[loop] for loop in sorted(facts.pending))
            return no("outputs run over different loops and no reduction joins them", extents=missing)
        return yes(facts)

    def _pulled(self, heap: list[int], facts: Facts | None) -> Verdict:
        """`facts` merged with the steps of a heap and all that waits for these alone."""
        merged: list[int] = []
        while heap:
            step = -heapq.heappop(heap)
            verdict = self._with(step, facts)
            if not verdict:
                return verdict
            assert isinstance(verdict.facts, Facts)
            facts = verdict.facts
            merged.append(step)
            for before in self.makers[step]:
                self.waiting[before] -= 1
                if not self.waiting[before]:
                    heapq.heappush(self.ready if before in self.shared else heap, -before)
        self.shared.update(before for step in merged for before in self.makers[step])
        return yes(facts)

    def _with(self, step: int, facts: Facts | None) -> Verdict:
        """`facts` merged with a step that they read."""
        own = self.rule.facts(step)
        if facts is None:
            return yes(own)
        exposed = self.rule.stored(step, self.inside)
        edges = tuple(Edge(v, exposed) for v in self.rule.nodes[step].outputs if v in facts.uses)
        return merge_facts(own, facts, edges, folding=self.folding)


def merge_facts(a: Facts, b: Facts, edges: tuple[Edge, ...], *, folding: bool = False) -> Verdict:
    """The union of producer `a` and consumer `b` (or of two siblings, where no value crosses)."""
    if a.library or b.library:
        return no(f"{a.library or b.library} is a library call, a segment by itself")
    crossing = {e.value: e.exposed for e in edges}
    kept = {v: m for v, m in a.outputs.items() if crossing.get(v, True)}
    if not kept and a.reduced is None and edges:
        return yes(_pulled_into(a, b, crossing))
    return _identify(a, b, crossing, kept, folding)


def _pulled_into(a: Facts, b: Facts, crossing: Mapping[int, bool]) -> Facts:
    """A producer that nobody else needs vanishes into its reader: its own reads, in the reader's loops."""
    uses = {v: maps for v, maps in b.uses.items() if v not in crossing}
    for value in crossing:
        for use in b.uses[value]:
            _compose(a.uses, _through(a.outputs[value], use), uses)
    return replace(b, uses=uses)


def _through(made: AxisMap, use: AxisMap) -> dict[int, int | None]:
    """Where each loop of the maker goes when its value is read by `use`."""
    return {loop: entry for loop, entry in zip(made, use, strict=True) if loop is not None}


def _compose(uses: Uses, loops: Mapping[int, int | None], into: dict[int, frozenset[AxisMap]]) -> None:
    for value, maps in uses.items():
        moved = frozenset(
            tuple(e if e is None or e == PULLED else loops.get(e, PULLED) for e in axis_map) for axis_map in maps
        )
        into[value] = into.get(value, frozenset()) | moved


@dataclass(slots=True)
class _Matching:
    """Loops of a identified with loops of b, one to one."""

    forward: dict[int, int]
    backward: dict[int, int]

    def add(self, first: int, second: int) -> bool:
        if self.forward.get(first, second) != second or self.backward.get(second, first) != first:
            return False
        self.forward[first], self.backward[second] = second, first
        return True


def _identify(a: Facts, b: Facts, crossing: Mapping[int, bool], kept: Mapping[int, AxisMap], folding: bool) -> Verdict:
    matching = _Matching({}, {})
    elsewhere: list[tuple[int, AxisMap]] = []
    for value in crossing:
        for use in sorted(b.uses[value], key=lambda m: PULLED in m):
            pairs = [(f, s) for f, s in zip(a.outputs[value], use, strict=True) if f is not None]
            direct = [(f, s) for f, s in pairs if s != PULLED]
            moved = frozenset(f for f, s in pairs if s == PULLED)
            # A value that depends on a reduction may be computed again elsewhere along the R loops alone: there it
            # needs the same result of the reduction.
            stays = moved <= (a.reduced or frozenset()) and _all_fit(matching, direct)
            if not stays and value in a.tainted:
                return no("the result of a reduction is read at other coordinates", value=value)
            if moved or not stays:
                elsewhere.append((value, use))
    _match_by_common_reads(a, b, matching)
    _match_by_extent(a, b, matching)
    only_a = frozenset(range(len(a.loops))) - matching.forward.keys()
    only_b = frozenset(range(len(b.loops))) - matching.backward.keys()
    refusal = _loops_disagree(a, b, matching, only_a, only_b, folding)
    if refusal is not None:
        return refusal
    return _union(a, b, crossing, kept, elsewhere, matching, only_a, only_b)


def _all_fit(matching: _Matching, pairs: list[tuple[int, int | None]]) -> bool:
    trial = _Matching(dict(matching.forward), dict(matching.backward))
    if not all(second is not None and trial.add(first, second) for first, second in pairs):
        return False
    matching.forward, matching.backward = trial.forward, trial.backward
    return True


def _match_by_common_reads(a: Facts, b: Facts, matching: _Matching) -> None:
    """Loops along which both read a value, each in one way, are the same: extents do not tell a square's apart."""
    for value in sorted(a.uses.keys() & b.uses.keys()):
        if len(a.uses[value]) > 1 or len(b.uses[value]) > 1:
            continue
        (first,), (second,) = a.uses[value], b.uses[value]
        pairs = [(f, s) for f, s in zip(first, second, strict=True) if f is not None and s is not None]
        if all(f != PULLED != s and a.loops[f] == b.loops[s] and _same_role(a, f, b, s) for f, s in pairs):
            _all_fit(matching, list(pairs))


def _match_by_extent(a: Facts, b: Facts, matching: _Matching) -> None:
    """Loops that no crossing value identifies are taken to be the same where their extents are equal.

    Equal extents go in order; distinct ones in any, so that it does not matter which of several siblings merge first.
    R loops of one side go with R loops of the other first: two sums over the same axes share their loops.
    """
    for prefer_role in (True, False):
        for first, extent in enumerate(a.loops):
            if first in matching.forward:
                continue
            for second in range(len(b.loops)):
                if second in matching.backward or b.loops[second] != extent:
                    continue
                if prefer_role and not _same_role(a, first, b, second):
                    continue
                matching.add(first, second)
                break


def _same_role(a: Facts, first: int, b: Facts, second: int) -> bool:
    if a.reduced is None or b.reduced is None:
        return True
    return (first in a.reduced) == (second in b.reduced)


def _loops_disagree(
    a: Facts, b: Facts, matching: _Matching, only_a: frozenset[int], only_b: frozenset[int], folding: bool
) -> Verdict | None:
    """Why the identified loops do not make one region, or None where they do."""
    if only_a and only_a == a.reduced and b.reduced is None and len(only_a) == len(only_b):
        pairs = [(a.loops[f], b.loops[s]) for f, s in zip(sorted(only_a), sorted(only_b), strict=True)]
        if not any(isinstance(first - second, int) for first, second in pairs):
            return no(PERHAPS_EQUAL, extents=tuple(pairs))
    if only_a and only_b:
        mine, theirs = (tuple(f.loops[k] for k in sorted(o)) for f, o in ((a, only_a), (b, only_b)))
        return no("their loops have different extents", first=mine, second=theirs)
    if a.reduced is not None and b.reduced is not None:
        if only_a or only_b or {matching.forward[k] for k in a.reduced} != b.reduced:
            first, second = (tuple(f.loops[k] for k in sorted(f.reduced or ())) for f in (a, b))
            return no("both reduce, over different axes", first=first, second=second)
        return None
    only, larger = (only_a, a) if only_a else (only_b, b)
    if only and larger.reduced != only and not (folding and larger.reduced is None):
        return no("one has loops that the other lacks", extents=tuple(larger.loops[k] for k in sorted(only)))
    return None


def _union(
    a: Facts, b: Facts, crossing: Mapping[int, bool], kept: Mapping[int, AxisMap],
    elsewhere: list[tuple[int, AxisMap]], matching: _Matching, only_a: frozenset[int], only_b: frozenset[int],
) -> Verdict:  # fmt: skip
    """The facts of the union, in the loops of the side that has more of them (b where both have the same)."""
    from_a: Mapping[int, int] = {k: k for k in range(len(a.loops))} if only_a else matching.forward
    from_b: Mapping[int, int] = matching.backward if only_a else {k: k for k in range(len(b.loops))}
    loops = a.loops if only_a else b.loops
    reduced: frozenset[int] | None = None
    for facts, names in ((a, from_a), (b, from_b)):
        if facts.reduced is not None:
            reduced = frozenset(names[k] for k in facts.reduced)
    pending = frozenset(from_a[k] for k in a.pending) | frozenset(from_b[k] for k in b.pending)
    if (only_a or only_b) and reduced is None:
        pending = pending | (only_a or only_b)
    outputs = {v: _renamed(m, from_a) for v, m in kept.items()}
    outputs.update((v, _renamed(m, from_b)) for v, m in b.outputs.items())
    refusal = _outputs_disagree(outputs, frozenset(range(len(loops))), reduced)
    if refusal is not None:
        return refusal
    uses: dict[int, frozenset[AxisMap]] = {}
    _compose({v: m for v, m in b.uses.items() if v not in crossing}, from_b, uses)
    _compose(a.uses, from_a, uses)
    for value, use in elsewhere:
        _compose(a.uses, _through(a.outputs[value], _renamed(use, from_b)), uses)
    tainted = (a.tainted & outputs.keys()) | b.tainted
    if any(v in a.tainted for v in crossing):
        tainted |= b.outputs.keys()
    return yes(Facts(loops, reduced, outputs, uses, frozenset(tainted), pending))


def _renamed(axis_map: AxisMap, names: Mapping[int, int]) -> AxisMap:
    return tuple(e if e is None or e == PULLED else names[e] for e in axis_map)


def _outputs_disagree(
    outputs: Mapping[int, AxisMap], every: frozenset[int], reduced: frozenset[int] | None
) -> Verdict | None:
    """Each stored value has all loops or, where there is a reduction, all but the R loops."""
    if reduced is None:
        return None
    for value, axis_map in outputs.items():
        own = frozenset(e for e in axis_map if e is not None)
        if own not in (every, every - reduced):
            return no("an output has neither all loops nor all but the reduced ones", value=value)
    return None
