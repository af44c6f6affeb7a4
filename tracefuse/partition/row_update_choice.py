"""Row updates that kernels compute, each as one node with what computes its positions and its rows.

A library copies the table, and reads positions and rows from memory; a kernel computes them where it uses them.

Must not know: kernels, targets.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracefuse.dynamic.guards import Guard
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.op_kinds import Movement, Pointwise
from tracefuse.ir.region_kind import FusedRegion, region_of
from tracefuse.passes.rewriter import needed_for, with_nodes
from tracefuse.schedule.row_update_facts import RowUpdateFacts, row_update_of
from tracefuse.schedule.sizes import Sizes

ROW_UPDATE = FusedRegion(name="row_update", doc="Rows combined with others at positions that are data, as one kernel.")
"""The op that replaces the nodes of a row update."""

MOST_NODES = 64
"""The most nodes that a kernel computes for each row beside the update."""


def choose_row_updates(fusion: Fusion, values: Mapping[int, int]) -> tuple[Fusion, tuple[Guard, ...]]:
    """Replaces the row updates that a kernel computes by one node each; returns the fusion and the guards.

    values: the sizes of a call, by id. The update of an empty table stays a library call, which refuses every position.
    """
    sizes = Sizes(values)
    fusion = _with_joined_axes(fusion)
    updates = [facts for node in fusion.nodes if (facts := row_update_of(fusion, node)) is not None]
    chosen = [facts for facts in updates if _has_rows(fusion, facts, sizes)]
    if not chosen:
        return fusion, tuple(sizes.guards)
    readers, producers = _readers(fusion), fusion.producers
    position = {number: k for k, node in enumerate(fusion.nodes) for number in node.outputs}
    regions: dict[int, Node] = {}
    for facts in chosen:
        before = _before(fusion, facts, readers, producers)
        nodes = [*(before[number] for number in sorted(before, key=position.__getitem__)), facts.node]
        regions[facts.result] = region_of(ROW_UPDATE, fusion, nodes, (facts.result,), {})
    replaced = with_nodes(
        fusion, [regions.get(node.outputs[0], node) if node.outputs else node for node in fusion.nodes]
    )
    live = {number for node in needed_for(replaced, replaced.outputs) for number in node.outputs}
    remaining = [
        node for node in replaced.nodes
        if not node.outputs or node.outputs[0] in live or not replaced.values[node.outputs[0]].is_tensor
    ]  # fmt: skip
    return with_nodes(replaced, remaining), tuple(sizes.guards)


def _with_joined_axes(fusion: Fusion) -> Fusion:
    """Updates an array itself, at positions in its joined axes, where only a copy with these axes joined is updated."""
    producers, readers = fusion.producers, _readers(fusion)
    replaced: dict[int, Node] = {}
    dropped: set[int] = set()
    for node in fusion.nodes:
        facts = row_update_of(fusion, node)
        if facts is None or "joined_axes" not in dict(node.op.attributes) or facts.result in fusion.outputs:
            continue
        joined, split = producers.get(facts.table), readers.get(facts.result, [])
        if len(split) != 1 or not _regroups(joined, split[0]):
            continue
        assert joined is not None
        (table,) = joined.inputs
        shape, flat = fusion.shape_of(table), fusion.shape_of(facts.table)
        axes = len(shape) - len(flat) + 1
        if fusion.shape_of(split[0].outputs[0]) != shape or axes < 1 or shape[axes:] != flat[1:]:
            continue
        attributes = {**node.attributes, "joined_axes": axes}
        operands, results = (table, facts.index, facts.rows), split[0].outputs
        replaced[split[0].outputs[0]] = Node(node.op, operands, attributes, node.compute, results, node.where)
        dropped.add(facts.result)
        if readers[facts.table] == [node] and facts.table not in fusion.outputs:
            dropped.add(facts.table)
    if not replaced:
        return fusion
    nodes = (node for node in fusion.nodes if dropped.isdisjoint(node.outputs))
    return with_nodes(fusion, [replaced.get(n.outputs[0], n) if n.outputs else n for n in nodes])


def _regroups(joined: Node | None, split: Node) -> bool:
    """Whether the table of an update is another array with joined axes, and its result gets these axes again."""
    return joined is not None and all(isinstance(n.op, Movement) and n.op.regroups for n in (joined, split))


def _has_rows(fusion: Fusion, facts: RowUpdateFacts, sizes: Sizes) -> bool:
    extents = fusion.shape_of(facts.table)
    return not any(sizes.at_most(extent, 0, "the update of an empty table is a library call") for extent in extents)


def _readers(fusion: Fusion) -> Mapping[int, list[Node]]:
    readers: dict[int, list[Node]] = {}
    for node in fusion.nodes:
        for number in node.inputs:
            readers.setdefault(number, []).append(node)
    return readers


def _before(
    fusion: Fusion, facts: RowUpdateFacts, readers: Mapping[int, list[Node]], producers: Mapping[int, Node]
) -> dict[int, Node]:
    """Returns the nodes that only the update reads, by result: for its positions, its rows, and a filled table."""
    excluded = {*fusion.outputs, *fusion.aliases}
    is_updated = fusion.aliases.get(facts.result) == facts.table and facts.result not in fusion.slice_updates
    # What reads an argument is computed before its update, which is then done in place.
    excluded |= _reached_from(fusion, facts.table) if is_updated else set()
    pulled: dict[int, Node] = {}
    waiting = [facts.table, facts.index, facts.rows]
    while waiting and len(pulled) < MOST_NODES:
        number = waiting.pop()
        node = producers.get(number)
        if node is None or number in pulled or number in excluded or not _is_pulled(fusion, node):
            continue
        other_readers = (r for r in readers[number] if r is not facts.node and not any(o in pulled for o in r.outputs))
        if any(True for _ in other_readers) or (number == facts.table and not _is_copied_or_filled(fusion, node)):
            continue
        pulled[number] = node
        waiting += node.inputs
    return pulled


def _reached_from(fusion: Fusion, value: int) -> set[int]:
    """Returns a value and all that depend on it."""
    reached = {value}
    for node in fusion.nodes:
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
    return reached


def _is_copied_or_filled(fusion: Fusion, node: Node) -> bool:
    """Whether a node copies or regroups a tensor, or computes elements from none, as the table's copy does as well."""
    is_copy = isinstance(node.op, Pointwise) and node.op.is_copy
    is_copy = is_copy or (isinstance(node.op, Movement) and node.op.regroups)
    return is_copy or not any(fusion.values[number].is_tensor for number in node.inputs)


def _is_pulled(fusion: Fusion, node: Node) -> bool:
    """Whether a kernel computes an element of the node's result where it reads it."""
    op = node.op
    is_kind = isinstance(op, Movement) or (isinstance(op, Pointwise) and not op.ends_segment and not op.expensive)
    return is_kind and len(node.outputs) == 1 and fusion.values[node.outputs[0]].is_tensor
