"""Measures the constants of the cost model on this CPU, and writes them to the file of its model.

    python -m tests.bench.calibrate [--write]

Prints the constants; with `--write` it creates or replaces tracefuse/schedule/chips/NAME.toml, where NAME is what LLVM
calls the processor. Run it on an idle machine. Rates are minima of many calls of fused functions: copies of arrays of
several sizes by one thread and by all, chains of multiplications and exponentials in the first cache, and pointwise
kernels and transposes with two tilings each, whose difference is the cost of starting runs of memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tracefuse import fuse
from tracefuse.compiler.executable import Executable
from tracefuse.kernel.llvm.machine_code import get_machine
from tracefuse.kernel.llvm.worker_pool import available_threads
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.schedule.chip_rates import CHIPS, rates_of
from tracefuse.schedule.tiling_choice import TilingChooser
from tracefuse.schedule.tilings import Tiling

SECONDS = 0.3
OPS = 16


def fastest(call: Callable[[], Any]) -> float:
    """Returns the seconds of the fastest of many calls."""
    call()
    best, started = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - started < SECONDS:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def cache_bytes(level: int) -> int:
    """Returns the size of a core's data cache of a level, as the system gives it."""
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        if (folder / "level").read_text().strip() == str(level) and "Instr" not in (folder / "type").read_text():
            return int((folder / "size").read_text().strip().removesuffix("K")) << 10
    raise OSError(f"the system does not give the size of the cache of level {level}")


def copy_rate(megabytes: float, threads: int) -> float:
    """Returns the bytes read and written per nanosecond of a copy into an array that exists."""
    source = np.ones(int(megabytes * 1e6 / 8), np.float32)
    target = np.ones_like(source)
    copy, start = fuse(lambda x: x + 1, threads=threads), np.ones(16, np.float32)
    seconds = fastest(lambda: copy(source, out=target)) - fastest(lambda: copy(start, out=target[:16]))
    return 2 * source.nbytes / max(seconds, 1e-8) / 1e9


def operation_ns(function: Callable[[Any], Any], ops: int) -> float:
    """Returns the nanoseconds of an op for one float32 in the first cache, on one thread."""
    x, once = np.ones(4096, np.float32), fuse(lambda x: x + 1, threads=1)
    many, out = fuse(function, threads=1), np.ones(4096, np.float32)
    difference = fastest(lambda: many(x, out=out)) - fastest(lambda: once(x, out=out))
    return max(1e9 * difference / ops / x.size, 0.001)


def multiplications(x: Any) -> Any:
    y = x
    for _ in range(OPS):
        y = y * x + 0.5
    return y


def exponentials(x: Any) -> Any:
    y = x
    for _ in range(4):
        y = np.exp(-y)
    return y


def start_ns(function: Any, arguments: list[Any], few: Tiling, many: Tiling, runs: float) -> float:
    """Returns the nanoseconds of a core that a run of memory takes to start: with many runs and with few."""
    segmentation = segment_fusion(fuse(function).definition(*arguments).fusion)
    out = [np.zeros_like(function(*arguments))]
    seconds = []
    for tiling in (many, few):
        executable = Executable(segmentation, tilings=TilingChooser(forced={"s0": tiling}))
        seconds.append(fastest(lambda executable=executable: executable(arguments, out)))
    return max(1e9 * (seconds[0] - seconds[1]) * available_threads() / runs, 0.1)


def measured() -> dict[str, Any]:
    """Returns the constants of this machine."""
    threads, small = available_threads(), np.ones(16, np.float32)
    launch = fuse(lambda x: x + 1)
    parallel, serial = np.ones(200_000, np.float32), fuse(lambda x: x + 1, threads=1)
    wake = fastest(lambda: launch(parallel)) - fastest(lambda: serial(parallel)) / threads
    wide, row = np.ones((300, 100_000), np.float32), np.ones(100_000, np.float32)
    tiles = 4096, 65536
    jumps = 2 * wide.size * (1 / tiles[0] - 1 / tiles[1])
    turned = np.ones((3000, 3000), np.float32)
    runs = 2 * turned.size * (1 / 32 - 1 / 64)
    return {
        "launch_us": round(1e6 * fastest(lambda: launch(small)), 2), "wake_us": round(max(1e6 * wake, 0.5), 2),
        "memory_gbs": round(copy_rate(400, 0), 1), "core_memory_gbs": round(copy_rate(400, 1), 1),
        "cache_bytes": cache_bytes(3), "cache_gbs": round(copy_rate(8, 0), 1),
        "core_cache_gbs": round(copy_rate(8, 1), 1), "fast_cache_bytes": cache_bytes(1),
        "fast_cache_rate_gbs": round(copy_rate(0.03, 1), 1), "core_cache_bytes": cache_bytes(2),
        "core_cache_rate_gbs": round(copy_rate(0.4, 1), 1),
        "run_ns": round(start_ns(lambda x: x.T + 1, [turned], Tiling.of(side=64), Tiling.of(side=32), runs), 2),
        "jump_ns": round(
            start_ns(
                lambda x, row: x * row, [wide, row], Tiling.of(tile=65536, rows=2), Tiling.of(tile=4096, rows=32), jumps
            ), 1,
        ),
        "cached_run_ns": rates_of("generic", 1).cached_run_ns, "latency_ns": rates_of("generic", 1).latency_ns,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    name = get_machine().cpu
    constants = measured()
    plain, function = operation_ns(multiplications, 2 * OPS), operation_ns(exponentials, 4)
    lines = [f"# Measured by tests/bench/calibrate.py with {available_threads()} cores. See `Rates` for the units."]
    lines += [f'name = "{name}"', *(f"{key} = {value}" for key, value in constants.items()), ""]
    lines += ["[operation_ns]", f"plain = {plain:.4f}", f"function = {function:.4f}", ""]
    print("\n".join(lines))
    if given.write:
        (CHIPS / f"{name}.toml").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
