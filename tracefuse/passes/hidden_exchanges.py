"""Moves work that does not depend on an exchange before the wait for it.

A program waits for an exchange before the first reader of its result, and segments run in the order of their first
nodes. So the nodes are put in the order of the last exchange that they depend on: those that need none, then those that
need the first, and so on; among equals, first those that an exchange waits for. The rule looks at the fusion alone, so
that all ranks order alike.

Must not know: single ops.
"""

from __future__ import annotations

from tracefuse.ir.collective_kinds import Collective
from tracefuse.ir.control_flow import exchanges_data
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.passes.rewriter import with_nodes


def hide_exchanges(fusion: Fusion) -> Fusion:
    """Orders nodes by the last exchange that they depend on."""
    exchanges = [node for node in fusion.nodes if exchanges_data(node)]
    if not exchanges:
        return fusion
    phases = _phases(fusion, {node.outputs[0]: k for k, node in enumerate(exchanges)})
    urgent = _urgent(fusion, phases, {node.outputs[0] for node in exchanges})

    def place(node: Node) -> tuple[int, bool]:
        return phases[node.outputs[0]], node.outputs[0] not in urgent

    return with_nodes(fusion, sorted(fusion.nodes, key=place))


def _phases(fusion: Fusion, exchanges: dict[int, int]) -> dict[int, int]:
    """Returns for each node, by its first result, the number of exchanges up to the last one that it depends on.

    exchanges: the place of each exchange in order, by its first result.
    """
    known: dict[int, int] = {}  # by value
    phases: dict[int, int] = {}
    earlier = 0
    for node in fusion.nodes:
        first = node.outputs[0]
        place = exchanges.get(first)
        phase = max((known.get(operand, 0) for operand in node.inputs), default=0)
        if place is None:
            known.update(dict.fromkeys(node.outputs, phase))
        else:
            phase = earlier = max(phase, earlier)
            known.update(dict.fromkeys(node.outputs, place + 1))
            if isinstance(node.op, Collective):
                known[node.outputs[-1]] = phase  # the token: the next exchange does not wait for the end of this one
        phases[first] = phase
    return phases


def _urgent(fusion: Fusion, phases: dict[int, int], exchanges: set[int]) -> set[int]:
    """Returns the nodes that an exchange of the same phase waits for, and the exchanges, by their first result."""
    urgent: set[int] = set()
    awaited: dict[int, int] = {}  # for each value, the phase of the exchanges that wait for it
    for node in reversed(fusion.nodes):
        first = node.outputs[0]
        phase = phases[first]
        if first in exchanges or any(awaited.get(number) == phase for number in node.outputs):
            urgent.add(first)
            awaited.update(dict.fromkeys(node.inputs, phase))
    return urgent
