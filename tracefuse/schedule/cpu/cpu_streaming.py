"""Selects the outputs that a CPU kernel writes with nontemporal stores: whole lines, in order, in large kernels.

Nontemporal stores require the vector loop to start at a cache line. Results start at a cache line, except in output
buffers that the caller passes. So the row strides must be multiples of a cache line, which is guarded, and so must the
index at which the loop starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracefuse.ir.extents import Extent
from tracefuse.kernel.kernel_ir import CACHE_LINE
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.region_work import moved_bytes
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.transposed import is_linear

LARGE_BYTES = 16 << 20
"""The least number of bytes read and written for which a kernel's results do not stay in cache until they are reused:
half of the cache that the cores of one cluster share on common servers."""


def streamed_outputs(region: Region, inner: Loop, sizes: Sizes, starts: Sequence[Extent] = ()) -> frozenset[int]:
    """Returns the outputs to write with nontemporal stores; guards the sizes.

    inner: the vector loop, which starts at 0 or a multiple of a cache line's elements; starts: its further start
    indices.
    """
    fusion, memory = region.fusion, region.memory
    fresh = [o for o in dict.fromkeys(fusion.outputs) if o not in memory.placed | memory.supplied | memory.shared]
    possible = [o for o in fresh if _is_contiguous(region, o, inner)]
    reason = "what a small kernel writes stays in the caches"
    if not possible or sizes.at_most(moved_bytes(region), LARGE_BYTES - 1, reason):
        return frozenset()
    return frozenset(o for o in possible if _starts_at_lines(region, o, inner, sizes, starts))


def _is_contiguous(region: Region, output: int, inner: Loop) -> bool:
    """Whether an output is contiguous along the innermost loop."""
    offset = region.output_offset(output)
    return coefficient(offset, inner.symbol) == 1 and is_linear(offset, [loop.symbol for loop in region.nest.loops])


def _starts_at_lines(region: Region, output: int, inner: Loop, sizes: Sizes, starts: Sequence[Extent]) -> bool:
    offset = region.output_offset(output)
    elements = CACHE_LINE // min(region.fusion.values[output].dtype.itemsize, CACHE_LINE)
    outer_loops = [loop for loop in region.nest.loops if loop is not inner]
    steps = [coefficient(offset, loop.symbol) for loop in outer_loops]
    rest = offset - inner.index
    for loop, step in zip(outer_loops, steps, strict=True):
        rest = rest - step * loop.index
    reason = "rows of what goes past the caches are whole lines"
    return rest == 0 and all(sizes.is_multiple(e, elements, reason) for e in (*steps, *starts))
