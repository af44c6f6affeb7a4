"""RoPE with a residual and softmax, traced with static sizes and with symbolic ones in each resize mode.

    python tests/bench/bench_modes.py [--gpu]

Medians of batches, the ways taking turns, with the time over that of the static trace. On a GPU: the size of
bench_gpu.py, and one of about 12.5 MB that stays in the L2 cache, timed with CUDA events. On the CPU: the size of
bench_cpu.py.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from functions import ROWS, Row, bytes_moved, host_arrays

from tracefuse import fuse, wait_for_compilation

WAYS: dict[str, dict[str, Any]] = {
    "static": {"dynamic": False},
    "dynamic, on": {"concretize_resize_extents": "on"},
    "dynamic, auto": {"concretize_resize_extents": "auto"},
    "dynamic, off": {"concretize_resize_extents": "off"},
}
CACHED = {"rope_residual": (1, 8, 1536, 128), "softmax": (384, 4096)}
"""Shapes whose inputs and outputs are about 12.5 MB."""
ROUNDS = 21


def cpu_time(call: Callable[[], object], count: int) -> float:
    call()
    wait_for_compilation()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


MOST_QUEUED = 200
"""Calls of a batch on a GPU, which its queue holds while the copies before them run."""


def gpu_timer(cupy: Any) -> Callable[[Callable[[], object], int], float]:
    source, target = cupy.ones(2**28, np.float32), cupy.empty(2**28, np.float32)

    def measured(call: Callable[[], object], count: int) -> float:
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        # While these 10 GiB are copied the calls are queued, so that the host's time does not count.
        for _ in range(10):
            target.data.copy_from_device_async(source.data, source.nbytes, cupy.cuda.get_current_stream())
        start.record()
        for _ in range(min(count, MOST_QUEUED)):
            call()
        end.record()
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end)) * 1e-3 / min(count, MOST_QUEUED)

    return measured


def show(row: Row, shape: tuple[int, ...], cupy: Any) -> None:
    arguments: list[Any] = host_arrays(row, shape, np.float32)
    if cupy is not None:
        arguments = [cupy.asarray(a) for a in arguments]
    timer = cpu_time if cupy is None else gpu_timer(cupy)
    calls = {}
    for way, keywords in WAYS.items():
        fused = fuse(**keywords)(row.closed(np))
        fused(*arguments)
        calls[way] = lambda fused=fused: fused(*arguments)
    moved = bytes_moved(arguments, calls["static"]())
    once = max(timer(calls["static"], 5), 1e-6)
    count = max(3, int(0.02 / once))
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, call in calls.items():
            times[way].append(timer(call, count))
    found = {way: statistics.median(taken) for way, taken in times.items()}
    cells = [f"{1e6 * found[way]:>10.1f} ({found[way] / found['static']:.2f})" for way in WAYS]
    print(f"{row.name:<16}{'x'.join(map(str, shape)):<18}{moved / 1e6:>8.1f}{''.join(f'{c:>18}' for c in cells)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true")
    cupy: Any = None
    if parser.parse_args().gpu:
        import cupy
    print(f"{'us (over static)':<34}{'MB':>8}{''.join(f'{way:>18}' for way in WAYS)}")
    for row in ROWS:
        if row.name in CACHED:
            for shape in (row.cpu,) if cupy is None else (row.gpu, CACHED[row.name]):
                show(row, shape, cupy)


if __name__ == "__main__":
    main()
