"""The exchanges of a plan: their place in the host program.

The program starts an exchange as soon as its source is computed, in the order of the collectives, and waits before the
first reader of its result, so that work between the two hides the exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from segments import Communicate, EndCoalescing, Instruction, Launch, StartCoalescing, WaitRequest
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.collective_kinds import GROUP, Collective, exchanges_of
from tracefuse.ir.fusion import Attributes
from tracefuse.partition.segmentation import Part
from tracefuse.runtime.communicators.rank_groups import ExchangeLabel


@dataclass(frozen=True, slots=True)
class ExchangeStep:
    """The exchanges of a segment, which start together.

    sources, targets: numbers in the fusion; the target is None where nothing reads the result.
    """

    labels: tuple[ExchangeLabel, ...]
    sources: tuple[int, ...]
    results: tuple[int | None, ...]

    @property
    def targets(self) -> tuple[int, ...]:
        return tuple(result for result in self.results if result is not None)

    def that_waits(self, waits: bool) -> ExchangeStep:
        """Returns the step with labels for which the host waits for the end, or does not."""
        return replace(self, labels=tuple(replace(label, waits=waits) for label in self.labels))

    def communicate(self, step: int, first: int, overlaps: bool) -> list[Instruction]:
        """Returns the instructions that start the exchanges.

        step: the number of the segment. first: the number of the first request. overlaps: whether other work comes
        before the wait.
        """
        started: list[Instruction] = [
            Communicate(
                first + k, replace(label, overlaps=overlaps), (source,), () if result is None else (result,), step
            )
            for k, (label, source, result) in enumerate(zip(self.labels, self.sources, self.results, strict=True))
        ]
        return started if len(started) == 1 else [StartCoalescing(), *started, EndCoalescing()]

    def wait(self, first: int) -> list[Instruction]:
        """Returns the instructions that wait for the exchanges."""
        return [WaitRequest(first + k) for k in range(len(self.labels))]


def exchange_step(part: Part) -> ExchangeStep | None:
    """Returns the exchanges of a library segment, None if it is none."""
    node = part.library
    if node is None or not isinstance(node.op, Collective):
        return None
    index_map, stored = part.segment.index_map, part.segment.outputs
    each = exchanges_of(node.op, node.attributes)
    sources = [operand for operand in node.operands[: len(each)] if isinstance(operand, int)]
    results = [index_map[output] if output in stored else None for output in node.outputs[: len(each)]]
    labels = tuple(_label(op, attributes, node.where) for op, attributes in each)
    return ExchangeStep(labels, tuple(index_map[source] for source in sources), tuple(results))


def _label(op: Collective, attributes: Attributes, where: str | None) -> ExchangeLabel:
    def shape_of(shape: tuple[int, ...]) -> tuple[int, ...]:
        return op.result_shape(shape, attributes, lambda *_: None)  # type: ignore[no-any-return]

    return ExchangeLabel(op.name, attributes[GROUP], op.parameters_of(attributes), where, shape_of)


def wait_positions(
    launches: Sequence[Launch], exchanges: Mapping[int, ExchangeStep], last: int
) -> dict[int, list[int]]:
    """Returns the steps of the exchanges to wait for before each launch; position len(launches) is the end.

    last: the last launch before copies into output buffers; exchanges that start up to it end before the copies.
    """
    waits: dict[int, list[int]] = {}
    for step, exchange in exchanges.items():
        readers = (
            k for k in range(step + 1, len(launches)) if not set(exchange.targets).isdisjoint(launches[k].inputs)
        )
        first = next(readers, len(launches))
        waits.setdefault(min(first, last + 1) if step <= last else first, []).append(step)
    return waits
