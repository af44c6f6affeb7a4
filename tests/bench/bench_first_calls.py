"""First calls of ordinary functions: processor time of tracefuse and of jax.jit, and their ratio.

    python -m tests.bench.bench_first_calls [--programs softmax,mandelbrot] [--repeat 3] [--unroll]

Each function is traced, compiled and run once on small float64 arrays, in one process after both compilers have loaded,
with an empty cache on disk. Times are processor seconds of all threads, the least of `--repeat` runs that alternate, so
that other work on the machine counts little. NumPy's loops over Python ranges are recorded once where that is exact;
`--unroll` unrolls them, as jax.jit does.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import tracefuse
from tests.bench.first_call_programs import GRADIENTS, PROGRAMS, ROWS, affine
from tracefuse import fuse


@contextmanager
def nothing_cached() -> Iterator[None]:
    """Empties the caches of the process and has an empty one on disk."""
    tracefuse.clear_caches()
    with tempfile.TemporaryDirectory() as folder, tracefuse.options(cache_dir=folder):
        yield


def first_call(function: Callable[..., Any], arrays: tuple[Any, ...], is_gradient: bool, loops: str) -> float:
    """Processor seconds of the first call of the fused function."""

    def called(*arguments: Any) -> Any:
        return function(np, *arguments)

    with nothing_cached():
        fused = fuse(tracefuse.grad(called) if is_gradient else called, loops=loops)
        start = time.process_time()
        fused(*arrays)
        return time.process_time() - start


def first_call_of_jax(function: Callable[..., Any], arrays: tuple[Any, ...], is_gradient: bool) -> float:
    """Processor seconds of the first call of the function under jax.jit."""
    import jax

    def called(*arguments: Any) -> Any:
        return function(jax.numpy, *arguments)

    placed = [jax.numpy.asarray(array) for array in arrays]
    jitted = jax.jit(jax.grad(called) if is_gradient else called)
    start = time.process_time()
    jax.block_until_ready(jitted(*placed))
    return time.process_time() - start


def main() -> None:
    import jax

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(name.replace(",", ";") for name in PROGRAMS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--unroll", action="store_true")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    loops = "unroll" if options.unroll else "auto"
    for _ in range(2):  # loads the compilers
        first_call(affine, (ROWS, ROWS), False, loops)
        first_call_of_jax(affine, (ROWS, ROWS), False)
    print("| function | tracefuse, ms | jax.jit, ms | ratio |\n|---|---|---|---|")
    ratios = []
    for name in options.programs.replace(";", "\0").split(","):
        name = name.replace("\0", ",")
        function, arrays = PROGRAMS[name]
        ours, theirs = [], []
        for _ in range(options.repeat):
            ours.append(first_call(function, arrays, name in GRADIENTS, loops))
            theirs.append(first_call_of_jax(function, arrays, name in GRADIENTS))
        ratios.append(min(ours) / min(theirs))
        print(f"| {name} | {min(ours) * 1e3:.0f} | {min(theirs) * 1e3:.0f} | {ratios[-1]:.2f} |", flush=True)
    mean, late = np.exp(np.mean(np.log(ratios))), np.percentile(ratios, 95)
    print(f"geometric mean {mean:.2f}, 95th percentile {late:.2f}, greatest {max(ratios):.2f}")


if __name__ == "__main__":
    main()
