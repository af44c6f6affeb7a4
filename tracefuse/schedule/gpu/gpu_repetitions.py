"""An outermost loop that repeats what is read, as in `np.tile`: a thread stores each repetition of what it read once.

Must not know: kernel IR, CUDA C++.
"""

from __future__ import annotations

from tracefuse.ir.extents import product, symbols
from tracefuse.schedule.gpu.gpu_frame import WIDE_BYTES
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.transposed import read_offsets

MOST_REPEATED, LEAST_REPEATED = 16, 1 << 20
"""The most repetitions that a thread stores, and the least elements of each, which fill the GPU."""

REPEATED_BYTES = 1 << 25
"""What is repeated has at least so many bytes, more than the L2 cache keeps, unless accesses are whole. (H200)"""


def repeated_loop(region: Region, lanes: int, sizes: Sizes) -> Loop | None:
    """Returns the outermost loop if it repeats arrays that are large; guards their size.

    Each repetition on its own would read them from memory again. What inner loops repeat is in the caches, and the
    stores of a thread would be apart. (H200) lanes: the elements of an access.
    """
    loops, probe = region.nest.loops, region.probe
    if probe.indirect or probe.tests or region.memory.shared or len(loops) < 2:
        return None
    if not isinstance(loops[0].extent, int) or not 1 < loops[0].extent <= MOST_REPEATED:
        return None
    itemsize = _repeated_itemsize(region, loops[0])
    if not itemsize:
        return None
    least = LEAST_REPEATED if lanes * itemsize >= WIDE_BYTES else max(LEAST_REPEATED, REPEATED_BYTES // itemsize)
    elements = product(loop.extent for loop in loops[1:])
    return None if sizes.at_most(elements, least - 1, "few elements are repeated") else loops[0]


def _repeated_itemsize(region: Region, loop: Loop) -> int:
    """Returns the bytes of an element of the widest array that a loop repeats, 0 if there is none.

    It is 0, too, if another array that is read depends on the loop and on others.
    """
    others, widest = {k.symbol for k in region.nest.loops if k is not loop}, 0
    for number, offset in read_offsets(region):
        inner = others.intersection(symbols(offset))
        if inner and loop.symbol in symbols(offset):
            return 0
        if inner == others:
            widest = max(widest, region.fusion.values[number].dtype.itemsize)
    return widest
