"""Records a node on the parts of a rank, with the attributes that fit them.

Must not know: single ops, devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracefuse.dtypes import DType
from tracefuse.errors import TracefuseError
from tracefuse.ir.extents import product
from tracefuse.ir.fusion import Fusion, Literal, Node, Operand, Shape
from tracefuse.ir.op_kinds import Reduction
from tracefuse.ir.subfusion import map_extents
from tracefuse.ops import roles
from tracefuse.partition.over_ranks.exchange_recorder import ExchangeRecorder
from tracefuse.partition.over_ranks.links import unmoved
from tracefuse.partition.over_ranks.placements import Placed, Spec
from tracefuse.partition.over_ranks.shift_recorder import Plan, ShiftRecorder
from tracefuse.partition.over_ranks.window_recorder import WindowRecorder


class NodeRecorder:
    """Adds nodes to the fusion of one rank."""

    def __init__(self, fusion: Fusion, exchanges: ExchangeRecorder, plan: Plan) -> None:
        self.fusion, self.exchanges, self.plan = fusion, exchanges, plan
        self.builder, self.extents = exchanges.builder, exchanges.extents
        self.windows = WindowRecorder(exchanges)
        self.shifts = ShiftRecorder(fusion, exchanges, plan)

    # -- attributes ---------------------------------------------------------------------------------------------------

    def fitting(self, node: Node, placed: Placed) -> Mapping[str, Any] | None:
        """Returns the attributes with which the node gives this rank's part of its result, None if there are none."""
        result = self.fusion.shape_of(node.outputs[0])
        shape = self._local_shape(node.outputs[0], placed.computed)
        shifted = [link for link, _ in placed.splits if link.reads]
        attributes: dict[str, Any] = {
            key: map_extents(value, self.extents.of_whole) for key, value in node.attributes.items()
        }
        for link in shifted:
            left = unmoved(node, attributes, link.axis, shape[link.axis])
            if left is None:
                return attributes  # the windows are the result
            attributes = left
        shapes = [self._operand_shape(node, position, placed, shape) for position in range(len(node.operands))]
        moved = {link.result for link in shifted}
        axes = [axis for axis, names in enumerate(placed.computed) if names and axis not in moved]
        for candidate in self._candidates(attributes, [self.extents.of_whole(e) for e in result], shape, axes):
            try:
                results = node.op.shapes(shapes, candidate, _assume)
            except TracefuseError:
                continue
            if tuple(results[0]) == shape:
                return candidate
        return None

    def _local_shape(self, number: int, spec: Spec) -> Shape:
        extents = zip(self.fusion.shape_of(number), spec, strict=True)
        return tuple(self.extents.length(extent, names) for extent, names in extents)

    def _operand_shape(self, node: Node, position: int, placed: Placed, shape: Shape) -> Shape:
        operand = node.operands[position]
        if isinstance(operand, Literal) or not self.fusion.values[operand].is_tensor:
            return ()
        spec = placed.operand(position, len(self.fusion.values[operand].shape))
        local_shape = list(self._local_shape(operand, spec))
        for link, _ in placed.splits:
            if link.reads and position in link.operands:
                local_shape[link.operands[position]] = shape[link.axis]
        return tuple(local_shape)

    def _candidates(
        self, attributes: dict[str, Any], complete: Sequence[Any], shape: Shape, axes: Sequence[int]
    ) -> Iterator[dict[str, Any]]:
        """Yields the attributes with entries for axes that mean parts, then in extents of whole arrays."""
        if axes:

            def along(value: Any) -> Any:
                if not isinstance(value, tuple) or len(value) != len(shape):
                    return value
                return tuple(
                    shape[axis] if axis in axes and entry == complete[axis] else entry
                    for axis, entry in enumerate(value)
                )

            yield {key: along(value) for key, value in attributes.items()}
        yield attributes

    # -- nodes --------------------------------------------------------------------------------------------------------

    @staticmethod
    def spec_of_operand(position: int, placed: Placed, spec: Spec, current: Spec) -> Spec:
        """Returns the sharding in which the node reads an operand; what is not split is read whole."""
        wanted = list(spec)
        for link, names in placed.splits:
            if link.reads and position in link.operands and current[link.operands[position]] != names:
                wanted[link.operands[position]] = ()
        return tuple(wanted)

    def record(
        self, node: Node, placed: Placed, operands: Sequence[Operand], attributes: Mapping[str, Any],
        kinds: Sequence[DType], specs: Sequence[Spec],
    ) -> tuple[int, ...]:  # fmt: skip
        """Records a node on parts and returns its results, before parts of sums are combined.

        specs: the sharding of each operand, () for what is no array.
        """
        scans = [(link, names[0]) for link, names in placed.splits if link.scans]
        if scans:
            return (self._scanned(node, operands, kinds[0], scans[0][1]),)
        moved = [(link, names[0]) for link, names in placed.splits if link.reads]
        if moved:
            return (self.shifts.record(node, operands, specs, attributes, kinds[0], moved),)
        if isinstance(node.op, Reduction):
            return (self._reduced(node, placed, operands, attributes, kinds[0]),)
        return self._plain(node, operands, attributes, kinds)

    def _plain(
        self, node: Node, operands: Sequence[Operand], attributes: Mapping[str, Any], kinds: Sequence[DType]
    ) -> tuple[int, ...]:
        names = [self.fusion.values[output].name for output in node.outputs]
        return self.builder.node(node.op, operands, attributes, node.compute, kinds, where=node.where, names=names)

    def _reduced(
        self, node: Node, placed: Placed, operands: Sequence[Operand], attributes: Mapping[str, Any], kind: DType
    ) -> int:
        """Reduces a part, which may be empty; a mean becomes a sum over the number of all elements."""
        (operand,), complete_shape = operands, self.fusion.shape_of(node.operands[0])
        assert isinstance(node.op, Reduction)
        assert isinstance(operand, int)
        op, combined = node.op, [(link, names) for link, names in placed.splits if link.result is None]
        if op.needs_elements:
            neutral = op.neutral(op.state_parts[0], self.builder.values[operand].dtype)
            for link, names in combined:
                axis = link.operands[0]
                length = self.extents.ceiling(complete_shape[axis], names)
                operand = self.exchanges.padded(operand, axis, 0, length, node.where, neutral)
        if any(link.combine == "mean" for link, _ in combined):
            total = self.builder.node(roles.SUM, (operand,), attributes, node.compute, (kind,), where=node.where)[0]
            count = product(self.extents.of_whole(complete_shape[axis]) for axis in attributes["dims"])
            return self.exchanges.divided(total, count, node.where)
        return self._plain(node, (operand,), attributes, (kind,))[0]

    def _scanned(self, node: Node, operands: Sequence[Operand], kind: DType, name: str) -> int:
        operand, source = operands[0], node.operands[0]
        assert isinstance(operand, int)
        assert isinstance(source, int)
        extent = self.fusion.shape_of(source)[node.attributes["dim"]]
        self.plan(
            "AllGather", name, node.outputs[0], node.where, f"{node.op.name} joins the last elements of the parts"
        )
        return self.windows.scanned(node, operand, extent, kind, name, node.where)


def _assume(*_: Any) -> None:
    """Accepts every requirement. The fusion over the mesh has already checked them."""
