"""The price of a region whose tensors lie in memory in several orders, in accesses that are far from the one before.

A kernel follows one order of its loops. A tensor with all loops is accessed in order if its last axis is the innermost
loop, else across: each access touches another line of memory, which costs about as much as storing and reading a
value of its own. Kernels without a reduction read a few inputs of one other order through tiles, which is as good as in
order. The price is additive: a union pays if it has no more accesses across than its parts.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tracefuse.ir.extents import Extent
from tracefuse.ir.indexing import PULLED, AxisMap, flat

MOST_TILES = 2
"""The most inputs of a kernel that are read through tiles: on a GPU 16 KiB each, so eight blocks fit on a
multiprocessor."""

LEAST_EXTENT = 16
"""Loops with fewer elements are too short for tiles, and accesses across them are near one another."""


def innermost_loop(axis_map: AxisMap, count: int) -> int | None:
    """Returns the loop of the last axis of a value that has all `count` loops, else None."""
    loops = list(flat(axis_map))
    return loops[-1] if loops and len(loops) == count and PULLED not in loops else None


def accesses_across(
    loops: Sequence[Extent], is_reduction: bool, outputs: Mapping[int, AxisMap],
    uses: Mapping[int, Iterable[AxisMap]], axes: Mapping[int, Sequence[int]],
) -> tuple[int, int | None]:  # fmt: skip
    """Returns how many accesses of an element are across the order of a region's loops, and the first such tensor.

    axes: of inputs that are not row-major, their axes from the outermost in memory.
    """
    if len(loops) < 2:
        return 0, None
    # Most values of a region have one of a few maps.
    reads = [(v, axis_map) for v, maps in uses.items() for axis_map in maps]
    if axes:
        reads = [(v, tuple(m[axis] for axis in axes[v]) if v in axes else m) for v, m in reads]
    distinct = {axis_map for _, axis_map in reads}.union(outputs.values())
    long_loop = {axis_map: _long_loop(axis_map, loops) for axis_map in distinct}
    stored = [(v, loop) for v, axis_map in outputs.items() if (loop := long_loop[axis_map]) is not None]
    read = [(v, loop) for v, axis_map in reads if (loop := long_loop[axis_map]) is not None]
    orders = Counter(loop for _, loop in (*stored, *read)) if is_reduction else Counter(loop for _, loop in stored)
    if not orders:
        return 0, None
    order = max(orders, key=orders.__getitem__)
    across = [v for v, loop in (*stored, *read) if loop != order]
    tiled = 0 if is_reduction else max(Counter(loop for _, loop in read if loop != order).values(), default=0)
    count = len(across) - min(tiled, MOST_TILES)
    return (count, across[0]) if count > 0 else (0, None)


def _long_loop(axis_map: AxisMap, loops: Sequence[Extent]) -> int | None:
    """Returns the innermost loop of a value with all loops, unless it is known to be short."""
    loop = innermost_loop(axis_map, len(loops))
    if loop is None:
        return None
    extent = loops[loop]
    return None if isinstance(extent, int) and extent < LEAST_EXTENT else loop
