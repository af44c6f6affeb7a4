"""`clear_caches`: releases everything that tracefuse keeps between calls."""

from __future__ import annotations

from tracefuse import caches
from tracefuse.kernel.cache import disk_cache
from tracefuse.runtime.compile_all import wait_for_compilation


def clear_caches(disk: bool = False) -> None:
    """Drops the traces and plans of every fused function, all compiled kernels, and the pooled memory of CPU arrays.

    docs/caches_and_security.md lists every cache that this clears. Fused functions keep working: their next calls trace
    again and load their kernels from disk. disk: also remove the files of the cache folder in force (option
    `cache_dir`). Live results and FusionDefinitions keep what they use. To empty CuPy's own memory pool, call
    `cupy.get_default_memory_pool().free_all_blocks()`.
    """
    caches.clear_all()
    if disk:
        wait_for_compilation()  # of kernels that are still in use, which would be stored afterwards
        disk_cache.in_force().clear()
