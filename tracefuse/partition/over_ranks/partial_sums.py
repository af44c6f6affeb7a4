"""Values that ranks hold as terms of a sum, and the ops that they pass through.

A sum over a split axis leaves a term of the result on each rank. Ops that are additive take the terms as they take the
sum, so that the terms are added later, where they are fewer bytes, or once for several sums. Casts round, and an added
constant would be added once for each rank: the terms are added before these.

Must not know: single ops, devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tracefuse.ir.derivatives import Linear
from tracefuse.ir.fusion import Fusion, Literal, Node, Operand
from tracefuse.ir.op_kinds import Movement

Names = frozenset[str]
"""Mesh axes over whose ranks a value is the sum of terms."""

NONE: Names = frozenset()


def additive_groups(node: Node) -> Sequence[Sequence[int]]:
    """Returns the groups of operand positions in which a node is additive together."""
    rule = node.op.derivative
    if isinstance(node.op, Movement) and isinstance(rule, Linear) and rule.only is None:
        if any(node.attributes[key] != value for key, value in rule.attributes.items()):
            return ()  # a pad with another value than 0
        return (range(len(node.operands)) if rule.operands is None else rule.operands,)
    return node.op.additive


def passes(fusion: Fusion, node: Node, has_terms: Callable[[int], bool]) -> bool:
    """Whether a node gives terms of its result from terms of operands. has_terms: whether a value is held as terms."""
    if len(node.outputs) != 1 or not fusion.values[node.outputs[0]].is_tensor:
        return False
    return any(_takes(fusion, node, group, has_terms) for group in additive_groups(node))


def _takes(fusion: Fusion, node: Node, group: Sequence[int], has_terms: Callable[[int], bool]) -> bool:
    result = fusion.values[node.outputs[0]].dtype
    with_terms = [k for k, operand in enumerate(node.operands) if isinstance(operand, int) and has_terms(operand)]
    if not with_terms or not set(with_terms) <= set(group):
        return False
    if node.compute not in (result, result.compute) or result.kind == "bool":
        return False
    for position, operand in enumerate(node.operands):
        if position in group:
            is_zero = isinstance(operand, Literal) and operand.value == 0
            if not is_zero and (position not in with_terms or fusion.values[operand].dtype != result):  # type: ignore[index]
                return False
        elif not isinstance(node.op, Movement) and not _is_plain_factor(fusion, operand):
            return False
    return True


def _is_plain_factor(fusion: Fusion, operand: Operand) -> bool:
    """Whether a sum times an operand has no other infinities than its terms times it; conditions are plain, too."""
    if isinstance(operand, Literal):
        return operand.value != 0 and math.isfinite(abs(operand.value))
    return fusion.values[operand].dtype.kind == "bool"


def settle(
    fusion: Fusion, nodes: Sequence[Node], possible: Mapping[int, Names], summed: Mapping[int, Names],
    used: Mapping[int, Names], bytes_of: Callable[[int], int],
) -> dict[int, Names]:  # fmt: skip
    """Returns the values that stay terms for all their readers, with the mesh axes.

    possible: what values may be terms over. summed: the mesh axes over which a node itself sums. used: the mesh axes
    that split what a node computes. bytes_of: the bytes of a value. A value stays terms only if every reader takes them
    and gives no more bytes.
    """
    deferred = {value: set(names) for value, names in possible.items() if names and value not in fusion.outputs}
    producers = {node.outputs[0]: node for node in nodes}
    readers: dict[int, list[Node]] = {}
    for node in nodes:
        for operand in node.inputs:
            readers.setdefault(operand, []).append(node)

    def has_terms(name: str) -> Callable[[int], bool]:
        return lambda value: name in deferred.get(value, ())

    def takes(node: Node, name: str) -> bool:
        if name in used.get(node.outputs[0], NONE) or not passes(fusion, node, has_terms(name)):
            return False
        read_bytes = sum(bytes_of(o) for o in node.inputs if name in deferred.get(o, ()))
        return bytes_of(node.outputs[0]) <= read_bytes

    def stays(value: int, name: str) -> bool:
        read_bytes = name in summed.get(value, NONE) or takes(producers[value], name)
        return read_bytes and value in readers and all(takes(reader, name) for reader in readers[value])

    queue = [(value, name) for value, names in deferred.items() for name in sorted(names)]
    while queue:
        value, name = queue.pop()
        if name not in deferred.get(value, ()) or stays(value, name):
            continue
        deferred[value].discard(name)
        for reader in readers.get(value, ()):
            queue += [(other, name) for other in (*reader.inputs, reader.outputs[0])]
    return {value: frozenset(names) for value, names in deferred.items() if names}
