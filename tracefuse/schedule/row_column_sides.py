"""Splits a row_column region into two fusions: the row side, then the column side.

The column side reads the outputs of the row side and, from scratch buffers, its reduction results and expensive values.
Scratch buffers hold half values in their arithmetic type, so they are not rounded.

Must not know: targets, sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.errors import InternalError
from tracefuse.ir.extents import product
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.indexing import reduces
from tracefuse.ir.subfusion import step_graph
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.memory_facts import MemoryFacts
from tracefuse.schedule.merge_rule import FusionRule, facts_of
from tracefuse.schedule.region_phases import operand_of
from tracefuse.schedule.row_column_rule import RowColumnFacts


@dataclass(frozen=True, slots=True)
class Side:
    """One side as a separate fusion."""

    fusion: Fusion
    facts: Facts
    memory: MemoryFacts


def with_ends(fusion: Fusion, inputs: Iterable[int], outputs: Iterable[int]) -> Fusion:
    """Extracts the part of a fusion that computes `outputs` from its inputs and `inputs`. Keeps all host scalars."""
    known = (*fusion.inputs, *inputs)
    wanted = tuple(dict.fromkeys(outputs))
    live, nodes = set(wanted), list[Node]()
    for node in reversed(fusion.nodes):
        scalar = not fusion.values[node.outputs[0]].is_tensor
        if scalar or (not live.isdisjoint(node.outputs) and _is_unknown(node, known)):
            live.update(node.inputs)
            nodes.append(node)
    defined = {*known, *(v for node in nodes for v in node.outputs)}
    values = {number: value for number, value in fusion.values.items() if number in defined}
    return replace(
        fusion, values=values, inputs=known, nodes=tuple(nodes[::-1]), outputs=wanted, aliases={},
    )  # fmt: skip


def _is_unknown(node: Node, known: Collection[int]) -> bool:
    """Returns whether none of a node's outputs is in `known`."""
    return not any(value in known for value in node.outputs)


def rule_of(fusion: Fusion) -> FusionRule:
    """Builds the merge rule over a fusion's steps."""
    graph = step_graph(fusion)
    return FusionRule(fusion, graph.graph, graph.nodes)


def column_operands(fusion: Fusion, facts: RowColumnFacts) -> tuple[int, ...]:
    """Returns the operands of the column reductions."""
    return tuple(operand_of(node) for node in fusion.nodes if node.outputs[0] in facts.columns)


def row_side(fusion: Fusion, facts: RowColumnFacts) -> Fusion:
    """Extracts the row side, which also computes the operands of the column reductions."""
    outputs = tuple(output for output in fusion.outputs if output not in facts.after)
    rows = with_ends(fusion, (), (*outputs, *column_operands(fusion, facts)))
    return replace(rows, outputs=outputs)


def split_sides(fusion: Fusion, facts: RowColumnFacts, memory: MemoryFacts) -> tuple[Side, Side]:
    """Splits a fusion into its row side and its column side."""
    row_outputs = [output for output in fusion.outputs if output not in facts.after]
    column_outputs = [output for output in fusion.outputs if output in facts.after]
    unrounded = _unrounded(fusion, [v for v in facts.cut if v not in fusion.outputs])
    first = with_ends(unrounded, (), (*row_outputs, *facts.cut))
    second = with_ends(unrounded, facts.cut, column_outputs)
    strides = {v: memory.output_strides(fusion, v) for v in facts.cut}
    wide = memory.aligned | (frozenset(facts.cut) - memory.placed - memory.supplied)
    between = replace(memory, strides={**memory.strides, **strides}, aligned=wide)
    return Side(first, _facts_of_side(first), memory), Side(second, _facts_of_side(second), between)


def split_read_back(fusion: Fusion, facts: RowColumnFacts, memory: MemoryFacts) -> ReadBack:
    """Splits off the values that are computed from column results over all loops."""
    elements = product(facts.rows.loops)
    last = [output for output in fusion.outputs if output in facts.read_back]
    dependent = {v for node in fusion.nodes if reduces(fusion, node) for v in node.outputs}
    for node in fusion.nodes:
        if not dependent.isdisjoint(node.inputs):
            dependent.update(node.outputs)
    small = {v for v in dependent if product(fusion.shape_of(v)) != elements} | (set(fusion.outputs) - set(last))
    after_cut = with_ends(fusion, small, last)
    cut = tuple(sorted(v for v in small if any(v in node.inputs for node in after_cut.nodes)))
    fusion = _unrounded(fusion, [v for v in cut if v not in fusion.outputs])
    earlier = tuple(dict.fromkeys((*(o for o in fusion.outputs if o not in last), *cut)))
    first, second = with_ends(fusion, (), earlier), with_ends(fusion, cut, last)
    strides = {v: memory.output_strides(fusion, v) for v in cut}
    wide = memory.aligned | (frozenset(cut) - memory.placed - memory.supplied)
    between = replace(memory, strides={**memory.strides, **strides}, aligned=wide)
    return ReadBack(cut, first, facts_of(rule_of(first)), Side(second, _facts_of_side(second), between))


@dataclass(frozen=True, slots=True)
class ReadBack:
    """A row_column region whose column results are read over all loops, in two parts.

    cut: the values of the first part that the last one reads. first: the fusion of the first part, with its facts.
    """

    cut: tuple[int, ...]
    first: Fusion
    facts: Facts | RowColumnFacts
    last: Side


def _facts_of_side(fusion: Fusion) -> Facts:
    facts = facts_of(rule_of(fusion))
    if not isinstance(facts, Facts):
        raise InternalError("a side of a row_column region reduces over both its rows and its columns")
    return facts


def _unrounded(fusion: Fusion, numbers: Iterable[int]) -> Fusion:
    """Returns the fusion with the given values in their arithmetic type."""
    values = dict(fusion.values)
    for number in numbers:
        value = values[number]
        values[number] = replace(value, type=replace(value.type, dtype=value.dtype.compute))
    return replace(fusion, values=values)
