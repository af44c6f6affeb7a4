"""Analyzes a region before emission: the coordinates and conditions of every read, and the values worth caching.

The probe walks from the results to the inputs exactly as `Body` does, with symbols for the loops, and records the
coordinates of every read, every condition, and the coordinates at which each reduction is read. Walking phase by
phase, it also finds the values that a later phase rereads.

Must not know: kernel IR, targets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.errors import InternalError
from tracefuse.ir.extents import Extent, Symbol, symbol, symbols
from tracefuse.ir.fusion import Fusion, Literal, Node, Shape
from tracefuse.ir.indexing import position_of, reduced_coordinates, reduces, sources
from tracefuse.ir.op_kinds import Pointwise, Within

Read: TypeAlias = tuple[int, Shape, bool]
"""A value that another reads, its coordinates, and whether the read is conditional."""


@dataclass(slots=True)
class Probe:
    """The reads and conditions of a region.

    reads: (input, coordinates). tests: conditions. reduced_at: the result coordinates of each reduction.
    reduced: (extent, index) of the reduction loops. cached: values that a later phase rereads and that `worth` selects,
    with the phase that computes them; last: the last phase that reads each. unconditional: elements that are read
    under no condition. stop_at_reductions: reductions are already computed, and so are the values `known`.
    indirect: the data-dependent coordinates. axes: the coordinates of the axes that reductions reduce, by result.
    """

    fusion: Fusion
    reduced: Sequence[tuple[Extent, Extent]]
    worth: Callable[[int], bool] = lambda number: False
    stop_at_reductions: bool = False
    known: Collection[tuple[int, Shape]] = ()
    indirect: set[Symbol] = field(default_factory=set)
    reads: list[tuple[int, Shape]] = field(default_factory=list)
    tests: list[Within] = field(default_factory=list)
    positions: list[Extent] = field(default_factory=list)
    reduced_at: dict[int, Shape] = field(default_factory=dict)
    cached: dict[tuple[int, Shape], int] = field(default_factory=dict)
    last: dict[tuple[int, Shape], int] = field(default_factory=dict)
    phase: int = 0
    _first: dict[tuple[int, Shape], int] = field(default_factory=dict)
    _seen: set[tuple[int, tuple[int, Shape]]] = field(default_factory=set)
    unconditional: set[tuple[int, Shape]] = field(default_factory=set)
    _producers: dict[int, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._producers = self.fusion.producers
        self._loops = {s for _, index in self.reduced for s in symbols(index)}

    _loops: set[Symbol] = field(default_factory=set)
    axes: Mapping[int, Shape] = field(default_factory=dict)

    @property
    def walked(self) -> set[tuple[int, Shape]]:
        """Every (value, coordinates) that the results depend on."""
        return {key for _, key in self._seen}

    def visit(self, number: int, coordinates: Shape) -> None:
        """Walks from one element of a value to the inputs.

        Uses an explicit stack, since a program may be deeper than Python's recursion limit. An entry holds the
        remaining reads of a value and the number of conditions on the path to it.
        """
        walks: list[tuple[Iterator[Read], int]] = [(iter(((number, coordinates, False),)), 0)]
        while walks:
            walk, depth = walks[-1]
            read = next(walk, None)
            if read is None:
                walks.pop()
                continue
            depth += read[2]
            below = self._enter(read[0], read[1], depth)
            if below is not None:
                walks.append((below, depth))

    def _enter(self, number: int, coordinates: Shape, depth: int) -> Iterator[Read] | None:
        """Records an element that is read; returns its reads, or None if they are already recorded."""
        key = (number, coordinates)
        if (self.phase, key) in self._seen or not self.fusion.values[number].is_tensor:
            return None
        if key in self.known or self._is_cached(key):
            return None
        self._seen.add((self.phase, key))
        self._first.setdefault(key, self.phase)
        if depth == 0:
            self.unconditional.add(key)
        node = self._producers.get(number)
        if node is None:
            self.reads.append(key)
            return None
        if not reduces(self.fusion, node):
            return self._walk(node, coordinates)
        return None if self.stop_at_reductions else self._reduction(node, coordinates)

    def _is_cached(self, key: tuple[int, Shape]) -> bool:
        first = self._first.get(key)
        if first is None or first >= self.phase or key not in self.unconditional or not self.worth(key[0]):
            return False
        if self._loops.isdisjoint(s for c in key[1] for s in symbols(c)):
            return False
        self.cached[key] = first
        self.last[key] = self.phase
        return True

    def _walk(self, node: Node, coordinates: Shape) -> Iterator[Read]:
        position = position_of(self.fusion, node, coordinates)
        if position is not None:
            self.positions.append(position)
        deciding: list[Read] = []

        def index_of(position: int, at: Shape) -> Extent:
            operand = node.operands[position]
            if isinstance(operand, Literal):
                return int(operand.value.real)
            deciding.append((operand, at, False))
            extent = self.fusion.shape_of(node.operands[0])[node.attributes["dim"]]
            index = symbol(f"taken{node.outputs[0]}", extent=extent)
            self.indirect.update(symbols(index))
            return index

        pulled = sources(self.fusion, node, coordinates, index_of)
        yield from deciding
        for source in pulled:
            self.tests.extend(source.conditions)
            operand = node.operands[source.operand]
            if not isinstance(operand, Literal):
                yield operand, source.coordinates, bool(source.conditions)

    def _reduction(self, node: Node, coordinates: Shape) -> Iterator[Read]:
        known = self.reduced_at.setdefault(node.outputs[0], coordinates)
        if known != coordinates:
            raise InternalError(f"{node.op.name} (value {node.outputs[0]}) is read at {known} and at {coordinates}")
        operand = node.operands[0]
        if isinstance(operand, int):
            yield operand, self.operand_coordinates(node, coordinates), False

    def operand_coordinates(self, node: Node, coordinates: Shape) -> Shape:
        """Returns the operand coordinates of a reduction at the reduction loops' indices, for its result `coordinates`.

        The axes of a reduction that the facts of the region lack take the first free loop of equal extent.
        """
        known = self.axes.get(node.outputs[0])
        if known is not None:
            return reduced_coordinates(node, self.fusion, coordinates, known)
        free = list(self.reduced)
        shape = self.fusion.shape_of(node.operands[0])
        inner: list[Extent] = []
        for axis in node.attributes["dims"]:
            if shape[axis] == 1:
                inner.append(0)
                continue
            place = next((k for k, (extent, _) in enumerate(free) if extent == shape[axis]), None)
            if place is None:
                raise InternalError(
                    f"{node.op.name} reduces an axis of extent {shape[axis]}, but no loop has that extent"
                )
            inner.append(free.pop(place)[1])
        return reduced_coordinates(node, self.fusion, coordinates, tuple(inner))


def depths(fusion: Fusion) -> dict[int, int]:
    """Returns for each value the largest number of reductions on a path to it, including its own."""
    result = dict.fromkeys(fusion.inputs, 0)
    for node in fusion.nodes:
        depth = max((result[v] for v in node.inputs), default=0) + reduces(fusion, node)
        result.update(dict.fromkeys(node.outputs, depth))
    return result


def weights(fusion: Fusion) -> dict[int, int]:
    """Returns for each value the number of expensive ops to recompute it from inputs and reduction results."""
    result = dict.fromkeys(fusion.inputs, 0)
    for node in fusion.nodes:
        expensive = int(isinstance(node.op, Pointwise) and node.op.expensive)
        weight = 0 if reduces(fusion, node) else expensive + sum(result[v] for v in node.inputs)
        result.update(dict.fromkeys(node.outputs, weight))
    return result
