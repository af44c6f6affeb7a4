"""Starts exchanges that do not depend on each other together.

Exchanges run in the order of their tokens. Neighbours in this order, along one mesh axis, become one node if no operand
depends on a result among them and no library call is between them, which the first would hide: their time to start is
paid once. The rule looks at the fusion alone, so that all ranks group alike.

Must not know: single ops.
"""

from __future__ import annotations

from collections.abc import Sequence

from segments.lazy_dataclasses import replace
from tracefuse.ir.collective_kinds import EXCHANGES, GROUP, Collective
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.scan_kind import is_library_call
from tracefuse.ops.roles import COALESCED_EXCHANGES
from tracefuse.passes.rewriter import with_nodes

MOST = 8
"""Exchanges that start together, at most: their results are in memory together."""


def coalesce_exchanges(fusion: Fusion) -> Fusion:
    """Joins neighbouring exchanges along one mesh axis that do not depend on each other."""
    exchanges = [node for node in fusion.nodes if type(node.op) is Collective]
    if len(exchanges) < 2:
        return fusion
    groups = [group for group in _groups(fusion, exchanges) if len(group) > 1]
    return with_nodes(fusion, _in_order(fusion, groups)) if groups else fusion


def _groups(fusion: Fusion, exchanges: Sequence[Node]) -> list[list[Node]]:
    """Divides the exchanges, in order, into groups that can start together."""
    place = {node.outputs[0]: k for k, node in enumerate(exchanges)}
    tokens = {node.outputs[1] for node in exchanges}
    latest: dict[int, int] = {}  # for each value, the last exchange that it depends on
    groups: list[list[Node]] = []
    begin, is_hidden = 0, False
    for node in fusion.nodes:
        is_hidden = is_hidden or (is_library_call(node.op) and not isinstance(node.op, Collective))
        newest = max((latest.get(o, -1) for o in node.inputs if o not in tokens), default=-1)
        if node.outputs[0] not in place:
            latest.update(dict.fromkeys(node.outputs, newest))
            continue
        known = groups[-1] if groups else []
        fits = known and not is_hidden and known[0].attributes[GROUP] == node.attributes[GROUP]
        is_hidden = False
        is_new = all(node.operands[0] != other.operands[0] for other in known)  # chunks of one value follow each other
        if fits and is_new and newest < begin and len(known) < MOST:
            known.append(node)
        else:
            groups.append([node])
            begin = place[node.outputs[0]]
        latest[node.outputs[0]] = place[node.outputs[0]]
    return groups


def _in_order(fusion: Fusion, groups: Sequence[Sequence[Node]]) -> list[Node]:
    """Returns the nodes with one for each group, in place of its last exchange; what reads its results is after it."""
    group_of = {node.outputs[0]: group for group in groups for node in group}
    late: set[int] = set()
    waiting: list[Node] = []
    nodes: list[Node] = []
    names: dict[int, int] = {}
    for node in fusion.nodes:
        group = group_of.get(node.outputs[0])
        if group is None and late.isdisjoint(node.inputs):
            nodes.append(_renamed(node, names))
        elif group is None:
            waiting.append(node)
            late.update(node.outputs)
        elif node is group[-1]:
            nodes.append(_joined(group, names))
            names.update(dict.fromkeys((pending.outputs[1] for pending in group), node.outputs[1]))
            nodes += [_renamed(pending, names) for pending in waiting]
            waiting, late = [], set()
        else:
            late.update(node.outputs[:1])
    return [*nodes, *(_renamed(pending, names) for pending in waiting)]


def _joined(group: Sequence[Node], names: dict[int, int]) -> Node:
    """Returns the node of a group: its token is that of its last exchange."""
    first, last = group[0], group[-1]
    tokens = tuple(names.get(token, token) if isinstance(token, int) else token for token in first.operands[1:])
    each = tuple((node.op, tuple(node.attributes.items())) for node in group)
    attributes = {GROUP: first.attributes[GROUP], EXCHANGES: each}
    return replace(
        last, op=COALESCED_EXCHANGES, operands=(*(node.operands[0] for node in group), *tokens), attributes=attributes,
        outputs=(*(node.outputs[0] for node in group), last.outputs[1]),
    )  # fmt: skip


def _renamed(node: Node, names: dict[int, int]) -> Node:
    if not any(operand in names for operand in node.inputs):
        return node
    return replace(node, operands=tuple(names.get(o, o) if isinstance(o, int) else o for o in node.operands))
