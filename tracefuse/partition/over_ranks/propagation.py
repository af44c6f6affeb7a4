"""Propagation of shardings: one pass forward from the inputs, one backward from the outputs.

Forward, a node splits along the links of its operands' shardings, of the largest operand first; what conflicts is
gathered. Backward, results and intermediates that every rank would compute in full take the sharding that all their
readers want. Then sums over split axes stay terms as long as all readers take terms. All of it depends on global sizes
alone, and is the same on all ranks.

Must not know: single ops, devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.control_flow import ControlFlow
from tracefuse.ir.extents import Extent, evaluate, product
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.shardings import DeviceMesh
from tracefuse.partition.over_ranks.body_placement import BodyPlacement
from tracefuse.partition.over_ranks.links import Link, links_of
from tracefuse.partition.over_ranks.partial_sums import NONE, Names, passes, settle
from tracefuse.partition.over_ranks.placements import Placed, Spec
from tracefuse.partition.over_ranks.size_facts import SizeFacts, divides


@dataclass(slots=True)
class Propagation:
    """The sharding of every tensor of a fusion. specs: by value. placed: by the first output of a node.

    facts: what the sizes of the call decide. possible: the mesh axes over which a value could be terms of a sum.
    """

    fusion: Fusion
    mesh: DeviceMesh
    facts: SizeFacts
    specs: dict[int, Spec] = field(default_factory=dict)
    placed: dict[int, Placed] = field(default_factory=dict)
    links: dict[int, tuple[Link, ...]] = field(default_factory=dict)
    possible: dict[int, Names] = field(default_factory=dict)

    def run(self, inputs: Mapping[int, Spec], outputs: Mapping[int, Spec]) -> None:
        """Propagates the shardings of inputs and wanted shardings of outputs, by value."""
        for number in self.fusion.tensor_inputs:
            self.specs[number] = inputs.get(number) or self._whole(number)
        are_equal = self._required_equal()
        nodes = [n for n in self.fusion.nodes if self.fusion.values[n.outputs[0]].is_tensor]
        for node in nodes:
            if isinstance(node.op, ControlFlow):
                self._place_bodies(node)
                continue
            self.links[node.outputs[0]] = links_of(self.fusion, node, are_equal)
            self._place_forward(node)
        wishes = dict(outputs)
        for node in reversed(nodes):
            if isinstance(node.op, ControlFlow):
                self._wish_for_operands(node, wishes)
            else:
                self._place_backward(node, wishes)
        self._settle_terms(nodes)

    def _required_equal(self) -> Callable[[Extent, Extent], bool]:
        """Returns a predicate of two canonical extents: whether they are equal, also if only the call decides it."""
        canonical = self.fusion.canonical
        pairs = {
            (canonical(requirement.left), canonical(requirement.right))
            for requirement in self.fusion.requirements
            if requirement.relation == "=="
        }
        return lambda left, right: left == right or (left, right) in pairs or (right, left) in pairs

    def _whole(self, number: int) -> Spec:
        return ((),) * len(self.fusion.shape_of(number))

    def bytes_of(self, number: int) -> int:
        """Returns the bytes of a whole value, for the sizes of the traced call."""
        value = self.fusion.values[number]
        return evaluate(product(value.shape), self.facts.sizes) * value.dtype.itemsize

    def _divides(self, number: int, axis: int, names: tuple[str, ...]) -> bool:
        """Whether an axis has equal parts along mesh axes, for the sizes of the traced call."""
        parts = 1
        for name in names:
            parts *= self.mesh.size(name)
        return bool(self.facts.ask(divides, self.fusion.values[number].shape[axis], parts))

    # -- forward ------------------------------------------------------------------------------------------------------

    def _place_forward(self, node: Node) -> None:
        operands = [
            (k, o) for k, o in enumerate(node.operands) if isinstance(o, int) and self.fusion.values[o].is_tensor
        ]
        operands.sort(key=lambda entry: -self.bytes_of(entry[1]))  # stable: equal sizes in the order of operands
        splits: dict[Link, tuple[str, ...]] = {}
        links = _Links(self.links[node.outputs[0]])
        for position, operand in operands:
            for axis, names in enumerate(self.specs[operand]):
                link = links.of(position, axis)
                if names and link is not None:
                    self._claim(node, link, names, splits)
        self._record(node, splits)

    def _claim(self, node: Node, link: Link, names: tuple[str, ...], splits: dict[Link, tuple[str, ...]]) -> None:
        """Splits a link, unless the mesh axes or the link are taken, or parts would have to be equal and are not."""
        used = {name for split in splits.values() for name in split}
        if link in splits or used.intersection(names) or (len(names) > 1 and not link.is_local):
            return
        if link.even:
            axes = [(self._operand(node, k), axis) for k, axis in link.operands.items()]
            axes += [] if link.result is None else [(node.outputs[0], link.result)]
            if not all(self._divides(number, axis, names) for number, axis in axes):
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
        self.possible[number] = placed.summed | self._passing(node, placed)

    def _passing(self, node: Node, placed: Placed) -> Names:
        """Returns the mesh axes over which the node could take terms of its operands."""
        names = {name for operand in node.inputs for name in self.possible.get(operand, NONE)} - placed.used
        return frozenset(name for name in names if passes(self.fusion, node, self._may_be_terms(name)))

    def _may_be_terms(self, name: str) -> Callable[[int], bool]:
        return lambda value: name in self.possible.get(value, NONE)

    def _place_bodies(self, node: Node) -> None:
        placed = BodyPlacement(self.fusion, node, self.specs, self.facts, self._of_body).run()
        self.placed[node.outputs[0]], self.possible[node.outputs[0]] = placed, NONE
        self.specs.update(zip(node.outputs, placed.results, strict=True))

    def _of_body(
        self, body: Fusion, facts: SizeFacts, inputs: Mapping[int, Spec], outputs: Mapping[int, Spec]
    ) -> Propagation:
        inside = Propagation(body, self.mesh, facts)
        inside.run(inputs, outputs)
        return inside

    # -- backward -----------------------------------------------------------------------------------------------------

    def _place_backward(self, node: Node, wishes: dict[int, Spec]) -> None:
        number = node.outputs[0]
        placed, wish = self.placed[number], wishes.get(number)
        if wish is None:
            wish = self.specs[number]
        links = _Links(self.links[number])
        splits = dict(placed.splits)
        sums = placed.summed | self._passing(node, placed) | self._extremes(placed)
        for axis, names in enumerate(wish):
            link = links.along(axis)
            if not names or link is None or link.scans or self.specs[number][axis] or sums.intersection(names):
                continue
            self._claim(node, link, names, splits)
        result = list(Placed(tuple(splits.items()), placed.result).computed)
        for axis, names in enumerate(wish):
            if len(names) == 1 and names[0] in sums and not result[axis]:
                result[axis] = names  # the reader wants parts of the sum
        self.placed[number] = Placed(tuple(splits.items()), tuple(result))
        self.specs[number] = tuple(result)
        self._wish_for_operands(node, wishes)

    def _wish_for_operands(self, node: Node, wishes: dict[int, Spec]) -> None:
        number = node.outputs[0]
        for position, operand in enumerate(node.operands):
            if isinstance(operand, int) and operand in self.specs and operand not in self.fusion.inputs:
                wanted = self.placed[number].operand(position, len(self.specs[operand]))
                if wishes.setdefault(operand, wanted) != wanted:
                    wishes[operand] = self.specs[operand]  # its readers differ

    @staticmethod
    def _extremes(placed: Placed) -> Names:
        """Returns the mesh axes over which a node takes the largest or smallest of other ranks' elements."""
        return frozenset(name for link, names in placed.splits if link.combine in ("max", "min") for name in names)

    def _settle_terms(self, nodes: list[Node]) -> None:
        """Decides which sums stay terms, and where they are added."""
        scattered = {n: frozenset(name for names in p.result for name in names) for n, p in self.placed.items()}
        possible = {n: self.possible[n] - scattered[n] for n in self.placed}
        summed = {n: p.summed - scattered[n] for n, p in self.placed.items()}
        used = {n: p.used for n, p in self.placed.items()}
        stays = settle(self.fusion, nodes, possible, summed, used, self.bytes_of)
        for node in nodes:
            number = node.outputs[0]
            names = frozenset(name for operand in node.inputs for name in stays.get(operand, NONE))
            if names or number in stays:
                self.placed[number] = replace(self.placed[number], terms=names, stays=stays.get(number, NONE))


@dataclass(slots=True)
class _Links:
    """The links of a node, by operand axis and by result axis."""

    links: tuple[Link, ...]

    def of(self, position: int, axis: int) -> Link | None:
        return next((link for link in self.links if link.operands.get(position) == axis), None)

    def along(self, axis: int) -> Link | None:
        return next((link for link in self.links if link.result == axis), None)
