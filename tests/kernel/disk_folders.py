"""A kernel that negates an array, and caches in folders of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.kernel.cpu_kernels import primitives_kernel
from tracefuse import dtypes
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.cache.memory_cache import Statistics
from tracefuse.kernel.llvm import cpu_functions as cpu_module
from tracefuse.kernel.llvm.cpu_functions import CpuFunction, clear_cache, compile_cpu

NEGATE = primitives_kernel(("neg",), dtypes.float32)
LARGE = 1 << 20


def cache_in(folder: Path, limit: int = LARGE) -> DiskCache:
    return DiskCache(str(folder), limit)


def negates(function: CpuFunction) -> bool:
    x, out = np.arange(5, dtype=np.float32), np.empty(5, np.float32)
    function(x, out, 5)
    return np.array_equal(out, -x)


def fresh(kernel: ir.Kernel, disk: DiskCache) -> tuple[CpuFunction, Statistics]:
    """The kernel as a new process would get it, and what that took."""
    clear_cache()
    before = cpu_module.statistics()
    function = compile_cpu(kernel, disk)
    after = cpu_module.statistics()
    return function, Statistics(*(b - a for a, b in zip(before, after, strict=True)))
