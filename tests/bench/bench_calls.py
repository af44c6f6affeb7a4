"""What a call costs the host, and how long compiling takes, on the CPU.

    python tests/bench/bench_calls.py [--no-jax] [--kinds]

The first table: the first call of each row of functions.py, in this process for the first time; it traces, splits,
compiles and runs at a small size. The second: a 64x64 float32 call, median over blocks of 100 calls, the peers taking
turns. The third, which `--kinds` gives alone: what kinds of calls cost, the least block of each, since other programs
may run beside it; `taskset -c 1` keeps it on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from functions import ROWS, Row, host_arrays, select

from tracefuse import FusionDefinition, fuse, wait_for_compilation
from tracefuse.kernel.llvm.cpu_functions import clear_cache

SMALL = ("bias_gelu", "softmax", "layernorm", "column_sum")
BLOCK, BLOCKS = 100, 60


def block_times(
    calls: dict[str, Callable[[], object]], of: Callable[[list[float]], float] = statistics.median
) -> dict[str, float]:
    """The median time of one call of each, or another statistic, in seconds; blocks of the peers take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    wait_for_compilation()
    for _ in range(BLOCKS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(BLOCK):
                call()
            times[name].append((time.perf_counter() - start) / BLOCK)
    return {name: of(taken) for name, taken in times.items()}


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


@dataclasses.dataclass
class Both:
    """Two arrays in one argument."""

    a: Any
    b: Any


def donated(function: Callable[..., Any], state: Any, y: Any) -> Callable[[], object]:
    """Calls that each donate the result of the one before."""
    held = [state]

    def call() -> None:
        held[0] = function(held[0], y)

    return call


def bench_kinds_of_calls(jax: Any) -> None:
    """What captured arrays, numbers, methods, trees and memory for results cost beside two arrays."""
    x, out = np.ones((64, 64), np.float32), np.empty((64, 64), np.float32)
    wide, weight, method = np.empty((64, 128), np.float32)[:, ::2], np.ones(64, np.float32), Scaled(np.ones(64, "f4"))
    add, both, pair = fuse(plus), fuse(lambda x, y: (x + y, x - y)), Both(x, x)
    scaled, captured = fuse(lambda x, s: x * s), fuse(lambda x: x * weight)
    branch = fuse(lambda x, s: x * s if s > 1 else x)
    mapping, items, fields = fuse(lambda t: t["a"] + t["b"]), fuse(lambda t: t[0] + t[1]), fuse(lambda t: t.a + t.b)
    changing, step = fuse(adds), fuse(plus, donate_argnums=0)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.from_array(x), fd.from_array(x)))
    rows: dict[str, tuple[Callable[[], object], Callable[[], object] | None]] = {
        "x + y": (lambda: add(x, x), lambda: x + x), "x * number": (lambda: scaled(x, 2.0), lambda: x * 2.0),
        "x * captured": (lambda: captured(x), lambda: x * weight), "method": (lambda: method(x), None),
        "number that is asked for": (lambda: branch(x, 2.0), lambda: x * 2.0),
        "keywords": (lambda: add(x=x, y=x), None), "dict of two arrays": (lambda: mapping({"a": x, "b": x}), None),
        "tuple of two arrays": (lambda: items((x, x)), None), "dataclass of two arrays": (lambda: fields(pair), None),
        "two results": (lambda: both(x, x), lambda: (x + x, x - x)),
        "out=": (lambda: add(x, x, out=out), lambda: np.add(x, x, out=out)),
        "out= is an argument": (lambda: add(out, x, out=out), lambda: np.add(out, x, out=out)),
        "out= every second column": (lambda: add(x, x, out=wide), lambda: np.add(x, x, out=wide)),
        "into": (lambda: add.into(out, x, x), None), "x += y": (lambda: changing(out, x), lambda: np.add(out, x, out)),
        "donated": (donated(step, x.copy(), x), None), "fd.execute": (lambda: fd.execute([x, x]), None),
        "fd.execute(outputs=)": (lambda: fd.execute([x, x], outputs=[out]), None),
    }  # fmt: skip
    peers = {} if jax is None else jax_calls(jax)
    print(f"\n{'64x64 float32, us, least':<28}{'tracefuse':>10}{'jax.jit':>10}{'NumPy':>10}")
    for name, (own, numpy) in rows.items():
        out.fill(0)
        times = [block_times({"": call}, min)[""] if call else None for call in (own, peers.get(name), numpy)]
        cells = (f"{'-':>10}" if seconds is None else f"{1e6 * seconds:>10.1f}" for seconds in times)
        print(f"{name:<28}{''.join(cells)}", flush=True)


def plus(x: Any, y: Any) -> Any:
    return x + y


def adds(x: Any, y: Any) -> None:
    x += y


def jax_calls(jax: Any) -> dict[str, Callable[[], object]]:
    """What jax.jit has of the same."""
    x, ready = jax.numpy.ones((64, 64), np.float32), jax.block_until_ready
    add, both = jax.jit(plus), jax.jit(lambda x, y: (x + y, x - y))
    scaled, mapping = jax.jit(lambda x, s: x * s), jax.jit(lambda t: t["a"] + t["b"])
    items, step = jax.jit(lambda t: t[0] + t[1]), jax.jit(plus, donate_argnums=0)
    return {
        "x + y": lambda: ready(add(x, x)), "x * number": lambda: ready(scaled(x, 2.0)),
        "keywords": lambda: ready(add(x=x, y=x)), "dict of two arrays": lambda: ready(mapping({"a": x, "b": x})),
        "tuple of two arrays": lambda: ready(items((x, x))), "two results": lambda: ready(both(x, x)),
        "donated": donated(lambda x, y: ready(step(x, y)), x.copy(), x),
    }  # fmt: skip


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
    parser.add_argument("--kinds", action="store_true", help="the third table alone")
    given = parser.parse_args()
    jax: Any = None
    if not given.no_jax:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax
    if not given.kinds:
        bench_first_calls(jax)
        print()
        bench_host_time(jax)
    bench_kinds_of_calls(jax)


if __name__ == "__main__":
    main()
