"""Propagation of shardings: one pass forward from the inputs, one backward from the outputs.

Forward, a node splits along the links of its operands' shardings, of the largest operand first; what conflicts is
gathered. Backward, results and intermediates that every rank would compute in full take the sharding that all their
readers want. Both depend on global sizes alone, and are the same on all ranks.

Must not know: single ops, devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tracefuse.ir.extents import evaluate, product
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.shardings import DeviceMesh
from tracefuse.partition.over_ranks.links import Link, links_of

Spec: TypeAlias = tuple[tuple[str, ...], ...]
"""For each axis of a value, the mesh axes that split it."""


@dataclass(frozen=True, slots=True)
class Placed:
    """How ranks compute a node.

    splits: the links that are split, with their mesh axes. result: the sharding of the result after its exchanges.
    """

    splits: tuple[tuple[Link, tuple[str, ...]], ...]
    result: Spec

    @property
    def computed(self) -> Spec:
        """The sharding of the result before parts of sums are combined."""
        axes = {link.result: names for link, names in self.splits if link.result is not None}
        return tuple(axes.get(axis, ()) for axis in range(len(self.result)))

    def operand(self, position: int, rank: int) -> Spec:
        """Returns the sharding in which the node reads an operand of `rank` axes."""
        axes = {link.operands[position]: names for link, names in self.splits if position in link.operands}
        return tuple(axes.get(axis, ()) for axis in range(rank))


@dataclass(slots=True)
class Propagation:
    """The sharding of every tensor of a fusion. specs: by value. placed: by the first output of a node."""

    fusion: Fusion
    mesh: DeviceMesh
    sizes: Mapping[int, int]
    specs: dict[int, Spec] = field(default_factory=dict)
    placed: dict[int, Placed] = field(default_factory=dict)
    links: dict[int, tuple[Link, ...]] = field(default_factory=dict)

    def run(self, inputs: Mapping[int, Spec], outputs: Mapping[int, Spec]) -> None:
        """Propagates the shardings of inputs and wanted shardings of outputs, by value."""
        for number in self.fusion.tensor_inputs:
            self.specs[number] = inputs.get(number) or self._whole(number)
        nodes = [n for n in self.fusion.nodes if self.fusion.values[n.outputs[0]].is_tensor]
        for node in nodes:
            self.links[node.outputs[0]] = links_of(self.fusion, node)
            self._place_forward(node)
        wishes = dict(outputs)
        for node in reversed(nodes):
            self._place_backward(node, wishes)

    def _whole(self, number: int) -> Spec:
        return ((),) * len(self.fusion.shape_of(number))

    def bytes_of(self, number: int) -> int:
        """Returns the bytes of a whole value, for the sizes of the traced call."""
        value = self.fusion.values[number]
        return evaluate(product(value.shape), self.sizes) * value.dtype.itemsize

    def divides(self, number: int, axis: int, names: tuple[str, ...]) -> bool:
        """Whether an axis has equal parts along mesh axes, for the sizes of the traced call."""
        parts = 1
        for name in names:
            parts *= self.mesh.size(name)
        extent = evaluate(self.fusion.values[number].shape[axis], self.sizes)
        return extent % parts == 0 and extent > 0

    def _place_forward(self, node: Node) -> None:
        operands = [
            (k, o) for k, o in enumerate(node.operands) if isinstance(o, int) and self.fusion.values[o].is_tensor
        ]
        operands.sort(key=lambda one: -self.bytes_of(one[1]))  # stable: equal sizes in the order of operands
        splits: dict[Link, tuple[str, ...]] = {}
        links = _Links(self.links[node.outputs[0]])
        for position, operand in operands:
            for axis, names in enumerate(self.specs[operand]):
                link = links.of(position, axis)
                if names and link is not None:
                    self._claim(node, link, names, splits)
        self._record(node, splits)

    def _claim(self, node: Node, link: Link, names: tuple[str, ...], splits: dict[Link, tuple[str, ...]]) -> None:
        """Splits a link, unless the mesh axes or the link are taken, or parts are not equal."""
        used = {name for taken in splits.values() for name in taken}
        if link in splits or used.intersection(names):
            return
        if link.result is not None and not self.divides(node.outputs[0], link.result, names):
            return
        if any(not self.divides(self._operand(node, k), axis, names) for k, axis in link.operands.items()):
            return
        splits[link] = names

    @staticmethod
    def _operand(node: Node, position: int) -> int:
        operand = node.operands[position]
        assert isinstance(operand, int)
        return operand

    def _record(self, node: Node, splits: dict[Link, tuple[str, ...]]) -> None:
        number = node.outputs[0]
        placed = Placed(tuple(splits.items()), self._whole(number))
        self.placed[number] = Placed(placed.splits, placed.computed)
        self.specs[number] = placed.computed
        for other in node.outputs[1:]:
            self.specs[other] = self._whole(other)

    def _place_backward(self, node: Node, wishes: dict[int, Spec]) -> None:
        number = node.outputs[0]
        placed, wish = self.placed[number], wishes.get(number)
        if wish is None:
            wish = self.specs[number]
        links = _Links(self.links[number])
        splits = dict(placed.splits)
        for axis, names in enumerate(wish):
            link = links.along(axis)
            if names and link is not None and not self.specs[number][axis]:
                self._claim(node, link, names, splits)
        result = list(Placed(tuple(splits.items()), placed.result).computed)
        combined = {name for link, names in splits.items() if link.result is None for name in names}
        for axis, names in enumerate(wish):
            if len(names) == 1 and names[0] in combined and not result[axis] and self.divides(number, axis, names):
                result[axis] = names  # the reader wants parts of the sum
        self.placed[number] = Placed(tuple(splits.items()), tuple(result))
        self.specs[number] = tuple(result)
        for position, operand in enumerate(node.operands):
            if isinstance(operand, int) and operand in self.specs and operand not in self.fusion.inputs:
                wanted = self.placed[number].operand(position, len(self.specs[operand]))
                if wishes.setdefault(operand, wanted) != wanted:
                    wishes[operand] = self.specs[operand]  # its readers differ


@dataclass(slots=True)
class _Links:
    """The links of a node, by operand axis and by result axis."""

    links: tuple[Link, ...]

    def of(self, position: int, axis: int) -> Link | None:
        return next((link for link in self.links if link.operands.get(position) == axis), None)

    def along(self, axis: int) -> Link | None:
        return next((link for link in self.links if link.result == axis), None)
