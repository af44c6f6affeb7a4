"""row_column regions: regions that reduce over rows, and reduce values at the same coordinates over columns.

The gradient of a layer normalization sums over each row and uses the sums along the row; the gradient of its weight
sums values at the same coordinates over the rows. One segment reads every input once. A row reduction (over the
reduction loops) may be read along its whole row. A column reduction (over the parallel loops) is final: no reduction of
the segment reads its result. Pointwise work reads it over the reduction loops, or over all loops, as the last step does
where a matrix is normalized by rows and then by columns.

A region has two sides. The row side also outputs the operands of the column reductions. The column side starts from the
values that the row side stores. Each side is a region with one kind of reduction, which the merge rule judges.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Extent, product
from tracefuse.ir.fusion import Node
from tracefuse.ir.indexing import AxisMap, flat, is_along, reduces, use_maps
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Pointwise, Reduction
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.refusal_codes import ScheduleRefusal
from tracefuse.schedule.region_rule import RegionRule, judge_region

EXPENSIVE = 1
"""A value that takes this many expensive ops is stored for the column side instead of being recomputed."""


class RowColumnRuleRefusal(ScheduleRefusal):
    """Refusals of a merge of a reduction over rows with one over columns."""

    COLUMNS_NOT_READ = "the rows do not read what the columns reduce"
    COLUMN_LOOPS = "what the columns reduce does not have all loops of the rows"
    ROW_LOOPS = "a reduction leaves loops that the rows do not reduce"
    ROW_RESULT_NOT_READABLE = "the columns need a reduction of the rows that they cannot read"
    CONSTANT_COLUMNS = "a column reduction of a constant reads nothing"
    SEVERAL_PASSES = "takes several passes over the columns"


@dataclass(frozen=True, slots=True)
class RowColumnFacts:
    """The facts of a row_column region.

    rows: the facts of the row side; its outputs include the operands of the column reductions, even inputs. columns:
    the results of the column reductions. after: these results and the values computed from them. cut: the values that
    the column side reads besides inputs: outputs of the row side, results of its reductions, and expensive values.
    read_back: the values of `after` with all loops.
    """

    rows: Facts
    columns: tuple[int, ...]
    after: frozenset[int]
    cut: tuple[int, ...]
    read_back: frozenset[int] = frozenset()


def judge_row_column(rule: RegionRule, steps: Collection[int]) -> Verdict | None:
    """Judges whether the steps form a row_column region; None if they do not reduce over both rows and columns."""
    sides = _Sides.of(rule, frozenset(steps))
    if sides is None or isinstance(sides, Verdict):
        return sides
    return sides.judge()


def may_be_row_column(a: object, b: object) -> bool:
    """Returns whether two groups that the rule does not merge may form a row_column region."""
    if not isinstance(a, Facts | RowColumnFacts) or not isinstance(b, Facts | RowColumnFacts):
        return False
    first, second = _loop_extents(a), _loop_extents(b)
    if first is None or second is None:
        return False
    return first == second[::-1] or (
        first == second and (isinstance(a, RowColumnFacts) or isinstance(b, RowColumnFacts))
    )


def _loop_extents(facts: Facts | RowColumnFacts) -> tuple[frozenset[Extent], frozenset[Extent]] | None:
    """Returns the extents of the parallel loops and of the reduction loops; None if the region does not reduce."""
    rows = facts.rows if isinstance(facts, RowColumnFacts) else facts
    if rows.reduced is None or rows.library is not None or rows.scans:
        return None
    parallel = (extent for loop, extent in enumerate(rows.loops) if loop not in rows.reduced)
    return frozenset(parallel), frozenset(rows.loops[loop] for loop in rows.reduced)


@dataclass(slots=True)
class _Sides:
    """The steps of both sides.

    inside: all steps. live: the steps that stored values depend on. columns: the column reductions. after: the column
    reductions and the steps that depend on them.
    """

    rule: RegionRule
    inside: frozenset[int]
    live: frozenset[int]
    columns: tuple[int, ...]
    after: frozenset[int]

    @classmethod
    def of(cls, rule: RegionRule, inside: frozenset[int]) -> _Sides | Verdict | None:
        live = _needed(rule, inside, [step for step in inside if rule.stored(step, inside)], frozenset())
        reductions = [step for step in sorted(live) if reduces(rule.fusion, rule.nodes[step])]
        loops = {step: _loops_of(rule, step) for step in reductions}
        if len(set(loops.values())) < 2 or any(isinstance(rule.nodes[step].op, Library) for step in inside):
            return None
        dependents = {step: _dependents(rule, live, step) for step in reductions}
        rows = {loops[step] for step in reductions if dependents[step] is None}
        if len(rows) > 1:  # the last ones of a chain may be columns
            dependents |= {step: _pointwise_readers(rule, live, step) for step in reductions}
            rows = {loops[step] for step in reductions if dependents[step] is None}
        if not rows:  # either kind may be the columns; usually the elements of a row are contiguous in memory
            rows = {row_side for row_side in loops.values() if len(row_side[0]) - 1 in row_side[1]}
        columns = tuple(step for step in reductions if dependents[step] is not None and loops[step] not in rows)
        if not rows or not columns:
            return None
        refusal = _unsupported(rule, columns)
        if refusal is not None:
            return refusal
        return cls(rule, inside, live, columns, frozenset(s for step in columns for s in dependents[step] or ()))

    def judge(self) -> Verdict:
        row_steps = self._row_side()
        operands = {self._operand(step) for step in self.columns}
        verdict = self._judge_rows(row_steps, operands)
        if not verdict:
            return verdict
        assert isinstance(verdict.facts, Facts)
        facts = self._with_inputs(verdict.facts, operands)
        for step in self.columns:
            refusal = self._not_across(facts, step)
            if refusal is not None:
                return refusal
        cut = self._cut(row_steps)
        if not cut <= facts.outputs.keys() and not self._judge_rows(row_steps, operands | cut):
            # The loops of the rows do not store an expensive value of other axes: the columns recompute it.
            cut = self._cut(row_steps, keeps_expensive=False)
            verdict = self._judge_rows(row_steps, operands | cut)
            if not verdict:
                return verdict
        refusal = self._column_side_refused(cut)
        if refusal is not None:
            return refusal
        results = tuple(self.rule.nodes[step].outputs[0] for step in self.columns)
        after = frozenset(v for step in self.after for v in self.rule.nodes[step].outputs)
        elements = product(facts.loops)
        full = frozenset(v for v in after if product(self.rule.fusion.shape_of(v)) == elements)
        return yes(RowColumnFacts(facts, results, after, tuple(sorted(cut)), full))

    def _judge_rows(self, row_steps: frozenset[int], values: Collection[int]) -> Verdict:
        """Judges the row side, which stores some values besides its outputs."""
        rule = self.rule
        producers = {step for step in row_steps if not set(rule.nodes[step].outputs).isdisjoint(values)}
        return judge_region(
            rule, tuple(sorted(row_steps)), stored=lambda step: step in producers or rule.stored(step, self.inside)
        )  # fmt: skip

    def _operand(self, step: int) -> int:
        operand = self.rule.nodes[step].operands[0]
        assert isinstance(operand, int)
        return operand

    def _row_side(self) -> frozenset[int]:
        """Returns the steps that row reductions, stored values and the operands of column reductions depend on."""
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
        """Adds to the outputs the operands that are inputs, if they are read along all loops."""
        outputs = dict(facts.outputs)
        for value in operands:
            along = [m for m in sorted(facts.uses.get(value, ()), key=str) if _is_full(m, facts)]
            if value not in outputs and along:
                outputs[value] = along[0]
        return replace(facts, outputs=outputs)

    def _not_across(self, facts: Facts, step: int) -> Verdict | None:
        """Returns why a column reduction does not reduce exactly the parallel loops of the rows, or None."""
        value, node = self._operand(step), self.rule.nodes[step]
        axis_map = facts.outputs.get(value)
        if axis_map is None:
            return RowColumnRuleRefusal.COLUMNS_NOT_READ(value=value)
        if facts.reduced is None or not _is_full(axis_map, facts):
            return RowColumnRuleRefusal.COLUMN_LOOPS(value=value)
        reduced = frozenset(axis_map[axis] for axis in node.attributes["dims"]) - {None}
        if reduced != frozenset(range(len(facts.loops))) - facts.reduced:
            extents = tuple(facts.loops[k] for k in sorted(facts.reduced))
            return RowColumnRuleRefusal.ROW_LOOPS(rows=extents, value=node.outputs[0])
        return None

    def _cut(self, row_steps: frozenset[int], *, keeps_expensive: bool = True) -> set[int]:
        """Returns the values of the row side that the column side reads: the last ones that are worth storing.

        keeps_expensive: expensive values are.
        """
        rule, stops = self.rule, set[int]()
        weight: dict[int, int] = {}
        for step in sorted(row_steps):
            node = rule.nodes[step]
            reduction = reduces(rule.fusion, node)
            expensive_op = int(isinstance(node.op, Pointwise) and node.op.expensive)
            expensive = 0 if reduction else expensive_op + sum(weight.get(v, 0) for v in node.inputs)
            is_kept = keeps_expensive and expensive >= EXPENSIVE
            is_stored = reduction or is_kept or rule.stored(step, self.inside)
            weight.update(dict.fromkeys(node.outputs, 0 if is_stored else expensive))
            if is_stored:
                stops.add(step)
        second = _needed(rule, self.live, self.after, frozenset(stops))
        read = {v for step in second for v in rule.nodes[step].inputs}
        return {v for step in stops for v in rule.nodes[step].outputs if v in read}

    def _column_side_refused(self, cut: set[int]) -> Verdict | None:
        rule = self.rule
        stops = frozenset(step for step in self.live if not cut.isdisjoint(rule.nodes[step].outputs))
        second = _needed(rule, self.live, self.after, stops)
        if any(reduces(rule.fusion, rule.nodes[step]) for step in second - set(self.columns)):
            return RowColumnRuleRefusal.ROW_RESULT_NOT_READABLE()
        verdict = judge_region(
            rule, tuple(sorted(second)),
            stored=lambda step: step in self.after and rule.stored(step, self.inside),
        )  # fmt: skip
        return None if verdict else verdict


def _loops_of(rule: RegionRule, step: int) -> tuple[tuple[Extent, ...], frozenset[int]]:
    """Returns the extents of a reduction's loops, and which of them it reduces."""
    extents, result, _ = use_maps(rule.fusion, rule.nodes[step])
    return tuple(extents), frozenset(range(len(extents))) - frozenset(flat(result))


