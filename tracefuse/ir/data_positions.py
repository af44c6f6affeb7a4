"""Data-dependent indices: the nodes that read them, and the error for an out-of-range index.

A negative index wraps once. CPU kernels set an error flag for an out-of-range index, and the call raises before it
returns a result; GPU kernels clamp the index and report nothing.

Knows: nodes and their index operands. Must not know: kernels, how a node runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracefuse.errors import OutOfRangeError, ShapeError, TracefuseError
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.op_kinds import Library, Movement


def takes_positions(node: Node) -> bool:
    """Returns whether an operand of the node holds indices into another operand."""
    return isinstance(node.op, Movement) and node.op.data is not None


def may_raise(fusion: Fusion, *, in_kernels: bool) -> bool:
    """Returns whether a run of the fusion may raise for an out-of-range index. in_kernels: kernels set error flags."""
    nodes = fusion.nodes
    return any((in_kernels and takes_positions(n)) or (isinstance(n.op, Library) and bool(n.op.indices)) for n in nodes)


def origin_of_positions(fusion: Fusion, node: Node) -> int | None:
    """Returns the input whose elements are the node's indices, up to added or permuted axes; None if computed."""
    producers = fusion.producers
    value = node.operands[1]
    while isinstance(value, int) and value in producers:
        producer = producers[value]
        if not isinstance(producer.op, Movement) or len(producer.operands) != 1:
            return None
        value = producer.operands[0]
    return value if isinstance(value, int) and fusion.values[value].is_tensor else None


def number_of(node: Node) -> int:
    """Returns the positive number that a kernel stores in the error flag for the node; see `raise_out_of_range`."""
    return node.outputs[0] + 1


def raise_out_of_range(fusion: Fusion, error_flag: int, checked: Mapping[int, tuple[int, Any]]) -> None:
    """Raises the error of the node whose number is in the error flag.

    error_flag: its value, the number of a node. checked: for the number of each checked node, the extent of its axis
    and its indices; None if the indices are not in memory.
    """
    node = next(n for n in fusion.nodes if takes_positions(n) and number_of(n) == error_flag)
    extent, positions = checked[error_flag]
    raise position_error(node, extent, None if positions is None else first_outside(positions, extent))


def first_outside(positions: Any, extent: int) -> int | None:
    """Returns the first out-of-range index of a NumPy or CuPy array, or None."""
    outside = positions[(positions < -extent) | (positions >= extent)]
    return int(outside[0]) if outside.size else None


def check_positions(node: Node, positions: Any, extent: int) -> None:
    """Raises the node's error if one of its indices (a NumPy or CuPy array) is out of range."""
    outside = first_outside(np.asarray(positions) if np.isscalar(positions) else positions, extent)
    if outside is not None:
        raise position_error(node, extent, outside)


def position_error(node: Node, extent: int, position: int | None) -> TracefuseError:
    """Makes the error for an out-of-range index. position: the index, if known."""
    if isinstance(node.op, Movement) and node.op.outside is not None:
        return ShapeError(node.op.outside, hint="test the mask with np.any before the call", where=node.where)
    which = "an index" if position is None else f"index {position}"
    axis = node.attributes.get("dim", 0)
    message = f"{node.op.name}: {which} is out of bounds for axis {axis} with {extent} elements"
    hint = f"indices into this axis are {-extent} to {extent - 1}" if extent else "nothing can be taken from it"
    return OutOfRangeError(message, hint=hint, where=node.where)
