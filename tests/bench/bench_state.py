"""What state costs the host at each call, on the CPU: reads, comparisons, and writes back.

    python tests/bench/bench_state.py

Each line is a function of one array of 8 elements, the least of several blocks of calls. The last column is the cost of
one of the eight places: the time of the function with eight of them less that of the function with none, over eight.
Arrays are beside eight arrays that are arguments, and arrays that are stored beside eight that are results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from tracefuse import fuse, wait_for_compilation

COUNT, BLOCK, BLOCKS = 8, 2000, 25

PROGRAMS = {
    "no state": ("return x + 1.0", "none"),
    "arrays as arguments": ("return x + " + " + ".join(f"a[{k}]" for k in range(COUNT)), "none"),
    "arrays of globals": ("return x + " + " + ".join(f"g{k}" for k in range(COUNT)), "arrays as arguments"),
    "arrays of an object": ("return x + " + " + ".join(f"o.w{k}" for k in range(COUNT)), "arrays as arguments"),
    "numbers of globals": ("return x + (" + " + ".join(f"n{k}" for k in range(COUNT)) + ")", "no state"),
    "numbers of an object": ("return x + (" + " + ".join(f"o.n{k}" for k in range(COUNT)) + ")", "no state"),
    "constants stored": ("; ".join(f"o.s{k} = {k}.5" for k in range(COUNT)) + "; return x + 1.0", "no state"),
    "counters": ("; ".join(f"o.c{k} += 1" for k in range(COUNT)) + "; return x + 1.0", "no state"),
    "results": ("return (" + ", ".join(f"x + {k}.5" for k in range(COUNT)) + ")", "none"),
    "arrays stored": ("; ".join(f"o.v{k} = x + {k}.5" for k in range(COUNT)), "results"),
}
"""The body of each function, and the line that it is compared with."""


def function_of(body: str) -> Callable[..., Any]:
    """A fused function with this body, with state of its own."""
    names: dict[str, Any] = {"o": SimpleNamespace()}
    for k in range(COUNT):
        names |= {f"g{k}": np.ones(8), f"n{k}": 1.5 + k}
        vars(names["o"]).update({f"w{k}": np.ones(8), f"n{k}": 1.5 + k, f"c{k}": 0, f"s{k}": 0.0, f"v{k}": None})
    lines = "\n".join(f"    {line}" for line in body.split("; "))
    exec(f"def function(x, *a):\n{lines}\n", names)
    return fuse(names["function"])


def least_time(call: Callable[[], object]) -> float:
    """The seconds of one call in the fastest block."""
    call()
    wait_for_compilation()
    times = []
    for _ in range(BLOCKS):
        start = time.process_time()  # what other processes take does not count
        for _ in range(BLOCK):
            call()
        times.append(time.process_time() - start)
    return min(times) / BLOCK


def main() -> None:
    x, arguments = np.ones(8), [np.ones(8) for _ in range(COUNT)]
    seconds: dict[str, float] = {"none": 0.0}
    print(f"{'us a call':<24}{'all':>8}{'a place':>10}")
    for name, (body, base) in PROGRAMS.items():
        fused = function_of(body)
        given = arguments if name == "arrays as arguments" else []
        for _ in range(4):
            fused(x, *given)
        seconds[name] = least_time(lambda fused=fused, given=given: fused(x, *given))  # type: ignore[misc]
        place = f"{1e6 * (seconds[name] - seconds[base]) / COUNT:>10.3f}" if base != "none" else f"{'-':>10}"
        print(f"{name:<24}{1e6 * seconds[name]:>8.2f}{place}", flush=True)


if __name__ == "__main__":
    main()
