"""Each row of functions.py on the CPU: tracefuse, jax.jit and NumPy, interleaved in one process, fresh outputs.

    python tests/bench/bench_cpu.py [--rows softmax,layernorm] [--dtypes float32,bfloat16] [--seconds 1.0]

Times are medians of wall clock of whole calls on arrays that are there, results waited for and dropped. `ratio` is
jax.jit's time over tracefuse's. `copy` is the time that a copy of as many bytes takes between two large arrays, by one
thread for each core, over tracefuse's time: 1 is as fast as that copy. Before a row is timed its result is compared
with NumPy's in float64; the last column is that error, relative to the largest element.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from functions import Row, bytes_moved, geometric_mean, host_arrays, select

from tracefuse import fuse, wait_for_compilation

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
COPY_BYTES = 128 * 2**20
FEWEST, MOST = 7, 400


def copy_rate(threads: int) -> float:
    """Bytes a second, read and written, of a copy split over threads; the best of several."""
    source, target = np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    best = float("inf")
    for _ in range(9):
        workers = [threading.Thread(target=np.copyto, args=(to, of)) for of, to in parts]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = min(best, time.perf_counter() - start)
    return 2 * COPY_BYTES / best


def interleaved(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """The median time of each call in seconds: the calls take turns until `seconds` a call are spent."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    wait_for_compilation()
    start = time.perf_counter()
    for turn in range(MOST):
        if turn >= FEWEST and time.perf_counter() - start > seconds * len(calls):
            break
        for name, call in calls.items():
            if turn >= FEWEST and sum(times[name]) > seconds:
                # A slow peer has enough turns; the others go on.
                continue
            begin = time.perf_counter()
            result = call()
            times[name].append(time.perf_counter() - begin)
            del result
    return {name: statistics.median(taken) for name, taken in times.items()}


def error_of(row: Row, arguments: list[Any], results: Any) -> float:
    """The largest difference from NumPy in float64, relative to the largest element."""
    wide = [a if a.dtype == np.int32 else a.astype(np.float64) for a in arguments]
    expected = row.closed(np)(*wide)
    worst = 0.0
    pairs = zip(results, expected, strict=True) if isinstance(expected, tuple) else [(results, expected)]
    for got, known in pairs:
        scale = max(float(np.max(np.abs(known))), 1e-30)
        worst = max(worst, float(np.max(np.abs(np.asarray(got).astype(np.float64) - known))) / scale)
    return worst


def measure(row: Row, dtype_name: str, seconds: float, rate: float, jax: Any) -> tuple[str, float | None]:
    """One line of the table, and the ratio to jax."""
    arguments = host_arrays(row, row.cpu, DTYPES[dtype_name])
    plain = row.closed(np)
    fused = fuse(plain)
    results = fused(*arguments)
    error = error_of(row, arguments, results)
    moved = bytes_moved(arguments, results)
    count = len(fused.explain(*arguments).templates)
    del results
    calls: dict[str, Callable[[], object]] = {"tracefuse": lambda: fused(*arguments)}
    if jax is not None:
        compiled, there = jax.jit(row.closed(jax.numpy)), [jax.numpy.asarray(a) for a in arguments]
        calls["jax"] = lambda: jax.block_until_ready(compiled(*there))
    calls["numpy"] = lambda: plain(*arguments)
    times = interleaved(calls, seconds)
    own = times["tracefuse"]
    ratio = times["jax"] / own if "jax" in times else None
    shape = "x".join(map(str, row.cpu))
    short = {"float32": "f32", "bfloat16": "bf16"}[dtype_name]
    jax_text = f"{1e6 * times['jax']:>9.0f}" if "jax" in times else f"{'-':>9}"
    ratio_text = f"{ratio:>6.2f}" if ratio is not None else f"{'-':>6}"
    line = (
        f"{row.name:<19}{short:<5}{shape:<14}{moved / 1e6:>7.1f}{count:>9}{1e6 * own:>11.0f}{jax_text}"
        f"{1e6 * times['numpy']:>10.0f}{ratio_text}{moved / rate / own:>6.2f}{error:>9.0e}"
    )
    return line, ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="comma list of row names; default all")
    parser.add_argument("--dtypes", default="float32,bfloat16", help="comma list: float32, bfloat16")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each peer of each row")
    parser.add_argument("--no-jax", action="store_true", help="leave jax.jit out")
    given = parser.parse_args()
    jax: Any = None
    if not given.no_jax:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax
    threads = len(os.sched_getaffinity(0))
    rate = copy_rate(threads)
    versions = f"NumPy {np.__version__}" + (f", jax {jax.__version__}" if jax else "")
    print(f"{threads} cores, Python {sys.version.split()[0]}, {versions}; copy {rate / 1e9:.1f} GB/s read and written")
    print(
        f"{'row':<19}{'':<5}{'size':<14}{'MB':>7}{'segments':>9}{'tracefuse':>11}{'jax.jit':>9}{'NumPy':>10}"
        f"{'ratio':>6}{'copy':>6}{'error':>9}"
    )
    for dtype_name in given.dtypes.split(","):
        ratios: list[float] = []
        for row in select(given.rows):
            if dtype_name == "bfloat16" and not row.halves:
                continue
            line, ratio = measure(row, dtype_name, given.seconds, rate, jax)
            print(line, flush=True)
            ratios += [] if ratio is None else [ratio]
        print(f"geometric mean of jax.jit / tracefuse, {dtype_name}: {geometric_mean(ratios):.2f}")
    print("times in us a call")


if __name__ == "__main__":
    main()
