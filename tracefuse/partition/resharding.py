"""Values on several devices: a pass that makes every move between devices an op of its own, and what each move is.

A value lies on a mesh of devices, all of it on each or one part of an axis each; one that says nothing lies on all
ranks. An op is computed where its result lies, from the parts that it needs there. What an operand holds elsewhere or
otherwise goes through a copy, which the host program turns into a Communicate.

Knows: fusions, which parts of operands a part of a result needs. Must not know: segments, programs, how data moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from segments import Verdict
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.parallel_types import Sharding
from tracefuse.ops.pointwise import set as copy
from tracefuse.partition.slicing import operand_axes
from tracefuse.passes.rewriter import Rewriter


def _reads_parts(node: Node, needed: Mapping[int, int | None]) -> bool:
    """Whether a part of the result is made from a part of an operand."""
    return any(isinstance(operand, int) and needed.get(k) is not None for k, operand in enumerate(node.operands))


@dataclass(frozen=True, slots=True)
class Exchange:
    """A move between devices. `str` is its kind: AllGather, Scatter, AllToAll, or SendRecv between other meshes."""

    source: Sharding
    target: Sharding

    def __str__(self) -> str:
        if self.source.devices != self.target.devices:
            return "SendRecv"
        if self.target.axis is None:
            return "AllGather"
        return "Scatter" if self.source.axis is None else "AllToAll"


def sharding_of(fusion: Fusion, number: int, ranks: int) -> Sharding:
    """Where a value lies; one that says nothing lies on all ranks."""
    return fusion.values[number].sharding or Sharding(tuple(range(ranks)))


def exchange_of(fusion: Fusion, node: Node, ranks: int) -> Exchange | None:
    """The move that a node is, None for one that computes."""
    if node.op is not copy or not isinstance(node.operands[0], int):
        return None
    source, target = (sharding_of(fusion, n, ranks) for n in (node.operands[0], node.outputs[0]))
    return None if source == target else Exchange(source, target)


def with_exchanges(fusion: Fusion, ranks: int) -> Fusion:
    """`fusion` where operands lie as each node needs them; moves are copies, at most one for each value and place."""
    return _Resharding(fusion, ranks).run()


class _Resharding:
    def __init__(self, fusion: Fusion, ranks: int) -> None:
        self.fusion, self.ranks = fusion, ranks
        self.rewriter = Rewriter(fusion)
        self.moved: dict[tuple[int, Sharding], int] = {}

    def run(self) -> Fusion:
        for node in self.fusion.nodes:
            if exchange_of(self.fusion, node, self.ranks) is not None or not self._is_tensor(node.outputs[0]):
                self.rewriter.keep(node)
            else:
                self._take(node)
        return self.rewriter.build()

    def _take(self, node: Node) -> None:
        (output,) = node.outputs
        place = sharding_of(self.fusion, output, self.ranks)
        needed: Mapping[int, int | None] | Verdict = dict.fromkeys(range(len(node.operands)))
        if place.axis is not None:
            needed = operand_axes(self.fusion, node, place.axis)
        if isinstance(needed, Verdict) or (place.axis is not None and not _reads_parts(node, needed)):
            # A part is made from no parts: each device makes all of it.
            whole = Sharding(place.devices)
            made = self.rewriter.new_number()
            value = replace(self.fusion.values[output], number=made, sharding=whole, origin=output)
            self.rewriter.values[made] = value
            self.rewriter.keep(replace(self._moved(node, whole, {}), outputs=(made,)))
            dtype = value.dtype
            kept = self.rewriter.values[output]
            self.rewriter.node(copy, (made,), {}, dtype, (dtype,), where=node.where, numbers=(output,))
            self.rewriter.values[output] = kept
            return
        self.rewriter.keep(self._moved(node, place, needed))

    def _moved(self, node: Node, place: Sharding, needed: Mapping[int, int | None]) -> Node:
        """The node with its operands where it is computed."""
        operands = list(node.operands)
        for position, operand in enumerate(node.operands):
            if isinstance(operand, int) and self._is_tensor(operand):
                operands[position] = self._at(operand, Sharding(place.devices, needed.get(position)), node)
        return replace(node, operands=tuple(operands))

    def _at(self, number: int, place: Sharding, node: Node) -> int:
        if sharding_of(self.fusion, number, self.ranks) == place:
            return number
        if (number, place) not in self.moved:
            dtype = self.fusion.values[number].dtype
            (moved,) = self.rewriter.node(copy, (number,), {}, dtype, (dtype,), where=node.where)
            self.rewriter.values[moved] = replace(self.rewriter.values[moved], sharding=place, origin=number)
            self.moved[number, place] = moved
        return self.moved[number, place]

    def _is_tensor(self, number: int) -> bool:
        return self.fusion.values[number].is_tensor
