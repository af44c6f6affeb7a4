"""What a kernel would compute at several places, since its readers pull it from where they need it.

`y = exp(x); y[:-2] + y[1:-1] + y[2:]` in one kernel takes three exponentials for each element; in two kernels one, and
a value that goes through memory. Cheap ops are always recomputed; expensive ones within a limit.

Knows: regions, ops by their kind. Must not know: kernels, how segments are found.
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
"""Expensive ops that a kernel recomputes for an element of its loops, at most. One takes about as long as it takes a
core to write a float32 and to read it back, and a boundary costs a launch too."""


def places(fusion: Fusion, rule: FusionRule) -> Mapping[int, int]:
    """At how many places the kernel of a whole fusion computes each value, for one element of its loops."""
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


def recomputed(fusion: Fusion, found: Mapping[int, int]) -> dict[int, int]:
    """The results of expensive ops that `places` finds at more than one place."""
    return {v: found[v] for node in fusion.nodes if _is_expensive(node) for v in node.outputs if found.get(v, 0) > 1}


def worth_storing(fusion: Fusion, found: Mapping[int, int]) -> int | None:
    """The value to store where more is recomputed than the limit: the last one of an expensive chain."""
    values = recomputed(fusion, found)
    if sum(values.values()) - len(values) <= MOST_RECOMPUTED:
        return None
    depends = set(values)
    best = None
    for node in fusion.nodes:
        if depends.isdisjoint((*node.inputs, *node.outputs)):
            continue
        depends.update(node.outputs)
        if not isinstance(node.op, Movement) and found.get(node.outputs[0], 0) > 1:
            best = node.outputs[0]
    return best


def _is_expensive(node: Node) -> bool:
    return isinstance(node.op, Pointwise) and node.op.expensive
