"""Random samples of families of functions: tracefuse beside jax.jit and torch.compile (GPU) or NumPy (CPU).

    python -m tests.bench.sweep [--family rows,scans] [--strata memory,cache,launch] [--seed 0] [--n 10]
                                [--gpu] [--torch] [--static] [--processor] [--megabytes 256] [--peers times.json]

Values are checked against NumPy in float64. Then tracefuse and its peers are timed in turns in one process with fresh
outputs, going round several sets of inputs: medians on a GPU, minima of calls on the CPU, whose cores other programs
use as well. Peers compute with tracefuse's dtypes and precision: jax with 64-bit types and float32 products without
TF32, and sums of floats at positions that are data in the deterministic modes. A ratio is a peer's time over
tracefuse's. The fraction is the bytes of inputs and outputs over the time, as a part of the rate of a copy. The last
table has for each stratum and family the geometric mean, the 5th percentile, the median and the worst of the ratios to
the faster of the compilers, how many draws pass (see sweep_outcomes.py), and on the CPU the worst ratio to NumPy.
`--processor` takes processor time on the CPU, of all threads together, in place of wall-clock time: under `taskset -c
0` every framework has one thread, and other work on the machine counts little.
`--static` also times each function traced with static sizes. `--peers` names a file that keeps the peers' times: a draw
that it has is measured for tracefuse alone.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from bench_gpu import Timer, copy_rate, event_time, medians
from families import FAMILIES, Array, Sample
from sweep_outcomes import Outcome, PeerTimes, stratum_of, summary

from tracefuse import fuse, wait_for_compilation

ROTATED_BYTES = 256 * 2**20
MEASURED_SECONDS = 1.5
"""How long the calls of a draw take turns on the CPU."""
TURN_SECONDS = 1e-4
"""How long the calls that one reading of the clock times take at least, if they are several."""


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

    def tile(self, x: Any, counts: Any) -> Any:
        return self._torch.tile(x, counts)

    def repeat(self, x: Any, count: int, axis: int) -> Any:
        return self._torch.repeat_interleave(x, count, axis)

    def roll(self, x: Any, shift: int, axis: int) -> Any:
        return self._torch.roll(x, shift, axis)

    def cumsum(self, x: Any, axis: int) -> Any:
        return self._torch.cumsum(x, axis)

    def take(self, x: Any, k: Any, axis: int) -> Any:
        return self._torch.index_select(x, axis, k)

    def take_along_axis(self, x: Any, k: Any, axis: int) -> Any:
        return self._torch.gather(x, axis, k.long())

    def pad(self, x: Any, width: int, mode: str) -> Any:
        """Pads both axes of a matrix; symmetric padding, which torch does not have, by slices."""
        if mode == "symmetric":
            for axis in (0, 1):
                first, last = x.narrow(axis, 0, width), x.narrow(axis, x.shape[axis] - width, width)
                x = self._torch.cat([first.flip(axis), x, last.flip(axis)], axis)
            return x
        names = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}
        return self._torch.nn.functional.pad(x[None, None], (width,) * 4, names[mode])[0, 0]


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


def gpu_timers(sample: Sample, names: set[str]) -> tuple[dict[str, Timer], int, float, int]:
    """The timers of tracefuse and of each peer in `names`, the bytes that must move, the error, the number of segments.

    Calls are issued one after another and timed as a whole: what a call takes on the host shows where it is longer.
    """
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

    def timer(call: Callable[..., Any]) -> Timer:
        return lambda calls: event_time(cupy, lambda k: call(*sets[k % len(sets)]), calls, stream)

    timers: dict[str, Timer] = {"tracefuse": timer(fused)}
    if "static" in names:
        timers["static"] = timer(fuse(closed(sample, np), dynamic=False))
    if "jax" in names:
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_default_matmul_precision", "highest")
        compiled = jax.jit(closed(sample, jax.numpy), compiler_options={"xla_gpu_deterministic_ops": sample.ordered})
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
        torch.use_deterministic_algorithms(sample.ordered)
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


Clock: TypeAlias = Callable[[], float]


def host_timer(
    call: Callable[..., Any],
    sets: list[list[Any]],
    wait: Callable[[Any], object] = id,
    clock: Clock = time.perf_counter,
) -> Timer:
    def timed(calls: int) -> float:
        start = clock()
        for k in range(calls):
            wait(call(*sets[k % len(sets)]))
        return (clock() - start) / calls

    return timed


def cpu_timers(sample: Sample, names: set[str], clock: Clock) -> tuple[dict[str, Timer], int, float, int]:
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
    timers = {
        "tracefuse": host_timer(fused, sets, clock=clock),
        "numpy": host_timer(closed(sample, np), sets, clock=clock),
    }
    if "static" in names:
        timers["static"] = host_timer(fuse(closed(sample, np), dynamic=False), sets, clock=clock)
    if "jax" in names:
        there = [[jax.numpy.asarray(a) for a in arguments] for arguments in sets]
        timers["jax"] = host_timer(jax.jit(closed(sample, jax.numpy)), there, jax.block_until_ready, clock)
    return timers, moved, error, len(fused.explain(*first).templates)


def minima(timers: dict[str, Timer]) -> dict[str, float]:
    """The least time of a call of each peer, in seconds; calls take turns.

    Short calls are timed several at once: reading a clock takes as long as some of them, and a processor's clock may
    stand still for one.
    """
    for timer in timers.values():
        timer(2)
    wait_for_compilation()
    calls = {name: max(1, int(TURN_SECONDS / max(timer(1), 1e-6))) for name, timer in timers.items()}
    least = {name: timer(calls[name]) for name, timer in timers.items()}
    end = time.perf_counter() + MEASURED_SECONDS
    while time.perf_counter() < end:
        for name, timer in timers.items():
            if least[name] < MEASURED_SECONDS / 20:  # longer calls would leave the others few turns
                least[name] = min(least[name], *(timer(calls[name]) for _ in range(4)))
    return least


def cpu_copy_rate(clock: Clock) -> float:
    """Bytes a second, read and written, of a copy by a fused function into fresh memory."""
    source = np.ones(2**25, np.float32)
    copy = fuse(lambda x: x + 0)
    seconds = min(host_timer(copy, [[source]], clock=clock)(5) for _ in range(5))
    return 2 * source.nbytes / seconds


SIZES = {
    "gpu": {"memory": 400e6, "cache": 24e6, "launch": 60e3},
    "cpu": {"memory": 160e6, "cache": 16e6, "launch": 60e3},
}
"""About how many bytes a draw of a stratum moves."""

CPU_CACHE_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Machine:
    """Where the sweep runs: "gpu" or "cpu", what it is called, the rate of a copy, its last cache, and the peers.

    clock: of calls on the CPU.
    """

    kind: str
    name: str
    rate: float
    cache_bytes: int
    peers: dict[str, str]
    clock: Clock = time.perf_counter

    @classmethod
    def here(cls, gpu: bool, torch: bool, processor: bool = False) -> Machine:
        import jax

        peers = {"jax": jax.__version__}
        if not gpu:
            clock = time.process_time if processor else time.perf_counter
            name, rate = f"{platform.machine()} x{os.cpu_count()}", cpu_copy_rate(clock)
            return cls("cpu", name, rate, CPU_CACHE_BYTES, peers, clock)
        import cupy

        if torch:
            import torch as peer

            peers["torch"] = peer.__version__
        device = cupy.cuda.Device()
        name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
        return cls("gpu", name, copy_rate(cupy), device.attributes["L2CacheSize"], peers)


def measure(family: str, sample: Sample, machine: Machine, kept: PeerTimes, static: bool) -> Outcome:
    """Measures one draw, prints its line, and keeps the times of the peers. static: with static sizes, too."""
    draw = f"{family} {sample.text} {[(a.shape, a.dtype) for a in sample.arrays]}"
    known = kept.known(draw)
    missing = machine.peers.keys() - known.keys()
    names = {*missing, *(("static",) * static)}
    timers, moved, error, count = (
        gpu_timers(sample, names) if machine.kind == "gpu" else cpu_timers(sample, names, machine.clock)
    )
    times = (medians if machine.kind == "gpu" else minima)(timers)
    own = times.pop("tracefuse")
    kept.keep(draw, {peer: seconds for peer, seconds in times.items() if peer in missing})
    peers = {name: seconds / own for name, seconds in {**known, **times}.items()}
    stratum = stratum_of(moved, machine.cache_bytes, machine.rate, machine.kind)
    ratio = min(value for name, value in peers.items() if name in machine.peers)
    cells = " ".join(f"{name} {value:5.2f}" for name, value in sorted(peers.items()))
    fraction = moved / machine.rate / own
    print(
        f"{stratum:7} {family:13} {sample.text:44} {count:2} seg {own * 1e6:9.1f} {cells} {fraction:5.2f}"
        f"{'' if error < 2e-3 else f'  ERROR {error:.1e}'}",
        flush=True,
    )
    return Outcome(family, stratum, ratio, fraction, peers.get("numpy"), peers.get("static"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="", help="comma list; default all")
    parser.add_argument("--strata", default="memory", help="comma list of memory, cache, launch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=10, help="samples for each family and stratum")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--torch", action="store_true", help="also time torch.compile (GPU)")
    parser.add_argument("--static", action="store_true", help="also time tracefuse with static sizes")
    parser.add_argument("--processor", action="store_true", help="processor time of all threads, on the CPU")
    parser.add_argument("--megabytes", type=int, default=0, help="bytes of a sample, in place of the stratum's")
    parser.add_argument("--peers", default="", help="a file that keeps the times of the peers")
    options = parser.parse_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    machine = Machine.here(options.gpu, options.torch, options.processor)
    kept = PeerTimes(options.peers, machine.name, machine.peers)
    print(
        f"{machine.name}, copy {machine.rate / 1e9:.0f} GB/s read and written; us of tracefuse, ratios of each peer, "
        "fraction of copy",
        flush=True,
    )
    outcomes: list[Outcome] = []
    for stratum in options.strata.split(","):
        size = int(options.megabytes * 1e6 or SIZES[machine.kind][stratum])
        for family in options.family.split(",") if options.family else FAMILIES:
            random = np.random.default_rng([options.seed, *family.encode()])
            for _ in range(options.n):
                sample = FAMILIES[family](random, size)
                try:
                    outcomes.append(measure(family, sample, machine, kept, options.static))
                except Exception as problem:  # a sample that one of them cannot run is a line of the table
                    print(f"{family:13} {sample.text:44} {type(problem).__name__}: {str(problem)[:90]}", flush=True)
    for line in summary(outcomes, machine.kind):
        print(line)


if __name__ == "__main__":
    main()
