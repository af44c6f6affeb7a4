"""The exchanges of a plan: their place in the host program.

The program starts an exchange as soon as its source is computed, in the order of the collectives, and waits before the
first reader of its result, so that work between the two hides the exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from segments import Communicate, Launch
from tracefuse.ir.collective_kinds import GROUP, Collective
from tracefuse.ir.fusion import Node
from tracefuse.partition.segmentation import Part
from tracefuse.runtime.communicators.rank_groups import ExchangeLabel


@dataclass(frozen=True, slots=True)
class ExchangeStep:
    """The exchange of a segment. source, target: numbers in the fusion; no target if nothing reads the result."""

    label: ExchangeLabel
    source: int
    target: int | None

    @property
    def targets(self) -> tuple[int, ...]:
        return () if self.target is None else (self.target,)

    def communicate(self, step: int, overlaps: bool) -> Communicate:
        """Returns the instruction that starts the exchange.

        step: the number of the segment, and of the request. overlaps: whether other work comes before the wait.
        """
        return Communicate(step, replace(self.label, overlaps=overlaps), (self.source,), self.targets, step)


def exchange_step(part: Part) -> ExchangeStep | None:
    """Returns the exchange of a library segment, None if it is none."""
    node = part.library
    if node is None or not isinstance(node.op, Collective):
        return None
    index_map = part.segment.index_map
    target = index_map[node.outputs[0]] if node.outputs[0] in part.segment.outputs else None
    source = node.operands[0]
    assert isinstance(source, int)
    return ExchangeStep(_label(node, node.op), index_map[source], target)


def _label(node: Node, op: Collective) -> ExchangeLabel:
    group = node.attributes[GROUP]

    def shape_of(shape: tuple[int, ...]) -> tuple[int, ...]:
        return op.result_shape(shape, node.attributes, lambda *_: None)  # type: ignore[no-any-return]

    return ExchangeLabel(op.name, group, op.parameters_of(node.attributes), node.where, shape_of)


def wait_positions(
    launches: Sequence[Launch], exchanges: Mapping[int, ExchangeStep], last: int
) -> dict[int, list[int]]:
    """Returns the steps of the exchanges to wait for before each launch; position len(launches) is the end.

    last: the last launch before copies into output buffers; exchanges that start up to it end before the copies.
    """
    waits: dict[int, list[int]] = {}
    for step, exchange in exchanges.items():
        readers = (k for k in range(step + 1, len(launches)) if exchange.target in launches[k].inputs)
        first = next(readers, len(launches))
        waits.setdefault(min(first, last + 1) if step <= last else first, []).append(step)
    return waits
