"""The loops of a region: in which order they stand, and which neighbours are one.

Neighbouring loops of equal role are joined where every access stays a plain function of the joined index, so that a
contiguous pointwise kernel has one loop however many axes its arrays have. For reductions the loops are put in order
of memory first, which decides between a row and a column schedule.

Knows: loops, strides, roles. Must not know: kernel IR, targets.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tracefuse.ir.extents import Binary, Expression, Extent, Symbol, substitute, symbol, symbol_of, symbols
from tracefuse.ir.fusion import Fusion, Shape
from tracefuse.ir.indexing import AxisMap
from tracefuse.ir.row_major import linearize
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.probe import Probe
from tracefuse.schedule.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop: its index (a symbol), its extent, and whether it is reduced."""

    index: Extent
    extent: Extent
    reduced: bool

    @property
    def symbol(self) -> Symbol:
        return symbol_of(self.index)


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops, outermost first, and for each loop of the region's facts its coordinate in terms of them."""

    loops: tuple[Loop, ...]
    at: tuple[Extent, ...]

    @property
    def kept(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if not loop.reduced)

    @property
    def reduced(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if loop.reduced)

    def coordinates(self, axis_map: AxisMap) -> Shape:
        """The coordinates of a value whose axes run along these loops."""
        return tuple(0 if entry is None else self.at[entry] for entry in axis_map)

    def substituted(self, values: Mapping[Symbol, Extent], loops: Sequence[Loop]) -> Nest:
        """The same nest with indices replaced, over other loops."""
        return Nest(tuple(loops), tuple(substitute(e, values) for e in self.at))


def first_nest(facts: Facts) -> Nest:
    """One loop per loop of the facts, in their order."""
    reduced = facts.reduced or frozenset()
    loops = [
        Loop(symbol(f"{'r' if k in reduced else 'k'}{k}", extent=extent), extent, k in reduced)
        for k, extent in enumerate(facts.loops)
    ]
    return Nest(tuple(loops), tuple(loop.index for loop in loops))


def probe_outputs(fusion: Fusion, facts: Facts, nest: Nest, also: Sequence[int] = ()) -> Probe:
    """Walks from every output, and from what is computed besides."""
    reduced = [(facts.loops[k], nest.at[k]) for k in sorted(facts.reduced or ())]
    probe = Probe(fusion, reduced)
    for number in (*fusion.outputs, *also):
        probe.visit(number, nest.coordinates(facts.outputs[number]))
    return probe


def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides in elements, 0 on axes of extent 1."""
    strides: list[Extent] = []
    step: Extent = 1
    for extent in reversed(shape):
        strides.append(0 if extent == 1 else step)
        step = step * extent
    return tuple(reversed(strides))


def build_nest(
    fusion: Fusion, facts: Facts, strides: Mapping[int, Shape], sizes: Sizes, also: Sequence[int] = ()
) -> tuple[Nest, Probe]:
    """The loops of a region in their final order, joined where they can be, and the probe over the first loops.

    strides: in elements, of the tensor inputs and of the outputs. also: what is computed besides the outputs.
    """
    nest = first_nest(facts)
    probe = probe_outputs(fusion, facts, nest, also)
    offsets = [_offset(coordinates, strides[number]) for number, coordinates in probe.reads]
    if facts.reduced:
        nest = _ordered(nest, offsets, sizes)
    watched = [*offsets, *probe.positions]
    for test in probe.tests:
        watched += [test.index, test.low, test.high]
    for number in fusion.outputs:
        coordinates = nest.coordinates(facts.outputs[number])
        watched.append(_offset(coordinates, strides[number]))
    return _joined(nest, watched), probe


def _offset(coordinates: Shape, strides: Shape) -> Extent:
    total: Extent = 0
    for coordinate, stride in zip(coordinates, strides, strict=True):
        total = total + coordinate * stride
    return total


def coefficient(offset: Extent, index: Symbol) -> Extent:
    """The factor of `index` in an offset that is linear in it; 0 where it does not occur outside a quotient."""
    total: Extent = 0
    if isinstance(offset, Expression):
        for monomial, factor in offset.terms:
            if index in monomial:
                rest = tuple(a for a in monomial if a != index)
                total = total + (Expression(((rest, factor),)) if rest else factor)
    return total


def _ordered(nest: Nest, offsets: Sequence[Extent], sizes: Sizes) -> Nest:
    """The loops by falling stride of the read that covers most of them."""
    main = max(offsets, key=lambda o: sum(coefficient(o, loop.symbol) != 0 for loop in nest.loops), default=None)
    if main is None:
        return nest
    strides = [coefficient(main, loop.symbol) for loop in nest.loops]
    if any(stride == 0 for stride in strides):
        return nest
    distances = [-stride if sizes.hint(stride) < 0 else stride for stride in strides]  # an axis may be read backwards
    order = sorted(range(len(nest.loops)), key=lambda k: -sizes.hint(distances[k]))
    if order == list(range(len(order))):
        return nest
    for outer, inner in itertools.pairwise(order):
        sizes.require(distances[inner], "<=", distances[outer], "loops stand in the order of memory")
    return replace(nest, loops=tuple(nest.loops[k] for k in order))


def _joined(nest: Nest, watched: Sequence[Extent]) -> Nest:
    """Neighbouring loops of one kind as one, where no coordinate then needs a quotient or remainder of its index."""
    if any(loop.extent == 0 for loop in nest.loops):  # nothing runs, and no position is to be divided by 0
        return nest
    position = 0
    while position + 1 < len(nest.loops):
        outer, inner = nest.loops[position : position + 2]
        if outer.reduced == inner.reduced:
            name = f"{outer.symbol.name}{inner.symbol.name[1:]}"
            extent = outer.extent * inner.extent
            index = symbol(name, extent=extent)
            values = {outer.symbol: index // inner.extent, inner.symbol: index % inner.extent}
            moved = [substitute(e, values) for e in watched]
            if not any(_cut(e, index) for e in moved):
                joined = Loop(index, extent, outer.reduced)
                nest = nest.substituted(values, (*nest.loops[:position], joined, *nest.loops[position + 2 :]))
                watched = moved
                continue
        position += 1
    return nest


def _cut(extent: Extent, index: Extent) -> bool:
    """Whether `extent` needs a quotient or remainder of `index`."""
    own = symbol_of(index)
    atoms = [a for m, _ in (extent.terms if isinstance(extent, Expression) else ()) for a in m]
    return any(isinstance(a, Binary) and own in set(_inside(a)) for a in atoms)


def _inside(atom: Binary) -> list[Symbol]:
    return [*symbols(atom.left), *symbols(atom.right)]


def position_in(loops: Sequence[Loop]) -> Extent:
    """The row-major position of the loops' indices."""
    return linearize([loop.index for loop in loops], [loop.extent for loop in loops])
