"""Time from the first call of a fused function to its result, over programs of growing length, with slopes.

    python tests/bench/bench_compile.py [--programs chain,rolls] [--lengths 100,1000,10000]

Times are processor seconds of the process, all threads together, with an empty cache on disk, so that other work on the
machine counts little. A slope is the exponent of the growth from one length to the next.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tracefuse
from tracefuse import fuse

Program = Callable[[Any], Any]


def chain(length: int) -> Program:
    def program(x: Any) -> Any:
        for step in range(length // 2):
            x = x * 0.999 + 0.001 * (step % 7)
        return x

    return program


def diamonds(length: int) -> Program:
    def program(x: Any) -> Any:
        for _ in range(length // 3):
            half, more = x * 0.5, x + 1.0
            x = half - more
        return x

    return program


def rolls(length: int) -> Program:
    def program(x: Any) -> Any:
        for step in range(length // 2):
            x = x * 0.5 + np.roll(x, 1 + step % 7, 1)
        return x

    return program


def reshapes(length: int) -> Program:
    def program(x: Any) -> Any:
        rows, columns = x.shape
        for step in range(length // 2):
            x = (x + 1.0).reshape((columns, rows) if step % 2 == 0 else (rows, columns))
        return x

    return program


def fan_in(length: int) -> Program:
    """Sums of 500 values each."""

    def program(x: Any) -> Any:
        for _ in range(max(1, length // 1000)):
            x = sum(x * (k / 500.0) for k in range(500))
        return x

    return program


def stencils(length: int) -> Program:
    def program(x: Any) -> Any:
        for _ in range(length // 12):
            x = x.copy()
            near = x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2]
            x[1:-1, 1:-1] = x[1:-1, 1:-1] + 0.1 * (near - 4 * x[1:-1, 1:-1])
        return x

    return program


def mixture(length: int) -> Program:
    def program(x: Any) -> Any:
        for _ in range(length // 8):
            y = np.roll(x, 1, 0) + x
            y = y - y.mean(axis=1, keepdims=True)
            z = np.concatenate([y[1:], y[:1]], 0)
            x = np.where(z > 0, z, y) * 0.5
        return x

    return program


def slice_updates(length: int) -> Program:
    def program(x: Any) -> Any:
        x = x.copy()
        for k in range(length // 3):
            x[k % 7 : k % 7 + 9] += x[(k + 1) % 7 : (k + 1) % 7 + 9] * 0.5
        return x

    return program


def row_updates(length: int) -> Program:
    def program(x: Any) -> Any:
        x = x.copy()
        for k in range(length // 3):
            x[k % 16] = x[(k + 1) % 16] * 0.5 + k
        return x

    return program


def row_increments(length: int) -> Program:
    """Every row once: x[k] += x[k + 1] * 0.5, in an array that has as many rows."""

    def program(x: Any) -> Any:
        x = np.concatenate([x[:1]] * (length // 3 + 1))
        for k in range(length // 3):
            x[k] += x[k + 1] * 0.5
        return x

    return program


def casts(length: int) -> Program:
    def program(x: Any) -> Any:
        for k in range(length // 2):
            x = (x * (1 + k % 5)).astype((np.float64, np.int32, np.float32)[k % 3])
        return x

    return program


def many_outputs(length: int) -> Program:
    def program(x: Any) -> Any:
        results = []
        for k in range(length // 2):
            x = x * 0.99 + k
            results.append(x)
        return results

    return program


def gradients(length: int) -> Program:
    def program(x: Any) -> Any:
        return tracefuse.grad(lambda x: np.sin(chain(length // 2)(x)).sum())(x)

    return program


def alternating_sums(length: int) -> Program:
    def program(x: Any) -> Any:
        for k in range(length // 3):
            x = x - x.sum(axis=k % 2, keepdims=True) * 0.01
        return x

    return program


def largest_positions(length: int) -> Program:
    def program(x: Any) -> Any:
        for _ in range(length // 3):
            x = x + x.argmax(axis=1)[:, None] * 0.01
        return x

    return program


def concatenations(length: int) -> Program:
    def program(x: Any) -> Any:
        for _ in range(length // 2):
            x = np.concatenate([x[1:], x[:1] * 0.5])
        return x

    return program


def selections(length: int) -> Program:
    def program(x: Any) -> Any:
        for k in range(length // 3):
            x = np.where(x > 0.01 * k, x * 0.5, x + 1)
        return x

    return program


def small_arrays(length: int) -> Program:
    def program(x: Any) -> Any:
        rows = [x[k % 16] * k for k in range(length // 2)]
        return [row + 1 for row in rows]

    return program


def stacked(length: int) -> Program:
    def program(x: Any) -> Any:
        return np.stack([x * k for k in range(length)]).sum(axis=0)

    return program


def matrix_products(length: int) -> Program:
    def program(x: Any) -> Any:
        w = x[:, :16]
        for _ in range(length // 2):
            w = w @ w * 0.05
        return w

    return program


def nested_calls(length: int) -> Program:
    def inner(x: Any, depth: int) -> Any:
        return x if depth == 0 else inner(x * 0.99 + 0.01, depth - 1)

    def program(x: Any) -> Any:
        for _ in range(max(1, length // 100)):
            x = inner(x, 50)
        return x

    return program


PROGRAMS = {
    one.__name__: one
    for one in (
        *(chain, diamonds, rolls, reshapes, fan_in, stencils, mixture, slice_updates, row_updates, alternating_sums),
        *(largest_positions, concatenations, selections, small_arrays, stacked, matrix_products, nested_calls),
        *(row_increments, casts, many_outputs, gradients),
    )
}


def first_call(program: Program) -> float:
    """Processor seconds of the first call, with nothing cached."""
    x = np.random.default_rng(0).random((16, 24), dtype=np.float32)
    tracefuse.clear_caches()
    with tempfile.TemporaryDirectory() as folder, tracefuse.options(cache_dir=folder):
        start = time.process_time()
        fuse(program, loops="unroll")(x)
        return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--lengths", default="100,1000,10000")
    options = parser.parse_args()
    first_call(chain(4))  # loads the compiler
    print(f"{'program':18} {'ops':>7} {'seconds':>9} {'ms/op':>7} {'slope':>6}")
    for name in options.programs.split(","):
        earlier: tuple[int, float] | None = None
        for length in map(int, options.lengths.split(",")):
            seconds = first_call(PROGRAMS[name](length))
            slope = ""
            if earlier is not None:
                slope = f"{math.log(seconds / earlier[1]) / math.log(length / earlier[0]):.2f}"
            print(f"{name:18} {length:7} {seconds:9.2f} {seconds / length * 1e3:7.2f} {slope:>6}", flush=True)
            earlier = length, seconds


if __name__ == "__main__":
    main()
