"""What a call on GPU arrays costs the host, for 1, 2, 10 and 12 segments, launched one by one and as a graph.

    python tests/bench/bench_host.py [--no-jax] [--no-torch]

Median over blocks of 200 calls, the peers taking turns; the GPU is waited for between blocks, so that no queue fills.
The peers run the same arithmetic as one fused kernel each (what they choose); tracefuse is cut by a merge predicate.
The 12 segments are those that nvFuser measures its host time with: 5x5 permute, matmul, add, add, three times over. The
last line is one bare launch through CuPy's driver interface.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import FusionDefinition, fuse, options, rules, wait_for_compilation
from tracefuse.compiler.executable import Executable
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.runtime.targets.cuda.cuda_target import cuda_target

BLOCK, BLOCKS = 200, 30


def chain(count: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        for step in range(count):
            x = fd.ops.add(x, float(step + 1))
        fd.add_output(x)
    return fd


def products() -> FusionDefinition:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], True) for _ in range(2))
        for _ in range(3):
            x = fd.ops.add(fd.ops.add(fd.ops.matmul(fd.ops.permute(x, [1, 0]), y), y), 1.0)
        fd.add_output(x)
    return fd


def block_times(calls: dict[str, Callable[[], object]], wait: Callable[[], object]) -> dict[str, float]:
    for call in calls.values():
        for _ in range(5):
            call()
    wait_for_compilation()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(BLOCKS):
        for name, call in calls.items():
            wait()
            start = time.perf_counter()
            for _ in range(BLOCK):
                call()
            times[name].append((time.perf_counter() - start) / BLOCK)
    return {name: statistics.median(taken) for name, taken in times.items()}


def peers(count: int, x: Any, jax: Any, torch: Any) -> dict[str, Callable[[], object]]:
    calls: dict[str, Callable[[], object]] = {}
    if jax is not None:
        compiled = jax.jit(lambda x: sum_of_steps(x, count))
        there = jax.numpy.asarray(x.get())
        calls["jax.jit"] = lambda: compiled(there)
    if torch is not None:
        inductor = torch.compile(lambda x: sum_of_steps(x, count))
        on_gpu = torch.from_numpy(x.get()).cuda()
        calls["torch.compile"] = lambda: inductor(on_gpu)
    return calls


def sum_of_steps(x: Any, count: int) -> Any:
    for step in range(count):
        x = x + float(step + 1)
    return x


def bare_launch(cupy: Any) -> Callable[[], object]:
    from cupy_backends.cuda.api import driver

    code = r'extern "C" __global__ void one(float* x) { x[threadIdx.x] += 1; }'
    function = cupy.RawModule(code=code).get_function("one").kernel.ptr
    x = cupy.zeros(32, np.float32)
    values = (ctypes.c_uint64 * 1)(x.data.ptr)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(values))
    address = ctypes.addressof(pointers)
    kept = (x, values, pointers)

    def launch() -> object:
        driver.launchKernel(function, 1, 1, 1, 32, 1, 1, 0, 0, address, 0)
        return kept

    return launch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-jax", action="store_true")
    parser.add_argument("--no-torch", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import cupy

    jax: Any = None
    torch: Any = None
    if not given.no_jax:
        import jax
    if not given.no_torch:
        import torch
    wait = cupy.cuda.Device().synchronize
    columns = ("tracefuse", "graph", "jax.jit", "torch.compile")
    print(f"{'host time, us a call':<28}{''.join(f'{name:>15}' for name in columns)}")
    x = cupy.random.rand(64, 64).astype(np.float32)
    small = cupy.random.rand(5, 5).astype(np.float32)
    fused = fuse(lambda x: x + 1)
    calls = {"tracefuse": lambda: fused(x), **peers(1, x, jax, torch)}
    block_times(calls, wait)  # the processor's clock goes up while a process begins
    show("x + 1 by @fuse, 64x64", block_times(calls, wait), columns)
    for count in (1, 2, 10):
        plain, graphed = (cut(chain(count), graph) for graph in (False, True))
        calls = {"tracefuse": lambda f=plain: f(x), "graph": lambda f=graphed: f(x), **peers(count, x, jax, torch)}
        show(f"{count} segments, 64x64", block_times(calls, wait), columns)
    plain, graphed = (cut(products(), graph) for graph in (False, True))
    calls = {"tracefuse": lambda: plain(small, small), "graph": lambda: graphed(small, small)}
    show("12 segments, 5x5", block_times(calls, wait), columns)
    show("a bare launch", block_times({"tracefuse": bare_launch(cupy)}, wait), columns)


def cut(fd: FusionDefinition, graph: bool) -> Callable[..., Any]:
    """The definition's segments, called as a fused function calls them once it has found its trace."""
    with options(graph=graph):
        executable = Executable(segment_fusion(fd.fusion, merge=rules.one_op_a_segment), cuda_target(0))
    return lambda *arguments: executable(arguments)


def show(name: str, times: dict[str, float], columns: tuple[str, ...]) -> None:
    cells = [f"{1e6 * times[c]:>15.1f}" if c in times else f"{'-':>15}" for c in columns]
    print(f"{name:<28}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
