"""Rows whose elements follow each other in memory but begin anywhere in an access of 16 bytes.

A row, or each of the runs of which it consists, is read and written in whole accesses from the first element on that
begins one. What is left at its two ends is accessed by single elements. How many elements are left follows from the
length of a run alone, so that a kernel has as many of both in every run.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, Symbol, is_nonnegative, product, substitute, symbol, symbol_of, symbols
from tracefuse.ir.op_kinds import Reduction
from tracefuse.ir.row_major import linearize
from tracefuse.kernel.kernel_ir import call
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import Positions, Walk, bind_loops, row_positions
from tracefuse.schedule.gpu.gpu_lanes import every_output, wanted_lanes
from tracefuse.schedule.gpu.gpu_phase import RowPart
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.transposed import read_offsets

LEAST_ACCESSES = 16
"""The least accesses of a run: at its ends, nearly two of them are left as single elements."""


@dataclass(frozen=True, slots=True)
class ElementRun:
    """Runs of adjacent elements, of which a row consists, in accesses of `lanes` elements.

    loops: the loops over the elements of a run. outer: the other reduced loops. start: the place in memory of its first
    element, in terms of the loops around it.
    """

    loops: tuple[Loop, ...]
    outer: tuple[Loop, ...]
    start: Extent
    lanes: int

    @property
    def length(self) -> Extent:
        return product(loop.extent for loop in self.loops)

    @property
    def groups(self) -> Extent:
        """The whole accesses of a run: as many as fit wherever it begins."""
        return (self.length - (self.lanes - 1)) // self.lanes

    @property
    def ends(self) -> Extent:
        """The elements of a run besides: from `lanes` - 1 to 2 * (`lanes` - 1)."""
        return self.length - self.groups * self.lanes

    @property
    def counts(self) -> tuple[Extent, Extent]:
        """`groups` and `ends` as arguments of the kernel, by whose inverses it divides."""
        return symbol("run_groups", minimum=1), symbol("run_ends", minimum=1)

    @property
    def derived(self) -> dict[Symbol, Extent]:
        """The definitions of `counts`."""
        return dict(zip(map(symbol_of, self.counts), (self.groups, self.ends), strict=True))

    @property
    def access(self) -> Extent:
        """The number in memory of the first whole access of a run."""
        bound = substitute(self.start, {s: s.extent for s in symbols(self.start) if s.extent is not None})
        return symbol("access", extent=bound // self.lanes + 2)

    def bind(self, body: Body) -> None:
        """Binds `access` for the run at the current indices of the loops around it."""
        body.bind(self.access, body.index.code((self.start + (self.lanes - 1)) // self.lanes))

    @property
    def most_ends(self) -> int:
        return 2 * (self.lanes - 1)

    def bound_ends(self, sizes: Sizes) -> int:
        """Returns a bound on `ends` in all runs of a row; guards their number."""
        if not self.outer:
            return self.most_ends
        ends = product(loop.extent for loop in self.outer) * self.ends
        return sizes.power_of_two_above(ends, "the ends of runs", "the ends of runs")[0]

    def at(self, element: Extent) -> dict[Symbol, Extent]:
        """Returns the indices of the loops over a run at one of its elements."""
        values: dict[Symbol, Extent] = {}
        for loop in self.loops[:0:-1]:
            values[loop.symbol], element = element % loop.extent, element // loop.extent
        return values | {self.loops[0].symbol: element}


@dataclass(frozen=True, slots=True)
class _RunPositions(Positions):
    """Some of the positions of the runs of a row. inner: so many of each run, as an argument of the kernel."""

    run: ElementRun = field(kw_only=True)

    @property
    def inner(self) -> Extent:
        raise NotImplementedError

    @property
    def total(self) -> Extent:
        return product(loop.extent for loop in self.run.outer) * self.run.derived[symbol_of(self.inner)]

    @property
    def moving(self) -> frozenset[Symbol]:
        return frozenset(symbol_of(s) for s in (*(loop.index for loop in self.run.outer), self.group, self.run.access))

    def bind(self, body: Body, position: Extent) -> None:
        bind_loops(body, [*self.run.outer, Loop(self.group, self.inner, True)], position)
        self.run.bind(body)


@dataclass(frozen=True, slots=True)
class RunGroups(_RunPositions):
    """The whole accesses of the runs of a row."""

    @property
    def inner(self) -> Extent:
        return self.run.counts[0]

    def values(self, lane: Extent) -> dict[Symbol, Extent]:
        return self.run.at((self.run.access + self.group) * self.lanes + lane - self.run.start)


@dataclass(frozen=True, slots=True)
class RunEnds(_RunPositions):
    """The other elements of the runs of a row: those before the whole accesses, and those after them."""

    @property
    def inner(self) -> Extent:
        return self.run.counts[1]

    @property
    def _element(self) -> Extent:
        return symbol("element", extent=self.run.length)

    @property
    def moving(self) -> frozenset[Symbol]:
        return frozenset((*(loop.symbol for loop in self.run.outer), symbol_of(self._element)))

    def values(self, lane: Extent) -> dict[Symbol, Extent]:
        return self.run.at(self._element)

    def bind(self, body: Body, position: Extent) -> None:
        _RunPositions.bind(self, body, position)
        run, before, code = self.run, self.group, body.index.code
        head = body.index.compare("lt", before, run.access * run.lanes - run.start)
        body.bind(self._element, call("select", head, code(before), code(before + run.counts[0] * run.lanes)))


def run_positions(region: Region, run: ElementRun) -> tuple[RunGroups, RunEnds]:
    """Returns the positions of the runs of a row: the whole accesses, and the other elements."""
    loops = region.nest.reduced
    return RunGroups(loops, run.lanes, run=run), RunEnds(loops, 1, run=run)


def row_accesses(region: Region, lanes: int, run: ElementRun | None) -> Positions:
    """Returns the positions of a row's accesses of `lanes` elements; run: the runs of the row."""
    return row_positions(region, lanes) if run is None else run_positions(region, run)[0]


