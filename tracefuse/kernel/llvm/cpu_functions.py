"""Compiled CPU kernels, callable from Python.

The callable is a C function object over the machine code, so a launch runs neither Python code nor ctypes. Kernels
whose texts differ only in names and comments share one compilation, in memory and on disk.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from tracefuse.caches import CLEAR_CACHES, Cache, memoized, register
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cache import disk_cache
from tracefuse.kernel.cache.disk_cache import DiskCache, Origin
from tracefuse.kernel.cache.memory_cache import MOST_KERNELS, KernelCache, Statistics
from tracefuse.kernel.llvm import constant_tables, linked_functions, machine_code, quick_code, worker_pool
from tracefuse.kernel.llvm.emit_driver import emit_driver, is_inlined, kernel_symbol
from tracefuse.kernel.llvm.emit_llvm import emit_kernel, emit_llvm
from tracefuse.kernel.llvm.launch_functions import (
    LAUNCH,
    LAUNCH_DRIVER,
    LaunchFacts,
    LaunchRecord,
    driver_facts,
    function_object,
)
from tracefuse.kernel.llvm.machine_code import LinkedCode, get_machine
from tracefuse.kernel.llvm.quick_code import Replacement
from tracefuse.kernel.llvm.shared_functions import HEADER_BYTES
from tracefuse.kernel.loop_driver import LoopDriver


@memoized("whether kernels may read array headers", key="none", most=1, clears=False)
def reads_arrays() -> bool:
    """Return whether NumPy arrays have the expected layout: the type ends the header, the data pointer follows it."""
    for shape in ((3,), (2, 2)):
        array = np.zeros(shape)
        header = ctypes.cast(id(array) + HEADER_BYTES - 8, ctypes.POINTER(ctypes.c_uint64 * 2)).contents
        if list(header) != [id(np.ndarray), array.__array_interface__["data"][0]]:
            return False
    return True


class ModuleText(NamedTuple):
    """The text of a module, its exported function and what launches need to know."""

    source: str
    entry: str
    facts: LaunchFacts


def _kernel_text(kernel: ir.Kernel, constants: Sequence[ir.Variable] = ()) -> ModuleText:
    source, facts = emit_kernel(kernel, constants=constants)
    return ModuleText(source, "chunk", facts)


class CompiledModule:
    """The machine code of a kernel or a loop driver, freed after its last reference.

    entry: the function that the module exports. symbols: the addresses of the functions that it declares. kernels: the
    modules of the kernels that a driver calls, by symbol. table: the constants of a kernel that shares its code
    (`kernel/llvm/constant_tables.py`). quick: the code can be replaced (`kernel/llvm/quick_code.py`).
    """

    def __init__(
        self, code: bytes, entry: str, symbols: Mapping[str, int],
        kernels: Mapping[str, CompiledModule] = MappingProxyType({}),
        table: ctypes.Array[ctypes.c_char] | None = None, *,
        quick: bool = False,
    ) -> None:  # fmt: skip
        self._kernels, self._table, self._entry = tuple(kernels.values()), table, entry
        called = {symbol: kernel.address for symbol, kernel in kernels.items()}
        constants = {} if table is None else {constant_tables.SYMBOL: ctypes.addressof(table)}
        self._symbols = {**symbols, **called, **constants}
        self._code = get_machine().link(code, self._symbols, (entry, *([quick_code.CELL] if quick else [])))
        self._replacing: LinkedCode | None = None
        self._linked_at = time.perf_counter()
        self.is_quick = quick
        self.seconds_until_replaced: float | None = None
        self.address: int = self._code.addresses[entry]
        self._parallel_for = symbols["tracefuse_parallel_for"]

    def replace_code(self, code: bytes) -> None:
        """Link the optimized code, and run it from the next call of the entry on. Calls that run go on as they began.

        Raises CompileError if it cannot be linked.
        """
        # Kept with the first code, in which other threads may be.
        self._replacing = get_machine().link(code, self._symbols, (self._entry,))
        cell = ctypes.c_int64.from_address(self._code.addresses[quick_code.CELL])
        cell.value = self._replacing.addresses[self._entry]  # one aligned store
        self.seconds_until_replaced = time.perf_counter() - self._linked_at

    @property
    def progress(self) -> str:
        """How far the module is compiled, "" if it was compiled optimized at once."""
        if not self.is_quick:
            return ""
        seconds = self.seconds_until_replaced
        if seconds is None:
            return "compiled quickly, not yet optimized"
        return f"compiled quickly, optimized {1e3 * seconds:.0f} ms later"

    def function(self, name: str, facts: LaunchFacts) -> Callable[..., Any]:
        """Return a function object that launches the code, keeps this module alive and takes arrays."""
        entry = worker_pool.get_pool().launches[LAUNCH if facts.code else LAUNCH_DRIVER]
        function = function_object(LaunchRecord(facts, name, self.address, self._parallel_for, entry, self))
        return function if reads_arrays() else functools.partial(_launch_by_address, function)


class CpuFunction:
    """A compiled kernel.

    `launch(*arguments)` takes a NumPy array (or an address) for each buffer and a Python number for each scalar, in
    parameter order. It does not check dtypes, shapes or alignment; the caller must.
    """

    __slots__ = ("_facts", "_source", "kernel", "launch", "module")

    def __init__(self, kernel: ir.Kernel, source: str | None, facts: LaunchFacts, module: CompiledModule) -> None:
        self.kernel, self._source, self._facts, self.module = kernel, source, facts, module
        self.launch: Callable[..., None] = module.function(kernel.name, facts)

    @property
    def source(self) -> str:
        """The LLVM IR."""
        if self._source is None:
            self._source = emit_llvm(self.kernel)
        return self._source

    def renamed(self, kernel: ir.Kernel) -> CpuFunction:
        """Return the function of a kernel of which only the name differs."""
        return CpuFunction(kernel, None, self._facts, self.module)

    def __call__(self, *arguments: Any) -> None:
        self.launch(*arguments)

    @property
    def progress(self) -> str:
        """How far the kernel is compiled, "" if it was compiled optimized at once."""
        return self.module.progress

    def assembly(self) -> str:
        """Return the kernel's assembly for this processor."""
        return get_machine().assembly(self.source)


