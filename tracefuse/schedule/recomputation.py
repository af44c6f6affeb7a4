"""Recomputation: the values that a kernel computes at several places, since each consumer pulls them.

`y = exp(x); y[:-2] + y[1:-1] + y[2:]` takes three exponentials per element in one kernel. In two kernels it takes one,
and a round trip through memory. Cheap ops are always recomputed; expensive ops up to a limit.

Must not know: kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.op_kinds import Movement, Pointwise
from tracefuse.schedule.merge_rule import FusionRule, facts_of
from tracefuse.schedule.nest import first_nest, probe_outputs
from tracefuse.schedule.row_column_rule import RowColumnFacts
from tracefuse.schedule.row_column_sides import column_operands, row_side

MOST_RECOMPUTED = 4
"""The most expensive ops that a kernel recomputes per element of its loops. One takes a core about as long as writing a
float32 and reading it back, and a segment boundary costs a launch too."""


def places(fusion: Fusion, rule: FusionRule) -> Mapping[int, int]:
    """Counts the places at which the kernel of a whole fusion computes each value, per element of its loops."""
    if not any(map(_is_expensive, fusion.nodes)) or not any(isinstance(n.op, Movement) for n in fusion.nodes):
        return {}
    facts = facts_of(rule)
    rows = facts.rows if isinstance(facts, RowColumnFacts) else facts
    nest = first_nest(rows)
    if isinstance(facts, RowColumnFacts):
        operands = column_operands(fusion, facts)
        fusion = row_side(fusion, facts)
    else:
        operands = ()
    return Counter(number for number, _ in probe_outputs(fusion, rows, nest, operands).walked)


def recomputed(fusion: Fusion, counts: Mapping[int, int]) -> dict[int, int]:
    """Returns the results of expensive ops that are computed at more than one place. counts: from `places`."""
    return {v: counts[v] for node in fusion.nodes if _is_expensive(node) for v in node.outputs if counts.get(v, 0) > 1}


def worth_storing(fusion: Fusion, counts: Mapping[int, int]) -> int | None:
    """Returns the value to store if recomputation exceeds the limit: the last one of an expensive chain."""
    values = recomputed(fusion, counts)
    if sum(values.values()) - len(values) <= MOST_RECOMPUTED:
        return None
    depends = set(values)
    best = None
    for node in fusion.nodes:
        if depends.isdisjoint((*node.inputs, *node.outputs)):
            continue
        depends.update(node.outputs)
        if not isinstance(node.op, Movement) and counts.get(node.outputs[0], 0) > 1:
            best = node.outputs[0]
    return best


def _is_expensive(node: Node) -> bool:
    return isinstance(node.op, Pointwise) and node.op.expensive
