"""Prefetching: a thread issues the loads of several steps before it processes the first of them.

A compiler does not move a load out of its step, and a thread that waits for each load leaves memory bandwidth unused.
Only wide loads are prefetched, up to a limit of registers per thread.

Must not know: sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracefuse.ir.extents import Extent, symbols
from tracefuse.ir.fusion import Shape
from tracefuse.kernel.kernel_ir import Allocate, Buffer
from tracefuse.schedule.body import Body
from tracefuse.schedule.scopes import Key

MOST_BYTES = 128
"""The most bytes of registers that a thread uses for prefetched elements."""


def choose_prefetched(body: Body, keys: Sequence[Key], count: int, *, narrow: bool = False) -> list[Key]:
    """Selects the input elements that `count` steps prefetch. narrow: also those that take a load for each lane."""
    chosen, free_bytes = [], MOST_BYTES
    for number, coordinates in keys:
        size = count * lanes_of(body, coordinates) * body.fusion.values[number].dtype.itemsize
        if count > 1 and size <= free_bytes and (narrow or body.is_wide(number, coordinates)):
            free_bytes -= size
            chosen.append((number, coordinates))
    return chosen


def lanes_of(body: Body, coordinates: Shape) -> int:
    """Returns the number of lanes that read different elements: all, or one for all."""
    return body.lanes if any(s == body.lane_symbol for c in coordinates for s in symbols(c)) else 1


def prefetch(
    body: Body, keys: Sequence[Key], step: Extent, count: int, each: Callable[[Callable[[], None]], None]
) -> None:
    """Loads `keys` in all steps, which `each` goes through, into registers that `release_prefetched` frees.

    step: numbers the `count` steps.
    """
    for key in keys:
        dtype, lanes = body.fusion.values[key[0]].dtype, lanes_of(body, key[1])
        buffer = Buffer(body.fresh(f"x{key[0]}"), dtype, "local", count * lanes)
        body.append(Allocate(buffer))
        body.to_cache[key] = (buffer, step * lanes + (body.lane if lanes > 1 else 0))

    def load() -> None:
        for key in keys:
            body.value(*key)

    if keys:
        each(load)
    body.cached.update((key, body.to_cache[key]) for key in keys)


def release_prefetched(body: Body, keys: Sequence[Key]) -> None:
    """Releases the registers of prefetched elements."""
    for key in keys:
        del body.to_cache[key], body.cached[key]
