"""Loops that repeat what is read, as in `np.tile`: a thread stores each repetition of what it read once.

Must not know: kernel IR, CUDA C++.
"""

from __future__ import annotations

from tracefuse.ir.extents import product, symbols
from tracefuse.schedule.gpu.gpu_frame import WIDE_BYTES
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.transposed import read_offsets

MOST_REPEATED, LEAST_REPEATED, LEAST_RUN = 16, 1 << 20, 128
"""The most repetitions that a thread stores, the least elements of each, which fill the GPU, and of those that follow
each other."""

REPEATED_BYTES = 1 << 25
"""What the outermost loop repeats has at least so many bytes, more than the L2 cache keeps, unless accesses are whole.
(H200)"""


def repeated_loop(region: Region, lanes: int, sizes: Sizes) -> Loop | None:
    """Returns a loop that repeats arrays that are large; guards their size.

    Each repetition on its own would read them again. lanes: the elements of an access.
    """
    if region.probe.indirect or region.probe.tests or region.memory.shared:
        return None
    loops = region.nest.loops
    for position, loop in enumerate(loops[:-1]):
        if not isinstance(loop.extent, int) or not 1 < loop.extent <= MOST_REPEATED:
            continue
        itemsize = _repeated_itemsize(region, loop)
        if not itemsize:
            continue
        is_whole = lanes * itemsize >= WIDE_BYTES or position
        least = LEAST_REPEATED if is_whole else max(LEAST_REPEATED, REPEATED_BYTES // itemsize)
        if sizes.at_most(product(k.extent for k in loops if k is not loop), least - 1, "few elements are repeated"):
            return None
        run = product(k.extent for k in loops[position + 1 :])
        return None if sizes.at_most(run, LEAST_RUN - 1, "short runs are repeated") else loop
    return None


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