def _launch_by_address(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*(a.__array_interface__["data"][0] if isinstance(a, np.ndarray) else a for a in arguments))


_COMMENT = re.compile(r"\n *;[^\n]*")
_NAME = re.compile(r"(%[A-Za-z_][\w.]*|\n[A-Za-z_][\w.]*(?=:))")


class _NameNumbers(dict[str, str]):
    """The number of each local name in the order of first use, for `%name` and for its label, a new line's `name`."""

    def __missing__(self, identifier: str) -> str:
        name, number = identifier[1:], f"n{len(self) // 2}"
        self[f"%{name}"], self[f"\n{name}"] = f"%{number}", f"\n{number}"
        return self[identifier]


def canonical(text: str) -> str:
    """Return `text` without comments and with numbered local names: equal for kernels that differ only in names."""
    parts = _NAME.split(_COMMENT.sub("", text))
    numbers = _NameNumbers()
    parts[1::2] = [numbers[name] for name in parts[1::2]]
    return "".join(parts)


_cache: KernelCache[CompiledModule] = KernelCache()


def cache_key(source: str) -> str:
    """Return the cache key: a hash of canonical text, compiler version, settings and processor."""
    return _key_of(canonical(source))


def _key_of(canonical_text: str) -> str:
    return disk_cache.hashed("cpu", (canonical_text, *get_machine().key))


def identity(kernel: ir.Kernel) -> str:
    """Return a hash that kernels share if they differ only in names and comments."""
    text = _kernel_text(kernel)
    return disk_cache.hashed("launch", (cache_key(text.source), repr(text.facts)))


def compile_cpu(kernel: ir.Kernel, disk: DiskCache | None = None, quick: bool = False) -> CpuFunction:
    """Compile `kernel` (target "cpu"), or take an equal one from memory or `disk`. Threads may compile in parallel.

    quick: whether the kernel may be compiled quickly first (`kernel/llvm/quick_code.py`); a call of
    `background_compilation.begin` then begins to compile the optimized code.
    Raises InternalError for a malformed kernel and CompileError if LLVM fails.
    """
    text = _kernel_text(kernel)
    return CpuFunction(kernel, text.source, text.facts, _module(text, kernel.workers, disk, kernel, quick=quick))


def compile_driver(
    driver: LoopDriver, functions: Sequence[CpuFunction], disk: DiskCache | None = None
) -> Callable[..., int]:
    """Compile a loop driver, or take an equal one from memory or `disk`. Threads may compile in parallel.

    functions: its compiled kernels. The result takes a NumPy array (or an address) for each pointer and a Python number
    for each number, in parameter order, and returns what `LoopDriver` documents. It does not check its arguments.
    Raises InternalError for a malformed driver and CompileError if LLVM fails.
    """
    workers = max((kernel.workers for kernel in driver.kernels), default=0)
    called = {
        kernel_symbol(number): function.module
        for number, function in enumerate(functions)
        if not is_inlined(function.kernel)
    }
    text = ModuleText(emit_driver(driver), "drive", driver_facts(driver))
    return _module(text, workers, disk, None, called).function(driver.name, text.facts)


