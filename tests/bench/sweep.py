"""Random samples of families of functions: tracefuse beside jax.jit and torch.compile (GPU) or NumPy (CPU).

    python -m tests.bench.sweep [--family rows,scans] [--seed 0] [--n 10] [--gpu] [--torch] [--megabytes 256]

Values are checked against NumPy in float64. Then tracefuse and its peers are timed in turns in one process with fresh
outputs, going round several sets of inputs. A ratio is a peer's time over tracefuse's. The fraction is the bytes of
inputs and outputs over the time, as a part of the rate of a copy. The last table has for each family the geometric
mean, the 5th percentile, the median and the worst of the ratios to the faster of the compilers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from bench_gpu import Timer, copy_rate, event_time, medians
from families import FAMILIES, Array, Sample
from functions import geometric_mean

from tracefuse import fuse

ROTATED_BYTES = 256 * 2**20


class TorchNames:
    """The functions of families.py over torch tensors, by NumPy's names."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def astype(self, x: Any, dtype: str) -> Any:
        return x.to(getattr(self._torch, dtype))

    def sum(self, x: Any, axis: Any, keepdims: bool = False) -> Any:
        return self._torch.sum(x, axis, keepdims)

    def mean(self, x: Any, axis: Any, keepdims: bool = False) -> Any:
        return self._torch.mean(x, axis, keepdims)

    def var(self, x: Any, axis: Any, keepdims: bool = False) -> Any:
        return self._torch.var(x, axis, correction=0, keepdim=keepdims)

    def max(self, x: Any, axis: Any, keepdims: bool = False) -> Any:
        return self._torch.amax(x, axis, keepdims)

    def argmax(self, x: Any, axis: int) -> Any:
        return self._torch.argmax(x, axis)

    def argmin(self, x: Any, axis: int) -> Any:
        return self._torch.argmin(x, axis)

    def permute_dims(self, x: Any, order: Any) -> Any:
        return self._torch.permute(x, order)

    def concatenate(self, parts: Any, axis: int) -> Any:
        return self._torch.cat(parts, axis)

    def roll(self, x: Any, shift: int, axis: int) -> Any:
        return self._torch.roll(x, shift, axis)

    def cumsum(self, x: Any, axis: int) -> Any:
        return self._torch.cumsum(x, axis)

    def take(self, x: Any, k: Any, axis: int) -> Any:
        return self._torch.index_select(x, axis, k)

    def take_along_axis(self, x: Any, k: Any, axis: int) -> Any:
        return self._torch.gather(x, axis, k.long())


def closed(sample: Sample, xp: Any) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        return sample.function(xp, *arguments)

    return call


def host_array(array: Array, random: np.random.Generator) -> np.ndarray[Any, Any]:
    dtype = np.dtype(array.dtype)
    if array.below:
        return random.integers(0, array.below, array.shape, dtype=dtype)
    if dtype.kind in "iu":
        return random.integers(-5, 6, array.shape).astype(dtype)
    return (random.random(array.shape, dtype=np.float32) * 4 - 2).astype(dtype)


def device_array(cupy: Any, array: Array, random: Any) -> Any:
    if array.below:
        return random.randint(0, array.below, array.shape, dtype=np.int32).astype(array.dtype)
    if np.dtype(array.dtype).kind in "iu":
        return random.randint(-5, 6, array.shape, dtype=np.int32).astype(array.dtype)
    return (random.random_sample(array.shape, dtype=np.float32) * np.float32(4) - np.float32(2)).astype(array.dtype)


def listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def largest_error(results: Any, arguments: list[np.ndarray[Any, Any]], sample: Sample) -> float:
    """The largest error of a result, relative to the largest element of the reference in float64."""
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arguments]
    worst = 0.0
    for result, expected in zip(listed(results), listed(closed(sample, np)(*wide)), strict=True):
        if np.shape(result) != np.shape(expected):
            return float("inf")
        scale = max(float(np.max(np.abs(expected))), 1e-30)
        worst = max(worst, float(np.max(np.abs(np.asarray(result, np.float64) - expected))) / scale)
    return worst


