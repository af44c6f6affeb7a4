"""The loop nest of a region: loop order and loop collapsing.

Adjacent loops of equal role are collapsed if no access then needs a quotient or remainder of the collapsed index, so a
contiguous pointwise kernel has one loop for arrays of any rank. If the region reduces, its loops are first sorted by
stride; the order decides between a row and a column schedule.

Must not know: kernel IR, targets.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import (
    Binary,
    Expression,
    Extent,
    Symbol,
    divide_exactly,
    product,
    substitute,
    symbol,
    symbol_of,
    symbols,
    terms_of,
)  # fmt: skip
from tracefuse.ir.fusion import Fusion, Node, Shape
from tracefuse.ir.indexing import AxisMap, Entry, Joined, LoopFactor, flat, undivided
from tracefuse.ir.op_kinds import Reduction, Within
from tracefuse.ir.row_major import linearize
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.probe import Probe
from tracefuse.schedule.sizes import Sizes

FEW_TERMS = 16
"""The most terms of a sum that one thread, or one lane of a vector, adds alone where the terms are read many times."""


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
    """Loops, outermost first. at: for each loop of the region's facts, its coordinate in terms of these loops."""

    loops: tuple[Loop, ...]
    at: tuple[Extent, ...]

    @property
    def parallel(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if not loop.reduced)

    @property
    def reduced(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if loop.reduced)

    def coordinates(self, axis_map: AxisMap) -> Shape:
        """Returns the coordinates of a value whose axes follow these loops."""
        return tuple(self._coordinate(entry) for entry in axis_map)

    def _coordinate(self, entry: Entry) -> Extent:
        if isinstance(entry, Joined):
            return linearize([self.at[loop] for loop in flat((entry,))], entry.extents)
        assert not isinstance(entry, LoopFactor)
        return 0 if entry is None else self.at[entry]

    def substituted(self, values: Mapping[Symbol, Extent], loops: Sequence[Loop]) -> Nest:
        """Returns the nest over `loops`, with indices substituted by `values`."""
        return Nest(tuple(loops), tuple(substitute(e, values) for e in self.at))


def first_nest(facts: Facts) -> Nest:
    """Returns a nest with one loop for each loop of the facts, in their order."""
    reduced = facts.reduced or frozenset()
    loops = [
        Loop(symbol(f"{'r' if k in reduced else 'k'}{k}", extent=extent), extent, k in reduced)
        for k, extent in enumerate(facts.loops)
    ]
    return Nest(tuple(loops), tuple(loop.index for loop in loops))


def probe_outputs(fusion: Fusion, facts: Facts, nest: Nest, also: Sequence[int] = ()) -> Probe:
    """Probes every output, and the values in `also`."""
    reduced = [(facts.loops[k], nest.at[k]) for k in sorted(facts.reduced or ())]
    probe = Probe(fusion, reduced, axes={value: nest.coordinates(axes) for value, axes in facts.axes.items()})
    for number in (*fusion.outputs, *also):
        probe.visit(number, nest.coordinates(facts.outputs[number]))
    return probe


def contiguous_strides(shape: Shape) -> Shape:
    """Returns row-major strides in elements, 0 on axes of extent 1."""
    strides: list[Extent] = []
    step: Extent = 1
    for extent in reversed(shape):
        strides.append(0 if extent == 1 else step)
        step = step * extent
    return tuple(reversed(strides))


def build_nest(
    fusion: Fusion, facts: Facts, strides: Mapping[int, Shape], sizes: Sizes, also: Sequence[int] = (),
    short_run: int = 0, joins_tested: bool = False,
) -> tuple[Nest, Probe]:  # fmt: skip
    """Builds the loop nest of a region, sorted and collapsed, and the probe over the original loops.

    strides: in elements, of the tensor inputs and of the outputs. also: values that are computed besides the outputs.
    short_run: reduction loops over at most so many adjacent elements, with others outside, are no innermost loops.
    joins_tested: a loop whose index conditions test is collapsed with the one inside it.
    """
    nest = first_nest(facts)
    probe = probe_outputs(fusion, facts, nest, also)
    offsets = [_offset(coordinates, strides[number]) for number, coordinates in probe.reads]
    if facts.reduced:
        nest = _sort_by_stride(nest, offsets, sizes, in_order=any(_finds_position(n) for n in fusion.nodes))
        nest = _few_terms_outside(nest, facts, offsets, sizes)
        nest = _short_run_outside(nest, facts, sizes, short_run)
    tested = [extent for test in probe.tests for extent in (test.index, test.low, test.high)]
    watched = [*tested, *offsets, *probe.positions]
    for number in fusion.outputs:
        coordinates = nest.coordinates(facts.outputs[number])
        watched.append(_offset(coordinates, strides[number]))
    return _collapse(*split_loops(nest, watched), len(tested) if joins_tested else 0), probe


