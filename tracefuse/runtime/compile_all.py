"""Compiles the kernels of several segments at once.

Compilers work without Python's lock, so threads compile side by side; a plan of one kernel starts none here.

Knows: lowered segments, a target that compiles. Must not know: what kernels compute, where they are kept.
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


def compile_all(
    lowered: Mapping[int, Lowered], target: Target, disk: DiskCache | None = None
) -> dict[int, tuple[Any, ...]]:
    """The compiled kernels of each segment, by its position, one for each launch in order.

    Raises CompileError for the first segment in order with a kernel that its compiler refuses, and names it.
    """
    kernels = [(position, launch.kernel) for position, one in lowered.items() for launch in one.launches]

    def compiled(one: tuple[int, Kernel]) -> Any:
        position, kernel = one
        try:
            return target.compiler.compile(kernel, disk)
        except CompileError as error:
            what = f"segment {position} ({lowered[position].template}): {error.message}"
            raise CompileError(what, hint=error.hint, where=error.where) from error

    functions: dict[int, tuple[Any, ...]] = dict.fromkeys(lowered, ())
    # One kernel is often found in memory.
    several = len(kernels) > 1
    results = shielded_map(compiled, kernels, available_threads()) if several else [*map(compiled, kernels)]
    for (position, _), function in zip(kernels, results, strict=True):
        functions[position] += (function,)
    return functions
