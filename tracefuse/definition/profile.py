"""Profiles: the time and the bytes of each segment of a call, and how they compare with a copy of as many bytes.

A profiled call runs segment by segment, from idle device to idle device. A segment that reaches the speed of a copy has
a fraction of 1: memory bounds it, and no kernel moves its bytes faster.

"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracefuse.compiler.placed_fusion import PlacedFusion
from tracefuse.diagnostics.explain import Explanation
from tracefuse.dtypes import uint8
from tracefuse.partition import segment_table
from tracefuse.runtime.targets.array_device import ArrayDevice

REPETITIONS = 3
"""Runs of a call that updates no argument; the fastest one of each segment counts."""

MOST_COPIED = 1 << 28
"""Bytes of the largest copy that is measured; the time of a longer one is extrapolated."""


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """The measurements of one segment.

    name: its template and position. time_ms: milliseconds. bytes: those that it reads and writes, every tensor of its
    interface once. copy_time_ms: the time of a copy that reads and writes as many.
    """

    name: str
    time_ms: float
    bytes: int
    copy_time_ms: float

    @property
    def gigabytes_per_second(self) -> float:
        return self.bytes / self.time_ms / 1e6 if self.time_ms else 0.0

    @property
    def fraction_of_copy(self) -> float:
        """The speed of the segment over that of a copy; 0 for a segment that moves no bytes."""
        return self.copy_time_ms / self.time_ms if self.time_ms else 0.0


@dataclass(frozen=True, slots=True)
class FusionProfile:
    """The measurements of one call. fusion_id: the number of the definition. kernel_profiles: one for each segment."""

    fusion_id: int
    kernel_profiles: tuple[KernelProfile, ...]

    @property
    def segments(self) -> int:
        """The number of segments."""
        return len(self.kernel_profiles)

    @property
    def kernel_time_ms(self) -> float:
        """The time of all segments, in milliseconds."""
        return sum(kernel.time_ms for kernel in self.kernel_profiles)

    def __str__(self) -> str:
        rows = [
            [k.name, f"{1e3 * k.time_ms:.1f} us", segment_table.bytes_text(k.bytes),
             f"{k.gigabytes_per_second:.1f} GB/s", f"{k.fraction_of_copy:.2f}"]
            for k in self.kernel_profiles
        ]  # fmt: skip
        return segment_table.table(["segment", "time", "bytes", "speed", "fraction of a copy"], rows)

    def _repr_html_(self) -> str:
        return segment_table.html_of(self)


def measure(placed: PlacedFusion, arguments: Sequence[Any], number: int | None) -> tuple[FusionProfile, list[Any]]:
    """Runs a call segment by segment; returns its profile and its results. number: of the definition.

    A fusion that updates arguments runs once, any other several times.
    """
    explanation = Explanation(*placed.plan_for(arguments))
    device = explanation.plan.target.device
    times: list[float] = []
    for _ in range(1 if placed.fusion.aliases else REPETITIONS):
        durations, results = _time_steps(placed, arguments, device)
        times = [min(pair) for pair in zip(times or durations, durations, strict=True)]
    profiles = []
    for position, (seconds, moved) in enumerate(zip(times, explanation.bytes_moved, strict=True)):
        name = f"{position} {explanation.templates[position]}"
        profiles.append(KernelProfile(name, 1e3 * seconds, moved, 1e3 * _time_copy(device, moved)))
    return FusionProfile(0 if number is None else number, tuple(profiles)), results


def _time_steps(placed: PlacedFusion, arguments: Sequence[Any], device: ArrayDevice) -> tuple[list[float], list[Any]]:
    steps = placed.steps(arguments)
    next(steps)
    durations: list[float] = []
    while True:
        device.synchronize()
        start = time.perf_counter()
        try:
            next(steps)
        except StopIteration as done:
            return durations, done.value
        device.synchronize()
        durations.append(time.perf_counter() - start)


def _time_copy(device: ArrayDevice, moved: int) -> float:
    """Returns the seconds of a copy that reads and writes `moved` bytes together."""
    size = min(moved // 2, MOST_COPIED)
    if size == 0:
        return 0.0
    source, target = device.empty((size,), uint8), device.empty((size,), uint8)
    source[...] = 0
    durations = []
    for _ in range(1 + REPETITIONS):  # the first one touches the pages of the target
        device.synchronize()
        start = time.perf_counter()
        device.copy(source, target)
        device.synchronize()
        durations.append(time.perf_counter() - start)
    return min(durations) * (moved / 2 / size)