def gpu_timers(sample: Sample, names: set[str], megabytes: int) -> tuple[dict[str, Timer], int, float, int]:
    """The timers of each peer, the bytes that must move, the error, and the number of segments."""
    import cupy

    random = cupy.random.RandomState(0)
    first = [device_array(cupy, a, random) for a in sample.arrays]
    fused = fuse(closed(sample, np))
    results = fused(*first)
    moved = sum(a.nbytes for a in (*first, *listed(results)))
    error = largest_error([r.get() for r in listed(results)], [a.get() for a in first], sample) if moved < 3e8 else -1.0
    count = len(fused.explain(*first).templates)
    repeats = max(2, -(-ROTATED_BYTES // moved)) if moved < 4e9 else 1
    sets = [first, *([a.copy() for a in first] for _ in range(min(repeats, 64) - 1))]
    stream = cupy.cuda.get_current_stream()
    timers: dict[str, Timer] = {
        "tracefuse": lambda calls: event_time(cupy, lambda k: fused(*sets[k % len(sets)]), calls, stream)
    }
    if "jax" in names:
        import jax

        compiled = jax.jit(closed(sample, jax.numpy))
        there = [[jax.dlpack.from_dlpack(a) for a in arguments] for arguments in sets]

        def jax_time(calls: int) -> float:
            start, result = time.perf_counter(), None
            for k in range(calls):
                result = compiled(*there[k % len(there)])
            jax.block_until_ready(result)
            return (time.perf_counter() - start) / calls

        timers["jax"] = jax_time
    if "torch" in names:
        import torch

        torch._dynamo.reset()
        torch_compiled = torch.compile(closed(sample, TorchNames(torch)), dynamic=False)
        tensors = [[torch.from_dlpack(a) for a in arguments] for arguments in sets]

        def torch_time(calls: int) -> float:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for k in range(calls):
                torch_compiled(*tensors[k % len(tensors)])
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3 / calls

        timers["torch"] = torch_time
    return timers, moved, error, count


def wall_timer(call: Callable[..., Any], sets: list[list[Any]], wait: Callable[[Any], object] = id) -> Timer:
    def timed(calls: int) -> float:
        start = time.perf_counter()
        for k in range(calls):
            wait(call(*sets[k % len(sets)]))
        return (time.perf_counter() - start) / calls

    return timed


def cpu_timers(sample: Sample) -> tuple[dict[str, Timer], int, float, int]:
    """As `gpu_timers`, for NumPy arrays beside jax.jit and NumPy on the CPU."""
    import jax

    jax.config.update("jax_enable_x64", True)
    random = np.random.default_rng(0)
    first = [host_array(a, random) for a in sample.arrays]
    fused = fuse(closed(sample, np))
    results = fused(*first)
    moved = sum(a.nbytes for a in (*first, *listed(results)))
    error = largest_error(results, first, sample)
    sets = [first, [a.copy() for a in first]]
    there = [[jax.numpy.asarray(a) for a in arguments] for arguments in sets]
    compiled = jax.jit(closed(sample, jax.numpy))
    timers = {
        "tracefuse": wall_timer(fused, sets),
        "jax": wall_timer(compiled, there, jax.block_until_ready),
        "numpy": wall_timer(closed(sample, np), sets),
    }
    return timers, moved, error, len(fused.explain(*first).templates)


def cpu_copy_rate() -> float:
    """Bytes a second, read and written, of a copy by a fused function into fresh memory."""
    source = np.ones(2**25, np.float32)
    copy = fuse(lambda x: x + 0)
    seconds = min(wall_timer(copy, [[source]])(5) for _ in range(5))
    return 2 * source.nbytes / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="", help="comma list; default all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=10, help="samples for each family")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--torch", action="store_true", help="also time torch.compile (GPU)")
    parser.add_argument("--megabytes", type=int, default=0, help="bytes of a sample; default 400 on a GPU, 16 on a CPU")
    options = parser.parse_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    size = (options.megabytes or (400 if options.gpu else 16)) * 10**6
    if options.gpu:
        import cupy

        rate = copy_rate(cupy)
    else:
        rate = cpu_copy_rate()
    names = {"jax", "torch"} if options.torch else {"jax"}
    print(
        f"copy {rate / 1e9:.0f} GB/s read and written; us of tracefuse, ratios of each peer, fraction of copy",
        flush=True,
    )
    ratios: dict[str, list[float]] = {}
    for family in options.family.split(",") if options.family else FAMILIES:
        random = np.random.default_rng([options.seed, sorted(FAMILIES).index(family)])
        for _ in range(options.n):
            sample = FAMILIES[family](random, size)
            try:
                timers, moved, error, count = gpu_timers(sample, names, size) if options.gpu else cpu_timers(sample)
                times = medians(timers)
            except Exception as problem:  # a sample that one of them cannot run is a line of the table
                print(f"{family:13} {sample.text:44} {type(problem).__name__}: {str(problem)[:90]}", flush=True)
                continue
            own = times.pop("tracefuse")
            peers = {name: seconds / own for name, seconds in times.items()}
            jitted = min(value for name, value in peers.items() if name != "numpy")
            ratios.setdefault(family, []).append(jitted)
            cells = " ".join(f"{name} {value:5.2f}" for name, value in peers.items())
            print(
                f"{family:13} {sample.text:44} {count:2} seg {own * 1e6:9.1f} {cells} {moved / rate / own:5.2f}"
                f"{'' if error < 2e-3 else f'  ERROR {error:.1e}'}",
                flush=True,
            )
    for family, values in ratios.items():
        fifth, median = float(np.percentile(values, 5)), statistics.median(values)
        mean = geometric_mean(values)
        print(
            f"{family:13} n {len(values):3}  mean {mean:5.2f}  5th {fifth:5.2f}  median {median:5.2f}  "
            f"worst {min(values):5.2f}"
        )


if __name__ == "__main__":
    main()
