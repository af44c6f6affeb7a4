"""Compiles the kernels of several segments at once.

Compilers work without Python's lock, so threads compile side by side; a plan of one kernel starts none.

Knows: lowered segments, a target that compiles. Must not know: what kernels compute, where they are kept.
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tracefuse.errors import CompileError
from tracefuse.kernel.cache.disk_cache import DiskCache
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
    workers = min(len(kernels), available_threads())
    if workers < 2:
        results = [compiled(one) for one in kernels]
    else:
        with ThreadPoolExecutor(workers, "tracefuse-compile") as executor:
            # Each in the caller's context: options are looked up there.
            started = [executor.submit(contextvars.copy_context().run, compiled, one) for one in kernels]
        results = [one.result() for one in started]
    for (position, _), function in zip(kernels, results, strict=True):
        functions[position] += (function,)
    return functions
