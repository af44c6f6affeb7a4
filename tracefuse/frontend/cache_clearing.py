"""`clear_caches`: gives back everything that tracefuse keeps between calls.

Knows: the table of caches, the cache folder. Must not know: what a cache holds.
"""

from __future__ import annotations

from tracefuse import caches
from tracefuse.kernel.cache import disk_cache


def clear_caches(disk: bool = False) -> None:
    """Forgets the traces and plans of every fused function, all compiled kernels, and the memory of freed CPU arrays.

    It empties every cache that docs/caches_and_security.md lists as cleared by it. Fused functions go on working: their
    next calls trace again, and find their kernels on disk unless `disk` is true, which also removes the files of the
    cache folder in force (option `cache_dir`). Results and FusionDefinitions that are alive keep what they use. CuPy's
    memory pool is CuPy's: `cupy.get_default_memory_pool().free_all_blocks()`.
    """
    caches.clear_all()
    if disk:
        disk_cache.in_force().clear()
