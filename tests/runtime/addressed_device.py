"""A device whose kernels take addresses, and whose graphs record launches, in NumPy."""

from __future__ import annotations

import ctypes
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracefuse import (
    FusionDefinition,
    options,
)
from tracefuse.compiler.executable import Executable
from tracefuse.config import resolve
from tracefuse.dtypes import DType
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.runtime.devices import cpu_memory
from tracefuse.runtime.targets.call_text import CallText
from tracefuse.runtime.targets.cpu.cpu_device import CpuDevice
from tracefuse.runtime.targets.cpu.cpu_kernel_compiler import CpuKernelCompiler
from tracefuse.runtime.targets.cpu.cpu_target import NumpyLibrary
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.cpu.cpu_templates import CPU_TEMPLATES


@dataclass(eq=False)
class Memory:
    array: Any

    @property
    def ptr(self) -> int:
        start = int(self.array.ctypes.data)
        return start + -start % 256


@dataclass
class Stream:
    ptr: int

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        pass


class Graph:
    """A graph that keeps the arguments of every key, and runs its functions in any order that it may have."""

    def __init__(self, functions: Sequence[Any], order: Sequence[tuple[int, ...]], graphs: list[int]) -> None:
        self.functions, self.order, self.graphs = functions, order, graphs
        self.random = random.Random(len(functions))
        self.kept: dict[tuple[Any, ...], Sequence[tuple[Any, ...]]] = {}
        self.size, self.changes = len(functions), 0

    def replay(self, key: tuple[Any, ...]) -> bool:
        assert key[0] == 7
        if key not in self.kept:
            return False
        self._run(self.kept[key])
        return True

    def launch(self, key: tuple[Any, ...], arguments: Sequence[tuple[Any, ...]]) -> None:
        assert key not in self.kept
        self.kept[key] = arguments
        self.changes += self.size
        self._run(arguments)

    def _run(self, arguments: Sequence[tuple[Any, ...]]) -> None:
        self.graphs.append(len(self.functions))
        assert len(self.functions) == len(self.order) == len(arguments)
        waiting = set(range(len(self.functions)))
        while waiting:
            ready = [k for k in sorted(waiting) if waiting.isdisjoint(self.order[k])]
            position = self.random.choice(ready)
            waiting.remove(position)
            self.functions[position].launch(*arguments[position])


class Addressed(CpuKernelCompiler, CpuDevice, CallText):
    """The compiler, device and call texts of a target in one object.

    It counts allocations and graph launches, and fills new memory with a pattern that no value has.
    """

    addresses = True

    def __init__(self) -> None:
        super().__init__(self)
        self.arenas: list[int] = []
        self.arrays = 0
        self.loops: list[int] = []
        self.allocated: list[weakref.ref[Memory]] = []
        self.graphs: list[int] = []
        self.launchers: list[weakref.ref[Graph]] = []
        self.library: NumpyLibrary = NumpyLibrary()
        self.templates = CPU_TEMPLATES
        self.repeats = False
        self.records = False

    @property
    def target(self) -> Target:
        return Target("cpu", self.templates, self, self, self.library, self)

    def entry(self, function: Any) -> Callable[..., None]:
        return lambda stream, *arguments: function.launch(*arguments)

    def stream_worker_count(self, size: int, streams: int) -> int:
        return streams

    def run_stream_workers(
        self, caller: Any, start_worker: Callable[[Any, int], Callable[[int], None]], total: int, streams: int
    ) -> None:
        assert caller == 7
        self.loops.append(total)
        self.allocated.clear()
        workers = [start_worker(Stream(k), k) for k in range(min(total, streams))]
        # The scratch memory lives as long as the iterations.
        assert all(memory() is not None for memory in self.allocated)
        for k in range(total):
            workers[k % streams](k)

    def copier(self, source: Any, target: Any) -> Callable[[Any], Callable[..., None]] | None:
        if not (source.flags.c_contiguous and target.flags.c_contiguous):
            return None
        size = source.nbytes
        return lambda stream: lambda source, target: ctypes.memmove(target, source, size) and None

    def argument_text(self, name: str) -> str:
        return f"{name}.ctypes.data"

    def stream_text(self) -> str | None:
        return "7"

    def empty_text(self, shape: str, dtype: DType, name: str, size: str) -> str:
        return f"new({shape}, {name})"

    @property
    def has_graphs(self) -> bool:
        return self.repeats

    def is_recording(self) -> bool:
        return self.records

    def require_graphs(self) -> None:
        pass

    def graph(self, functions: Sequence[Any], order: Sequence[tuple[int, ...]]) -> Graph:
        launcher = Graph(functions, order, self.graphs)
        self.launchers.append(weakref.ref(launcher))
        return launcher

    def persistent_arena(self) -> Callable[[int, int], Any]:
        kept: dict[int, Memory] = {}

        def arena(stream: int, size: int) -> Memory:
            assert stream == 7
            if size not in kept:
                kept[size] = self.allocate(size)
            return kept[size]

        return arena

    def allocate(self, size: int) -> Memory:
        self.arenas.append(size)
        memory = np.empty(size + 256, np.uint8)
        memory.fill(0xA5)
        allocated = Memory(memory)
        self.allocated.append(weakref.ref(allocated))
        return allocated

    def new(self, shape: tuple[int, ...], dtype: DType) -> Any:
        self.arrays += 1
        return cpu_memory.empty(shape, dtype)

    def names(self) -> dict[str, Any]:
        return {**super().names(), "allocate": self.allocate, "new": self.new}


def chain(count: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        for step in range(count):
            x = fd.ops.add(fd.ops.neg(x), float(step))
        fd.add_output(x)
    return fd


def executable(fusion: Any, backend: Addressed, merge: Any = None, graph: bool | str = False) -> Executable:
    with options(graph=graph):
        return Executable(segment_fusion(fusion, merge=merge), backend.target, options=resolve())