def _offset(coordinates: Shape, strides: Shape) -> Extent:
    total: Extent = 0
    for coordinate, stride in zip(coordinates, strides, strict=True):
        total = total + coordinate * stride
    return total


def coefficient(offset: Extent, index: Symbol) -> Extent:
    """Returns the factor of `index` in an offset that is linear in it; 0 if it occurs only inside a quotient."""
    total: Extent = 0
    if isinstance(offset, Expression):
        for monomial, factor in offset.terms:
            if index in monomial:
                rest = tuple(a for a in monomial if a != index)
                total = total + (Expression(((rest, factor),)) if rest else factor)
    return total


def _finds_position(node: Node) -> bool:
    return isinstance(node.op, Reduction) and bool(node.op.selects)


def _sort_by_stride(nest: Nest, offsets: Sequence[Extent], sizes: Sizes, *, in_order: bool) -> Nest:
    """Sorts the loops by decreasing stride of the read that covers most of them.

    in_order: reduction loops keep their order among themselves, since of equal elements the first one counts.
    """
    main = max(offsets, key=lambda o: sum(coefficient(o, loop.symbol) != 0 for loop in nest.loops), default=None)
    if main is None:
        return nest
    strides = [coefficient(main, loop.symbol) for loop in nest.loops]
    if any(stride == 0 for stride in strides):
        return nest
    distances = [-stride if sizes.hint(stride) < 0 else stride for stride in strides]  # strides may be negative
    order = sorted(range(len(nest.loops)), key=lambda k: -sizes.hint(distances[k]))
    if in_order:
        reduced = iter([k for k in range(len(order)) if nest.loops[k].reduced])
        order = [next(reduced) if nest.loops[k].reduced else k for k in order]
    if order == list(range(len(order))):
        return nest
    for outer, inner in itertools.pairwise(order):
        if not in_order or sizes.hint(distances[inner]) <= sizes.hint(distances[outer]):
            sizes.require(distances[inner], "<=", distances[outer], "loops stand in the order of memory")
    return replace(nest, loops=tuple(nest.loops[k] for k in order))


def _few_terms_outside(nest: Nest, facts: Facts, offsets: Sequence[Extent], sizes: Sizes) -> Nest:
    """Moves short reduction loops out of the innermost parallel loop, if no read follows all loops.

    `x[:, None, :] - y[None, :, :]` reduced over the last axis reads little and writes much: then the results have to be
    adjacent, not the terms.
    """
    if not nest.parallel or not nest.loops[-1].reduced or facts.scans:
        return nest
    if any(all(coefficient(o, loop.symbol) != 0 for loop in nest.loops) for o in offsets):
        return nest
    every = frozenset(range(len(facts.loops)))
    if any(frozenset(flat(axis_map)) == every for axis_map in facts.outputs.values()):
        return nest
    terms = product(loop.extent for loop in nest.reduced)
    if not sizes.at_most(terms, FEW_TERMS, "results of few terms are adjacent"):
        return nest
    *outer, inner = nest.parallel
    return replace(nest, loops=(*outer, *nest.reduced, inner))


LEAST_RUNS = 32
"""The least extent of the parallel loop around a short run, so that threads take adjacent runs."""


def _short_run_outside(nest: Nest, facts: Facts, sizes: Sizes, most: int) -> Nest:
    """Moves reduction loops over at most `most` adjacent elements out of the parallel loop around them.

    A sum of (n, 128, 2) over the first and the last axis reads pairs that are far apart for each result. With the pairs
    outside, adjacent threads compute adjacent results and read all of a row of memory.
    """
    count = next((k for k, loop in enumerate(reversed(nest.loops)) if not loop.reduced), len(nest.loops))
    outer, run = nest.loops[: len(nest.loops) - count], nest.loops[len(nest.loops) - count :]
    if not most or not run or facts.scans or not any(loop.reduced for loop in outer):
        return nest
    if not sizes.at_most(product(loop.extent for loop in run), most, "a short run of reduced elements"):
        return nest
    if sizes.at_most(outer[-1].extent, LEAST_RUNS - 1, "adjacent runs are too few for a warp"):
        return nest
    return replace(nest, loops=(*outer[:-1], *run, outer[-1]))


