"""row_column regions: they reduce over their rows, and values at the same coordinates over their columns.

The gradient of a layer normalization sums over each row and goes on with the sums; its weight's gradient is a sum over
the rows of values at the same coordinates. In one segment everything is read once. The row reductions (over the R
loops) may be read again along the whole row. The column reductions (over all other loops, K) are final: nothing in the
segment reads their results but pointwise work over the R loops alone.

A region has two sides: the row side, whose outputs are then also what the columns reduce, and the column side, which
starts from what the row side leaves in memory. Both are regions of one kind of reduction, which the merge rule judges.

Knows: the merge rule, graphs of steps. Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from segments import Verdict, no, yes
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Node
from tracefuse.ir.indexing import PULLED, AxisMap, reduces, use_maps
from tracefuse.ir.op_kinds import Library, Pointwise, Reduction
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.region import RegionRule, judge_region

EXPENSIVE = 1
"""Expensive ops on the way to a value from which on it is stored, rather than recomputed for the columns."""


@dataclass(frozen=True, slots=True)
class RowColumnFacts:
    """What is known of a row_column region.

    rows: the facts of the row side; its outputs have what the columns reduce, also where that is an input. columns: the
    results of the column reductions. after: what is made of them over the R loops, them included. cut: what the column
    side starts from, besides inputs: outputs of the row side, results of its reductions, and what is expensive.
    """

    rows: Facts
    columns: tuple[int, ...]
    after: frozenset[int]
    cut: tuple[int, ...]


def judge_row_column(rule: RegionRule, steps: Collection[int]) -> Verdict | None:
    """Whether the steps are a row_column region, or None where they do not reduce over rows and over columns."""
    sides = _Sides.of(rule, frozenset(steps))
    if sides is None or isinstance(sides, Verdict):
        return sides
    return sides.judge()


def may_be_row_column(a: object, b: object) -> bool:
    """Whether two groups that the rule does not merge may be a row_column region together."""
    if not isinstance(a, Facts | RowColumnFacts) or not isinstance(b, Facts | RowColumnFacts):
        return False
    first, second = _loop_extents(a), _loop_extents(b)
    if first is None or second is None:
        return False
    return first == second[::-1] or (
        first == second and (isinstance(a, RowColumnFacts) or isinstance(b, RowColumnFacts))
    )


def _loop_extents(facts: Facts | RowColumnFacts) -> tuple[frozenset[Extent], frozenset[Extent]] | None:
    """The extents of the K loops and of the R loops."""
    own = facts.rows if isinstance(facts, RowColumnFacts) else facts
    if own.reduced is None or own.library is not None:
        return None
    kept = (extent for loop, extent in enumerate(own.loops) if loop not in own.reduced)
    return frozenset(kept), frozenset(own.loops[loop] for loop in own.reduced)


@dataclass(slots=True)
class _Sides:
    """The steps of both sides. inside: all; live: what the stored ones need; columns: the column reductions; after:
    these and what is made of their results."""

    rule: RegionRule
    inside: frozenset[int]
    live: frozenset[int]
    columns: tuple[int, ...]
    after: frozenset[int]

    @classmethod
    def of(cls, rule: RegionRule, inside: frozenset[int]) -> _Sides | Verdict | None:
        live = _needed(rule, inside, [step for step in inside if rule.stored(step, inside)], frozenset())
        reductions = [step for step in sorted(live) if reduces(rule.fusion, rule.nodes[step])]
        ways = {step: _way(rule, step) for step in reductions}
        if len(set(ways.values())) < 2 or any(rule.alone(step) for step in inside):
            return None
        following = {step: _following(rule, live, step) for step in reductions}
        rows = {ways[step] for step in reductions if following[step] is None}
        if not rows:  # any may be the columns: neighbours in a row are neighbours in memory, as a rule
            rows = {way for way in ways.values() if len(way[0]) - 1 in way[1]}
        columns = tuple(step for step in reductions if following[step] is not None and ways[step] not in rows)
        if not rows or not columns:
            return None
        refusal = _unsuited(rule, columns)
        if refusal is not None:
            return refusal
        return cls(rule, inside, live, columns, frozenset(s for step in columns for s in following[step] or ()))

    def judge(self) -> Verdict:
        held = self._row_side()
        operands = {self._operand(step) for step in self.columns}
        makers = {step for step in held if not operands.isdisjoint(self.rule.nodes[step].outputs)}
        verdict = judge_region(
            self.rule, tuple(sorted(held)),
            stored=lambda step: step in makers or self.rule.stored(step, self.inside),
        )  # fmt: skip
        if not verdict:
            return verdict
        assert isinstance(verdict.facts, Facts)
        facts = self._with_inputs(verdict.facts, operands)
        for step in self.columns:
            refusal = self._not_across(facts, step)
            if refusal is not None:
                return refusal
        cut = self._cut(held)
        refusal = self._column_side_refused(cut)
        if refusal is not None:
            return refusal
        made = tuple(self.rule.nodes[step].outputs[0] for step in self.columns)
        after = frozenset(v for step in self.after for v in self.rule.nodes[step].outputs)
        return yes(RowColumnFacts(facts, made, after, tuple(sorted(cut))))

    def _operand(self, step: int) -> int:
        operand = self.rule.nodes[step].operands[0]
        assert isinstance(operand, int)
        return operand

    def _row_side(self) -> frozenset[int]:
        """What row reductions, stored values and the operands of the columns need."""
        rule = self.rule
        roots = [
            step
            for step in self.live - self.after
            if rule.stored(step, self.inside) or reduces(rule.fusion, rule.nodes[step])
        ]
        operands = {self._operand(step) for step in self.columns}
        roots += [step for step in self.live if not operands.isdisjoint(rule.nodes[step].outputs)]
        return _needed(rule, self.live, roots, frozenset())

    def _with_inputs(self, facts: Facts, operands: Iterable[int]) -> Facts:
        """The facts with the operands that nothing here makes, read along all loops, as outputs."""
        outputs = dict(facts.outputs)
        for value in operands:
            along = [m for m in sorted(facts.uses.get(value, ()), key=str) if _is_full(m, facts)]
            if value not in outputs and along:
                outputs[value] = along[0]
        return replace(facts, outputs=outputs)

    def _not_across(self, facts: Facts, step: int) -> Verdict | None:
        """Why a column reduction does not reduce exactly the loops that the rows keep."""
        value, node = self._operand(step), self.rule.nodes[step]
        axis_map = facts.outputs.get(value)
        if axis_map is None:
            return no("the rows do not read what the columns reduce", value=value)
        if facts.reduced is None or not _is_full(axis_map, facts):
            return no("what the columns reduce does not have all loops of the rows", value=value)
        reduced = frozenset(axis_map[axis] for axis in node.attributes["dims"]) - {None}
        if reduced != frozenset(range(len(facts.loops))) - facts.reduced:
            extents = tuple(facts.loops[k] for k in sorted(facts.reduced))
            return no("a reduction leaves loops that the rows do not reduce", rows=extents, value=node.outputs[0])
        return None

    def _cut(self, held: frozenset[int]) -> set[int]:
        """What the column side reads of the row side: the last values before it that are worth being in memory."""
        rule, stops = self.rule, set[int]()
        weight: dict[int, int] = {}
        for step in sorted(held):
            node = rule.nodes[step]
            reduction = reduces(rule.fusion, node)
            own = int(isinstance(node.op, Pointwise) and node.op.expensive)
            expensive = 0 if reduction else own + sum(weight.get(v, 0) for v in node.inputs)
            kept = reduction or expensive >= EXPENSIVE or rule.stored(step, self.inside)
            weight.update(dict.fromkeys(node.outputs, 0 if kept else expensive))
            if kept:
                stops.add(step)
        second = _needed(rule, self.live, self.after, frozenset(stops))
        read = {v for step in second for v in rule.nodes[step].inputs}
        return {v for step in stops for v in rule.nodes[step].outputs if v in read}

    def _column_side_refused(self, cut: set[int]) -> Verdict | None:
        rule = self.rule
        stops = frozenset(step for step in self.live if not cut.isdisjoint(rule.nodes[step].outputs))
        second = _needed(rule, self.live, self.after, stops)
        if any(reduces(rule.fusion, rule.nodes[step]) for step in second - set(self.columns)):
            return no("the columns need a reduction of the rows that they cannot read")
        verdict = judge_region(
            rule, tuple(sorted(second)),
            stored=lambda step: step in self.after and rule.stored(step, self.inside),
        )  # fmt: skip
        return None if verdict else verdict


def _way(rule: RegionRule, step: int) -> tuple[tuple[Extent, ...], frozenset[int]]:
    """The extents of a reduction's loops, and which of them it reduces."""
    extents, result, _ = use_maps(rule.fusion, rule.nodes[step])
    return tuple(extents), frozenset(range(len(extents))) - frozenset(loop for loop in result if loop is not None)


