"""Compares tracefuse and jax.jit on the CPU: results, kernels, first and later calls, new batch sizes.

    python examples/compare_with_jax.py

Each function takes a namespace: numpy for tracefuse, jax.numpy for jax.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from tracefuse import fuse, wait_for_compilation


def softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def bias_gelu(xp: Any, x: Any) -> Any:
    z = x + xp.ones_like(x[0])
    return 0.5 * z * (1 + xp.tanh(0.7978845608028654 * (z + 0.044715 * z**3)))


def rotate_and_add(xp: Any, x: Any) -> Any:
    half = x.shape[-1] // 2
    return x + xp.concatenate([-x[..., half:], x[..., :half]], axis=-1)


def wait_for(function: Callable[..., Any]) -> Callable[..., Any]:
    """Waits for the result, since jax dispatches asynchronously."""
    return lambda *arguments: jax.block_until_ready(function(*arguments))


def measure(function: Callable[..., Any], *arguments: Any) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def count_jax_kernels(compiled: Any, *arguments: Any) -> int:
    """Counts the instructions in XLA's entry computation that do work."""
    text = compiled.lower(*arguments).compile().as_text()
    entry = text[text.index("ENTRY") :].splitlines()[1:]
    free = (" parameter(", " constant(", " tuple(", " get-tuple-element(", " bitcast(")
    return sum("=" in line and not any(word in line for word in free) for line in entry)


def compare(function: Callable[..., Any]) -> None:
    x = np.random.default_rng(0).standard_normal((1024, 512), dtype=np.float32)
    ours, theirs = fuse(lambda x: function(np, x)), jax.jit(lambda x: function(jnp, x))
    device_x = jnp.asarray(x)

    first_ours, first_theirs = measure(ours, x), measure(wait_for(theirs), device_x)
    wait_for_compilation()
    times = [[measure(ours, x), measure(wait_for(theirs), device_x)] for _ in range(60)]
    later_ours, later_theirs = map(statistics.median, zip(*times, strict=True))
    expected = function(np, x.astype(np.float64))
    errors = [np.abs(np.asarray(result) - expected).max() for result in (ours(x), theirs(device_x))]
    for result in (ours(x), theirs(device_x)):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)

    sizes = range(500, 504)
    for rows in sizes:
        np.testing.assert_allclose(ours(x[:rows]), np.asarray(theirs(device_x[:rows])), rtol=1e-4, atol=1e-5)

    print(f"{function.__name__}")
    print(f"  largest difference from float64: tracefuse {errors[0]:.1e}, jax.jit {errors[1]:.1e}")
    print(f"  kernels: tracefuse {len(ours.segments(x))}, jax.jit {count_jax_kernels(theirs, device_x)} (XLA's entry)")
    print(f"  first call: tracefuse {1e3 * first_ours:.0f} ms, jax.jit {1e3 * first_theirs:.0f} ms")
    print(f"  later calls: tracefuse {1e6 * later_ours:.0f} us, jax.jit {1e6 * later_theirs:.0f} us")
    compiles = ours.cache_info().compiles
    print(f"  compiled for {len(sizes) + 1} batch sizes: tracefuse {compiles}, jax.jit {theirs._cache_size()}")


for one in (softmax, bias_gelu, rotate_and_add):
    compare(one)
