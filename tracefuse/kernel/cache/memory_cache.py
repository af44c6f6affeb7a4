"""The in-memory cache of compiled kernels: one compilation per key, least recently used eviction.

Several threads may compile different kernels concurrently; a thread that requests a kernel being compiled waits for it.
Compilation is shielded: if an interrupt ends the wait, the kernel is still compiled and cached.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import field
from typing import Generic, NamedTuple, TypeVar

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import CLEAR_CACHES, Cache, register
from tracefuse.kernel.cache.disk_cache import Origin
from tracefuse.kernel.interrupt_shield import shielded

T = TypeVar("T")

# The capacity of a cache, in kernels.
MOST_KERNELS = 2048


class Statistics(NamedTuple):
    """How many kernels were compiled, loaded from disk and served from memory."""

    compiled: int
    from_disk: int
    from_memory: int


@dataclass(slots=True)
class _Place(Generic[T]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: T | None = None


register(Cache(
    "kernel.cache.memory_cache.KernelCache._places", "compiled kernels of one compiler",
    "see `cpu_functions._cache`, `CudaCompiler._cache`", f"{MOST_KERNELS}, least recently used", "the two",
    CLEAR_CACHES,
))  # fmt: skip


class KernelCache(Generic[T]):
    """Values by key. `make` returns a value and where its machine code comes from."""

    def __init__(self, most: int = MOST_KERNELS) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._places: OrderedDict[str, _Place[T]] = OrderedDict()
        self._compiled = self._from_disk = self._from_memory = 0

    def get(self, key: str, make: Callable[[], tuple[T, Origin]]) -> T:
        """The value of `key`, made at the first request. Raises what `make` raises; the next request tries again."""
        with self._lock:
            place = self._places.setdefault(key, _Place())
            self._places.move_to_end(key)
            while len(self._places) > self.most:
                self._places.popitem(last=False)
            if place.value is not None:
                self._from_memory += 1
                return place.value
        return shielded(lambda: self._made(place, make))

    def _made(self, place: _Place[T], make: Callable[[], tuple[T, Origin]]) -> T:
        with place.lock:
            if place.value is not None:
                with self._lock:
                    self._from_memory += 1
                return place.value
            place.value, origin = make()
            with self._lock:
                self._from_disk += origin is Origin.DISK
                self._compiled += origin is Origin.COMPILED
                self._from_memory += origin is Origin.MEMORY
            return place.value

    def keys(self) -> list[str]:
        """Return the keys, least recently used first."""
        with self._lock:
            return list(self._places)

    def statistics(self) -> Statistics:
        """Return the counts since the process started, which `clear` does not reset."""
        with self._lock:
            return Statistics(self._compiled, self._from_disk, self._from_memory)

    def clear(self) -> None:
        """Remove every value; values still referenced keep working."""
        with self._lock:
            self._places.clear()
