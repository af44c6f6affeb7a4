"""Matrix products of tracefuse, torch and jax on one GPU: device time by replay of graphs or in a row of calls.

python -m tests.bench.bench_products

Prints for each product the time in us, the peers' ratios to it, and the rate in TFLOP/s. Arrays are drawn from a normal
distribution, since products of zeros run faster. float32 runs in full precision on all sides.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import cupy
import jax
import jax.numpy as jnp
import numpy as np
import torch

from tracefuse import fuse

CASES: tuple[tuple[str, str, Callable[[Any, Any], Any], tuple[int, ...], tuple[int, ...]], ...] = (
    ("batched 8x16 of 2048x64 by 64x2048", "float16", lambda a, b: a @ b, (8, 16, 2048, 64), (8, 16, 64, 2048)),
    ("scores q @ k^T", "float16", lambda a, b: a @ b.swapaxes(-1, -2), (8, 16, 2048, 64), (8, 16, 2048, 64)),
    ("scores q @ k^T", "bfloat16", lambda a, b: a @ b.swapaxes(-1, -2), (8, 16, 2048, 64), (8, 16, 2048, 64)),
    ("scores q @ k^T", "float32", lambda a, b: a @ b.swapaxes(-1, -2), (8, 16, 1024, 64), (8, 16, 1024, 64)),
    ("heads inside q @ k^T", "float16", lambda a, b: a.transpose(0, 2, 1, 3) @ b.transpose(0, 2, 3, 1),
     (8, 2048, 16, 64), (8, 2048, 16, 64)),
    ("batch by weight", "bfloat16", lambda a, b: a @ b, (64, 512, 1024), (1024, 1024)),
    ("batch of small", "float32", lambda a, b: a @ b, (4096, 32, 32), (4096, 32, 32)),
    ("two matrices", "bfloat16", lambda a, b: a @ b, (8192, 4096), (4096, 8192)),
    ("x @ w^T", "float16", lambda a, b: a @ b.T, (8192, 4096), (8192, 4096)),
)  # fmt: skip


def device_time(run: Callable[[], Any], calls: int = 20, repeats: int = 7) -> float:
    """The median time of a call in us: `calls` in a row between two events."""
    times = []
    for _ in range(repeats + 1):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(calls):
            run()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1000 / calls)
    return statistics.median(times[1:])


def wall_time_of_jax(run: Callable[[], Any], calls: int = 20, repeats: int = 7) -> float:
    """The median time of a call in us, by the host's clock: jax runs on streams of its own."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        results = [run() for _ in range(calls)]
        jax.block_until_ready(results)
        times.append((time.perf_counter() - start) * 1e6 / calls)
        del results
    return statistics.median(times[1:])


def main() -> None:
    jax.config.update("jax_default_matmul_precision", "highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    stream = torch.cuda.Stream()
    torch.cuda.set_stream(stream)
    cupy.cuda.ExternalStream(stream.cuda_stream).use()
    print(f"{'product':36} {'dtype':9} {'us':>8} {'torch':>6} {'jax':>6} {'TFLOP/s':>8} {'error':>8}")
    for case in CASES:
        print(measured(*case))


def measured(
    name: str, dtype: str, function: Callable[[Any, Any], Any], first: tuple[int, ...], second: tuple[int, ...]
) -> str:
    """A line of the table."""
    torch.manual_seed(0)
    a, b = (torch.randn(shape, device="cuda", dtype=getattr(torch, dtype)) for shape in (first, second))
    x, y = (cupy.from_dlpack(t) if dtype != "bfloat16" else t for t in (a, b))
    fused = fuse(function)
    product = torch.from_dlpack(fused(x, y))
    wide = function_of_torch(function, name)
    expected = wide(a[:1].double(), (b if b.ndim < a.ndim else b[:1]).double()) if a.ndim > 2 else wide(a, b).double()
    error = float((product[: len(expected)].double() - expected).norm() / expected.norm())
    own_time = device_time(lambda: fused(x, y))
    torch_time = device_time(lambda: wide(a, b))
    kind = jnp.bfloat16 if dtype == "bfloat16" else dtype
    operands = [jnp.asarray(np.asarray(t.float().cpu().numpy()), dtype=kind) for t in (a, b)]
    jitted = jax.jit(function)
    jax.block_until_ready(jitted(*operands))
    jax_time = wall_time_of_jax(lambda: jitted(*operands))
    rate = 2 * product.numel() * first[-1] / own_time / 1e6
    ratios = f"{torch_time / own_time:6.2f} {jax_time / own_time:6.2f}"
    return f"{name:36} {dtype:9} {own_time:8.1f} {ratios} {rate:8.1f} {error:8.1e}"


def function_of_torch(function: Callable[[Any, Any], Any], name: str) -> Callable[[Any, Any], Any]:
    """The product in torch, whose `transpose` swaps two axes instead of permuting all."""
    if name.startswith("heads"):
        return lambda a, b: a.permute(0, 2, 1, 3) @ b.permute(0, 2, 3, 1)
    return function


if __name__ == "__main__":
    main()