def _following(rule: RegionRule, inside: frozenset[int], step: int) -> frozenset[int] | None:
    """The step and all that is made of its result, where that has the result's own loops; None where not all has."""
    found, waiting = {step}, [step]
    while waiting:
        for value in rule.nodes[waiting.pop()].outputs:
            for reader in rule.graph.readers(value):
                if reader not in inside or reader in found:
                    continue
                if not _keeps_loops(rule, rule.nodes[reader], value):
                    return None
                found.add(reader)
                waiting.append(reader)
    return frozenset(found)


def _keeps_loops(rule: RegionRule, node: Node, value: int) -> bool:
    """Whether a node reads a value along all its own loops, in order, and reduces none."""
    if isinstance(node.op, Library) or reduces(rule.fusion, node):
        return False
    extents, _, reads = use_maps(rule.fusion, node)
    every = tuple(range(len(extents)))
    return all(tuple(e for e in m if e is not None) == every for number, m in reads if number == value)


def _unsuited(rule: RegionRule, columns: Iterable[int]) -> Verdict | None:
    for step in columns:
        node = rule.nodes[step]
        assert isinstance(node.op, Reduction)
        if node.op.steps:
            return no(f"{node.op.name} takes several passes over the columns", value=node.outputs[0])
        if not isinstance(node.operands[0], int):
            return no("a column reduction of a constant reads nothing", value=node.outputs[0])
    return None


def _needed(rule: RegionRule, inside: frozenset[int], roots: Iterable[int], stops: frozenset[int]) -> frozenset[int]:
    """The steps that the roots need, them included, up to those where it stops."""
    maker = {value: step for step in inside for value in rule.nodes[step].outputs}
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        step = waiting.pop()
        if step in found:
            continue
        found.add(step)
        before = (maker[v] for v in rule.nodes[step].inputs if v in maker)
        waiting += [s for s in before if s not in stops]
    return frozenset(found)


def _is_full(axis_map: AxisMap, facts: Facts) -> bool:
    """Whether a map runs over all loops, each once, and over nothing else."""
    own = [entry for entry in axis_map if entry is not None]
    return PULLED not in own and len(own) == len(facts.loops) == len(set(own))
