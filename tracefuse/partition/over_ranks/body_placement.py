"""Where ranks compute the bodies of loops and branches: the shardings of operands, carried values and results.

A carried value has one sharding in all steps: that of its initial value, or, where every rank has that in full, the one
that a step gives it. Captured arrays keep their shardings. Steps slice and stack along axes that are not split.

Must not know: single ops, devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol, TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.control_flow import ControlFlow
from tracefuse.ir.extents import Extent, Symbol, as_symbol
from tracefuse.ir.fusion import Fusion, Literal, Node, SubFusion, Value
from tracefuse.partition.over_ranks.placements import Placed, Spec
from tracefuse.partition.over_ranks.size_facts import BodyFacts, SizeFacts


class BodyShardings(Protocol):
    """The shardings of the values of a body, by number, and how its nodes are computed, by their first result."""

    specs: dict[int, Spec]
    placed: dict[int, Placed]


Propagate: TypeAlias = Callable[[Fusion, SizeFacts, Mapping[int, Spec], Mapping[int, Spec]], BodyShardings]
"""Returns the shardings in a body. Called with the body, its sizes, and shardings of its inputs and of its outputs."""

MOST_ROUNDS = 3
"""How often a body is placed to find shardings of carried values. Later ones exchange in every step."""


@dataclass(frozen=True, slots=True)
class PlacedBodies(Placed):
    """How ranks compute a loop or a branch. operands: the sharding in which each operand is read.

    results: the sharding of each result. bodies: the shardings in each body, by name. body_results: those of its
    outputs.
    """

    operands: tuple[Spec, ...] = ()
    results: tuple[Spec, ...] = ()
    bodies: Mapping[str, BodyShardings] = field(default_factory=dict)
    body_results: Mapping[str, tuple[Spec, ...]] = field(default_factory=dict)

    @property
    def computed(self) -> Spec:
        """The sharding of the first result; a body ends with the exchanges that it needs."""
        return self.results[0]

    def operand(self, position: int, rank: int) -> Spec:
        return self.operands[position]


class BodyPlacement:
    """Places the bodies of one node. specs: the shardings of values of the fusion. facts: of its sizes."""

    def __init__(
        self, fusion: Fusion, node: Node, specs: Mapping[int, Spec], facts: SizeFacts, propagate: Propagate
    ) -> None:
        assert isinstance(node.op, ControlFlow)
        self.fusion, self.node, self.op, self.facts, self.propagate = fusion, node, node.op, facts, propagate
        count = len(node.operands)
        self.carried = self.op.carried(count, node.attributes)
        self.sliced = self.op.sliced(count, node.attributes)
        self.in_full: set[int] = set()
        self.operands = [self._spec(position, specs) for position in range(count)]

    def _spec(self, position: int, specs: Mapping[int, Spec]) -> Spec:
        operand = self.node.operands[position]
        if isinstance(operand, Literal) or not self.fusion.values[operand].is_tensor:
            return ()
        if position in self.op.decides(self.node.attributes):
            return ()
        spec = specs[operand]
        return ((), *spec[1:]) if position in self.sliced else spec

    def run(self) -> PlacedBodies:
        """Returns how ranks compute the node."""
        parts = dict(self.op.sub_fusions(self.node.attributes))
        bodies: dict[str, BodyShardings] = {}
        body_results: dict[str, tuple[Spec, ...]] = {}
        if self.carried:
            self._find_carried(parts["body"])
        results: tuple[Spec, ...] = ()
        for name, part in parts.items():
            if name in self.op.conditions:
                body_results[name] = ((),) * len(part.fusion.outputs)
                bodies[name] = self._propagated(part, body_results[name])
                continue
            fixed = self._fixed() if self.carried else results
            bodies[name] = self._propagated(part, fixed)
            results = body_results[name] = (*fixed, *self._natural(bodies[name], part)[len(fixed) :])
        stacked = len(self.carried)
        results = (*results[:stacked], *(self._stacked(spec) for spec in results[stacked:]))
        operands = tuple(self.operands)
        return PlacedBodies(
            (), results[0], operands=operands, results=results, bodies=bodies, body_results=body_results
        )

    def _stacked(self, spec: Spec) -> Spec:
        return ((), *spec) if self.op.stacks else spec

    def _fixed(self) -> tuple[Spec, ...]:
        return tuple(self.operands[position] for position in self.carried)

    def _find_carried(self, part: SubFusion) -> None:
        """Chooses the shardings of carried values.

        One that starts in full on every rank takes the sharding that a step gives it; one that a step only reads in
        full is carried in full.
        """
        for _ in range(MOST_ROUNDS):
            before = self._fixed()
            stable: list[Spec | None] = [spec if any(spec) else None for spec in before]
            body = self._propagated(part, stable)
            gathered = self._read_in_full(body, part)
            for position, spec, known in zip(self.carried, self._natural(body, part), stable, strict=False):
                if position in gathered:
                    self.operands[position] = ((),) * len(self.operands[position])
                    self.in_full.add(position)
                elif known is None and position not in self.in_full:
                    self.operands[position] = spec
            if self._fixed() == before:
                return

    def _read_in_full(self, body: BodyShardings, part: SubFusion) -> set[int]:
        """Returns the positions of the carried operands that are split, and that a step only reads in full.

        What is computed of such an operand alone, and is split as well, stands for it: its readers count.
        """
        fusion = part.fusion
        origin = {n: p for n, p in zip(fusion.inputs, part.inputs, strict=True) if p in self.carried}
        origin = {n: p for n, p in origin.items() if any(self.operands[p])}
        read: dict[int, bool] = {}
        for node in fusion.nodes:
            placed, number = body.placed.get(node.outputs[0]), node.outputs[0]
            tensors = {o for o in node.inputs if fusion.values[o].is_tensor}
            if placed is None or origin.keys().isdisjoint(tensors):
                continue
            if len(tensors) == 1 and any(body.specs[number]) and number not in fusion.outputs:
                origin[number] = origin[tensors.pop()]
                continue
            for position, operand in enumerate(node.operands):
                if isinstance(operand, int) and operand in origin:
                    is_split = any(placed.operand(position, len(fusion.shape_of(operand))))
                    read[origin[operand]] = read.get(origin[operand], False) or is_split
        return {position for position, is_split in read.items() if not is_split}

    def _propagated(self, part: SubFusion, body_results: Sequence[Spec | None]) -> BodyShardings:
        body = part.fusion
        inputs: dict[int, Spec] = {}
        for number, position in zip(body.inputs, part.inputs, strict=True):
            if body.values[number].is_tensor:
                spec = self.operands[position]
                inputs[number] = spec[1:] if position in self.sliced else spec
        outputs: dict[int, Spec] = {}
        for number, wish in zip(body.outputs, body_results, strict=False):
            if wish is not None:
                outputs.setdefault(number, wish)
        return self.propagate(body, BodyFacts(self.facts, body, self._extents(part)), inputs, outputs)

    @staticmethod
    def _natural(body: BodyShardings, part: SubFusion) -> tuple[Spec, ...]:
        return tuple(body.specs[number] for number in part.fusion.outputs)

    def _extents(self, part: SubFusion) -> dict[Symbol, Extent]:
        """Returns the extents of the inputs of a body as those of the fusion, by symbol."""
        extents: dict[Symbol, Extent] = {}
        for number, position in zip(part.fusion.inputs, part.inputs, strict=True):
            value = part.fusion.values[number]
            for inner, outer in zip(self._own(value), self._outer(position), strict=False):
                symbol = as_symbol(inner)
                if symbol is not None:
                    extents[symbol] = outer
        return extents

    @staticmethod
    def _own(value: Value) -> tuple[Extent, ...]:
        return value.shape if value.is_tensor else () if value.extent is None else (value.extent,)

    def _outer(self, position: int) -> tuple[Extent, ...]:
        """Returns the extents of an operand, without the axis along which steps slice it."""
        operand = self.node.operands[position]
        if isinstance(operand, Literal):
            return (operand.value,) if isinstance(operand.value, int) else ()
        extents = self._own(self.fusion.values[operand])
        return extents[1:] if position in self.sliced else extents
