"""Records loops and branches in the fusion of one rank: their bodies are fusions of a rank, too.

A body has the inputs that it has over the mesh, then the place of the rank and the extents of whole axes, which are
further operands of the node. Where bodies exchange, the node is one of the exchanges in order.

Must not know: single ops, devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from segments.lazy_dataclasses import replace
from tracefuse.ir.control_flow import ControlFlow, exchanges_data
from tracefuse.ir.fusion import Fusion, Node, Operand, SubFusion
from tracefuse.ops import roles
from tracefuse.partition.over_ranks.body_placement import BodyShardings, PlacedBodies
from tracefuse.partition.over_ranks.exchange_recorder import ExchangeRecorder, PlannedExchange
from tracefuse.partition.over_ranks.placements import Spec


class LocalBody(Protocol):
    """A body for one rank; see `LocalFusion`."""

    @property
    def fusion(self) -> Fusion: ...

    @property
    def coordinates(self) -> tuple[str, ...]: ...

    @property
    def wholes(self) -> tuple[tuple[int, int], ...]: ...

    @property
    def exchanges(self) -> tuple[PlannedExchange, ...]: ...


Localize: TypeAlias = Callable[[BodyShardings, Sequence[Spec], bool], LocalBody]
"""Returns a body for one rank. Called with its shardings, those of its outputs, and whether these decide what runs."""


class BodyRecorder:
    """Adds loops and branches to the fusion of one rank."""

    def __init__(self, fusion: Fusion, exchanges: ExchangeRecorder) -> None:
        self.fusion, self.exchanges = fusion, exchanges
        self.builder, self.extents = exchanges.builder, exchanges.extents

    def record(
        self, node: Node, placed: PlacedBodies, operands: Sequence[Operand], localize: Localize
    ) -> Sequence[int]:
        """Records a node and returns its results. operands: in the shardings in which they are read."""
        op = node.op
        assert isinstance(op, ControlFlow)
        placed_operands = list(operands)
        for position in op.decides(node.attributes):
            operand = placed_operands[position]
            if isinstance(operand, int) and self.builder.values[operand].is_tensor:
                placed_operands[position] = self.exchanges.of_first_rank(operand, node.where)
        bodies = {
            name: localize(body, placed.body_results[name], name in op.conditions)
            for name, body in placed.bodies.items()
        }
        repeated = (
            f"in each step of {op.name}" if op.carried(len(placed_operands), node.attributes) else f"in {op.name}"
        )
        for body in bodies.values():
            self.exchanges.planned += [
                replace(exchange, reason=f"{exchange.reason}, {repeated}") for exchange in body.exchanges
            ]
        exchanges = any(exchanges_data(inner) for body in bodies.values() for inner in body.fusion.nodes)
        if exchanges and not op.effect:
            node = replace(node, op=roles.WITH_EFFECTS[op])

        def add(more: Sequence[int]) -> Sequence[int]:
            return self._add(node, placed, placed_operands, bodies, more)

        return self.exchanges.record_after(add) if exchanges else add(())

    def _add(
        self, node: Node, placed: PlacedBodies, operands: Sequence[Operand], bodies: Mapping[str, LocalBody],
        more: Sequence[int],
    ) -> Sequence[int]:  # fmt: skip
        """Records the node on local bodies. more: further operands, which no body reads."""
        assert isinstance(node.op, ControlFlow)
        first = node.op.carried(len(operands), node.attributes).start
        further: list[Operand] = [*more]
        places: dict[str, list[int]] = {}
        for name, part in node.op.sub_fusions(node.attributes):
            read = [self.extents.scalars[coordinate] for coordinate in bodies[name].coordinates]
            read += [self._whole(node, part, number, axis) for number, axis in bodies[name].wholes]
            places[name] = list(range(first + len(further), first + len(further) + len(read)))
            further += read
        extended, attributes = node.op.with_operands(operands, node.attributes, further)
        for name, positions in places.items():
            attributes[name] = SubFusion(bodies[name].fusion, (*attributes[name].inputs, *positions))
        shapes = tuple(
            tuple(self.extents.length(extent, names) for extent, names in zip(shape, spec, strict=True))
            for shape, spec in zip(node.attributes["shapes"], placed.results, strict=True)
        )
        values = [self.fusion.values[number] for number in node.outputs]
        return self.builder.node(
            node.op, extended, {**attributes, "shapes": shapes}, node.compute, [value.dtype for value in values],
            where=node.where, names=[value.name for value in values],
        )  # fmt: skip

    def _whole(self, node: Node, part: SubFusion, number: int, axis: int) -> int:
        """Returns the extent of a whole axis of an input of a body, as a host scalar."""
        assert isinstance(node.op, ControlFlow)
        position = part.inputs[part.fusion.inputs.index(number)]
        operand = node.operands[position]
        assert isinstance(operand, int)
        sliced = position in node.op.sliced(len(node.operands), node.attributes)
        extent = self.fusion.shape_of(operand)[axis + int(sliced)]
        return self.exchanges.scalar(self.extents.of_whole(extent), node.where)
