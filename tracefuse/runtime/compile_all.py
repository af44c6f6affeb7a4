"""Compiles the kernels of several segments in parallel. Kernels of which only the names differ are compiled once.

Compilers release Python's global lock, so threads compile in parallel. A plan with one kernel starts no thread here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from segments.lazy_dataclasses import replace
from tracefuse.errors import CompileError
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.interrupt_shield import shielded_map
from tracefuse.kernel.kernel_ir import Kernel
from tracefuse.kernel.llvm import background_compilation
from tracefuse.kernel.llvm.worker_pool import available_threads
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.waiting import counted_steps


def wait_for_compilation() -> None:
    """Waits until the optimized code of all kernels that were called so far has been compiled and is used.

    With the option `background_compilation`, a kernel may first run code that is compiled quickly and runs slower. To
    measure run times, call the functions once, then this. The cache folder is complete afterwards. Returns at once if
    nothing is being compiled. Warns with RuntimeWarning of kernels for which that failed.
    """
    background_compilation.wait()


def compile_all(
    lowered: Mapping[int, Lowered], target: Target, disk: DiskCache | None = None,
    work: Mapping[int, Sequence[int | None]] = MappingProxyType({}),
) -> dict[int, tuple[Any, ...]]:  # fmt: skip
    """Compiles all kernels and returns those of each segment by position, one for each launch in order.

    work: of each launch of the segments whose kernels may be compiled quickly first, in elements.
    Raises CompileError that names the first segment, in order, with a kernel that its compiler rejects.
    """
    kernels = [(position, launch.kernel) for position, choice in lowered.items() for launch in choice.launches]
    first = _first_equal([kernel for _, kernel in kernels])
    most = _most_work([w for k, choice in lowered.items() for w in work.get(k, [None] * len(choice.launches))], first)

    def compile_kernel(place: int) -> Any:
        position, kernel = kernels[place]
        try:
            compiled = target.compiler.compile(kernel, disk, most[place])
            count(f"segment {position}")
            return compiled
        except CompileError as error:
            message = f"segment {position} ({lowered[position].template}): {error.message}"
            raise CompileError(message, hint=error.hint, where=error.where) from error

    functions: dict[int, tuple[Any, ...]] = dict.fromkeys(lowered, ())
    distinct = list(dict.fromkeys(first))
    with counted_steps("compiling kernels", len(distinct)) as count:
        if len(distinct) > 1:
            results = shielded_map(compile_kernel, distinct, available_threads())
        else:
            # A single kernel is often in the memory cache already.
            results = [*map(compile_kernel, distinct)]
    compiled = dict(zip(distinct, results, strict=True))
    for place, ((position, kernel), earlier) in enumerate(zip(kernels, first, strict=True)):
        function = compiled[earlier]
        functions[position] += (function if place == earlier else target.compiler.renamed(function, kernel),)
    return functions


def _most_work(work: Sequence[int | None], first: Sequence[int]) -> dict[int, int | None]:
    """Returns the most work of equal kernels, by the place of the first; None if one is unknown."""
    most: dict[int, int | None] = {}
    for place, one in zip(first, work, strict=True):
        known = most.setdefault(place, one)
        most[place] = None if known is None or one is None else max(known, one)
    return most


def _first_equal(kernels: Sequence[Kernel]) -> list[int]:
    """Returns for each kernel the place of the first of which only the name differs.

    Equal segments take their kernels from one lowering, so the bodies of such kernels are one object.
    """
    places: dict[int, list[int]] = {}
    first: list[int] = []
    for place, kernel in enumerate(kernels):
        known = places.setdefault(id(kernel.body), [])
        equal = next((earlier for earlier in known if replace(kernels[earlier], name=kernel.name) == kernel), place)
        if equal == place:
            known.append(place)
        first.append(equal)
    return first
