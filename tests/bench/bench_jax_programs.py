"""Segments and times of the programs of tests/frontend/jax_program_table.py beside jax.jit.

python -m tests.bench.bench_jax_programs [name ...]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.frontend import jax_programs, jax_science_programs
from tests.frontend.jax_program_table import PROGRAMS, compare
from tracefuse import fuse, wait_for_compilation

SUBJECTS = (jax_programs, jax_science_programs)
"""The modules that put their programs into the table."""


def microseconds(call: Callable[[], Any], repeats: int = 30) -> float:
    """The time of the fastest of several calls."""
    jax.block_until_ready(call())
    wait_for_compilation()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return 1e6 * min(times)


def main(names: list[str]) -> None:
    print(f"{'program':34} {'segments':>8} {'first call':>11} {'fused':>10} {'jax.jit':>10} {'ratio':>6}")
    for name in names or list(PROGRAMS):
        function, arguments = PROGRAMS[name]
        given, fused, jitted = arguments(), fuse(function), jax.jit(function)
        start = time.perf_counter()
        result = fused(*given)
        first = time.perf_counter() - start
        compare(result, jitted(*given))
        ours, theirs = microseconds(lambda: fused(*given)), microseconds(lambda: jitted(*given))  # noqa: B023
        count = len(fused.segments(*given))
        print(f"{name:34} {count:8} {first:9.1f} s {ours:7.0f} us {theirs:7.0f} us {ours / theirs:6.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
