"""Data that are the user's error: out-of-range indices, and elements that an op refuses.

A negative index wraps once. CPU kernels set an error flag for an out-of-range index and for a refused element, and the
call raises before it returns a result; GPU kernels clamp the index, compute the element and report nothing.

Must not know: kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracefuse.errors import OutOfRangeError, ScalarError, ShapeError, TracefuseError
from tracefuse.ir.fusion import Fusion, Literal, Node
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Movement, Pointwise


def takes_positions(node: Node) -> bool:
    """Returns whether an operand of the node holds indices into another operand."""
    return isinstance(node.op, Movement) and node.op.data is not None


def refuses_elements(node: Node) -> bool:
    """Returns whether some elements of the node's operands are the user's error."""
    return isinstance(node.op, Pointwise) and node.op.refused is not None


def may_raise(fusion: Fusion, *, in_kernels: bool) -> bool:
    """Returns whether a run of the fusion may raise for an element of its data. in_kernels: kernels set error flags."""
    nodes = fusion.nodes
    if in_kernels and any(takes_positions(n) or refuses_elements(n) for n in nodes):
        return True
    return any(isinstance(n.op, Library) and n.op.may_raise for n in nodes)


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
    """Returns the positive number that a kernel stores in the error flag for the node; see `raise_flagged`."""
    return node.outputs[0] + 1


def raise_flagged(fusion: Fusion, error_flag: int, checked: Mapping[int, tuple[int, Any]]) -> None:
    """Raises the error of the node whose number is in the error flag.

    error_flag: its value, the number of a node. checked: for the number of each checked node, the extent of its axis
    and its indices; None if the indices are not in memory.
    """
    node = next(n for n in fusion.nodes if number_of(n) == error_flag)
    if refuses_elements(node):
        raise element_error(node)
    extent, positions = checked[error_flag]
    raise position_error(node, extent, None if positions is None else first_outside(positions, extent))


def element_error(node: Node) -> ScalarError:
    """Makes the error for an element that the node's op refuses."""
    assert isinstance(node.op, Pointwise)
    message, hint = node.op.refusal
    literals = {"abc"[k]: operand.value for k, operand in enumerate(node.operands) if isinstance(operand, Literal)}
    return node.op.refusal_type(message.format_map(literals), hint=hint, where=node.where)


def first_outside(positions: Any, extent: int) -> int | None:
    """Returns the first out-of-range index of a NumPy or CuPy array, or None."""
    outside = positions[(positions < -extent) | (positions >= extent)]
    return int(outside[0]) if outside.size else None


def check_positions(node: Node, positions: Any, extent: int) -> None:
    """Raises the node's error if one of its indices (a NumPy or CuPy array) is out of range."""
    if extent == 0:
        return  # the node requires that nothing is taken from an empty axis
    outside = first_outside(np.asarray(positions) if np.isscalar(positions) else positions, extent)
    if outside is not None:
        raise position_error(node, extent, outside)


class located_errors:
    """Adds the line of a library node to the errors of its function; an IndexError becomes an OutOfRangeError."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, IndexError) and not isinstance(error, OutOfRangeError):
            raise OutOfRangeError(f"{self.node.op.name}: {error}", where=self.node.where) from None
        if isinstance(error, TracefuseError):
            error.locate(self.node.where)
        elif isinstance(error, Exception):
            error.add_note(f"in {self.node.op.name} ({self.node.where})")


def position_error(node: Node, extent: int, position: int | None) -> TracefuseError:
    """Makes the error for an out-of-range index. position: the index, if known."""
    if isinstance(node.op, Movement) and node.op.outside is not None:
        return ShapeError(node.op.outside, hint="test the mask with np.any before the call", where=node.where)
    index_text = "an index" if position is None else f"index {position}"
    axis = node.attributes.get("dim", 0)
    message = f"{node.op.name}: {index_text} is out of bounds for axis {axis} with {extent} elements"
    hint = f"indices into this axis are {-extent} to {extent - 1}" if extent else "nothing can be taken from it"
    return OutOfRangeError(message, hint=hint, where=node.where)
