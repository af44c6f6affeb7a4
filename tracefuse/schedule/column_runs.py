"""Reductions over the rows and over short runs of adjacent columns, as of (n, 300, 16) over (0, 2).

A run of 16 elements that is added at once costs more for the sum within a vector than for the loads, and on a GPU runs
that start anywhere are parts of sectors. So the columns of all runs, which follow one another in memory, are columns of
a wider matrix with an accumulator each; those of a run are joined after the last row.

Must not know: kernels, targets.
"""

from __future__ import annotations

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Extent, product, symbol
from tracefuse.ir.row_major import delinearize
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.transposed import is_linear, read_offsets

LONGEST = 256
"""The most elements of a run: longer ones are added at once."""

LEAST_ROWS = 8
"""The fewest rows for which joining the accumulators of a run costs little."""


@dataclass(frozen=True, slots=True)
class ColumnRuns:
    """A region whose innermost loop goes over the columns of all runs, and the length of a run; 1 if there are none."""

    region: Region
    run: Extent = 1


def column_runs(region: Region, sizes: Sizes, *, strict: bool = True) -> ColumnRuns | None:
    """Returns a region whose innermost loop is not reduced, with its runs of columns joined; None if there is none.

    strict: all reads follow the columns of the runs in memory, or do not depend on them; otherwise one that follows
    them is enough.
    """
    loops = region.nest.loops
    if not loops[-1].reduced:
        return ColumnRuns(region)
    count = next((k for k, loop in enumerate(reversed(loops)) if not loop.reduced), len(loops))
    outer, inner = loops[: len(loops) - count], loops[len(loops) - count :]
    if not outer or not any(loop.reduced for loop in outer) or not _follow(region, (outer[-1], *inner), strict):
        return None
    run = product(loop.extent for loop in inner)
    if not sizes.at_most(run, LONGEST, "runs of columns are joined after the last row"):
        return None
    if sizes.at_most(run, 0, "runs without columns have no accumulators, and a result still has its initial value"):
        return None
    rows = product(loop.extent for loop in outer if loop.reduced)
    if sizes.at_most(rows, LEAST_ROWS - 1, "few rows are added one after another"):
        return None
    every = (outer[-1], *inner)
    extent = product(loop.extent for loop in every)
    columns = Loop(symbol("columns", extent=extent), extent, False)
    places = delinearize(columns.index, [loop.extent for loop in every])
    joined = region.placed({loop.symbol: place for loop, place in zip(every, places, strict=True)})
    return ColumnRuns(replace(joined, nest=replace(joined.nest, loops=(*outer[:-1], columns))), run)


def _follow(region: Region, loops: tuple[Loop, ...], strict: bool) -> bool:
    """Whether the loops are contiguous in row-major order in each read that follows any of them, or in one read."""
    if region.probe.tests or region.probe.positions:
        return False
    contiguous = [product(loop.extent for loop in loops[k + 1 :]) for k in range(len(loops))]
    follows, others = False, True
    for _, offset in read_offsets(region):
        steps = [coefficient(offset, loop.symbol) for loop in loops]
        linear = is_linear(offset, [loop.symbol for loop in loops])
        follows = follows or (linear and steps == contiguous)
        others = others and linear and (not any(steps) or steps == contiguous)
    return others if strict else follows
