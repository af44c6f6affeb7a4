"""The two sides of a row_column region as fusions of their own: the row side, then the column side.

The second reads what the first leaves in memory: its outputs, and in scratch buffers the results of row reductions and
what is expensive to recompute. Half values in scratch memory are in their arithmetic type: nothing rounds them.

Knows: fusions, facts. Must not know: templates, launches, targets, sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from tracefuse.errors import InternalError
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.subfusion import step_graph
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.merge_rule import FusionRule, facts_of
from tracefuse.schedule.phases import Memory, operand_of
from tracefuse.schedule.row_column_rule import RowColumnFacts


@dataclass(frozen=True, slots=True)
class Side:
    """One side as a fusion of its own."""

    fusion: Fusion
    facts: Facts
    memory: Memory


def with_ends(fusion: Fusion, inputs: Iterable[int], outputs: Iterable[int]) -> Fusion:
    """The part of a fusion that makes `outputs` of its own inputs and of further ones. Host scalars stay."""
    known = (*fusion.inputs, *inputs)
    wanted = tuple(dict.fromkeys(outputs))
    live, kept = set(wanted), list[Node]()
    for node in reversed(fusion.nodes):
        scalar = not fusion.values[node.outputs[0]].is_tensor
        if scalar or (not live.isdisjoint(node.outputs) and known_none(node, known)):
            live.update(node.inputs)
            kept.append(node)
    made = {*known, *(v for node in kept for v in node.outputs)}
    values = {number: value for number, value in fusion.values.items() if number in made}
    return replace(
        fusion, values=values, inputs=known, nodes=tuple(kept[::-1]), outputs=wanted, aliases={},
    )  # fmt: skip


def known_none(node: Node, known: Collection[int]) -> bool:
    """Whether none of what a node makes is there already."""
    return not any(value in known for value in node.outputs)


def rule_of(fusion: Fusion) -> FusionRule:
    """The rule over a fusion's own steps."""
    graph = step_graph(fusion)
    return FusionRule(fusion, graph.graph, graph.nodes)


def column_operands(fusion: Fusion, facts: RowColumnFacts) -> tuple[int, ...]:
    """What the column reductions reduce."""
    return tuple(operand_of(node) for node in fusion.nodes if node.outputs[0] in facts.columns)


def row_side(fusion: Fusion, facts: RowColumnFacts) -> Fusion:
    """The row side with its own outputs and with all that the columns reduce."""
    mine = tuple(output for output in fusion.outputs if output not in facts.after)
    whole = with_ends(fusion, (), (*mine, *column_operands(fusion, facts)))
    return replace(whole, outputs=mine)


def split_sides(fusion: Fusion, facts: RowColumnFacts, memory: Memory) -> tuple[Side, Side]:
    """The row side and the column side."""
    mine = [output for output in fusion.outputs if output not in facts.after]
    theirs = [output for output in fusion.outputs if output in facts.after]
    whole = _unrounded(fusion, [v for v in facts.cut if v not in fusion.outputs])
    first = with_ends(whole, (), (*mine, *facts.cut))
    second = with_ends(whole, facts.cut, theirs)
    strides = {v: memory.output_strides(fusion, v) for v in facts.cut}
    wide = memory.aligned | (frozenset(facts.cut) - memory.placed - memory.given)
    between = replace(memory, strides={**memory.strides, **strides}, aligned=wide)
    return Side(first, _facts_of_side(first), memory), Side(second, _facts_of_side(second), between)


def _facts_of_side(fusion: Fusion) -> Facts:
    facts = facts_of(rule_of(fusion))
    if not isinstance(facts, Facts):
        raise InternalError("a side of a row_column region reduces over its rows and over its columns itself")
    return facts


def _unrounded(fusion: Fusion, numbers: Iterable[int]) -> Fusion:
    """The fusion with values in the type of their arithmetic."""
    values = dict(fusion.values)
    for number in numbers:
        value = values[number]
        values[number] = replace(value, type=replace(value.type, dtype=value.dtype.compute))
    return replace(fusion, values=values)
