"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Set as AbstractSet

from tracefuse.ir.fusion import Fusion, Literal, Node
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Reduction
from tracefuse.ir.structure import attribute_key, literal_key
from tracefuse.ops.roles import BROADCAST, CAST, COPY, EXPAND, ORDERED_COPY, SQUEEZE
from tracefuse.passes.rewriter import canonical_attribute, needed_for, renamed, with_nodes


def node_key(fusion: Fusion, node: Node, leave_out: str | None = None) -> Hashable:
    """Returns a key that is equal for nodes that compute the same value. leave_out: an attribute to ignore."""
    operands = tuple(literal_key(o.value) if isinstance(o, Literal) else o for o in node.operands)
    attributes = tuple(
        (k, attribute_key(canonical_attribute(fusion, v))) for k, v in node.attributes.items() if k != leave_out
    )
    types = tuple(fusion.values[o].dtype.name for o in node.outputs)
    return (node.op.name, operands, attributes, node.compute.name, types)


def merge_common(fusion: Fusion) -> Fusion:
    """Merges nodes that compute one value.

    A node equal to an earlier one is removed, and its readers read the earlier one. Two nodes are equal if they have
    the same op, operands, attributes, compute type and result type; extents are compared with the equalities that the
    fusion proves. `distinct` ops and values on streams are never merged, and a node that computes an output stays. A
    reduction that differs from an earlier one only in `keepdim` becomes a movement of the earlier result. A conversion
    to the type that a value has, an expansion to its shape, and a copy that only library calls read are removed.
    """
    needed = needed_for(fusion, fusion.outputs)
    fused = {number for node in needed if not isinstance(node.op, Library) for number in node.inputs}
    names: dict[int, int] = {}
    seen: dict[Hashable, Node] = {}
    nodes: list[Node] = []
    for original in fusion.nodes:
        node = renamed(original, names)
        if _is_identity(fusion, node, fused):
            names[node.outputs[0]] = node.inputs[0]
            continue
        if node.op.distinct or any(fusion.values[o].stream for o in node.outputs):
            nodes.append(node)
            continue
        node = _as_movement(fusion, node, seen)
        key = node_key(fusion, node)
        first = seen.get(key)
        if first is not None and not any(o in fusion.outputs for o in node.outputs):
            names.update(zip(node.outputs, first.outputs, strict=True))
            continue
        nodes.append(node)
        seen.setdefault(key, node)
    return with_nodes(fusion, nodes)


def _is_identity(fusion: Fusion, node: Node, fused: AbstractSet[int]) -> bool:
    """Whether a node converts a value to the type that it has, expands it to the shape that it has, or copies it.

    fused: the values that kernels may read. A copy among them is where kernels end; one that a library reads is a
    kernel of its own. A cast of a half that a kernel computes rounds it.
    """
    if node.op not in (CAST, COPY, EXPAND, ORDERED_COPY) or not node.inputs or node.outputs[0] in fusion.outputs:
        return False
    operand, result = fusion.values[node.inputs[0]], fusion.values[node.outputs[0]]
    if operand.dtype is not result.dtype or operand.is_tensor != result.is_tensor or result.stream or result.sharding:
        return False
    if node.op is EXPAND:
        return fusion.shape_of(operand.number) == fusion.shape_of(result.number)
    if node.op in (COPY, ORDERED_COPY):
        return result.number not in fused
    return not operand.dtype.is_half or operand.number in fusion.inputs


def _as_movement(fusion: Fusion, node: Node, seen: dict[Hashable, Node]) -> Node:
    """Replaces a reduction by its twin with the other `keepdim`, with axes added to or dropped from its result."""
    if not isinstance(node.op, Reduction):
        return node
    key = ("any keepdim", node_key(fusion, node, leave_out="keepdim"))
    twin = seen.setdefault(key, node)
    if twin.attributes["keepdim"] == node.attributes["keepdim"]:
        return node
    dims = node.attributes["dims"]
    rank = len(fusion.values[node.inputs[0]].shape)
    dtype = fusion.values[node.outputs[0]].dtype
    if node.attributes["keepdim"]:
        flags = {"is_broadcast_dim": tuple(axis in dims for axis in range(rank))}
        return Node(BROADCAST, twin.outputs, flags, dtype, node.outputs, node.where)
    return Node(SQUEEZE, twin.outputs, {"dims": dims}, dtype, node.outputs, node.where)
