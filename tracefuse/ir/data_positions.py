"""Positions that are data: where they are read, and what is said of one that lies outside its axis.

A position is wrapped once where it is negative. The CPU's kernels note a node whose positions are outside, and the call
raises before anything that it made is seen; a GPU's kernels keep the position inside, and nothing is said.

Knows: nodes and the operands that hold positions. Must not know: kernels, how a node is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracefuse.errors import OutOfRangeError
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.op_kinds import Library, Movement


def takes_positions(node: Node) -> bool:
    """Whether an operand of the node holds positions in another one."""
    return isinstance(node.op, Movement) and node.op.data is not None


def may_raise(fusion: Fusion, *, in_kernels: bool) -> bool:
    """Whether running the fusion may find a position outside. in_kernels: whether its kernels say so."""
    nodes = fusion.nodes
    return any((in_kernels and takes_positions(n)) or (isinstance(n.op, Library) and bool(n.op.indices)) for n in nodes)


def origin_of_positions(fusion: Fusion, node: Node) -> int | None:
    """The input whose elements are the node's positions, with axes added or reordered; None where they are computed."""
    producers = fusion.producers
    value = node.operands[1]
    while isinstance(value, int) and value in producers:
        maker = producers[value]
        if not isinstance(maker.op, Movement) or len(maker.operands) != 1:
            return None
        value = maker.operands[0]
    return value if isinstance(value, int) and fusion.values[value].is_tensor else None


def number_of(node: Node) -> int:
    """What a kernel notes of the node: a positive number, by which `raise_noted` finds it again."""
    return node.outputs[0] + 1


def raise_noted(fusion: Fusion, noted: int, found: Mapping[int, tuple[int, Any]]) -> None:
    """Raises OutOfRangeError for the node that a kernel noted.

    found: by the number of each node that may be noted, the extent of its axis and its positions, None where they are
    not in memory.
    """
    node = next(n for n in fusion.nodes if takes_positions(n) and number_of(n) == noted)
    extent, positions = found[noted]
    raise position_error(node, extent, None if positions is None else first_outside(positions, extent))


def first_outside(positions: Any, extent: int) -> int | None:
    """The first of the positions (a NumPy or CuPy array) that lies outside an axis, None where all are inside."""
    outside = positions[(positions < -extent) | (positions >= extent)]
    return int(outside[0]) if outside.size else None


def check_positions(node: Node, positions: Any, extent: int) -> None:
    """Raises OutOfRangeError if one of a node's positions (a NumPy or CuPy array) lies outside its axis."""
    outside = first_outside(np.asarray(positions) if np.isscalar(positions) else positions, extent)
    if outside is not None:
        raise position_error(node, extent, outside)


def position_error(node: Node, extent: int, position: int | None) -> OutOfRangeError:
    """What is said of a position outside; `position`: the one, where it is known."""
    which = "an index" if position is None else f"index {position}"
    axis = node.attributes.get("dim", 0)
    message = f"{node.op.name}: {which} is out of bounds for axis {axis} with {extent} elements"
    hint = f"indices into this axis are {-extent} to {extent - 1}" if extent else "nothing can be taken from it"
    return OutOfRangeError(message, hint=hint, where=node.where)
