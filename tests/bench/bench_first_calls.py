"""First calls of ordinary functions: processor time of tracefuse and of jax.jit, and their ratio.

    python tests/bench/bench_first_calls.py [--programs softmax,mandelbrot] [--repeat 3] [--unroll]

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
from tracefuse import fuse

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.random((400, 30))
SHORT = RANDOM.random((400, 8))
BATCH = RANDOM.random((100, 8, 8))
PLANE = RANDOM.random((60, 60)) + 1j * RANDOM.random((60, 60))
LAYERS = [RANDOM.random(shape) for shape in ((256, 64), (64, 128), (128,), (128, 10), (10,))]


def affine(xp: Any, x: Any, y: Any) -> Any:
    return 2 * x + y


def gelu(xp: Any, x: Any) -> Any:
    return 0.5 * x * (1 + xp.tanh(0.79788456 * (x + 0.044715 * x**3)))


def tangent(xp: Any, x: Any) -> Any:
    return xp.tan(x)


def power(xp: Any, x: Any, y: Any) -> Any:
    return x**y


def softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def layer_norm(xp: Any, x: Any, scale: Any, shift: Any) -> Any:
    mean = xp.mean(x, axis=-1, keepdims=True)
    variance = xp.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / xp.sqrt(variance + 1e-5) * scale + shift


def running_sum(xp: Any, x: Any) -> Any:
    return xp.cumsum(x, axis=1)


def largest(xp: Any, x: Any) -> Any:
    return xp.argmax(x, axis=1)


def products(xp: Any, a: Any, b: Any) -> Any:
    return xp.einsum("nij,njk->nik", a, b)


def both_axes(xp: Any, x: Any) -> Any:
    x = x / xp.sum(x, axis=1, keepdims=True)
    return x / xp.sum(x, axis=0)


def rosenbrock(xp: Any, x: Any) -> Any:
    return xp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def mandelbrot(xp: Any, c: Any) -> Any:
    z, count = c * 0, xp.zeros(c.shape)
    for _ in range(50):
        z = z * z + c
        count = count + (xp.abs(z) < 2)
    return count


def runge_kutta(xp: Any, y: Any) -> Any:
    def slope(y: Any) -> Any:
        return -y * y + xp.sin(y)

    for _ in range(50):
        k1 = slope(y)
        k2 = slope(y + 0.05 * k1)
        k3 = slope(y + 0.05 * k2)
        k4 = slope(y + 0.1 * k3)
        y = y + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


def stencil(xp: Any, u: Any) -> Any:
    for _ in range(5):
        u = u + 0.1 * (xp.roll(u, 1, 0) + xp.roll(u, -1, 0) + xp.roll(u, 1, 1) + xp.roll(u, -1, 1) - 4 * u)
    return u


def chain(xp: Any, x: Any) -> Any:
    for k in range(1000):
        x = x * 0.999 + 0.001 * (k % 7)
    return x


def loss(xp: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return xp.mean((xp.tanh(x @ w1 + b1) @ w2 + b2) ** 2)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "affine": (affine, (ROWS, ROWS)),
    "gelu": (gelu, (ROWS,)),
    "tangent": (tangent, (ROWS,)),
    "power": (power, (ROWS, ROWS)),
    "softmax": (softmax, (ROWS,)),
    "softmax of 8 columns": (softmax, (SHORT,)),
    "layer norm": (layer_norm, (ROWS, ROWS[0], ROWS[1])),
    "running sum": (running_sum, (ROWS,)),
    "argmax": (largest, (ROWS,)),
    "products of 8x8": (products, (BATCH, BATCH)),
    "both axes": (both_axes, (ROWS,)),
    "rosenbrock": (rosenbrock, (ROWS[0],)),
    "mandelbrot, 50 iterations": (mandelbrot, (PLANE,)),
    "runge-kutta, 50 steps": (runge_kutta, (ROWS,)),
    "stencil, 5 steps": (stencil, (ROWS,)),
    "chain of 2000": (chain, (ROWS,)),
    "gradient of a network": (loss, tuple(LAYERS)),
}


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
            ours.append(first_call(function, arrays, function is loss, loops))
            theirs.append(first_call_of_jax(function, arrays, function is loss))
        ratios.append(min(ours) / min(theirs))
        print(f"| {name} | {min(ours) * 1e3:.0f} | {min(theirs) * 1e3:.0f} | {ratios[-1]:.2f} |", flush=True)
    print(f"geometric mean {np.exp(np.mean(np.log(ratios))):.2f}, greatest {max(ratios):.2f}")


if __name__ == "__main__":
    main()