def ends_of_runs(body: Body, region: Region, run: ElementRun, walk: Callable[[Extent], Walk]) -> RowPart:
    """Returns the elements in no whole access as a part of a row. walk: that over so many positions."""
    narrow, ends = body.beside(), run_positions(region, run)[1]
    return RowPart(narrow, region.placed(ends.values(narrow.lane)), walk(ends.total), ends)


def find_run(region: Region, lanes: int, sizes: Sizes) -> ElementRun | None:
    """Returns the runs of the rows of a region that `lanes` elements at a time are too few for; guards their length.

    Every element is read and stored once, in arrays in which runs begin at the same places. What all rows read need not
    be.
    """
    nest = region.nest
    if not nest.reduced or not nest.loops[-1].reduced or region.probe.tests or region.probe.indirect:
        return None
    if region.probe.positions or any(_is_ordered(region, phase) for phase in range(len(region.reductions))):
        return None
    inner, wanted = nest.loops[-1], wanted_lanes(region, nest.loops[-1])
    if wanted <= lanes:
        return None
    joined = row_positions(region, 1).joined
    loops = nest.reduced if joined else (inner,)
    start = _common_start(region, loops)
    outer = tuple(loop for loop in nest.reduced if loop not in loops)
    if start is None or not is_nonnegative(start):
        return None
    run = ElementRun(loops, outer, start, wanted)
    return None if sizes.at_most(run.length, LEAST_ACCESSES * wanted - 1, "a run of few accesses") else run


def _is_ordered(region: Region, phase: int) -> bool:
    """Whether a reduction of a phase depends on the order of its elements."""
    return any(isinstance(node.op, Reduction) and node.op.selects for node in region.in_phase(phase))


def _common_start(region: Region, loops: tuple[Loop, ...]) -> Extent | None:
    """Returns the place of the first element of a run in all arrays over all loops; None if there are several."""
    memory, values = region.memory, region.fusion.values
    index = linearize([loop.index for loop in loops], [loop.extent for loop in loops])
    inside, starts = {loop.symbol for loop in loops}, set()
    reads = [(number, offset, number in memory.aligned) for number, offset in read_offsets(region)]
    stored = [(o, region.output_offset(o), o not in memory.placed) for o in every_output(region)]
    for number, offset, aligned in (*reads, *stored):
        if any(coefficient(offset, loop.symbol) == 0 for loop in region.nest.loops):
            if not inside.isdisjoint(symbols(offset)) and coefficient(offset, loops[-1].symbol) != 1:
                return None
            continue
        start = offset - index
        if not aligned or values[number].dtype.is_complex or not inside.isdisjoint(symbols(start)):
            return None
        starts.add(start)
    return starts.pop() if len(starts) == 1 else None
