"""`clear_caches`: everything that tracefuse keeps between calls, given back at once.

Knows: who keeps what. Must not know: how.
"""

from __future__ import annotations

from tracefuse.device import cpu
from tracefuse.fused import FUNCTIONS
from tracefuse.kernel import compile_cpu, compile_cuda, disk_cache


def clear_caches(disk: bool = False) -> None:
    """Forgets the traces and plans of every fused function, all compiled kernels, and the memory of freed CPU arrays.

    Fused functions go on working: their next calls trace again, and find their kernels on disk unless `disk` is true,
    which also removes the files of the cache folder in force (option `cache_dir`). Results and FusionDefinitions that
    are alive keep what they use. CuPy's memory pool is CuPy's: `cupy.get_default_memory_pool().free_all_blocks()`.
    """
    for function in list(FUNCTIONS):
        function.cache_clear()
    compile_cpu.clear_cache()
    compile_cuda.clear_cache()
    cpu.clear_cache()
    if disk:
        disk_cache.in_force().clear()
