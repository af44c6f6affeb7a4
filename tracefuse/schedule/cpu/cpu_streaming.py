"""Selects the outputs of a CPU kernel to write past the caches: in large kernels that write whole lines in order.

A store past the caches needs the vector loop around it to start at a line of the cache. Results start at one (but for
memory that the caller gave), so the elements from one row to the next have to be a multiple of a line's, which is
guarded, and the loop has to start at one.

Knows: regions, strides, sizes. Must not know: kernel IR, templates.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracefuse.ir.extents import Extent, product
from tracefuse.kernel.kernel_ir import CACHE_LINE
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.phases import Region
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.transposed import is_linear

LARGE_BYTES = 16 << 20
"""Bytes that a kernel reads and writes from which its results do not stay in the caches along with what comes next:
half of what the cores of one cluster share on common servers."""


def streamed_outputs(region: Region, inner: Loop, sizes: Sizes, starts: Sequence[Extent] = ()) -> frozenset[int]:
    """The outputs that go past the caches, by what is guarded.

    inner: the vector loop, from 0 or a multiple of a line's elements; starts: where it starts besides.
    """
    fusion, memory = region.fusion, region.memory
    fresh = [o for o in dict.fromkeys(fusion.outputs) if o not in memory.placed | memory.given | memory.shared]
    possible = [o for o in fresh if _is_contiguous(region, o, inner)]
    moved: Extent = 0
    for number in {*fusion.tensor_inputs, *fusion.outputs}:
        moved = moved + product(fusion.shape_of(number)) * fusion.values[number].dtype.itemsize
    if not possible or sizes.at_most(moved, LARGE_BYTES - 1, "what a small kernel writes stays in the caches"):
        return frozenset()
    return frozenset(o for o in possible if _starts_at_lines(region, o, inner, sizes, starts))


def _is_contiguous(region: Region, output: int, inner: Loop) -> bool:
    """Returns whether an output is contiguous along the innermost loop."""
    offset = region.output_offset(output)
    return coefficient(offset, inner.symbol) == 1 and is_linear(offset, [loop.symbol for loop in region.nest.loops])


def _starts_at_lines(region: Region, output: int, inner: Loop, sizes: Sizes, starts: Sequence[Extent]) -> bool:
    offset = region.output_offset(output)
    elements = CACHE_LINE // min(region.fusion.values[output].dtype.itemsize, CACHE_LINE)
    others = [loop for loop in region.nest.loops if loop is not inner]
    steps = [coefficient(offset, loop.symbol) for loop in others]
    rest = offset - inner.index
    for loop, step in zip(others, steps, strict=True):
        rest = rest - step * loop.index
    reason = "rows of what goes past the caches are whole lines"
    return rest == 0 and all(sizes.is_multiple(e, elements, reason) for e in (*steps, *starts))