def _dependents(rule: RegionRule, inside: frozenset[int], step: int) -> frozenset[int] | None:
    """Returns the step and the steps that depend on it; None unless all of them have the loops of its result."""
    dependents, waiting = {step}, [step]
    while waiting:
        for value in rule.nodes[waiting.pop()].outputs:
            for reader in rule.graph.readers(value):
                if reader not in inside or reader in dependents:
                    continue
                if not _keeps_loops(rule, rule.nodes[reader], value):
                    return None
                dependents.add(reader)
                waiting.append(reader)
    return frozenset(dependents)


def _pointwise_readers(rule: RegionRule, inside: frozenset[int], step: int) -> frozenset[int] | None:
    """Returns the step and the steps that depend on it; None if one of them reduces, scans or calls a library."""
    dependents, waiting = {step}, [step]
    while waiting:
        for value in rule.nodes[waiting.pop()].outputs:
            for reader in rule.graph.readers(value):
                if reader not in inside or reader in dependents:
                    continue
                if rule.facts(reader).reduced is not None or rule.alone(reader):
                    return None
                dependents.add(reader)
                waiting.append(reader)
    return frozenset(dependents)


def _keeps_loops(rule: RegionRule, node: Node, value: int) -> bool:
    """Returns whether a node reads a value along all of the node's loops, in order, and reduces none."""
    if isinstance(node.op, Library) or reduces(rule.fusion, node):
        return False
    extents, _, reads = use_maps(rule.fusion, node)
    every = tuple(range(len(extents)))
    return all(tuple(e for e in m if e is not None) == every for number, m in reads if number == value)


