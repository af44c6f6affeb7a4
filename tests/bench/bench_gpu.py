"""Each row of functions.py on a GPU: tracefuse on CuPy arrays beside jax.jit and torch.compile, in one process.

    python tests/bench/bench_gpu.py [--rows softmax,layernorm] [--dtypes float32,bfloat16] [--jax] [--torch]

Needs CuPy and tracefuse; jax and torch only where their flag asks for them. tracefuse and torch are timed with CUDA
events around a batch of calls, jax by the wall clock of a batch that is waited for at its end; batches of the peers
take turns and the table gives medians. Calls go round several sets of inputs, together larger than the L2 cache. The
fraction is the row's bytes (each input once, each output once) over the time, as a part of the rate of a
device-to-device copy. The first table checks every row, at a small and an odd size, against NumPy in float64. The last
one is the summary.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from functions import ROWS, Row, bytes_moved, geometric_mean, host_arrays, select

from tracefuse import fuse

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
ROUNDS = 15
BATCH_SECONDS = 0.02
ROTATED_BYTES = 256 * 2**20
"""What the sets of inputs and outputs that calls go round take at least: four times the largest L2 so far."""

LIMITS = {"float32": 1e-4, "bfloat16": 2e-2}
"""The largest error relative to the largest element; beyond it a row is marked."""


class TorchNamespace:
    """The few functions of functions.py over torch tensors, by NumPy's names."""

    def __init__(self, torch: Any) -> None:
        self.exp, self.tanh, self.sqrt, self.log = torch.exp, torch.tanh, torch.sqrt, torch.log
        self.permute_dims, self._torch = torch.permute, torch

    def max(self, x: Any, axis: int, keepdims: bool = False) -> Any:
        return self._torch.amax(x, axis, keepdims)

    def sum(self, x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        return self._torch.sum(x) if axis is None else self._torch.sum(x, axis, keepdims)

    def mean(self, x: Any, axis: Any, keepdims: bool = False) -> Any:
        return self._torch.mean(x, axis, keepdims)

    def var(self, x: Any, axis: Any, keepdims: bool = False) -> Any:
        return self._torch.var(x, axis, correction=0, keepdim=keepdims)

    def concatenate(self, parts: Any, axis: int) -> Any:
        return self._torch.cat(parts, axis)

    def take_along_axis(self, x: Any, indices: Any, axis: int) -> Any:
        return self._torch.gather(x, axis, indices.long())


# ---------------------------------------------------------------------------------------------------------------------
# arrays


def device_arrays(cupy: Any, row: Row, dtype: np.dtype[Any], seed: int) -> list[Any]:
    """Random CuPy arguments at the row's GPU size, made on the device."""
    random = cupy.random.RandomState(seed)
    made = []
    for given in row.inputs(row.gpu):
        if given.kind == "labels":
            made.append(random.randint(0, given.below, given.shape, dtype=np.int32))
            continue
        values = random.random_sample(given.shape, dtype=np.float32)
        values = values + np.float32(0.5) if given.kind == "positive" else values * np.float32(4) - np.float32(2)
        made.append(_rounded(cupy, values, dtype))
    return made


def _rounded(cupy: Any, values: Any, dtype: np.dtype[Any]) -> Any:
    """float32 values in another type; bfloat16 by its bits, which every CuPy can do."""
    if dtype == np.float32:
        return values
    bits = values.view(np.uint32)
    bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits >> np.uint32(16)).astype(np.uint16).view(dtype)


def to_host(array: Any) -> np.ndarray[Any, Any]:
    """A CuPy array on the host in float64."""
    if array.dtype == ml_dtypes.bfloat16:
        return array.view(np.uint16).get().view(ml_dtypes.bfloat16).astype(np.float64)  # type: ignore[no-any-return]
    return array.get().astype(np.float64)  # type: ignore[no-any-return]


def listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


# ---------------------------------------------------------------------------------------------------------------------
# checking


def small_shapes(row: Row) -> tuple[tuple[int, ...], ...]:
    """Two sizes to check at: one with powers of two, one odd where the row takes it."""
    even = tuple(min(extent, 64 if k + 1 < len(row.gpu) else 512) for k, extent in enumerate(row.gpu))
    # Rotary embeddings need an even last axis.
    odd = tuple(extent - (4 if row.name == "rope_residual" and extent == even[-1] else 3) for extent in even)
    return even, odd


