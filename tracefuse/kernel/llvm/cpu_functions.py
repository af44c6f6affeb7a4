"""Compiled CPU kernels, callable from Python.

The callable is a C function object over the machine code, so a launch runs neither Python code nor ctypes. Kernels
whose texts differ only in names and comments share one compilation, in memory and on disk.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tracefuse.caches import CLEAR_CACHES, Cache, memoized, register
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cache import disk_cache
from tracefuse.kernel.cache.disk_cache import DiskCache, Origin
from tracefuse.kernel.cache.memory_cache import MOST_KERNELS, KernelCache, Statistics
from tracefuse.kernel.llvm import constant_tables, linked_functions, machine_code, worker_pool
from tracefuse.kernel.llvm.emit_driver import emit_driver, is_inlined, kernel_symbol
from tracefuse.kernel.llvm.emit_llvm import emit_llvm
from tracefuse.kernel.llvm.machine_code import get_machine
from tracefuse.kernel.llvm.shared_functions import HEADER_BYTES
from tracefuse.kernel.loop_driver import LoopDriver

_METH_FASTCALL = 0x80


class _MethodDefinition(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


@memoized("whether kernels may read array headers", key="none", most=1, clears=False)
def _reads_arrays() -> bool:
    """Return whether NumPy arrays have the expected layout: the type ends the header, the data pointer follows it."""
    for shape in ((3,), (2, 2)):
        array = np.zeros(shape)
        header = ctypes.cast(id(array) + HEADER_BYTES - 8, ctypes.POINTER(ctypes.c_uint64 * 2)).contents
        if list(header) != [id(np.ndarray), array.__array_interface__["data"][0]]:
            return False
    return True


class CompiledModule:
    """The machine code of a kernel or a loop driver, freed after its last reference.

    symbols: the addresses of the functions that it declares. kernels: the modules of the kernels that a driver calls,
    by symbol. table: the constants of a kernel that shares its code (`kernel/llvm/constant_tables.py`).
    """

    def __init__(
        self, code: bytes, name: str, symbols: Mapping[str, int], exported: Sequence[str],
        kernels: Mapping[str, CompiledModule] = MappingProxyType({}),
        table: ctypes.Array[ctypes.c_char] | None = None,
    ) -> None:  # fmt: skip
        self._kernels, self._table = tuple(kernels.values()), table
        called = {symbol: kernel.chunk for symbol, kernel in kernels.items()}
        constants = {} if table is None else {constant_tables.SYMBOL: ctypes.addressof(table)}
        self._code = get_machine().link(code, {**symbols, **called, **constants}, exported)
        self.definition = _MethodDefinition(name.encode(), self._code.addresses["launch"], _METH_FASTCALL, None)

    @property
    def chunk(self) -> int:
        """The address of a kernel's `chunk`."""
        return self._code.addresses["chunk"]

    def function(self) -> Callable[..., None]:
        """Return a function object over `launch` that keeps this module alive."""
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype = ctypes.py_object
        make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        compiled: Callable[..., None] = make(ctypes.addressof(self.definition), self, None)
        return compiled


class CpuFunction:
    """A compiled kernel.

    `launch(*arguments)` takes a NumPy array (or an address) for each buffer and a Python number for each scalar, in
    parameter order. It does not check dtypes, shapes or alignment; the caller must.
    """

    __slots__ = ("_source", "kernel", "launch", "module")

    def __init__(self, kernel: ir.Kernel, source: str | None, module: CompiledModule) -> None:
        self.kernel, self._source, self.module = kernel, source, module
        self.launch = _by_array(module)

    @property
    def source(self) -> str:
        """The LLVM IR."""
        if self._source is None:
            self._source = emit_llvm(self.kernel)
        return self._source

    def renamed(self, kernel: ir.Kernel) -> CpuFunction:
        """Return the function of a kernel of which only the name differs."""
        return CpuFunction(kernel, None, self.module)

    def __call__(self, *arguments: Any) -> None:
        self.launch(*arguments)

    def assembly(self) -> str:
        """Return the kernel's assembly for this processor."""
        return get_machine().assembly(self.source)


def _by_array(module: CompiledModule) -> Callable[..., Any]:
    """Return the function of a module, which takes arrays."""
    function = module.function()
    return function if _reads_arrays() else functools.partial(_launch_by_address, function)


def _launch_by_address(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*(a.__array_interface__["data"][0] if isinstance(a, np.ndarray) else a for a in arguments))


_LEFT_OUT = re.compile(r"^(?: *;|@kernel_name|@wrong_place).*\n", re.MULTILINE)
_NAME = re.compile(r"(%[A-Za-z_][\w.]*|^[A-Za-z_][\w.]*(?=:))", re.MULTILINE)


