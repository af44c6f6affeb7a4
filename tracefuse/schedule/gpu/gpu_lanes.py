"""Chooses the number of lanes: the adjacent elements that a GPU thread accesses at once; guards the sizes for it.

A wide access needs neighbours in memory at a multiple of its width. That the innermost extent is a multiple is a fact
about the sizes, guarded; to make it visible to every proof, the symbol n is then written as 4 * n_4, with n_4 a new
integer argument of the kernel. Strides and the bounds of conditions are made multiples where the sizes allow it.

Must not know: kernel IR.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Atom, Binary, Expression, Extent, Symbol, substitute, symbol, symbol_of
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.indexing import AxisMap, Joined
from tracefuse.schedule.gpu.gpu_frame import WIDE_BYTES
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.memory_facts import MemoryFacts
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.transposed import read_offsets

SHORT_RUN = 4
"""Reduced elements that are adjacent in memory, but no more than these, fill no sector of 32 bytes for a thread."""

MOST_LANES = 8
MOST_BYTES = 32
"""A thread accesses 16 bytes of the narrowest array at once, at most 32 of the widest, and at most 8 elements. It
stores at most 16 bytes: adjacent threads that store in turns to each other's sectors of memory are slower. (H200)"""


def every_output(region: Region) -> list[int]:
    """Returns the outputs over all loops, then the outputs over the parallel loops."""
    return [*(output for phase in region.full for output in phase), *region.parallel_outputs]


def unit_offsets(region: Region, inner: Loop) -> list[tuple[int, Extent]]:
    """Returns (tensor, offset) of every access with stride 1 along `inner`."""
    accesses = [*read_offsets(region), *((o, region.output_offset(o)) for o in every_output(region))]
    return [(number, offset) for number, offset in accesses if coefficient(offset, inner.symbol) == 1]