def check(cupy: Any, row: Row, dtype_name: str) -> str:
    """The row's largest error at small sizes, as a line."""
    worst = 0.0
    fused = fuse(row.closed(np))
    for seed, shape in enumerate(small_shapes(row)):
        host = host_arrays(row, shape, DTYPES[dtype_name], seed)
        there = [
            cupy.asarray(a.view(np.uint16)).view(a.dtype) if a.dtype == ml_dtypes.bfloat16 else cupy.asarray(a)
            for a in host
        ]
        expected = row.closed(np)(*[a if a.dtype == np.int32 else a.astype(np.float64) for a in host])
        for got, known in zip(listed(fused(*there)), listed(expected), strict=True):
            scale = max(float(np.max(np.abs(known))), 1e-30)
            difference = float(np.max(np.abs(to_host(got) - known))) / scale
            # NaN is an error too: max() would drop it.
            worst = difference if not difference <= worst else worst
    mark = "" if worst <= LIMITS[dtype_name] else "  WRONG"
    return f"{row.name:<20}{dtype_name:<10}{worst:>10.1e}{mark}"


# ---------------------------------------------------------------------------------------------------------------------
# timing


def event_time(cupy: Any, call: Callable[[int], object], count: int, stream: Any) -> float:
    """Seconds a call of `count` calls, by events on `stream`."""
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record(stream)
    for k in range(count):
        call(k)
    end.record(stream)
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / 1e3 / count


def copy_rate(cupy: Any) -> float:
    """Bytes a second, read and written, of a device-to-device copy of 1 GiB."""
    source, target = cupy.ones(2**28, np.float32), cupy.empty(2**28, np.float32)
    stream = cupy.cuda.get_current_stream()

    def copy(_: int) -> None:
        target.data.copy_from_device_async(source.data, source.nbytes, stream)

    event_time(cupy, copy, 5, stream)
    seconds = statistics.median(event_time(cupy, copy, 10, stream) for _ in range(7))
    return 2 * source.nbytes / seconds


Timer = Callable[[int], float]


def tracefuse_timer(cupy: Any, fused: Callable[..., Any], sets: list[list[Any]]) -> Timer:
    stream = cupy.cuda.get_current_stream()
    return lambda count: event_time(cupy, lambda k: fused(*sets[k % len(sets)]), count, stream)


