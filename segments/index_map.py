"""The interface of a segment: maps between its local value numbers and those of the original graph.

A segment is a graph of its own and numbers its values from 0: its inputs in the order of their original numbers, then
the extents it takes as scalar inputs (original -1, -2, ... in that order), then the values its steps produce, in step
order. The extents of its input tensors are -1, -2, ... in the order of input and axis. A literal axis (static, or the
1 of a broadcast) takes up a number, as it does in the original, but has no entry in the map.

A segment that needs the extent of a tensor it does not read takes that extent as a scalar input, so no tensor stays
alive for its shape alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from segments.graph import Graph, GraphError
from segments.lazy_dataclasses import dataclass
from segments.partition import Partition

ExtentsOf = Callable[[int], Sequence[int | None]]


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of a graph, with maps between its value numbers (local) and the graph's (original).

    steps: positions in the graph, ascending.
    inputs, outputs: local numbers, ascending.
    index_map: the inputs and outputs, local -> original; an extent passed as a scalar maps to a negative number.
    value_map: every local value -> original, scalar inputs included; `inverse` is the opposite direction.
    extent_map: the extents of the segment's input tensors, local -> original, both negative.
    extent_inverse: every original extent available in the segment -> its first local number, which is negative for an
        axis of an input tensor and 0 or more for a scalar input.
    """

    steps: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    index_map: Mapping[int, int]
    value_map: Mapping[int, int]
    inverse: Mapping[int, int]
    extent_map: Mapping[int, int]
    extent_inverse: Mapping[int, int]

    @property
    def original_inputs(self) -> tuple[int, ...]:
        """The inputs by their original numbers, in the local order; negative ones are extents."""
        return tuple(self.index_map[local] for local in self.inputs)

    @property
    def original_outputs(self) -> tuple[int, ...]:
        """The outputs by their original numbers, in the local order."""
        return tuple(self.index_map[local] for local in self.outputs)


def build_segment(
    graph: Graph, steps: Sequence[int], *, extents_of: ExtentsOf, needs_extents: Collection[int] = (),
    outputs: Collection[int] | None = None,
) -> Segment:  # fmt: skip
    """Build the segment that holds `steps`, given in any order.

    `extents_of(value)` returns, for each axis of an original value, the original number of its extent (negative) or
    None for a literal axis; an empty sequence for a scalar. `needs_extents` lists original extents that the steps need
    in addition to those they read as operands; an extent that an input tensor of the segment carries adds no scalar
    input. `outputs` lists the original values to store. The default is every value that a step outside the segment
    reads or the graph returns, which is a superset where steps are recomputed (`Partition.stored` is exact).

    Raises GraphError for a duplicate step, an output that the steps do not produce, or an extent that is not negative.
    """
    order = tuple(sorted(steps))
    if len(set(order)) != len(order):
        raise GraphError(f"a segment has each step once, not {tuple(steps)}")
    if any(extent >= 0 for extent in needs_extents):
        raise GraphError(f"needs_extents takes extents, which are negative: {sorted(needs_extents)}")
    computed = [value for step in order for value in graph.steps[step].outputs]
    read = {value for step in order for value in graph.steps[step].inputs}
    tensors = sorted(value for value in read.difference(computed) if value >= 0)
    extent_map = _own_extents(tensors, extents_of)
    wanted = {value for value in read if value < 0}.union(needs_extents)
    scalars = sorted(wanted.difference(extent_map.values()), reverse=True)
    value_map = dict(enumerate([*tensors, *scalars, *computed]))
    inverse = {original: local for local, original in value_map.items()}
    inputs = tuple(range(len(tensors) + len(scalars)))
    local_outputs = tuple(sorted(inverse[value] for value in _stored(graph, order, computed, outputs)))
    extent_inverse = {original: local for local, original in reversed(extent_map.items())}
    extent_inverse.update((extent, inverse[extent]) for extent in scalars)
    return Segment(
        steps=order,
        inputs=inputs,
        outputs=local_outputs,
        index_map=MappingProxyType({local: value_map[local] for local in (*inputs, *local_outputs)}),
        value_map=MappingProxyType(value_map),
        inverse=MappingProxyType(inverse),
        extent_map=MappingProxyType(extent_map),
        extent_inverse=MappingProxyType(extent_inverse),
    )


def build_segments(
    graph: Graph,
    split: Partition,
    *,
    extents_of: ExtentsOf,
    needs_extents: Callable[[tuple[int, ...]], Collection[int]] | None = None,
) -> tuple[Segment, ...]:
    """Build the segments of all groups, in order. `needs_extents(steps)` is called once for each group."""
    return tuple(
        build_segment(
            graph,
            steps,
            extents_of=extents_of,
            needs_extents=() if needs_extents is None else needs_extents(steps),
            outputs=stored,
        )
        for steps, stored in zip(split.groups, split.stored, strict=True)
    )


def _own_extents(tensors: Sequence[int], extents_of: ExtentsOf) -> dict[int, int]:
    extent_map: dict[int, int] = {}
    local = 0
    for value in tensors:
        for extent in extents_of(value):
            local -= 1
            if extent is None:
                continue
            if extent >= 0:
                raise GraphError(f"extents_of({value}) gives {extent}; an extent is negative, or None for a literal")
            extent_map[local] = extent
    return extent_map


def _stored(graph: Graph, steps: tuple[int, ...], computed: Sequence[int], outputs: Collection[int] | None) -> set[int]:
    """The original values that a segment stores: the given outputs, or what is read outside or returned."""
    if outputs is None:
        members = frozenset(steps)
        return {
            value
            for value in computed
            if graph.is_output(value) or any(reader not in members for reader in graph.readers(value))
        }
    stored = set(outputs)
    if not stored.issubset(computed):
        raise GraphError(f"steps {steps} do not make the outputs {sorted(stored.difference(computed))}")
    return stored
