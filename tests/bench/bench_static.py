"""Random samples of the families of sweep.py, traced with symbolic sizes and with static ones.

    python -m tests.bench.bench_static [--family rows,scans] [--seed 0] [--n 3] [--megabytes 4] [--seconds 0.5]

Processor time of calls in one thread, the least of calls that take turns, so that other work on the machine counts
little. A ratio is the time with static sizes over the time with symbolic ones: 1 if symbolic sizes cost nothing.
Products and attention, which a library computes, are left out.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from families import FAMILIES, Sample
from functions import geometric_mean
from sweep import closed, host_array

import tracefuse
from tracefuse import fuse

OF_LIBRARIES = ("products", "attention")
LEAST_CALLS = 3


def least_times(sample: Sample, seconds: float) -> tuple[float, float]:
    """Processor seconds of a call with symbolic and with static sizes."""
    random = np.random.default_rng(0)
    arrays = [host_array(array, random) for array in sample.arrays]
    least = [float("inf"), float("inf")]
    with tracefuse.options(threads=1):
        functions = [fuse(closed(sample, np)), fuse(closed(sample, np), dynamic=False)]
        for function in 2 * functions:
            function(*arrays)
        tracefuse.wait_for_compilation()
        calls, end = 0, time.perf_counter() + seconds
        while calls < LEAST_CALLS or time.perf_counter() < end:
            calls += 1
            for k, function in enumerate(functions):
                start = time.thread_time()
                function(*arrays)
                least[k] = min(least[k], time.thread_time() - start)
    return least[0], least[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default=",".join(name for name in FAMILIES if name not in OF_LIBRARIES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=3, help="samples of each family")
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--seconds", type=float, default=0.5, help="for which the calls of a sample take turns")
    options = parser.parse_args()
    ratios = []
    for family in options.family.split(","):
        random = np.random.default_rng([options.seed, *family.encode()])
        for _ in range(options.n):
            sample = FAMILIES[family](random, int(options.megabytes * 1e6))
            symbolic, static = least_times(sample, options.seconds)
            ratios.append(static / symbolic)
            print(f"{family:13} {sample.text:50} {symbolic * 1e6:8.0f} us {ratios[-1]:5.2f}", flush=True)
    print(f"n {len(ratios)}  mean {geometric_mean(ratios):.3f}  worst {min(ratios):.3f}")


if __name__ == "__main__":
    main()