def torch_timer(cupy: Any, torch: Any, row: Row, sets: list[list[Any]]) -> Timer:
    torch._dynamo.reset()  # all rows are one function to it, and it stops compiling one after eight times
    compiled = torch.compile(row.closed(TorchNamespace(torch)), dynamic=False)

    def crossed(array: Any) -> Any:
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_dlpack(array.view(np.uint16)).view(torch.bfloat16)
        return torch.from_dlpack(array)

    there = [[crossed(a) for a in arguments] for arguments in sets]

    def timed(count: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for k in range(count):
            compiled(*there[k % len(there)])
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / count

    return timed


def jax_timer(cupy: Any, jax: Any, row: Row, sets: list[list[Any]]) -> Timer:
    compiled = jax.jit(row.closed(jax.numpy))

    def crossed(array: Any) -> Any:
        if array.dtype == ml_dtypes.bfloat16:
            bits = jax.dlpack.from_dlpack(array.view(np.uint16))
            return jax.lax.bitcast_convert_type(bits, jax.numpy.bfloat16)
        return jax.dlpack.from_dlpack(array)

    there = [[crossed(a) for a in arguments] for arguments in sets]

    def timed(count: int) -> float:
        jax.block_until_ready(there[0])
        start = time.perf_counter()
        result = None
        for k in range(count):
            result = compiled(*there[k % len(there)])
        jax.block_until_ready(result)
        return (time.perf_counter() - start) / count

    return timed


def medians(timers: dict[str, Timer]) -> dict[str, float]:
    """The median time of a call of each peer, in seconds; batches take turns."""
    counts, times = {}, {name: [] for name in timers}  # type: ignore[var-annotated]
    for name, timer in timers.items():
        timer(2)
        counts[name] = max(3, min(500, int(BATCH_SECONDS / timer(3))))
    for _ in range(ROUNDS):
        for name, timer in timers.items():
            times[name].append(timer(counts[name]))
    return {name: statistics.median(taken) for name, taken in times.items()}


def measure(cupy: Any, row: Row, dtype_name: str, jax: Any, torch: Any) -> tuple[int, int, dict[str, float]]:
    """(segments, bytes, seconds by peer) of a row."""
    dtype = DTYPES[dtype_name]
    fused = fuse(row.closed(np))
    first = device_arrays(cupy, row, dtype, 0)
    moved = bytes_moved(first, fused(*first))
    count = len(fused.explain(*first).templates)
    sets = [first, *(device_arrays(cupy, row, dtype, k) for k in range(1, max(2, -(-ROTATED_BYTES // moved))))]
    timers = {"tracefuse": tracefuse_timer(cupy, fused, sets)}
    if jax is not None:
        timers["jax"] = jax_timer(cupy, jax, row, sets)
    if torch is not None:
        timers["torch"] = torch_timer(cupy, torch, row, sets)
    return count, moved, medians(timers)


def small_calls(cupy: Any, jax: Any) -> list[str]:
    """Host time of a 64x64 call: many calls queued, the queue waited for outside of the clock."""
    lines = []
    for row in select("bias_gelu,softmax"):
        arguments = [cupy.asarray(a) for a in host_arrays(row, (64, 64), np.dtype(np.float32))]
        fused = fuse(row.closed(np))
        calls: dict[str, Callable[[], object]] = {"tracefuse": lambda f=fused, a=arguments: f(*a)}  # type: ignore[misc]
        if jax is not None:
            compiled, there = jax.jit(row.closed(jax.numpy)), [jax.dlpack.from_dlpack(a) for a in arguments]
            calls["jax"] = lambda f=compiled, a=there: f(*a)  # type: ignore[misc]
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(30):
            for name, call in calls.items():
                call()
                cupy.cuda.Device().synchronize()
                start = time.perf_counter()
                for _ in range(50):
                    call()
                times[name].append((time.perf_counter() - start) / 50)
        cells = ", ".join(f"{name} {1e6 * statistics.median(taken):.1f}" for name, taken in times.items())
        lines.append(f"64x64 {row.name}, host us a call: {cells}")
    return lines


# ---------------------------------------------------------------------------------------------------------------------


def line_of(row: Row, dtype_name: str, count: int, moved: int, times: dict[str, float], rate: float) -> str:
    cells = []
    for name in ("tracefuse", "jax", "torch"):
        if name in times:
            cells.append(f"{1e6 * times[name]:>9.1f} ({moved / rate / times[name]:4.2f})")
        else:
            cells.append(f"{'-':>16}")
    peers = [seconds for name, seconds in times.items() if name != "tracefuse"]
    ratio = f"{min(peers) / times['tracefuse']:>7.2f}" if peers else f"{'-':>7}"
    short = {"float32": "f32", "bfloat16": "bf16"}[dtype_name]
    head = f"{row.name:<19}{short:<5}{moved / 1e6:>7.0f}{count:>9}{1e6 * moved / rate:>8.1f}"
    return f"{head}{''.join(cells)}{ratio}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="comma list of row names; default all")
    parser.add_argument("--dtypes", default="float32,bfloat16", help="comma list: float32, bfloat16")
    parser.add_argument("--jax", action="store_true", help="also time jax.jit")
    parser.add_argument("--torch", action="store_true", help="also time torch.compile")
    parser.add_argument("--no-check", action="store_true", help="leave the check out")
    given = parser.parse_args()
    import cupy

    jax: Any = None
    torch: Any = None
    if given.jax:
        import os

        # jax would else take most of the device's memory for itself.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax
    if given.torch:
        import torch
    dtype_names, rows = given.dtypes.split(","), select(given.rows)
    if not given.no_check:
        print(f"{'largest error, of the largest element':<40}")
        for dtype_name in dtype_names:
            for row in rows:
                print(check(cupy, row, dtype_name), flush=True)
    rate = copy_rate(cupy)
    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    lines, fractions = [], []
    for dtype_name in dtype_names:
        for row in rows:
            if dtype_name == "bfloat16" and not row.halves:
                continue
            count, moved, times = measure(cupy, row, dtype_name, jax, torch)
            lines.append(line_of(row, dtype_name, count, moved, times, rate))
            fractions.append(moved / rate / times["tracefuse"])
            print(lines[-1], flush=True)
            cupy.get_default_memory_pool().free_all_blocks()
    small = small_calls(cupy, jax) if not given.rows else []
    print(f"\n{name}, CuPy {cupy.__version__}; copy {rate / 1e12:.2f} TB/s read and written")
    print(
        f"{'row':<19}{'':<5}{'MB':>7}{'segments':>9}{'limit':>8}{'tracefuse us':>16}{'jax.jit us':>16}"
        f"{'torch us':>16}{'ratio':>7}"
    )
    print("\n".join([*lines, f"geometric mean of the fractions: {geometric_mean(fractions):.2f}", *small]))
    print(f"fraction of the copy in brackets; ratio: the faster peer's time over tracefuse's; {len(ROWS)} rows exist")


if __name__ == "__main__":
    main()
