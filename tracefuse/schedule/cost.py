"""The cost model: a price for what a kernel does, from constants of the chip.

A price is the largest of its bounds, which overlap, and what does not overlap. The bounds are the bytes that pass
between memory (or the cache that holds them) and the cores, the bytes that pass through local buffers, and the
arithmetic. Launches and the starts of contiguous runs add to it. Tasks that are too few or uneven leave cores idle.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from segments.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """The constants of a chip. A core is a processor core, or a multiprocessor of a GPU.

    workers: cores that run tasks. launch_us, wake_us: of a launch, and until the other cores take part. memory_gbs,
    core_memory_gbs: bytes read and written per nanosecond by all cores and by one. cache_bytes, cache_gbs,
    core_cache_gbs: the same for the last cache, which all cores share. core_cache_bytes, core_cache_rate_gbs: the cache
    of one core that holds the local buffers of a task; fast_cache_bytes, fast_cache_rate_gbs: its first cache. run_ns:
    the start of a short run of contiguous memory beside others. jump_ns: the start of a long run, which nothing hides.
    cached_run_ns: of either in the last cache. latency_ns: of memory, which bytes in flight hide. operation_ns: one
    element of a vectorized op of each class. block_ns, warp_ns: the start of a block of threads, and of one of its
    warps, of which the longer counts. combination_ns: a word that a thread combines with that of another one. masks:
    whether every instruction on vectors takes a mask of their lanes.
    """

    name: str = "generic"
    workers: int = 1
    launch_us: float = 1.0
    wake_us: float = 5.0
    memory_gbs: float = 30.0
    core_memory_gbs: float = 15.0
    cache_bytes: int = 32 << 20
    cache_gbs: float = 80.0
    core_cache_gbs: float = 40.0
    fast_cache_bytes: int = 32 << 10
    core_cache_bytes: int = 1 << 20
    core_cache_rate_gbs: float = 60.0
    fast_cache_rate_gbs: float = 150.0
    run_ns: float = 4.0
    jump_ns: float = 120.0
    cached_run_ns: float = 1.0
    latency_ns: float = 100.0
    block_ns: float = 85.0
    warp_ns: float = 25.0
    combination_ns: float = 0.01
    masks: bool = False
    operation_ns: Mapping[str, float] = field(default_factory=lambda: {"plain": 0.03, "function": 0.6})


@dataclass(frozen=True, slots=True)
class Work:
    """What the launches of a segment do, in all.

    bytes_moved: bytes of arrays that pass between the cores and the place that holds them. footprint: bytes of arrays,
    which decide that place. local_bytes: bytes that pass through local buffers; local_footprint: those of one task.
    runs: short runs of contiguous memory; jumps: long ones, one after another. operations: elements of vectorized ops
    by class. tasks: of the largest launch. in_flight: bytes that a core has requested at a time, if a bound of them
    matters. blocks: blocks of threads, of `warps` warps each. combinations: words that threads combine with those of
    others, while nothing else runs.
    """

    bytes_moved: float = 0.0
    footprint: float = 0.0
    local_bytes: float = 0.0
    local_footprint: float = 0.0
    runs: float = 0.0
    jumps: float = 0.0
    operations: Mapping[str, float] = field(default_factory=dict)
    tasks: float = 1.0
    in_flight: float = math.inf
    launches: int = 1
    blocks: float = 0.0
    warps: float = 1.0
    combinations: float = 0.0


@dataclass(frozen=True, slots=True)
class Price:
    """Microseconds: the bounds by name, which overlap, and the overhead, which adds to the largest of them."""

    bounds: Mapping[str, float]
    overhead: float

    @property
    def total(self) -> float:
        return max(self.bounds.values(), default=0.0) + self.overhead

    def __str__(self) -> str:
        parts = [f"{name} {value:.1f}" for name, value in self.bounds.items() if value >= 0.05]
        return f"{self.total:.1f} us ({', '.join([*parts, f'overhead {self.overhead:.1f}'])})"


def price(work: Work, rates: Rates) -> Price:
    """Returns the price of some work on a chip."""
    tasks = max(work.tasks, 1.0)
    active = min(tasks, float(rates.workers))
    # The rounds in which the tasks run over those that even shares would take.
    idle = math.ceil(tasks / rates.workers) * rates.workers / tasks if tasks > 1 else 1.0
    idle = min(idle, float(rates.workers)) if tasks >= rates.workers else 1.0
    cached = work.footprint <= rates.cache_bytes / 2
    most, each = (rates.cache_gbs, rates.core_cache_gbs) if cached else (rates.memory_gbs, rates.core_memory_gbs)
    fits = work.local_footprint <= rates.fast_cache_bytes
    local = rates.fast_cache_rate_gbs if fits else rates.core_cache_rate_gbs
    if work.local_footprint > rates.core_cache_bytes / 4:
        local = rates.core_cache_gbs
    arithmetic = sum(count * rates.operation_ns[name] for name, count in work.operations.items())
    bounds = {
        "memory": work.bytes_moved / min(most, active * each) / 1e3,
        "latency": work.bytes_moved * rates.latency_ns / (active * work.in_flight) / 1e3,
        "arithmetic": (arithmetic + work.local_bytes / local) / active * idle / 1e3,
        "blocks": work.blocks * max(rates.block_ns, work.warps * rates.warp_ns) / active / 1e3,
    }
    wake = rates.wake_us if active > 1 else 0.0
    starts = (
        (work.runs + work.jumps) * rates.cached_run_ns
        if cached
        else work.runs * rates.run_ns + work.jumps * rates.jump_ns
    )
    waits = starts + work.combinations * rates.combination_ns
    return Price(bounds, work.launches * (rates.launch_us + wake) + waits / active * idle / 1e3)


def rates_from(table: Mapping[str, Any], workers: int) -> Rates:
    """Returns the rates of a constants file, for a number of workers. Raises KeyError for an unknown constant."""
    known = {field_of_rates.name for field_of_rates in fields(Rates)}
    unknown = set(table) - known
    if unknown:
        raise KeyError(f"unknown constants {sorted(unknown)}")
    return Rates(**{**table, "workers": workers})
