"""Layer normalization on the CPU: the result, the segments, the kernel and the time.

    python examples/layernorm.py

The function is plain NumPy. `@fuse` traces it at its first call and compiles the trace. Rows and columns stay symbolic,
so the small and the large arrays below share one trace.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from tracefuse import fuse, wait_for_compilation


def layernorm(x, weight, bias):  # type: ignore[no-untyped-def]
    mean = x.mean(axis=-1, keepdims=True)
    variance = x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * weight + bias


def arguments(rows: int, columns: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shapes = ((rows, columns), (columns,), (columns,))
    return [random.standard_normal(shape, dtype=np.float32) for shape in shapes]


def median_time(function, inputs) -> float:  # type: ignore[no-untyped-def]
    function(*inputs)
    wait_for_compilation()
    times = []
    for _ in range(40):
        start = time.perf_counter()
        function(*inputs)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


fused = fuse(layernorm)
small, large = arguments(64, 256), arguments(2048, 1024)

print("The function, as recorded:")
print(fused.definition(*small))

print("\nIts segments:")
for segment in fused.segments(*small):
    print(segment.definition)
    print("    index_map ", dict(segment.index_map))
    print("    value_map ", dict(segment.value_map))
    print("    extent_map", dict(segment.extent_map))

print("\nIts kernels:")
for segment in fused.segments(*small):
    print(segment.kernel)

print("\nAgainst NumPy in float64:")
for inputs in (small, large):
    difference = np.abs(fused(*inputs) - layernorm(*(array.astype(np.float64) for array in inputs))).max()
    print(f"  {inputs[0].shape}: largest difference {difference:.1e}")
    assert difference < 1e-5, "the result is wrong"
print(f"  {fused.cache_info().traces} trace for both sizes")

print("\nTime a call, 2048 x 1024 float32:")
fused_time, numpy_time = median_time(fused, large), median_time(layernorm, large)
speedup = numpy_time / fused_time
print(f"  tracefuse {1e6 * fused_time:.0f} us, NumPy {1e6 * numpy_time:.0f} us: {speedup:.1f} times as fast")
