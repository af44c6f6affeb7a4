"""Building blocks of passes over a fusion: `Rewriter`, and functions that replace nodes and their operands.

A pass is a pure function. It preserves the numbers of the values that it keeps, never removes an input, and never
renames an output. Requirements stay: the user's code imposed them, whether or not its result is used. A pass may
change which values are computed, never their contents.

Must not know: single ops.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from segments.lazy_dataclasses import replace
from tracefuse.errors import ShapeError, TracefuseError
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import Expression, Extent
from tracefuse.ir.fusion import Fusion, Node


class Rewriter(FusionBuilder):
    """A builder that starts with a fusion's inputs and values. New values get numbers above the last.

    `keep(node)` copies a node of the original; `node(...)` adds a new one; `mark` gives its result an origin.
    """

    def __init__(self, fusion: Fusion) -> None:
        super().__init__()
        self.values = dict(fusion.values)
        self.inputs = list(fusion.inputs)
        self.outputs = list(fusion.outputs)
        self.requirements = list(fusion.requirements)
        self.aliases = dict(fusion.aliases)
        self.slice_updates = dict(fusion.slice_updates)
        self._next = max(self.values, default=-1) + 1
        self._required = {(r.left, r.relation, r.right) for r in self.requirements}

    def keep(self, node: Node) -> None:
        """Copies a node of the original unchanged."""
        self.nodes.append(node)

    def require(
        self, left: Extent, relation: str, right: Extent, message: str, hint: str, where: str | None = None,
        kind: type[TracefuseError] = ShapeError,
    ) -> None:  # fmt: skip
        if (left, relation, right) not in self._required:
            self._required.add((left, relation, right))
            super().require(left, relation, right, message, hint, where, kind)

    def start_over(self) -> None:
        """Drops nodes and requirements, for a pass that rebuilds all of them."""
        self.nodes, self.requirements = [], []
        self._required.clear()

    def equates(self, left: Extent, right: Extent) -> bool:
        """Whether two extents are required to be equal."""
        return (left, "==", right) in self._required or (right, "==", left) in self._required

    def mark(self, number: int, origin: int) -> None:
        """Records the value of the original fusion that a new value comes from."""
        self.values[number] = replace(self.values[number], origin=origin)


def with_nodes(fusion: Fusion, nodes: Sequence[Node]) -> Fusion:
    """Returns `fusion` with other nodes, without values that no node computes; `fusion` itself if no node differs."""
    if len(nodes) == len(fusion.nodes) and all(new is old for new, old in zip(nodes, fusion.nodes, strict=True)):
        return fusion
    computed = {*fusion.inputs, *(o for node in nodes for o in node.outputs)}
    computed.update(o for node in fusion.slice_updates.values() for o in (*node.outputs, *node.inputs))
    values = {number: value for number, value in fusion.values.items() if number in computed}
    aliases, updates = dict(fusion.aliases), dict(fusion.slice_updates)
    return Fusion(values, fusion.inputs, tuple(nodes), fusion.outputs, fusion.requirements, aliases, updates)


def needed_for(fusion: Fusion, outputs: Collection[int]) -> list[Node]:
    """Returns the nodes that `outputs` and effects depend on, in order."""
    live = set(outputs)
    needed = []
    for node in reversed(fusion.nodes):
        if node.op.effect or not live.isdisjoint(node.outputs):
            live.update(node.inputs)
            needed.append(node)
    return needed[::-1]


def canonical_attribute(fusion: Fusion, attribute: Any) -> Any:
    """Returns an attribute with equal extents in one canonical form."""
    if isinstance(attribute, Expression):
        return fusion.canonical(attribute)
    if isinstance(attribute, tuple):
        return tuple(canonical_attribute(fusion, a) for a in attribute)
    return attribute


def renamed(node: Node, names: Mapping[int, int]) -> Node:
    """Returns the node with operands replaced by equal values."""
    if not any(o in names for o in node.inputs):
        return node
    operands = tuple(names.get(o, o) if isinstance(o, int) else o for o in node.operands)
    return replace(node, operands=operands)
