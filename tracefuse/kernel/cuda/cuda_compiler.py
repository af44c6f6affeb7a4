"""Compiles kernels to CUDA machine code, with a cache in memory and on disk.

Disk entries are cubins, never PTX, so that a cached kernel needs no NVRTC. Kernels that differ only in names and
comments share one compilation.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence

from segments.lazy_dataclasses import replace
from tracefuse.caches import CLEAR_CACHES, Cache, register
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cache import disk_cache
from tracefuse.kernel.cache.disk_cache import DiskCache, Origin
from tracefuse.kernel.cache.memory_cache import MOST_KERNELS, KernelCache, Statistics
from tracefuse.kernel.cuda.cuda_functions import CudaFunction
from tracefuse.kernel.cuda.emit_cuda import canonical_cuda, emit_cuda, emit_unit, entry_name
from tracefuse.kernel.cuda.emit_table import emit_table
from tracefuse.kernel.cuda.nvrtc import BASE_OPTIONS, compile_source, compile_with_log, identity
from tracefuse.kernel.cuda.tile_products import multiplies_tiles


def options_of(kernel: ir.Kernel) -> tuple[str, ...]:
    """Return the compiler options that depend on the kernel."""
    contraction = f"--fmad={'true' if kernel.contract else 'false'}"
    return (contraction, "--prec-div=false", "--prec-sqrt=false") if kernel.fast_math else (contraction,)


def target_of(kernels: Sequence[ir.Kernel], architecture: str) -> str:
    """Return what to compile for: products by groups of warps are instructions of one architecture alone."""
    return f"{architecture}a" if any(map(multiplies_tiles, kernels)) else architecture


def compile_kernel(kernel: ir.Kernel, *, architecture: str) -> CudaFunction:
    """Compile one kernel, without a cache (see `CudaCompiler`). Raises CompileError.

    If `blocks_per_multiprocessor` makes the kernel spill registers, it is compiled again without that bound.
    """
    source, entry = emit_cuda(kernel), entry_name(kernel)
    options = (*options_of(kernel), "--ptxas-options=-v")
    target = target_of((kernel,), architecture)
    cubin, log = compile_with_log(source, entry, architecture=target, options=options)
    if kernel.blocks_per_multiprocessor is not None and kernel.cluster == 1 and _spills(log, entry):
        return compile_kernel(replace(kernel, blocks_per_multiprocessor=None), architecture=architecture)
    return CudaFunction(kernel, source, cubin, entry, architecture)


def _spills(log: str, entry: str) -> bool:
    """Return whether the compiler's log reports register spills for a function."""
    match = re.search(rf"Function properties for {entry}\n.*?(\d+) bytes spill stores", log)
    return match is not None and int(match[1]) > 0


def compile_many(kernels: Sequence[ir.Kernel], *, architecture: str) -> list[bytes]:
    """Compile many kernels, one translation unit per set of options, and return the cubins.

    Kernel names are made distinct. Tests use this to check that kernels compile; CompileError names those that do not.
    The code is not optimized, which takes a quarter of the time.
    """
    cubins: list[bytes] = []
    for options in dict.fromkeys(map(options_of, kernels)):
        chosen = [k for k in kernels if options_of(k) == options]
        unit = [replace(k, name=f"{k.name}_{position}") for position, k in enumerate(chosen)]
        unoptimized = (*options, "--Ofast-compile=max")
        target = target_of(unit, architecture)
        cubins.append(compile_source(emit_unit(unit), "unit", architecture=target, options=unoptimized))
    return cubins


# Every compiler in the process, for clearing caches and for statistics.
_compilers: weakref.WeakSet[CudaCompiler] = weakref.WeakSet()


class CudaCompiler:
    """A cached compiler for one architecture. Several threads may compile different kernels at once."""

    def __init__(self, architecture: str) -> None:
        self.architecture = architecture
        self._cache: KernelCache[CudaFunction] = KernelCache()
        _compilers.add(self)

    @property
    def compiled(self) -> int:
        """The number of kernels that NVRTC has compiled."""
        return self._cache.statistics().compiled

    def key(self, kernel: ir.Kernel) -> str:
        """Return the cache key: a hash of canonical source, architecture, options and compiler version."""
        options = (*BASE_OPTIONS, *options_of(kernel))
        return disk_cache.hashed("cuda", (canonical_cuda(kernel), self.architecture, *options, identity()))

    def compile(self, kernel: ir.Kernel, disk: DiskCache | None = None) -> CudaFunction:
        """Return the kernel's function; the first request compiles it or loads it from `disk`. Raises CompileError."""
        key = self.key(kernel)
        return self._cache.get(key, lambda: self._load_or_compile(kernel, key, disk))

    def _load_or_compile(self, kernel: ir.Kernel, key: str, disk: DiskCache | None) -> tuple[CudaFunction, Origin]:
        """Return the function and its origin; on disk an entry is the entry name, a zero and the cubin."""
        function, loaded = self._loaded_or_compiled(kernel, key, disk)
        function.disk = disk
        return function, loaded

    def _loaded_or_compiled(self, kernel: ir.Kernel, key: str, disk: DiskCache | None) -> tuple[CudaFunction, Origin]:
        content = None if disk is None else disk.load(key)
        if content is not None:
            entry, _, cubin = content.partition(b"\0")
            return CudaFunction(kernel, None, cubin, entry.decode(), self.architecture), Origin.DISK
        function = compile_kernel(kernel, architecture=self.architecture)
        if disk is not None:
            disk.store(key, function.entry.encode() + b"\0" + function.cubin)
        return function, Origin.COMPILED

    def compile_table(self, function: CudaFunction) -> CudaFunction:
        """Return the kernel that runs a table of launches of `function`, cached like kernels. Raises CompileError."""
        source, entry = emit_table(function.kernel)
        options = options_of(function.kernel)
        key = disk_cache.hashed("cuda", (source, self.architecture, *BASE_OPTIONS, *options, identity()))

        def make() -> tuple[CudaFunction, Origin]:
            disk = function.disk
            known = None if disk is None else disk.load(key)
            target = target_of((function.kernel,), self.architecture)
            cubin = known or compile_source(source, entry, architecture=target, options=options)
            if disk is not None and known is None:
                disk.store(key, cubin)
            compiled = CudaFunction(function.kernel, source, cubin, entry, self.architecture)
            return compiled, Origin.COMPILED if known is None else Origin.DISK

        return self._cache.get(key, make)

    def statistics(self) -> Statistics:
        """Return how many kernels were compiled, loaded from disk and served from memory."""
        return self._cache.statistics()

    def clear(self) -> None:
        """Empty the cache; functions still referenced keep working."""
        self._cache.clear()


def statistics() -> Statistics:
    """Return how many CUDA kernels this process compiled, loaded from disk and served from memory."""
    counts = [compiler.statistics() for compiler in _compilers]
    return Statistics(*(sum(c[k] for c in counts) for k in range(3)))


def clear_cache() -> None:
    """Empty the kernel caches of all GPUs; existing functions keep working."""
    for compiler in list(_compilers):
        compiler.clear()


register(Cache(
    "kernel.cuda.cuda_compiler._compilers", "the compilers that `clear_caches()` empties", "the compiler",
    "backends that are alive", cleared_by=CLEAR_CACHES, clear=clear_cache,
))  # fmt: skip
register(Cache(
    "kernel.cuda.cuda_compiler.CudaCompiler._cache", "compiled CUDA kernels",
    "canonical CUDA source, architecture, options, version of NVRTC", f"{MOST_KERNELS}, least recently used",
    "a backend", CLEAR_CACHES,
))  # fmt: skip
