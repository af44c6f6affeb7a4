"""How many rows a column kernel on the CPU adds in one pass over its accumulators.

Each row is a stream of memory. Several streams in one page mislead the prefetcher, which follows one or two in a page;
and streams that are pages apart compete for the same sets of the first cache, which holds the loads of eight rows but
not their stores as well.

Must not know: LLVM.
"""

from __future__ import annotations

from tracefuse.ir.extents import Extent, product
from tracefuse.schedule.cpu.cpu_column_states import ROWS_AT_ONCE, is_light
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.region_work import moved_bytes
from tracefuse.schedule.sizes import Sizes

PAGE = 4096
NEAR_BYTES = 1 << 20
"""A page, and the bytes that the caches of a core hold, where nothing waits for a prefetcher."""


def rows_at_once(region: Region, sizes: Sizes) -> int:
    """Returns the rows of one pass over the accumulators; guards the distance between rows."""
    if not is_light(region):
        return ROWS_AT_ONCE  # has no effect
    if sizes.at_most(moved_bytes(region), NEAR_BYTES, "the caches of a core hold the rows"):
        return ROWS_AT_ONCE
    return 1 if sizes.at_most(_pitch(region), PAGE - 1, "several rows in a page are read one by one") else ROWS_AT_ONCE


def rows_stored_at_once(region: Region, sizes: Sizes, rows: int) -> int:
    """Returns the rows of one pass that stores results of every element; guards the distance between rows."""
    if rows == 1 or not any(region.full) or not is_light(region):
        return rows
    if sizes.at_most(moved_bytes(region), NEAR_BYTES, "the caches of a core hold the rows"):
        return rows
    return 1 if sizes.is_multiple(_pitch(region), PAGE, "rows that are pages apart are stored one by one") else rows


def _pitch(region: Region) -> Extent:
    """Returns the bytes from one row of the widest tensor to the next, along the innermost reduction loop."""
    fusion = region.fusion
    widest = max(fusion.values[number].dtype.itemsize for number in {*fusion.tensor_inputs, *fusion.outputs})
    loops = region.nest.loops
    last = max(k for k, loop in enumerate(loops) if loop.reduced)
    return product(loop.extent for loop in loops[last + 1 :]) * widest