def _unsupported(rule: RegionRule, columns: Iterable[int]) -> Verdict | None:
    for step in columns:
        node = rule.nodes[step]
        assert isinstance(node.op, Reduction)
        if node.op.steps:
            return RowColumnRuleRefusal.SEVERAL_PASSES(node.op.name, value=node.outputs[0])
        if not isinstance(node.operands[0], int):
            return RowColumnRuleRefusal.CONSTANT_COLUMNS(value=node.outputs[0])
    return None


def _needed(rule: RegionRule, inside: frozenset[int], roots: Iterable[int], stops: frozenset[int]) -> frozenset[int]:
    """Returns the roots and the steps that they depend on; does not go beyond `stops`."""
    producer = {value: step for step in inside for value in rule.nodes[step].outputs}
    needed: set[int] = set()
    waiting = list(roots)
    while waiting:
        step = waiting.pop()
        if step in needed:
            continue
        needed.add(step)
        before = (producer[v] for v in rule.nodes[step].inputs if v in producer)
        waiting += [s for s in before if s not in stops]
    return frozenset(needed)


def _is_full(axis_map: AxisMap, facts: Facts) -> bool:
    """Returns whether an axis map has every loop once and no pulled axis."""
    loops = [entry for entry in axis_map if entry is not None]
    return all(map(is_along, loops)) and len(loops) == len(facts.loops) == len(set(loops))