MOST_SPLITS = 8
"""Loops that are split, at most."""


def split_loops(nest: Nest, watched: Sequence[Extent]) -> tuple[Nest, Sequence[Extent]]:
    """Splits parallel loops whose index is divided by a symbolic factor of their extent, as after a merge of axes.

    Neither part of the index then needs a quotient. Constant divisors stay: dividing by them is cheap. watched: the
    expressions of the loops' indices; returns them in terms of the new loops.
    """
    for _ in range(MOST_SPLITS):
        split = next((f for loop in nest.loops if not loop.reduced if (f := _factors(loop, watched))), None)
        if split is None:
            break
        loop, outer, inner = split
        name = loop.symbol.name
        parts = [Loop(symbol(f"{name}{suffix}", extent=e), e, False) for suffix, e in (("a", outer), ("b", inner))]
        values = {loop.symbol: parts[0].index * inner + parts[1].index}
        place = nest.loops.index(loop)
        nest = nest.substituted(values, (*nest.loops[:place], *parts, *nest.loops[place + 1 :]))
        watched = [substitute(e, values) for e in watched]
    return nest, watched


def _factors(loop: Loop, watched: Sequence[Extent]) -> tuple[Loop, Extent, Extent] | None:
    """Returns the loop and the two factors of its extent, if its index is divided by a symbolic factor."""
    for extent in watched:
        for atom in quotients(extent):
            inner = atom.right
            if atom.left != loop.index or isinstance(inner, int) or any(s.extent is not None for s in symbols(inner)):
                continue
            outer = divide_exactly(loop.extent, inner)
            if outer is not None and outer != 1:
                return loop, outer, inner
    return None


def quotients(extent: Extent) -> list[Binary]:
    """Returns the quotients, remainders, minima and maxima in an expression, also nested ones."""
    found: dict[Binary, None] = {}
    waiting = [extent]
    while waiting:
        for monomial, _ in terms_of(waiting.pop()):
            for atom in monomial:
                if isinstance(atom, Binary) and atom not in found:
                    found[atom] = None
                    waiting += [atom.left, atom.right]
    return [atom for atom in found if atom.operation in ("//", "%")]


def _collapse(nest: Nest, watched: Sequence[Extent], tested: int) -> Nest:
    """Collapses adjacent loops of one role if no coordinate then needs a quotient or remainder of their index.

    tested: the first so many expressions are the indices and bounds of conditions, which quotients of loops may have:
    see `undivided`.
    """
    if any(loop.extent == 0 for loop in nest.loops):  # no iteration runs, and indices must not be divided by 0
        return nest
    position = 0
    while position + 1 < len(nest.loops):
        outer, inner = nest.loops[position : position + 2]
        if outer.reduced == inner.reduced:
            name = f"{outer.symbol.name}{inner.symbol.name[1:]}"
            extent = outer.extent * inner.extent
            index = symbol(name, extent=extent)
            values = {outer.symbol: index // inner.extent, inner.symbol: index % inner.extent}
            moved = _undivided([substitute(e, values) for e in watched], tested)
            if not any(_divides(e, index) for e in moved):
                collapsed = Loop(index, extent, outer.reduced)
                nest = nest.substituted(values, (*nest.loops[:position], collapsed, *nest.loops[position + 2 :]))
                watched = moved
                continue
        position += 1
    return nest


def _undivided(watched: Sequence[Extent], tested: int) -> Sequence[Extent]:
    """Returns expressions whose first `tested` ones, conditions, test dividends in place of quotients."""
    tests = [undivided(Within(*watched[k : k + 3])) for k in range(0, tested, 3)]
    return [*(extent for test in tests for extent in (test.index, test.low, test.high)), *watched[tested:]]


def _divides(extent: Extent, index: Extent) -> bool:
    """Returns whether `extent` contains a quotient or remainder of `index`."""
    index_symbol = symbol_of(index)
    atoms = [a for m, _ in (extent.terms if isinstance(extent, Expression) else ()) for a in m]
    return any(isinstance(a, Binary) and index_symbol in _symbols_of(a) for a in atoms)


def _symbols_of(atom: Binary) -> set[Symbol]:
    return {*symbols(atom.left), *symbols(atom.right)}


def position_in(loops: Sequence[Loop]) -> Extent:
    """Returns the row-major position of the loops' indices."""
    return linearize([loop.index for loop in loops], [loop.extent for loop in loops])