def _module(
    text: ModuleText, workers: int, disk: DiskCache | None, kernel: ir.Kernel | None,
    kernels: Mapping[str, CompiledModule] = MappingProxyType({}), quick: bool = False,
) -> CompiledModule:  # fmt: skip
    """Return the machine code of a module's text. kernel: what the module consists of, if it is one kernel."""
    source, canonical_text = text.source, canonical(text.source)
    key = _key_of(canonical_text)
    # The worker limit and the kernels do not change the machine code, only what it is linked with.
    linked = " ".join(
        [key, *([str(workers)] if workers else []), *(str(kernel.address) for kernel in kernels.values())]
    )

    def make() -> tuple[CompiledModule, Origin]:
        # The pool comes first, so its errors are not reported as the kernel's.
        symbols = {**worker_pool.get_pool(disk).symbols(workers), **linked_functions.addresses(source, disk)}

        def link(
            code: bytes, table: ctypes.Array[ctypes.c_char] | None = None, *, quick: bool = False
        ) -> CompiledModule:
            return CompiledModule(code, text.entry, symbols, kernels, table, quick=quick)

        loaded = disk_cache.load_and_use(disk, key, link)
        if loaded is not None:
            return loaded, Origin.DISK
        shared = None if kernel is None else _shared_code(kernel, canonical_text, disk, link, quick)
        if shared is not None:
            return shared
        if not quick_code.is_used(source, quick):
            return disk_cache.make_and_store(disk, key, link, lambda: get_machine().compile(source))
        code = ObjectCode(quick_code.compiled(source), Replacement(source, key, disk))
        return code.linked(link), Origin.COMPILED

    return _cache.get(linked, make)


class LinkFunction(Protocol):
    """Links an object file. table: the constants that it reads; quick: it was compiled quickly and can be replaced."""

    def __call__(
        self, code: bytes, table: ctypes.Array[ctypes.c_char] | None = None, *, quick: bool = False
    ) -> CompiledModule: ...


class ObjectCode(NamedTuple):
    """An object file, and the job that compiles its optimized code if it was compiled quickly."""

    code: bytes
    replacement: Replacement | None = None

    def linked(self, link: LinkFunction, table: ctypes.Array[ctypes.c_char] | None = None) -> CompiledModule:
        """Return the linked code, which runs optimized code as soon as it is there."""
        module = link(self.code, table, quick=self.replacement is not None)
        if self.replacement is not None:
            self.replacement.add(module)
        return module


_shared: KernelCache[ObjectCode] = KernelCache()
_families: OrderedDict[str, None] = OrderedDict()
_lock = threading.Lock()


def _shared_code(
    kernel: ir.Kernel, canonical_text: str, disk: DiskCache | None, link: LinkFunction, quick: bool
) -> tuple[CompiledModule, Origin] | None:
    """Return the machine code that a kernel shares with others (`kernel/llvm/constant_tables.py`), and its origin.

    None if it can share none, or if it is the first kernel of its family, in this process and on disk.
    """
    if not constant_tables.may_share(kernel):
        return None
    family = disk_cache.hashed("family", (constant_tables.family_text(canonical_text), *get_machine().key))
    # The text of the shared code takes as long to emit as the kernel's, so the first of a family does without.
    if not _is_known_family(family) and (disk is None or disk.load(family) is None):
        return None
    shared = constant_tables.without_constants(kernel)
    if shared is None:
        return None
    table, source = shared.table(), _kernel_text(shared.kernel, shared.variables).source
    key, origin = cache_key(source), Origin.MEMORY

    def use(code: bytes) -> ObjectCode:
        link(code, table)  # raises CompileError for a file that is no machine code
        return ObjectCode(code)

    def make() -> tuple[ObjectCode, Origin]:
        nonlocal origin
        loaded = disk_cache.load_and_use(disk, key, use)
        if loaded is not None:
            origin = Origin.DISK
            return loaded, origin
        if disk is not None:
            disk.store(family, b"")
        if not quick_code.is_used(source, quick):
            made, origin = disk_cache.make_and_store(disk, key, use, lambda: get_machine().compile(source))
            return made, origin
        origin = Origin.COMPILED
        return ObjectCode(quick_code.compiled(source), Replacement(source, key, disk)), origin

    return _shared.get(key, make).linked(link, table), origin


def _is_known_family(family: str) -> bool:
    """Return whether a kernel of this family was compiled before; the next one was."""
    with _lock:
        known = family in _families
        _families[family] = None
        _families.move_to_end(family)
        while len(_families) > MOST_KERNELS:
            _families.popitem(last=False)
        return known


def statistics() -> Statistics:
    """Return how many CPU kernels this process compiled, loaded from disk and served from memory."""
    return _cache.statistics()


def clear_cache() -> None:
    """Empty the kernel caches and free unused machine code; existing functions keep working."""
    _cache.clear()
    _shared.clear()
    with _lock:
        _families.clear()
    machine_code.free_unused()


register(Cache(
    "kernel.llvm.cpu_functions._cache", "compiled CPU kernels", "canonical LLVM text, processor, options, threads",
    f"{MOST_KERNELS}, least recently used", cleared_by=CLEAR_CACHES, clear=clear_cache,
))  # fmt: skip
register(Cache(
    "kernel.llvm.cpu_functions._shared", "object files of kernels that differ in constants alone",
    "LLVM text without constants, processor, options", f"{MOST_KERNELS}, least recently used",
    cleared_by=CLEAR_CACHES, clear=clear_cache,
))  # fmt: skip
register(Cache(
    "kernel.llvm.cpu_functions._families", "which kernels differ from others in constants alone",
    "LLVM text without numbers, processor, options", f"{MOST_KERNELS}, least recently used",
    cleared_by=CLEAR_CACHES, clear=clear_cache,
))  # fmt: skip
