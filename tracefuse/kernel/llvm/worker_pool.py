"""The process's worker pool: its machine code (`worker_pool_code.py`), thread count and behavior at forks.

All workers end before a fork, while callers run alone. Parent and child start new workers on demand.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse.caches import Cache, register
from tracefuse.kernel.cache.disk_cache import DiskCache, hashed, load_or_make
from tracefuse.kernel.interrupt_shield import shielded
from tracefuse.kernel.llvm import direct_calls
from tracefuse.kernel.llvm.launch_functions import LAUNCH, LAUNCH_DRIVER, launch_text
from tracefuse.kernel.llvm.machine_code import LinkedCode, get_machine
from tracefuse.kernel.llvm.replay_arrays import array_functions
from tracefuse.kernel.llvm.replay_functions import REPLAY
from tracefuse.kernel.llvm.shared_functions import DECLARATIONS as SHARED
from tracefuse.kernel.llvm.shared_functions import shared_text
from tracefuse.kernel.llvm.worker_pool_code import MOST_WORKERS, has_workers, limited_text, pool_text

_POOL_FUNCTIONS = (
    *("parallel_for", "parallel_for_at_most", "set_threads", "count_workers", "stop_workers", "forget_workers"),
)

_LAUNCHES = (LAUNCH, LAUNCH_DRIVER, REPLAY, direct_calls.CALL)


def module_text() -> str:
    """Return the LLVM module of the pool and of the functions that all kernels share."""
    return pool_text() + shared_text() + launch_text()


def _linked(disk: DiskCache | None) -> LinkedCode:
    """Return the machine code of `module_text`, loaded from `disk` or compiled and stored there."""
    machine, text = get_machine(), module_text()
    key = hashed("pool", (text, *machine.key))
    exported, symbols = (
        (*_POOL_FUNCTIONS, *SHARED, *_LAUNCHES),
        {"tracefuse_array_type": id(np.ndarray), **array_functions(), **direct_calls.symbols()},
    )
    code, _ = load_or_make(disk, key, lambda code: machine.link(code, symbols, exported), lambda: machine.compile(text))
    return code


def available_threads() -> int:
    """Return the number of processors that this process may run on: its share, if several ranks share the host."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(count // _processes, 1)


_processes = 1


def share_processors(processes: int) -> None:
    """Divide the processors of this host among processes that run at the same time, of which this is one."""
    global _processes
    _processes = processes
    if _pool is not None:
        _pool.set_thread_count(available_threads())


class Pool:
    """The compiled pool. Its machine code is never freed: sleeping workers execute it until the process ends."""

    def __init__(self, disk: DiskCache | None = None) -> None:
        code = _linked(disk)
        self.address = code.addresses["parallel_for"]
        self._shared = {name: code.addresses[name] for name in SHARED}
        self.launches = {name: code.addresses[name] for name in _LAUNCHES}
        self._at_most = code.addresses["parallel_for_at_most"]
        self._limited: dict[int, Any] = {}

        def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
            return ctypes.CFUNCTYPE(result, *arguments)(code.addresses[name])

        self._set_threads = function("set_threads", None, ctypes.c_int64)
        self._count_workers = function("count_workers", ctypes.c_int64)
        self._stop_workers = function("stop_workers", None)
        self._forget_workers = function("forget_workers", None)
        self._parallel_for = function("parallel_for", None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)
        # Otherwise the code would be freed with this object at interpreter shutdown.
        code.keep()
        self.thread_count = 1
        self.set_thread_count(available_threads())
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self.stop_workers, after_in_child=self._forget_workers)

    def set_thread_count(self, count: int) -> None:
        """Set the number of threads that run a grid, including the caller, clamped to 1 and the processor count."""
        allowed = min(count, available_threads(), MOST_WORKERS) if has_workers() else 1
        self.thread_count = max(allowed, 1)
        self._set_threads(self.thread_count)

    def address_for(self, limit: int) -> int:
        """Return the address of a `parallel_for` with at most `limit` threads, including the caller; 0 for no limit."""
        if limit == 0:
            return self.address
        if limit not in self._limited:
            machine = get_machine()
            code = machine.link(
                machine.compile(limited_text(limit)),
                {"parallel_for_at_most": self._at_most},
                ("parallel_for",),
            )
            code.keep()
            self._limited[limit] = code.addresses["parallel_for"]
        return int(self._limited[limit])

    def symbols(self, limit: int) -> dict[str, int]:
        """Return the addresses of the functions that a kernel calls, which runs on at most `limit` threads."""
        return {**self._shared, "tracefuse_parallel_for": self.address_for(limit)}

    def stop_workers(self) -> None:
        """End all worker threads after the current job; the next large grid starts new ones."""
        self._stop_workers()

    def workers(self) -> int:
        """Return the number of worker threads of this process."""
        return int(self._count_workers())

    def parallel_for(self, body: int, context: int, extent: int, grain: int) -> None:
        """Call the C function at address `body` as body(context, begin, end) on chunks of range(extent).

        Several threads run chunks of at least `grain` iterations. Returns when all have completed.
        """
        self._parallel_for(body, context, extent, grain)


register(Cache(
    "kernel.llvm.worker_pool.Pool._limited", "machine code that runs a kernel on fewer threads", "option `threads`",
    "processors of the machine",
))  # fmt: skip

_lock = threading.Lock()


_pool: Pool | None = None


def get_pool(disk: DiskCache | None = None) -> Pool:
    """Return the process's pool. The first call creates it, with machine code cached in `disk`."""
    return _pool if _pool is not None else shielded(lambda: _first_pool(disk))


def _first_pool(disk: DiskCache | None) -> Pool:
    global _pool
    with _lock:
        if _pool is None:
            _pool = Pool(disk)
        return _pool


def set_thread_count(count: int) -> None:
    """See Pool.set_thread_count."""
    get_pool().set_thread_count(count)
