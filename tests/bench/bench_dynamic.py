"""How often 1,000 different leading extents compile, beside jax.jit, and how long a deep model takes to record.

    python tests/bench/bench_dynamic.py [--no-jax] [--extents 1000] [--jax-extents 50]

The first table: each function called with that many leading extents, on the CPU; how many times it was recorded, how
many plans and how many kernels were compiled, and the seconds of all calls. jax.jit compiles for every extent and is
stopped after a few. The second: recording and splitting 60 transformer layers, which compiles nothing.
The modes of RoPE are in bench_modes.py.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from functions import bias_gelu, layernorm, rope_residual, softmax

from tracefuse import ShapeDtype, fuse
from tracefuse.kernel.llvm.cpu_functions import clear_cache, statistics

WIDTH, LAYERS = 64, 60
WEIGHTS = ((WIDTH,), (WIDTH,), (WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH,), (4 * WIDTH, WIDTH))
"""Of one layer: scale and shift of the normalisations, then the matrices, with the bias of the wide one."""


def transformer_block(xp: Any, x: Any, *weights: Any) -> Any:
    """A layer on (position, channel): attention with one head, then two linear layers with a GELU between them."""
    scale, shift, mixed, joined, wide, bias, narrow = weights
    queries, keys, values = (
        xp.matmul(layernorm(xp, x, scale, shift), mixed[:, k * WIDTH : (k + 1) * WIDTH]) for k in range(3)
    )
    scores = softmax(xp, xp.matmul(queries, xp.permute_dims(keys, (1, 0))) * WIDTH**-0.5)
    x = x + xp.matmul(xp.matmul(scores, values), joined)
    hidden = bias_gelu(xp, xp.matmul(layernorm(xp, x, scale, shift), wide), bias)
    return x + xp.matmul(hidden, narrow)


def deep(xp: Any, x: Any, *weights: Any) -> Any:
    """LAYERS blocks with weights of their own."""
    count = len(WEIGHTS)
    for layer in range(LAYERS):
        x = transformer_block(xp, x, *weights[layer * count : (layer + 1) * count])
    return x


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[tuple[int, ...], ...]]]] = {
    "softmax": (softmax, lambda n: ((n, WIDTH),)),
    "layernorm": (layernorm, lambda n: ((n, WIDTH), (WIDTH,), (WIDTH,))),
    "rope and residual": (rope_residual, lambda n: ((n, 4, WIDTH), (4, WIDTH), (4, WIDTH))),
    "transformer block": (transformer_block, lambda n: ((n, WIDTH), *WEIGHTS)),
}


def arrays(shapes: tuple[tuple[int, ...], ...]) -> list[Any]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape, dtype=np.float32) * np.float32(0.1) for shape in shapes]


def over(xp: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of the arrays alone, over one namespace."""
    return lambda *arguments: function(xp, *arguments)


def kernels() -> int:
    counts = statistics()
    return counts.compiled + counts.from_disk


def bench_extents(count: int, jax_count: int, jax: Any) -> None:
    titles = ("segments", "traces", "plans", "kernels", "calls", "seconds", "jax compiles", "calls", "seconds")
    print(f"{f'{count} leading extents':<22}{''.join(f'{title:>13}' for title in titles)}")
    for name, (function, shapes) in FUNCTIONS.items():
        every = [arrays(shapes(n)) for n in range(2, count + 2)]
        fused = fuse(cache_limit=0)(over(np, function))
        clear_cache()
        before, start = kernels(), time.perf_counter()
        for arguments in every:
            fused(*arguments)
        taken, info = time.perf_counter() - start, fused.cache_info()
        split = len(fused.explain(*every[-1]).templates)
        cells = [split, info.traces, info.compiles, kernels() - before, count, f"{taken:.2f}"]
        if jax is not None:
            few = [[jax.numpy.asarray(a) for a in arguments] for arguments in every[:jax_count]]
            traced = jax.jit(over(jax.numpy, function))
            start = time.perf_counter()
            for arguments in few:
                jax.block_until_ready(traced(*arguments))
            cells += [traced._cache_size(), len(few), f"{time.perf_counter() - start:.2f}"]
        print(f"{name:<22}{''.join(f'{cell:>13}' for cell in cells)}", flush=True)


def bench_deep() -> None:
    """Described arrays: nothing is compiled or runs but the recording and the splitting."""
    described = [ShapeDtype(shape, "float32") for shape in ((128, WIDTH), *WEIGHTS * LAYERS)]
    times = []
    for _ in range(3):
        fused = fuse(over(np, deep))
        start = time.perf_counter()
        definition = fused.definition(*described)
        times.append(time.perf_counter() - start)
    nodes, split = len(definition.fusion.nodes), len(definition.segment())
    print(f"\n{LAYERS} layers, {nodes} nodes, {split} segments: recorded and split in {min(times):.2f} s (best of 3)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-jax", action="store_true", help="leave jax.jit out")
    parser.add_argument("--extents", type=int, default=1000, help="how many leading extents")
    parser.add_argument("--jax-extents", type=int, default=50, help="how many of them jax.jit is called with")
    given = parser.parse_args()
    jax: Any = None
    if not given.no_jax:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax
    bench_extents(given.extents, given.jax_extents, jax)
    bench_deep()


if __name__ == "__main__":
    main()