class _NameNumbers(dict[str, str]):
    """The number of each local name in the order of first use, for `%name` and for its label `name`."""

    def __missing__(self, identifier: str) -> str:
        name = identifier.removeprefix("%")
        number = f"n{len(self) // 2}"
        self[f"%{name}"], self[name] = f"%{number}", number
        return self[identifier]


def canonical(text: str) -> str:
    """Return `text` without comments and with numbered local names: equal for kernels that differ only in names."""
    parts = _NAME.split(_LEFT_OUT.sub("", text))
    numbers = _NameNumbers()
    parts[1::2] = [numbers[name] for name in parts[1::2]]
    return "".join(parts)


_cache: KernelCache[CompiledModule] = KernelCache()


def cache_key(source: str) -> str:
    """Return the cache key: a hash of canonical text, compiler version, settings and processor."""
    return disk_cache.hashed("cpu", (canonical(source), *get_machine().key))


def compile_cpu(kernel: ir.Kernel, disk: DiskCache | None = None) -> CpuFunction:
    """Compile `kernel` (target "cpu"), or take an equal one from memory or `disk`. Threads may compile in parallel.

    Raises InternalError for a malformed kernel and CompileError if LLVM fails.
    """
    source = emit_llvm(kernel)
    return CpuFunction(kernel, source, _module(source, kernel.name, kernel.workers, disk, ("launch", "chunk"), kernel))


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
    return _by_array(_module(emit_driver(driver), driver.name, workers, disk, ("launch",), None, called))


def _module(
    source: str, name: str, workers: int, disk: DiskCache | None, exported: Sequence[str], kernel: ir.Kernel | None,
    kernels: Mapping[str, CompiledModule] = MappingProxyType({}),
) -> CompiledModule:  # fmt: skip
    """Return the machine code of a module's text. kernel: what the module consists of, if it is one kernel."""
    key = cache_key(source)
    # The worker limit and the kernels do not change the machine code, only what it is linked with.
    linked = " ".join([key, *([str(workers)] if workers else []), *(str(kernel.chunk) for kernel in kernels.values())])

    def make() -> tuple[CompiledModule, Origin]:
        # The pool comes first, so its errors are not reported as the kernel's.
        symbols = {**worker_pool.get_pool(disk).symbols(workers), **linked_functions.addresses(source, disk)}

        def link(code: bytes, table: ctypes.Array[ctypes.c_char] | None = None) -> CompiledModule:
            return CompiledModule(code, name, symbols, exported, kernels, table)

        loaded = disk_cache.load_and_use(disk, key, link)
        if loaded is not None:
            return loaded, Origin.DISK
        shared = None if kernel is None else _shared_code(kernel, disk, link)
        return shared or disk_cache.make_and_store(disk, key, link, lambda: get_machine().compile(source))

    return _cache.get(linked, make)


_shared: KernelCache[bytes] = KernelCache()
_families: OrderedDict[str, None] = OrderedDict()
_lock = threading.Lock()


def _shared_code(
    kernel: ir.Kernel, disk: DiskCache | None, link: Callable[[bytes, ctypes.Array[ctypes.c_char]], CompiledModule]
) -> tuple[CompiledModule, Origin] | None:
    """Return the machine code that a kernel shares with others (`kernel/llvm/constant_tables.py`), and its origin.

    None if it can share none, or if it is the first kernel of this process that differs from others in constants alone
    and the code is not on disk.
    """
    shared = constant_tables.without_constants(kernel)
    if shared is None:
        return None
    table, source = shared.table(), emit_llvm(shared.kernel, constants=shared.variables)
    key, origin = cache_key(source), Origin.MEMORY

    def use(code: bytes) -> bytes:
        link(code, table)  # raises CompileError for a file that is no machine code
        return code

    def make() -> tuple[bytes, Origin]:
        nonlocal origin
        code, origin = disk_cache.load_or_make(disk, key, use, lambda: get_machine().compile(source))
        return code, origin

    if not _is_known_family(key) and (disk is None or disk_cache.load_and_use(disk, key, use) is None):
        return None
    return link(_shared.get(key, make), table), origin


def _is_known_family(key: str) -> bool:
    """Return whether a kernel of this family was compiled before; the next one was."""
    with _lock:
        known = key in _families
        _families[key] = None
        _families.move_to_end(key)
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
    "LLVM text without constants, processor, options", f"{MOST_KERNELS}, least recently used",
    cleared_by=CLEAR_CACHES, clear=clear_cache,
))  # fmt: skip
