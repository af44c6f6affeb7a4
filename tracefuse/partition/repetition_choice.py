"""Which values are stored because kernels would compute them again for every row, by the sizes of a call.

In `a * exp(x)` every row of `a` reads the whole of `exp(x)`, and a kernel computes what it reads at the reader's
coordinates: as many exponentials as `a` has elements. An axis that only the reader has costs nothing where it is inside
of all axes of the value, since the value stays the same in that loop. Outside of one of them it repeats the value. A
gather from a computed table repeats it as often as it takes an element. A reduction is repeated in every row that does
not contribute to it, as the sum in `a - x.sum()`, since a kernel computes it where its loops are.

A backward pass over the nodes of each segment multiplies these repetitions. Where they cost more than the value's own
kernel and its reads, the value ends its segment.

Must not know: kernels, targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from segments.lazy_dataclasses import dataclass
from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import Extent, is_nonnegative, product
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.indexing import PULLED, AxisMap, flat, loops_of, movement_reads, reduces, use_maps
from tracefuse.ir.op_kinds import Movement
from tracefuse.ir.scan_kind import scans
from tracefuse.partition.segmentation import Segmentation
from tracefuse.schedule.recomputation import ElementCosts
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import RepetitionBounds

REASON = "a value is computed again for every row that reads it"


def repeated_values(
    segmentation: Segmentation, values: Mapping[int, int], bounds: RepetitionBounds
) -> tuple[frozenset[int], tuple[Guard, ...]]:
    """Returns the values to store, and the guards of the choice. values: the sizes of a call, by id."""
    fusion, sizes = segmentation.fusion, Sizes(values)
    costs, chosen = ElementCosts(fusion, bounds.quotient, bounds.wide_quotient), set[int]()
    for part in segmentation.segments:
        nodes = [segmentation.steps.nodes[step] for step in part.steps]
        for node in nodes:
            costs.add(node)
        if part.library is None and not part.rule.template and part.slices is None:
            chosen.update(_Repetitions(fusion, nodes, costs, sizes, bounds).chosen())
        for number in part.segment.original_outputs:
            costs.load(number)
    return frozenset(chosen), tuple(sizes.guards)


@dataclass(frozen=True, slots=True)
class _Read:
    """The evaluations of a value for one of its readers.

    times: of each element, by the axes outside of it that only readers have. count: of all elements.
    """

    times: Extent
    count: Extent


class _Repetitions:
    """The evaluations of the values that the nodes of a segment compute."""

    def __init__(
        self, fusion: Fusion, nodes: Sequence[Node], costs: ElementCosts, sizes: Sizes, bounds: RepetitionBounds
    ) -> None:
        self.fusion, self.nodes, self.costs, self.sizes, self.bounds = fusion, nodes, costs, sizes, bounds
        self.producers = {value: node for node in nodes for value in node.outputs}
        # By value that depends on reductions or scans of this segment, the elements of the largest.
        self.combined: dict[int, Extent] = {}
        for node in nodes:
            own = [product(loops_of(node, fusion))] if reduces(fusion, node) or scans(fusion, node) else []
            elements = [*own, *(self.combined[v] for v in node.inputs if v in self.combined)]
            if elements:
                self.combined.update(dict.fromkeys(node.outputs, max(elements, key=sizes.hint)))

    def chosen(self) -> Iterator[int]:
        """Yields the values to store, the last first."""
        reads: dict[int, _Read] = {}
        for node in reversed(self.nodes):
            own: list[_Read] = []
            for value in node.outputs:
                read = reads.pop(value, None)
                if read is not None and self._is_repeated(value, read):
                    yield self._without_movement(value)
                elif read is not None:
                    own.append(read)
            times: Extent = max((read.times for read in own), key=self.sizes.hint, default=1)
            for value, read in self._operands(node, times):
                if value in self.producers and (value not in reads or self._is_more(read, reads[value])):
                    reads[value] = read

    def _operands(self, node: Node, times: Extent) -> Iterator[tuple[int, _Read]]:
        """Yields the reads of the tensor operands of a node that is evaluated so many times."""
        extents, _, maps = use_maps(self.fusion, node)
        for value, axis_map in maps:
            if value not in self.combined and self._takes_each_once(node):
                yield value, _Read(times, times * product(self.fusion.shape_of(value)))
            else:
                yield value, self._read(extents, value, axis_map, times)

    def _takes_each_once(self, node: Node) -> bool:
        """Whether an element of a result is of one of several operands, as that of a concatenation."""
        if not isinstance(node.op, Movement):
            return False
        read = movement_reads(self.fusion, node)
        return not read.deciding and any(source.conditions for source in read.sources)

    def _read(self, extents: Sequence[Extent], value: int, axis_map: AxisMap, times: Extent) -> _Read:
        along = list(flat(axis_map))
        if PULLED in along or value in self.combined:
            return _Read(times, times * product(extents))
        outside = [extent for loop, extent in enumerate(extents) if loop not in along and loop < max(along, default=0)]
        times = times * product(outside)
        return _Read(times, times * product(self.fusion.shape_of(value)))

    def _is_more(self, read: _Read, other: _Read) -> bool:
        return self.sizes.hint(read.count) > self.sizes.hint(other.count)

    def _is_repeated(self, value: int, read: _Read) -> bool:
        """Whether computing a value for all its readers costs more than storing it; guards the answer."""
        cost, elements = self.costs.of(value), product(self.fusion.shape_of(value))
        if read.count == elements:
            return False
        if value in self.combined:
            cost = max(cost, self.bounds.quotient)
            elements = max(elements, self.combined[value], key=self.sizes.hint)
        for least_cost, most_times, most in self.bounds.classes:
            if cost >= least_cost:
                further = read.count - most_times * elements
                if is_nonnegative(-further) or self.sizes.at_most(further, 0, REASON):
                    return False
                return not self.sizes.at_most(read.count, most, REASON)
        return False

    def _without_movement(self, value: int) -> int:
        """Returns the operand from which a value differs by its axes alone, or the value."""
        while True:
            node = self.producers[value]
            if not isinstance(node.op, Movement) or len(node.inputs) != 1 or node.inputs[0] not in self.producers:
                return value
            (operand,) = node.inputs
            if product(self.fusion.shape_of(operand)) != product(self.fusion.shape_of(value)):
                return value
            value = operand
