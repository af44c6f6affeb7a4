"""Profiles: the time and the bytes of each segment of a call, and how they compare with a copy of as many bytes.

A profiled call runs segment by segment, from idle device to idle device. A segment that reaches the speed of a copy has
a fraction of 1: memory bounds it, and no kernel moves its bytes faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.compiler.placed_fusion import PlacedFusion
from tracefuse.diagnostics.explain import Explanation
from tracefuse.diagnostics.segment_profiles import FusionProfile, KernelProfile, Roofline
from tracefuse.dtypes import float32, uint8
from tracefuse.errors import OptionError
from tracefuse.runtime.compile_all import wait_for_compilation
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.devices.shape_dtype import ShapeDtype
from tracefuse.runtime.targets.array_device import ArrayDevice

REPETITIONS = 3
"""Runs of a call that updates no argument; the fastest one of each segment counts."""

MOST_COPIED = 1 << 28
"""Bytes of the largest copy that is measured; the time of a longer one is extrapolated."""

PRODUCT_EXTENT = 2048
"""Rows and columns of the product that measures the arithmetic limit."""


def measure(placed: PlacedFusion, arguments: Sequence[Any], number: int | None) -> tuple[FusionProfile, list[Any]]:
    """Runs a call segment by segment; returns its profile and its results. number: of the definition.

    A fusion that updates arguments runs once, any other several times.
    """
    explanation = Explanation(*placed.plan_for(arguments))
    device = explanation.plan.target.device
    times: list[float] = []
    for _ in range(1 if placed.fusion.aliases else REPETITIONS):
        wait_for_compilation()
        durations, results = _time_steps(placed, arguments, device)
        times = [min(pair) for pair in zip(times or durations, durations, strict=True)]
    profiles = []
    for position, (seconds, moved) in enumerate(zip(times, explanation.bytes_moved, strict=True)):
        name = f"{position} {explanation.templates[position]}"
        profiles.append(
            KernelProfile(name, 1e3 * seconds, moved, 1e3 * _time_copy(device, moved), explanation.operations[position])
        )
    return FusionProfile(0 if number is None else number, tuple(profiles)), results


def check_can_measure(arguments: Sequence[Any] | None, purpose: str) -> None:
    """Raises OptionError for arguments that cannot be measured: none, or a ShapeDtype, which has no elements."""
    if not arguments or any(isinstance(a, ShapeDtype) for a in arguments):
        raise OptionError(f"{purpose} needs the arrays of a call", hint="pass arrays in place of ShapeDtypes")


def measure_copied(placed: PlacedFusion, arguments: Sequence[Any]) -> FusionProfile:
    """Runs a call segment by segment, on copies of the arguments that it updates; returns its profile."""
    updated = {*placed.fusion.aliases.values()}
    numbered = zip(placed.fusion.inputs, arguments, strict=True)
    return measure(placed, [_copied(a) if n in updated else a for n, a in numbered], None)[0]


def measure_for_view(placed: PlacedFusion, arguments: Sequence[Any]) -> Roofline:
    """Runs a call segment by segment, on copies of the arguments that it updates, and measures the device's limits."""
    profile = measure_copied(placed, arguments)
    device = placed.plan_for(arguments)[0].target.device
    return Roofline(profile, MOST_COPIED / _time_copy(device, MOST_COPIED), _product_rate(device))


def _copied(argument: Any) -> Any:
    kind = arrays.kind_of(argument)
    return argument if kind is None else argument.clone() if kind == "torch" else argument.copy()


def _product_rate(device: ArrayDevice) -> float:
    """Returns the operations a second of a float32 product of two square matrices."""
    matrix = device.empty((PRODUCT_EXTENT, PRODUCT_EXTENT), float32)
    matrix[...] = 1
    return 2 * PRODUCT_EXTENT**3 / _fastest(device, lambda: matrix @ matrix)


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
    return _fastest(device, lambda: device.copy(source, target)) * (moved / 2 / size)


def _fastest(device: ArrayDevice, run: Callable[[], Any]) -> float:
    """Returns the seconds of the fastest of several runs."""
    durations = []
    for _ in range(1 + REPETITIONS):  # the first one touches the pages of the results
        device.synchronize()
        start = time.perf_counter()
        run()
        device.synchronize()
        durations.append(time.perf_counter() - start)
    return min(durations)
