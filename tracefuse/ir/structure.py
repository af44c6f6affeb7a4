"""Keys of fusions and of parts of them: equal keys mean equal nodes, types and facts about extents.

A loop of 100 steps gives 100 equal segments, which are lowered once.

Must not know: single ops, kernels.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from tracefuse.ir.fusion import Fusion, Literal, Node, Value


def literal_key(value: bool | int | float | complex) -> Hashable:
    """Returns a key of type and bits, so that literals with different behaviour are never equal."""
    if isinstance(value, float | complex):
        return (type(value).__name__, np.asarray(value).tobytes())
    return (type(value).__name__, value)


def attribute_key(attribute: Any) -> Hashable:
    """Returns a key of an attribute, with numbers by type and bits."""
    if isinstance(attribute, tuple):
        return tuple(map(attribute_key, attribute))
    if isinstance(attribute, bool | int | float | complex):
        return literal_key(attribute)
    return attribute  # type: ignore[no-any-return]


def fusion_key(fusion: Fusion) -> Hashable:
    """Returns a key that is equal for fusions with equal numbers, nodes, lines, types and requirements."""
    return (
        tuple(_value_key(fusion.values[number]) for number in sorted(fusion.values)),
        fusion.inputs,
        tuple(map(_node_key, fusion.nodes)),
        fusion.outputs,
        tuple((r.left, r.relation, r.right) for r in fusion.requirements),
        tuple(fusion.aliases.items()),
        tuple((number, _node_key(node)) for number, node in fusion.slice_updates.items()),
        tuple(fusion.equal_extents.items()),
        fusion.concrete,
    )


def _value_key(value: Value) -> Hashable:
    return (value.number, value.type, value.kind, value.extent, value.layout, value.stream, value.sharding)


def _node_key(node: Node) -> Hashable:
    operands = tuple(literal_key(o.value) if isinstance(o, Literal) else o for o in node.operands)
    attributes = tuple((name, attribute_key(attribute)) for name, attribute in node.attributes.items())
    return (node.op, operands, attributes, node.compute, node.outputs, node.where)
