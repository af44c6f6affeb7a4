"""What an iteration of a loop over slices costs the host, and a call without iterations beside it.

    python tests/bench/bench_streams.py [--gpu]

Slices of 64 float32, so that nothing but the host is measured. An iteration: the slope between calls with few and with
many of them; the queue of a GPU is drained before each call. Median over calls.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import DataType, FusionDefinition, ParallelType, fuse, rules, stream_parallel, wait_for_compilation

FEW, MANY, CALLS = 8, 520, 100


def kernel(x: Any) -> Any:
    return stream_parallel(np.exp(x) * 2, 0)


def two_kernels(x: Any) -> Any:
    first = stream_parallel(np.exp(x) * 2, 0)
    return stream_parallel(first - first.sum(-1, keepdims=True), 0)


def columns(x: Any) -> Any:
    return stream_parallel(np.exp(x.T) * 2, 1)


def in_chunks(x: Any) -> Any:
    return stream_parallel(np.exp(x) * 2, 0, x.shape[0] // 2)


def product(x: Any) -> Any:
    return stream_parallel(x @ x.T, 0)


def copies(count: int) -> Callable[[Any], Any]:
    with FusionDefinition() as fd:
        tensor = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        for _ in range(count):
            tensor = fd.ops.set(tensor)
            tensor.axis(0).parallelize(ParallelType.stream)
        fd.add_output(tensor)
    fd.segment(merge=rules.one_op_a_segment)
    return lambda x: fd.execute([x])


def median(call: Callable[[Any], Any], x: Any, wait: Callable[[], object]) -> float:
    times = []
    for number in range(CALLS + 5):
        if number == 5:
            wait_for_compilation()
        wait()
        start = time.perf_counter()
        call(x)
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times[5:])


def main() -> None:
    array: Callable[[Any], Any] = np.ascontiguousarray
    wait: Callable[[], object] = int
    if "--gpu" in sys.argv:
        import cupy

        array, wait = cupy.asarray, cupy.cuda.Device().synchronize
    print(f"{'host, us':<20}{'iteration':>12}{'call with ' + str(FEW):>14}")
    rows: dict[str, Callable[[Any], Any]] = {
        "a copy": copies(1), "two copies": copies(2), "a kernel": fuse(kernel), "two kernels": fuse(
            two_kernels, merge=rules.reduction_ends_segment
        ), "a kernel, columns": fuse(columns), "a kernel, chunks": fuse(in_chunks), "a product": fuse(product),
    }  # fmt: skip
    for name, call in rows.items():
        few, many = (median(call, array(np.ones((count, 64), np.float32)), wait) for count in (FEW, MANY))
        print(f"{name:<20}{(many - few) / (MANY - FEW):>12.1f}{few:>14.1f}", flush=True)


if __name__ == "__main__":
    main()
