"""Updates of an argument by a slice of it, as `x[:-3] = x[3:]`: one copy within the array instead of a kernel.

A kernel would write memory that other elements are still read from, so that it needs another array and a copy. A copy
within one array that moves each run of bytes as a whole needs neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.kernel.llvm.replay_copies import is_safe_within, runs_of
from tracefuse.kernel.llvm.replay_records import CallValue, Copied
from tracefuse.ops.roles import BROADCAST, PERMUTE, SLICE, SQUEEZE
from tracefuse.runtime.devices.cpu_memory import address


def view_of_input(
    fusion: Fusion, value: int, extent: Callable[[Extent], str], name: Callable[[int], str]
) -> tuple[int, str] | None:  # fmt: skip
    """Returns the input of which a value is a view, and the text of that view; None for any other value."""
    nodes: list[Node] = []
    producers = fusion.producers
    while value in producers:
        (node, *_) = nodes = [producers[value], *nodes]
        if node.op not in (SLICE, SQUEEZE, BROADCAST, PERMUTE):
            return None
        (value,) = node.inputs
    return value, name(value) + "".join(_step(fusion, node, extent) for node in nodes)


def _step(fusion: Fusion, node: Node, extent: Callable[[Extent], str]) -> str:
    """Returns the text that makes the result of a movement of its operand."""
    attributes = node.attributes
    if node.op is SLICE:
        bounds = zip(attributes["start_indices"], attributes["end_indices"], attributes["strides"], strict=True)
        return f"[{', '.join(':'.join(map(extent, bound)) for bound in bounds)}]"
    if node.op is PERMUTE:
        return f".transpose({tuple(attributes['dims'])})"
    if node.op is SQUEEZE:
        rank = len(fusion.shape_of(node.inputs[0]))
        return f"[{', '.join('0' if axis in attributes['dims'] else ':' for axis in range(rank))}]"
    return f"[{', '.join('None' if is_new else ':' for is_new in attributes['is_broadcast_dim'])}]"


def moved(source: int, owner: Any, view: Any, target: CallValue, written: Any) -> Copied | None:
    """Returns the copy of a view of an argument into another one; None if it would read what it has written.

    source: the number of the argument `owner`. written: the view that is the target.
    """
    if view.shape != written.shape or view.dtype != written.dtype:
        return None
    runs = runs_of(view.shape, view.strides, written.strides, view.itemsize)
    distance = address(view) - address(written)
    if runs is None or (source == target.number and not is_safe_within(runs, distance)):
        return None
    return Copied(CallValue(source, address(view) - address(owner)), target, runs)
