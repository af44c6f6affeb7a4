"""First calls of ordinary functions: processor and wall time of tracefuse and of jax.jit, and their ratios.

    python -m tests.bench.bench_first_calls [--programs softmax,mandelbrot] [--repeat 3] [--unroll] [--at-once]

Each function is traced, compiled and run once on small float64 arrays, in one process after both compilers have loaded,
with an empty cache on disk. NumPy's loops over Python ranges are recorded once where that is exact; `--unroll` unrolls
them, as jax.jit does. `--at-once` is `background_compilation=False`.

Times are the least of `--repeat` runs that alternate, so that other work on the machine counts little:

- first: processor seconds of all threads until the result is there. Compilation in the background is held until then.
- in all: the same until the optimized code is in use; equal to the first unless kernels are compiled in the background.
- wall: until the result is there, in a run of its own in which compilation in the background competes with it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import tracefuse
from tests.bench.first_call_programs import GRADIENTS, PROGRAMS, ROWS, affine
from tracefuse import fuse
from tracefuse.kernel.llvm import background_compilation


@contextmanager
def nothing_cached() -> Iterator[None]:
    """Empties the caches of the process and has an empty one on disk."""
    tracefuse.clear_caches()
    with tempfile.TemporaryDirectory() as folder, tracefuse.options(cache_dir=folder):
        yield


class FirstCall(NamedTuple):
    """Seconds of a first call; see above."""

    first: float
    in_all: float
    wall: float


def first_call(function: Callable[..., Any], arrays: tuple[Any, ...], is_gradient: bool, **options: Any) -> FirstCall:
    """The seconds of the first call of the fused function."""

    def called(*arguments: Any) -> Any:
        return function(np, *arguments)

    def fused() -> Callable[..., Any]:
        return fuse(tracefuse.grad(called) if is_gradient else called, **options)

    with nothing_cached():
        f = fused()
        start = time.process_time()
        with background_compilation.held():
            f(*arrays)
            first = time.process_time() - start
        tracefuse.wait_for_compilation()
        in_all = time.process_time() - start
    with nothing_cached():
        f = fused()
        start = time.perf_counter()
        f(*arrays)
        wall = time.perf_counter() - start
        tracefuse.wait_for_compilation()
    return FirstCall(first, in_all, wall)


def first_call_of_jax(function: Callable[..., Any], arrays: tuple[Any, ...], is_gradient: bool) -> FirstCall:
    """The seconds of the first call of the function under jax.jit, of which one run gives all."""
    import jax

    def called(*arguments: Any) -> Any:
        return function(jax.numpy, *arguments)

    placed = [jax.numpy.asarray(array) for array in arrays]
    jitted = jax.jit(jax.grad(called) if is_gradient else called)
    begun, start = time.perf_counter(), time.process_time()
    jax.block_until_ready(jitted(*placed))
    seconds = time.process_time() - start
    return FirstCall(seconds, seconds, time.perf_counter() - begun)


def least(calls: Sequence[FirstCall]) -> FirstCall:
    return FirstCall(*map(min, zip(*calls, strict=True)))


def summary(name: str, ratios: Sequence[float]) -> str:
    mean, late = np.exp(np.mean(np.log(ratios))), np.percentile(ratios, 95)
    return f"{name}: geometric mean {mean:.2f}, 95th percentile {late:.2f}, greatest {max(ratios):.2f}"


def main() -> None:
    import jax

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(name.replace(",", ";") for name in PROGRAMS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--unroll", action="store_true")
    parser.add_argument("--at-once", action="store_true")
    chosen = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    options = {"loops": "unroll" if chosen.unroll else "auto", "background_compilation": not chosen.at_once}
    for _ in range(2):  # loads the compilers
        first_call(affine, (ROWS, ROWS), False, **options)
        first_call_of_jax(affine, (ROWS, ROWS), False)
    print("| function | first, ms | in all | wall | jax.jit | wall | first, ratio | in all | wall |")
    print(f"|---{'|---' * 8}|")
    ratios: list[FirstCall] = []
    for name in chosen.programs.replace(";", "\0").split(","):
        name = name.replace("\0", ",")
        function, arrays = PROGRAMS[name]
        runs = [
            (
                first_call(function, arrays, name in GRADIENTS, **options),
                first_call_of_jax(function, arrays, name in GRADIENTS),
            )
            for _ in range(chosen.repeat)
        ]
        ours, theirs = map(least, zip(*runs, strict=True))
        ratios.append(FirstCall(*(a / b for a, b in zip(ours, theirs, strict=True))))
        times = [f"{1e3 * seconds:.0f}" for seconds in (*ours, theirs.first, theirs.wall)]
        print(f"| {' | '.join([name, *times, *(f'{ratio:.2f}' for ratio in ratios[-1])])} |", flush=True)
    for name, values in zip(("first", "in all", "wall"), zip(*ratios, strict=True), strict=True):
        print(summary(name, values))


if __name__ == "__main__":
    main()
