"""Kernels and library calls launched as one CUDA graph.

A graph keeps an executable for each of the last keys that it was launched with. A key is everything that the arguments
depend on, so a call with such a key is one launch. For another key, an executable is built, or the one with the most
similar key is updated at the nodes whose arguments differ. An executable belongs to one stream, which runs its launches
in order.
"""

from __future__ import annotations

import ctypes
import operator
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from tracefuse.caches import Cache, register
from tracefuse.kernel.cuda.graph_nodes import GraphNode, check, driver

MOST_EXECUTABLES = 4
_PER_THREAD_STREAM = 2  # one address for a different stream in each thread


class _Executable:
    """An executable graph and the arguments of its nodes."""

    def __init__(
        self, nodes: Sequence[GraphNode], order: Sequence[tuple[int, ...]], key: tuple[Any, ...],
        arguments: Sequence[tuple[Any, ...]],
    ) -> None:  # fmt: skip
        self._nodes = nodes
        self._handles: list[ctypes.c_void_p] = []
        self._enabled: list[bool] = []
        self._memory: list[Any] = []
        self._arguments = [*arguments]
        self.changes = len(nodes)
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        check(driver().cuGraphCreate(ctypes.byref(graph), ctypes.c_uint(0)), "cannot create a CUDA graph")
        try:
            for node, positions, own in zip(nodes, order, arguments, strict=True):
                before = [self._handles[position] for position in positions]
                handle, runs, memory = node.add(graph, before, key, own)
                self._handles.append(handle)
                self._enabled.append(runs)
                self._memory.append(memory)
            status = driver().cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
            check(status, "cannot instantiate a CUDA graph")
        except BaseException:
            driver().cuGraphDestroy(graph)
            raise
        assert executable.value is not None
        assert graph.value is not None
        self.address = executable.value
        self._finalizer = weakref.finalize(self, _destroy, graph.value, executable.value)
        self._finalizer.atexit = False  # the driver may already be shut down at exit
        for handle, runs in zip(self._handles, self._enabled, strict=True):
            if not runs:
                self._enable(handle, False)

    def update(self, key: tuple[Any, ...], arguments: Sequence[tuple[Any, ...]]) -> bool:
        """Changes the arguments; False if only a new executable can have them. If it raises, do not use this one.

        `changes` counts the nodes that changed.
        """
        for position, own in enumerate(arguments):
            if self._arguments[position] == own:
                continue
            handle = self._handles[position]
            updated = self._nodes[position].update(self.address, handle, key, own)
            if updated is None:
                return False
            self.changes += 1
            runs, self._memory[position] = updated
            if runs is not self._enabled[position]:
                self._enable(handle, runs)
                self._enabled[position] = runs
            self._arguments[position] = own
        return True

    def _enable(self, handle: ctypes.c_void_p, runs: bool) -> None:
        status = driver().cuGraphNodeSetEnabled(ctypes.c_void_p(self.address), handle, ctypes.c_uint(runs))
        check(status, "cannot enable or disable a CUDA graph node")


class CudaGraph:
    """Launches on one GPU. Implements `LaunchGraph`. Thread-safe.

    order: for each node, the positions of those that it follows; others may run at the same time.

    Raises DeviceError for a grid beyond the hardware limits and for errors of the driver.
    """

    def __init__(self, nodes: Sequence[GraphNode], order: Sequence[tuple[int, ...]]) -> None:
        self._nodes, self._order = nodes, order
        self._executables: OrderedDict[tuple[Any, ...], _Executable] = OrderedDict()
        self._lock = threading.Lock()
        self.size, self.changes = len(nodes), 0
        self._launch = driver().cuGraphLaunch
        self._launch.argtypes = (ctypes.c_void_p,) * 2

    def replay(self, key: tuple[Any, ...]) -> bool:
        """Launches the executable of a key; False if there is none."""
        if key[0] == _PER_THREAD_STREAM:
            key = (*key, threading.get_ident())
        with self._lock:
            executable = self._executables.get(key)
            if executable is None:
                return False
            self._executables.move_to_end(key)
            status = self._launch(executable.address, key[0])
            if status:
                check(status, "cannot launch a CUDA graph")
        return True

    def launch(self, key: tuple[Any, ...], arguments: Sequence[tuple[Any, ...]]) -> None:
        """Launches the graph with other arguments than those that it keeps."""
        if key[0] == _PER_THREAD_STREAM:
            key = (*key, threading.get_ident())
        with self._lock:
            executable = self._replaced(key)
            if executable is not None:
                executable.changes = 0
                if not executable.update(key, arguments):
                    executable = None
            executable = executable or _Executable(self._nodes, self._order, key, arguments)
            self.changes += executable.changes
            self._executables[key] = executable
            check(self._launch(executable.address, key[0]), "cannot launch a CUDA graph")

    def _replaced(self, key: tuple[Any, ...]) -> _Executable | None:
        """Removes an executable if there are as many as may be, and returns it if it can be updated for the key."""
        if len(self._executables) < MOST_EXECUTABLES:
            return None
        alike = [kept for kept in self._executables if _stream_of(kept) == _stream_of(key)]
        if not alike:
            self._executables.popitem(last=False)
            return None
        return self._executables.pop(max(alike, key=lambda kept: sum(map(operator.eq, kept, key))))


register(Cache(
    "kernel.cuda.cuda_graph.CudaGraph._executables", "executable CUDA graphs", "stream, addresses, sizes",
    f"{MOST_EXECUTABLES}, least recently used", "a compiled call",
))  # fmt: skip


def _stream_of(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns what distinguishes the stream of a key from others."""
    return (key[0], key[-1]) if key[0] == _PER_THREAD_STREAM else (key[0],)


def _destroy(graph: int, executable: int) -> None:
    """Destroys a graph. The driver keeps it alive until pending launches finish."""
    driver().cuGraphExecDestroy(ctypes.c_void_p(executable))
    driver().cuGraphDestroy(ctypes.c_void_p(graph))
