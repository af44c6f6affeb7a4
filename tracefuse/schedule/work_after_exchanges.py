"""Short pointwise work on results of exchanges, which each kernel that reads it computes again.

An exchange divides a program: what is computed before it and read after it is in memory. A value after it that takes a
few pointwise ops and reads two such arrays, as `x - mean` with the mean of all ranks, costs a kernel that computes it
again one more read. A kernel that stores it for another costs a write and a read.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracefuse.ir.collective_kinds import Collective
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.indexing import PULLED, use_maps
from tracefuse.ir.op_kinds import Movement, Pointwise

MOST_LEAVES = 2
"""Arrays in memory that such a value is computed from."""

MOST_STEPS = 6
"""Ops from these to the value."""


def after_exchanges(fusion: Fusion, nodes: Sequence[Node]) -> frozenset[int]:
    """Returns the values that kernels compute again. nodes: the tensor nodes of the fusion, in order."""
    if not any(isinstance(node.op, Collective) for node in nodes):
        return frozenset()
    exchanges: dict[int, int] = {}  # how many exchanges a value depends on, one after the other
    leaves: dict[int, frozenset[int]] = {}
    steps: dict[int, int] = {}
    computed: set[int] = set()
    for node in nodes:
        tensors = [operand for operand in node.inputs if fusion.values[operand].is_tensor]
        level = max((exchanges.get(operand, 0) for operand in tensors), default=0)
        if isinstance(node.op, Collective):
            level += 1
            leaves.update((number, frozenset((number,))) for number in node.outputs)
        elif level and _is_short(fusion, node):
            read = [_leaves_of(tensor, level, exchanges, leaves) for tensor in tensors]
            together = frozenset(leaf for tensor in read if tensor is not None for leaf in tensor)
            count = 1 + sum(steps.get(tensor, 0) for tensor in tensors)
            if None not in read and len(together) <= MOST_LEAVES and count <= MOST_STEPS:
                leaves[node.outputs[0]], steps[node.outputs[0]] = together, count
                computed.add(node.outputs[0])
        exchanges.update(dict.fromkeys(node.outputs, level))
    return frozenset(computed)


def _leaves_of(
    value: int, level: int, exchanges: dict[int, int], leaves: dict[int, frozenset[int]]
) -> frozenset[int] | None:
    """Returns the arrays in memory that a value is computed from, None if it is a kernel's result after exchanges."""
    if exchanges.get(value, 0) < level:
        return frozenset((value,))
    return leaves.get(value)


def _is_short(fusion: Fusion, node: Node) -> bool:
    """Whether each element takes a cheap op on elements of the operands, each of which is read as often."""
    if isinstance(node.op, Movement):
        return not any(PULLED in axis_map for _, axis_map in use_maps(fusion, node)[2])
    return isinstance(node.op, Pointwise) and not node.op.expensive
