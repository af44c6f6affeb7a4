"""Records movements along axes that are split: slices, pads, rolls and joins, which read parts of other ranks.

A movement that only such movements read is not computed: its readers read its operand at the positions that both give
together, so that a stencil over a padded array moves the rows of the stencil alone.

Must not know: single ops, devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion, Literal, Node, Operand
from tracefuse.partition.over_ranks.exchange_recorder import ExchangeRecorder
from tracefuse.partition.over_ranks.links import Link, unmoved
from tracefuse.partition.over_ranks.placements import Placed, Spec
from tracefuse.partition.over_ranks.window_recorder import Slabs, Window, WindowRecorder
from tracefuse.partition.over_ranks.windows import Reads

Plan = Callable[..., None]
"""Adds an exchange to the list: kind, mesh axis, value, line, reason, and the share of the value that is moved."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """A movement that is not computed.

    base: the local number of what its operand gives along the axes that do not move. spec: the sharding of the operand.
    moves: for each axis of the result that moves, what it reads, the mesh axis, and the extents of the operand and the
    result. fill: the element where nothing is read.
    """

    node: Node
    base: int
    spec: Spec
    moves: Mapping[int, tuple[Reads, str, Extent, Extent]]
    fill: Operand | None


class ShiftRecorder:
    """Adds movements to the fusion of one rank."""

    def __init__(self, fusion: Fusion, exchanges: ExchangeRecorder, plan: Plan) -> None:
        self.fusion, self.exchanges, self.plan = fusion, exchanges, plan
        self.builder, self.extents = exchanges.builder, exchanges.extents
        self.windows = WindowRecorder(exchanges)
        self.deferred: dict[int, Deferred] = {}

    # -- deferral -----------------------------------------------------------------------------------------------------

    def can_wait(self, node: Node, placed: Placed, readers: Sequence[tuple[Node, Placed]], current: Spec) -> bool:
        """Whether only movements along the same axes read the result of a movement. current: of its operand."""
        links = [(link, names) for link, names in placed.splits if link.reads]
        if (
            not links
            or len(node.operands) != 1
            or node.outputs[0] in self.fusion.outputs
            or placed.terms
            or not readers
        ):
            return False
        if node.inputs[0] in self.deferred or placed.result != placed.computed:
            return False
        if any(len(link.reads) != 1 or current[link.operands[0]] != names for link, names in links):
            return False
        if unmoved(node, node.attributes, 0, 0) is None:
            return False
        moved = {(link.result, names) for link, names in links}
        return all(self._moves_too(node.outputs[0], moved, *reader) for reader in readers)

    @staticmethod
    def _moves_too(value: int, moved: set[tuple[int | None, tuple[str, ...]]], reader: Node, placed: Placed) -> bool:
        positions = [k for k, operand in enumerate(reader.operands) if operand == value]
        for position in positions:
            links: dict[tuple[int | None, tuple[str, ...]], Link] = {
                (link.operands[position], names): link for link, names in placed.splits if position in link.operands
            }
            if not moved <= links.keys() or not any(links[move].reads for move in moved):
                return False
            if any(reads.step != 1 for move in moved for reads in links[move].reads):
                return False
        return True

    def defer(self, node: Node, placed: Placed, operand: int, spec: Spec, attributes: Mapping[str, Any]) -> None:
        """Records what a movement does along the axes that do not move, and keeps the rest for its readers."""
        number, source = node.outputs[0], node.inputs[0]
        moves: dict[int, tuple[Reads, str, Extent, Extent]] = {}
        for link, names in placed.splits:
            if link.reads:
                before, after = (
                    self.fusion.shape_of(source)[link.operands[0]],
                    self.fusion.shape_of(number)[link.axis],
                )
                moves[link.axis] = link.reads[0], names[0], before, after
                replaced = unmoved(node, attributes, link.axis, self.extents.length(before, names))
                assert replaced is not None
                attributes = replaced
        dtype = self.fusion.values[number].dtype
        base = self.builder.node(node.op, (operand,), attributes, node.compute, (dtype,), where=node.where)[0]
        fill = Literal(node.attributes["value"]) if any(reads.only for reads, *_ in moves.values()) else None
        self.deferred[number] = Deferred(node, base, spec, moves, fill)

    def compute(self, number: int) -> int:
        """Records a deferred movement after all and returns its local number."""
        waiting = self.deferred.pop(number)
        local = waiting.base
        for axis in waiting.moves:
            local = self._taken(waiting, number, local, axis, None, waiting.moves[axis][3], Slabs())
        return local

    # -- nodes --------------------------------------------------------------------------------------------------------

    def record(
        self, node: Node, operands: Sequence[Operand], specs: Sequence[Spec], attributes: Mapping[str, Any],
        kind: DType, moved: Sequence[tuple[Link, str]],
    ) -> int:  # fmt: skip
        """Records a movement. specs: the sharding of each operand. moved: the links that read other positions."""
        if unmoved(node, attributes, moved[0][0].axis, 0) is None:
            return self._joined(node, operands, specs, *moved[0])
        local_operands = list(operands)
        for link, name in moved:
            for reads in link.reads:
                local_operands[reads.operand] = self._window(
                    node, local_operands[reads.operand], specs, link, reads, name, Slabs()
                )
        for position, operand in enumerate(node.operands):
            if isinstance(operand, int) and operand in self.deferred:
                local_operands[position] = self._other_axes(operand, local_operands[position], moved, position)
        result = self.builder.node(node.op, local_operands, attributes, node.compute, (kind,), where=node.where)[0]
        for link, name in moved:
            if link.reads[0].only:
                other = link.reads[1].operand if len(link.reads) > 1 else None
                otherwise = Literal(node.attributes["value"]) if other is None else local_operands[other]
                extent = self.fusion.shape_of(node.outputs[0])[link.axis]
                window = Window(link.reads[0], extent, extent, name, node.where)
                result = self.windows.chosen(window, result, otherwise, link.axis)
        return result

    def _joined(self, node: Node, operands: Sequence[Operand], specs: Sequence[Spec], link: Link, name: str) -> int:
        """Chooses each element of the result from the windows of the sources, by its position."""
        extent, slabs = self.fusion.shape_of(node.outputs[0])[link.axis], Slabs()
        for reads in link.reads:
            source = node.operands[reads.operand]
            if source not in self.deferred and specs[reads.operand][reads.axis]:
                local = operands[reads.operand]
                assert isinstance(local, int)
                self.windows.announce(self._described(node, reads, extent, name), local, slabs)
        result: int | None = None
        for reads in reversed(link.reads):
            local = self._window(node, operands[reads.operand], specs, link, reads, name, slabs)
            source = node.operands[reads.operand]
            if source in self.deferred:
                local = self._other_axes(source, local, [(link, name)], reads.operand)
            window = Window(reads, extent, extent, name, node.where)
            result = local if result is None else self.windows.chosen(window, local, result, link.axis)
        assert result is not None
        return result

    # -- windows ------------------------------------------------------------------------------------------------------

    def _described(self, node: Node, reads: Reads, result: Extent, name: str) -> Window:
        extent = self.fusion.shape_of(node.operands[reads.operand])[reads.axis]
        return Window(reads, extent, result, name, node.where)

    def _window(
        self, node: Node, local: Operand, specs: Sequence[Spec], link: Link, reads: Reads, name: str, slabs: Slabs
    ) -> int:
        """Returns the positions of an operand that this rank's part of the result reads."""
        operand = node.operands[reads.operand]
        assert isinstance(operand, int)
        assert isinstance(local, int)
        result = self.fusion.shape_of(node.outputs[0])[link.axis]
        waiting = self.deferred.get(operand)
        if waiting is not None and reads.axis in waiting.moves:
            return self._taken(waiting, operand, local, reads.axis, reads, result, slabs)
        window = self._described(node, reads, result, name)
        spec = specs[reads.operand] if waiting is None else waiting.spec
        return self._read(window, local, bool(spec[reads.axis]), node, operand, slabs)

    def _read(self, window: Window, local: int, is_split: bool, node: Node, value: int, slabs: Slabs) -> int:
        if not is_split:
            return self.windows.of_whole(window, local)
        plan = self.windows.plan(window)
        if plan is None:
            self.plan("AllGather", window.name, value, node.where, f"{node.op.name} reads most parts")
            return self.windows.of_whole(window, self.exchanges.gathered(
                local, window.reads.axis, window.extent, (window.name,), 0, node.where
            ))  # fmt: skip
        started = len(slabs.received)
        result = self.windows.of_parts(window, plan, local, slabs)
        complete = self.extents.of_whole(window.extent)
        for _, _, _, length, _ in [key for key, _ in slabs.received][started:]:
            reason = f"{node.op.name} reads elements of other ranks"
            self.plan("SendRecv", window.name, value, node.where, reason, (length, complete))
        return result

    def _taken(
        self, waiting: Deferred, value: int, local: int, axis: int, reads: Reads | None, result: Extent, slabs: Slabs
    ) -> int:
        """Reads a deferred movement along one axis. reads: the positions of its result, None for all of them."""
        move, name, before, _ = waiting.moves[axis]
        start = reads.start if reads is not None else 0
        # The position x of the result is position x + start of the movement.
        shifted = tuple((low - start, high - start) for low, high in move.only)
        composed = replace(move, start=move.step * start + move.start, only=shifted)
        window = Window(composed, before, result, name, waiting.node.where)
        shifted_value = self._read(
            window, local, bool(waiting.spec[move.axis]), waiting.node, waiting.node.inputs[0], slabs
        )
        if not composed.only or waiting.fill is None:
            return shifted_value
        return self.windows.chosen(replace(window, extent=result), shifted_value, waiting.fill, axis)

    def _other_axes(self, operand: int, local: Operand, moved: Sequence[tuple[Link, str]], position: int) -> int:
        """Reads a deferred movement along the axes along which its reader does not move."""
        assert isinstance(local, int)
        waiting = self.deferred[operand]
        read = {link.operands[position] for link, _ in moved if position in link.operands}
        for axis, (_, _, _, extent) in waiting.moves.items():
            if axis not in read:
                local = self._taken(waiting, operand, local, axis, None, extent, Slabs())
        return local