def wanted_lanes(region: Region, inner: Loop) -> int:
    """Returns the number of lanes for the dtypes of the contiguous accesses."""
    itemsizes = [region.fusion.values[number].dtype.itemsize for number, _ in unit_offsets(region, inner)]
    if not itemsizes:
        return 1
    full = {output for phase in region.full for output in phase}
    stored = [region.fusion.values[n].dtype.itemsize for n, _ in unit_offsets(region, inner) if n in full]
    widest = [MOST_BYTES // max(itemsizes), *(WIDE_BYTES // itemsize for itemsize in stored)]
    return max(1, min(MOST_LANES, WIDE_BYTES // min(itemsizes), *widest))


def reads_short_runs(region: Region, inner: Loop, sizes: Sizes) -> bool:
    """Returns whether an input has a short run of reduced elements for each element of the innermost loop.

    Adjacent threads then read adjacent runs; with several lanes, they would read less of a line of memory at a time.
    """
    run = run_beside(region, inner)
    return run is not None and sizes.at_most(run.extent, SHORT_RUN, "a short run of reduced elements")


def run_beside(region: Region, inner: Loop) -> Loop | None:
    """Returns the reduced loop over the run of adjacent elements that an input has for each element of `inner`.

    That counts for inputs that are read once: what other parallel loops read again is small, or in the caches.
    """
    if inner.reduced:
        return None
    for _, offset in read_offsets(region):
        if any(coefficient(offset, loop.symbol) == 0 for loop in region.nest.parallel):
            continue
        for loop in region.nest.reduced:
            if coefficient(offset, loop.symbol) == 1 and coefficient(offset, inner.symbol) == loop.extent:
                return loop
    return None


def is_flat(region: Region) -> bool:
    """Returns whether the region is one loop with contiguous accesses from its start, so any extent can be wide."""
    if len(region.nest.loops) != 1 or region.probe.tests:
        return False
    inner = region.nest.loops[0]
    return all(offset == inner.index for _, offset in unit_offsets(region, inner))


@dataclass(slots=True)
class Widening:
    """Symbols rewritten as multiples. table: the replacements. derived: the new symbols in terms of the originals."""

    sizes: Sizes
    table: dict[Symbol, Extent] = field(default_factory=dict)
    derived: dict[Symbol, Extent] = field(default_factory=dict)
    named: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.named.update(self.sizes.named)
        self.sizes = Sizes(self.sizes.values, self.named, self.sizes.guards)

    def make_multiple(self, extent: Extent, divisor: int) -> bool:
        """Rewrites symbols until every term of `extent` is a multiple; returns False if the sizes do not allow it."""
        extent = substitute(extent, self.table)
        for monomial, factor in extent.terms if isinstance(extent, Expression) else (((), extent),):
            missing = divisor // math.gcd(factor, divisor)
            if missing == 1:
                continue
            if not any(self._atom(atom, missing) for atom in reversed(monomial)):
                return False
            return self.make_multiple(extent, divisor)
        return True

    def _atom(self, atom: Atom, divisor: int) -> bool:
        if isinstance(atom, Binary):
            by_constant = atom.operation == "//" and isinstance(atom.right, int)
            return by_constant and self.make_multiple(atom.left, divisor * int(atom.right))  # type: ignore[arg-type]
        if atom.extent is not None:
            return False
        size = Expression((((atom,), 1),))
        if not self.sizes.is_multiple(size, divisor, "neighbouring elements are accessed together"):
            return False
        smaller = symbol(f"{atom.name}_{divisor}", minimum=1 if atom.minimum > 0 else 0)
        narrow = symbol_of(smaller)
        self.named[narrow.name] = self.sizes.hint(size) // divisor
        self.derived[narrow] = substitute(size // divisor, self.derived)
        rewritten = {atom: smaller * divisor}
        self.table = {s: substitute(e, rewritten) for s, e in self.table.items()} | rewritten
        return True

    def fusion(self, fusion: Fusion) -> Fusion:
        """Returns the fusion with its extents rewritten."""
        known = fusion.representatives
        table = {**self.table, **{s: substitute(e, self.table) for s, e in known.items()}}
        return replace(fusion, requirements=(), equal_extents=table)

    def facts(self, facts: Facts) -> Facts:
        def rewritten(axis_map: AxisMap) -> AxisMap:
            return tuple(
                replace(entry, extents=tuple(substitute(e, self.table) for e in entry.extents))
                if isinstance(entry, Joined)
                else entry
                for entry in axis_map
            )

        return replace(
            facts, loops=tuple(substitute(e, self.table) for e in facts.loops),
            outputs={value: rewritten(axis_map) for value, axis_map in facts.outputs.items()},
            axes={value: rewritten(axis_map) for value, axis_map in facts.axes.items()},
        )  # fmt: skip

    def memory(self, memory: MemoryFacts) -> MemoryFacts:
        strides = {n: tuple(substitute(e, self.table) for e in shape) for n, shape in memory.strides.items()}
        return replace(memory, strides=strides)

    def original(self, extent: Extent) -> Extent:
        """Returns `extent` in terms of the original symbols."""
        return substitute(extent, self.derived)


def widen(region: Region, sizes: Sizes) -> tuple[int, Widening]:
    """The number of lanes of the innermost loop, and the rewriting that makes it provable."""
    widening = Widening(sizes)
    if not region.nest.loops:
        return 1, widening
    inner = region.nest.loops[-1]
    lanes = 1 if reads_short_runs(region, inner, sizes) else wanted_lanes(region, inner)
    if lanes > 1 and is_flat(region) and not inner.reduced:
        return lanes, widening
    while lanes > 1 and not _widen(region, inner, lanes, widening):
        lanes //= 2
    return lanes, widening


def _widen(region: Region, inner: Loop, lanes: int, widening: Widening) -> bool:
    bounds: list[Extent] = []
    for test in region.probe.tests:
        if coefficient(test.index, inner.symbol) == 1:
            bounds += [test.index - inner.index, test.low, test.high]
    wide = [b for b in bounds if not isinstance(b, int)]
    if all(b % lanes == 0 for b in bounds if isinstance(b, int)):
        for bound in wide:
            widening.make_multiple(_without_loops(bound), lanes)
    if not widening.make_multiple(inner.extent, lanes):
        return False
    for _, offset in unit_offsets(region, inner):
        _strides_multiple(offset - inner.index, region.nest.loops[:-1], lanes, widening)
    for _, offset in read_offsets(region):
        # An input that lies along another loop is read along that one, in tiles.
        for loop in region.nest.loops[:-1]:
            if coefficient(offset, inner.symbol) not in (0, 1) and coefficient(offset, loop.symbol) == 1:
                outer_loops = [k for k in region.nest.loops if k is not loop]
                widening.make_multiple(loop.extent, lanes)
                _strides_multiple(offset - loop.index, outer_loops, lanes, widening)
    return True


def _without_loops(extent: Extent) -> Extent:
    """The terms of `extent` that no loop's index is in."""
    if isinstance(extent, int):
        return extent
    total: Extent = 0
    for monomial, factor in extent.terms:
        if not any(isinstance(a, Symbol) and a.extent is not None for a in monomial):
            total = total + (Expression(((monomial, factor),)) if monomial else factor)
    return total


def _strides_multiple(rest: Extent, outer: Sequence[Loop], lanes: int, widening: Widening) -> None:
    """Makes the strides of the outer loops and the start of an access multiples, where the sizes allow it."""
    for loop in outer:
        widening.make_multiple(coefficient(rest, loop.symbol), lanes)
    start = _without_loops(rest)
    if not isinstance(start, int):
        widening.make_multiple(start, lanes)
