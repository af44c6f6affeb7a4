"""The worker pool of the process: its machine code (`worker_pool_code.py`), how many threads there are, forks.

Before a fork all workers end (callers work alone meanwhile), and parent and child start new ones when they need them.

Knows: threads and ranges of integers, the kernel cache on disk. Must not know: kernels, arrays.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

from tracefuse.caches import Cache, register
from tracefuse.kernel.cache.disk_cache import DiskCache, hashed, load_or_make
from tracefuse.kernel.interrupt_shield import shielded
from tracefuse.kernel.llvm.machine_code import LinkedCode, get_machine
from tracefuse.kernel.llvm.worker_pool_code import MOST_WORKERS, has_workers, limited_text, pool_text

_FUNCTIONS = ("parallel_for", "parallel_for_at_most", "set_threads", "count_workers", "stop_workers", "forget_workers")


def _linked(disk: DiskCache | None) -> LinkedCode:
    """The pool's machine code, from `disk` or compiled and kept there."""
    machine, text = get_machine(), pool_text()
    key = hashed("pool", (text, *machine.key))
    code, _ = load_or_make(disk, key, lambda code: machine.link(code, {}, _FUNCTIONS), lambda: machine.compile(text))
    return code


def available_threads() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Pool:
    """The compiled pool. Its machine code is never freed: sleeping workers are in it until the process ends."""

    def __init__(self, disk: DiskCache | None = None) -> None:
        code = _linked(disk)
        self.address = code.addresses["parallel_for"]
        self._at_most = code.addresses["parallel_for_at_most"]
        self._limited: dict[int, Any] = {}

        def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
            return ctypes.CFUNCTYPE(result, *arguments)(code.addresses[name])

        self._set_threads = function("set_threads", None, ctypes.c_int64)
        self._count_workers = function("count_workers", ctypes.c_int64)
        self._stop_workers = function("stop_workers", None)
        self._forget_workers = function("forget_workers", None)
        self._parallel_for = function("parallel_for", None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)
        # Else the code would be freed with this object, when the interpreter takes its modules down.
        code.keep()
        self.thread_count = 1
        self.set_thread_count(available_threads())
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self.stop_workers, after_in_child=self._forget_workers)

    def set_thread_count(self, count: int) -> None:
        """Lets `count` threads take part in a grid, the caller's included: at least 1, at most the processors."""
        allowed = min(count, available_threads(), MOST_WORKERS) if has_workers() else 1
        self.thread_count = max(allowed, 1)
        self._set_threads(self.thread_count)

    def address_for(self, limit: int) -> int:
        """The address of `parallel_for` for kernels that at most `limit` threads run, the caller's included; 0: all."""
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

    def stop_workers(self) -> None:
        """Ends all worker threads, when the job in progress is done; the next large grid starts new ones."""
        self._stop_workers()

    def workers(self) -> int:
        """Worker threads of this process."""
        return int(self._count_workers())

    def parallel_for(self, body: int, context: int, extent: int, grain: int) -> None:
        """Calls the C function at address `body` as body(context, begin, end) over range(extent), in pieces of at least
        `grain` iterations on several threads; returns when all are done."""
        self._parallel_for(body, context, extent, grain)


register(Cache(
    "kernel.llvm.worker_pool.Pool._limited", "machine code that runs a kernel on fewer threads", "option `threads`",
    "processors of the machine",
))  # fmt: skip

_lock = threading.Lock()


_pool: Pool | None = None


def get_pool(disk: DiskCache | None = None) -> Pool:
    """The process's one pool, made at the first call, of machine code kept in `disk`."""
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
