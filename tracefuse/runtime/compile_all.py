"""Compiles the kernels of several segments in parallel.

Compilers release Python's global lock, so threads compile in parallel. A plan with one kernel starts no thread here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracefuse.errors import CompileError
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.interrupt_shield import shielded_map
from tracefuse.kernel.kernel_ir import Kernel
from tracefuse.kernel.llvm.worker_pool import available_threads
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.waiting import counted_steps


def compile_all(
    lowered: Mapping[int, Lowered], target: Target, disk: DiskCache | None = None
) -> dict[int, tuple[Any, ...]]:
    """Compiles all kernels and returns those of each segment by position, one for each launch in order.

    Raises CompileError that names the first segment, in order, with a kernel that its compiler rejects.
    """
    kernels = [(position, launch.kernel) for position, one in lowered.items() for launch in one.launches]

    def compile_kernel(entry: tuple[int, Kernel]) -> Any:
        position, kernel = entry
        try:
            compiled = target.compiler.compile(kernel, disk)
            count(f"segment {position}")
            return compiled
        except CompileError as error:
            message = f"segment {position} ({lowered[position].template}): {error.message}"
            raise CompileError(message, hint=error.hint, where=error.where) from error

    functions: dict[int, tuple[Any, ...]] = dict.fromkeys(lowered, ())
    # A single kernel is often in the memory cache already.
    several = len(kernels) > 1
    with counted_steps("compiling kernels", len(kernels)) as count:
        if several:
            results = shielded_map(compile_kernel, kernels, available_threads())
        else:
            results = [*map(compile_kernel, kernels)]
    for (position, _), function in zip(kernels, results, strict=True):
        functions[position] += (function,)
    return functions
