"""What a call costs the host, and how long compiling takes, on the CPU.

    python tests/bench/bench_calls.py [--no-jax]

The first table: the first call of each row of functions.py, in this process for the first time; it traces, splits,
compiles and runs at a small size. The second: a 64x64 float32 call, median over blocks of 100 calls, the peers taking
turns. The third: what kinds of arguments cost.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from functions import ROWS, Row, host_arrays, select

from tracefuse import fuse
from tracefuse.kernel.compile_cpu import clear_cache

SMALL = ("bias_gelu", "softmax", "layernorm", "column_sum")
BLOCK, BLOCKS = 100, 60


def block_times(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median time of one call of each, in seconds; blocks of the peers take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(BLOCKS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(BLOCK):
                call()
            times[name].append((time.perf_counter() - start) / BLOCK)
    return {name: statistics.median(taken) for name, taken in times.items()}


def peers(row: Row, arguments: list[Any], jax: Any) -> dict[str, Callable[[], object]]:
    """The calls of one row by peer."""
    plain, calls = row.closed(np), {}
    fused = fuse(plain)
    calls["tracefuse"] = lambda: fused(*arguments)
    if jax is not None:
        compiled, there = jax.jit(row.closed(jax.numpy)), [jax.numpy.asarray(a) for a in arguments]
        calls["jax.jit"] = lambda: jax.block_until_ready(compiled(*there))
    calls["NumPy"] = lambda: plain(*arguments)
    return calls


def bench_host_time(jax: Any) -> None:
    print(f"{'64x64 float32, us a call':<28}{'tracefuse':>10}{'jax.jit':>10}{'NumPy':>10}")
    for row in select(",".join(SMALL)):
        times = block_times(peers(row, host_arrays(row, (64, 64), np.float32), jax))
        cells = [f"{1e6 * times[n]:>10.1f}" if n in times else f"{'-':>10}" for n in ("tracefuse", "jax.jit", "NumPy")]
        print(f"{row.name:<28}{''.join(cells)}", flush=True)


class Scaled:
    """A method whose object holds arrays and numbers."""

    def __init__(self, weight: Any) -> None:
        self.weight, self.scales = weight, [1.0, 2.0]

    @fuse
    def __call__(self, x: Any) -> Any:
        return x * self.weight * self.scales[0]


def bench_kinds_of_arguments() -> None:
    """What captured arrays, numbers, methods and trees cost beside two arrays."""
    x = np.ones((64, 64), np.float32)
    weight, method = np.ones(64, np.float32), Scaled(np.ones(64, np.float32))
    add, scaled, captured = fuse(lambda x, y: x + y), fuse(lambda x, s: x * s), fuse(lambda x: x * weight)
    tree, branch = fuse(lambda t: t["a"] + t["b"]), fuse(lambda x, s: x * s if s > 1 else x)
    calls: dict[str, Callable[[], object]] = {
        "x + y": lambda: add(x, x), "x * number": lambda: scaled(x, 2.0), "x * captured": lambda: captured(x),
        "number that is asked for": lambda: branch(x, 2.0), "method": lambda: method(x),
        "dict of arrays": lambda: tree({"a": x, "b": x}), "NumPy x + y": lambda: x + x,
    }  # fmt: skip
    print(f"\n{'64x64 float32, us a call':<28}{'tracefuse':>10}")
    for name, seconds in block_times(calls).items():
        print(f"{name:<28}{1e6 * seconds:>10.1f}", flush=True)


def small_shape(row: Row) -> tuple[int, ...]:
    """A size at which running costs nothing beside compiling."""
    return tuple(min(extent, 32) for extent in row.cpu)


def bench_first_calls(jax: Any) -> None:
    print(f"\n{'first call, ms':<28}{'segments':>10}{'tracefuse':>10}{'a segment':>10}{'jax.jit':>10}")
    # LLVM itself is loaded at the first kernel of a process: not counted here.
    fuse(lambda x: x + 1)(np.ones(3))
    each = []
    for row in ROWS:
        arguments = host_arrays(row, small_shape(row), np.float32)
        # Compiled here, not found on disk.
        fused = fuse(cache_limit=0)(row.closed(np))
        # Rows with equal kernels would else find them compiled.
        clear_cache()
        start = time.perf_counter()
        fused(*arguments)
        own = time.perf_counter() - start
        count = len(fused.explain(*arguments).templates)
        each.append(own / count)
        jax_text = f"{'-':>10}"
        if jax is not None:
            traced = jax.jit(row.closed(jax.numpy))
            start = time.perf_counter()
            jax.block_until_ready(traced(*arguments))
            jax_text = f"{1e3 * (time.perf_counter() - start):>10.0f}"
        print(f"{row.name:<28}{count:>10}{1e3 * own:>10.0f}{1e3 * own / count:>10.0f}{jax_text}", flush=True)
    print(f"{'median and longest':<28}{'':>20}{1e3 * statistics.median(each):>10.0f}{1e3 * max(each):>10.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-jax", action="store_true", help="leave jax.jit out")
    given = parser.parse_args()
    jax: Any = None
    if not given.no_jax:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax
    bench_first_calls(jax)
    print()
    bench_host_time(jax)
    bench_kinds_of_arguments()


if __name__ == "__main__":
    main()
