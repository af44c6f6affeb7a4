"""`clear_caches`: everything that tracefuse keeps between calls, given back at once.

Knows: who keeps what. Must not know: how.
"""

from __future__ import annotations

from tracefuse.frontend.fuse import FUNCTIONS
from tracefuse.kernel.cache import disk_cache
from tracefuse.kernel.cuda import cuda_functions
from tracefuse.kernel.llvm import cpu_functions
from tracefuse.runtime.devices import cpu_memory


def clear_caches(disk: bool = False) -> None:
    """Forgets the traces and plans of every fused function, all compiled kernels, and the memory of freed CPU arrays.

    Fused functions go on working: their next calls trace again, and find their kernels on disk unless `disk` is true,
    which also removes the files of the cache folder in force (option `cache_dir`). Results and FusionDefinitions that
    are alive keep what they use. CuPy's memory pool is CuPy's: `cupy.get_default_memory_pool().free_all_blocks()`.
    """
    for function in list(FUNCTIONS):
        function.cache_clear()
    cpu_functions.clear_cache()
    cuda_functions.clear_cache()
    cpu_memory.clear_cache()
    if disk:
        disk_cache.in_force().clear()
