"""The nodes of CUDA graphs: kernels, and work of libraries that is recorded from a stream.

A node is described once for all executable graphs that contain it. Structures and functions follow the CUDA driver API
from version 12 (CUDA_KERNEL_NODE_PARAMS_v2).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tracefuse.caches import memoized
from tracefuse.errors import DeviceError
from tracefuse.generated_code import compile_function
from tracefuse.kernel.cuda.cuda_functions import CudaFunction, grid_texts

_NON_BLOCKING, _RELAXED = 1, 2  # CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED


class _NodeParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("blocks", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


@memoized("the CUDA driver library", key="none", most=1, clears=False)
def driver() -> Any:
    """Returns the driver library. Calls hold the GIL: none of the functions used here waits for the GPU."""
    return ctypes.PyDLL("libcuda.so.1")


def check(status: int, action: str) -> None:
    """Raises DeviceError if a function of the driver failed."""
    if status:
        name = ctypes.c_char_p()
        driver().cuGetErrorName(status, ctypes.byref(name))
        raise DeviceError(f"{action}: {(name.value or b'unknown error').decode()}")


class GraphNode(Protocol):
    """A description of one node. The caller holds the lock of the graph."""

    def add(
        self,
        graph: ctypes.c_void_p,
        before: Sequence[ctypes.c_void_p],
        key: tuple[Any, ...],
        arguments: tuple[Any, ...],
    ) -> tuple[ctypes.c_void_p, bool, Any]:
        """Adds a node after those of `before` to a graph.

        key: its first entry is the stream of the launches. Returns the node, whether it is enabled, and what must live
        as long as the node.
        """
        ...

    def update(
        self, executable: int, handle: ctypes.c_void_p, key: tuple[Any, ...], arguments: tuple[Any, ...]
    ) -> tuple[bool, Any] | None:
        """Changes the arguments of a node of an executable graph; None if only a new graph can have them.

        Returns whether the node is to be enabled, and what must live as long as the node.
        """
        ...


class KernelNode:
    """Launches of a kernel on a GPU. Arguments are those of `CudaFunction.launcher`."""

    def __init__(self, function: CudaFunction, device: int) -> None:
        self.loaded, handle = function.load(device)
        count = len(function.kernel.parameters)
        self._buffer = ctypes.create_string_buffer(8 * max(count, 1))
        start = ctypes.addressof(self._buffer)
        self._pointers = (ctypes.c_void_p * max(count, 1))(*(start + 8 * k for k in range(count)))
        threads = (ctypes.c_uint * 3)(function.kernel.threads, 1, 1)
        self._parameters = _NodeParameters(handle, (ctypes.c_uint * 3)(1, 1, 1), threads, function.shared_bytes)
        self._parameters.parameters = ctypes.addressof(self._pointers)
        self._address = ctypes.c_void_p(ctypes.addressof(self._parameters))
        self._fill = self._generate_fill(function)

    def _generate_fill(self, function: CudaFunction) -> Callable[..., bool]:
        """Returns a function that packs arguments, sets the grid and returns whether the grid has any blocks."""
        names, packed, bits = function.packing()
        grid = [*grid_texts(function.kernel, names), "1", "1"][:3]
        lines = [f"def fill({', '.join(names)}):", f"    x, y, z = {', '.join(grid)}"]
        lines += ["    if not (0 < x <= 2147483647 and 0 < y <= 65535 and 0 < z <= 65535):"]
        lines += ["        no_grid(x, y, z)", "        return False"]
        lines += ["    blocks[0], blocks[1], blocks[2] = x, y, z", f"    pack(buffer, 0, {', '.join(packed)})"]
        scope = {
            "blocks": self._parameters.blocks, "pack": function.pack, "buffer": self._buffer,
            "no_grid": function.no_grid, **bits,
        }  # fmt: skip
        text, purpose = "\n".join([*lines, "    return True"]), f"graph node of {function.kernel.name}"
        return compile_function(text, "fill", scope, purpose)  # type: ignore[no-any-return]

    def add(
        self,
        graph: ctypes.c_void_p,
        before: Sequence[ctypes.c_void_p],
        key: tuple[Any, ...],
        arguments: tuple[Any, ...],
    ) -> tuple[ctypes.c_void_p, bool, Any]:
        runs, handle = self._fill(*arguments), ctypes.c_void_p()
        if not runs:
            self._parameters.blocks[:] = (1, 1, 1)
        status = driver().cuGraphAddKernelNode_v2(ctypes.byref(handle), graph, *_after(before), self._address)
        check(status, "cannot add a kernel node to a CUDA graph")
        return handle, runs, self.loaded

    def update(
        self, executable: int, handle: ctypes.c_void_p, key: tuple[Any, ...], arguments: tuple[Any, ...]
    ) -> tuple[bool, Any] | None:
        runs = self._fill(*arguments)
        if runs:
            status = driver().cuGraphExecKernelNodeSetParams_v2(ctypes.c_void_p(executable), handle, self._address)
            check(status, "cannot update a kernel node of a CUDA graph")
        return runs, self.loaded


class RecordedNode:
    """Work that a library puts on a stream, as a graph of its own inside the graph.

    record: called with a stream whose work is recorded, the stream of the launches, and the arguments. It returns the
    memory that the work uses.
    """

    def __init__(self, record: Callable[..., Any], device: int) -> None:
        self._record, self._device = record, device

    def add(
        self,
        graph: ctypes.c_void_p,
        before: Sequence[ctypes.c_void_p],
        key: tuple[Any, ...],
        arguments: tuple[Any, ...],
    ) -> tuple[ctypes.c_void_p, bool, Any]:
        child, memory = self._recorded(key, arguments)
        handle = ctypes.c_void_p()
        status = driver().cuGraphAddChildGraphNode(ctypes.byref(handle), graph, *_after(before), child)
        driver().cuGraphDestroy(child)  # the node has a copy
        check(status, "cannot add a library call to a CUDA graph")
        return handle, True, memory

    def update(
        self, executable: int, handle: ctypes.c_void_p, key: tuple[Any, ...], arguments: tuple[Any, ...]
    ) -> tuple[bool, Any] | None:
        child, memory = self._recorded(key, arguments)
        status = driver().cuGraphExecChildGraphNodeSetParams(ctypes.c_void_p(executable), handle, child)
        driver().cuGraphDestroy(child)
        # At other sizes, the library may launch other kernels, or more of them.
        return None if status else (True, memory)

    def _recorded(self, key: tuple[Any, ...], arguments: tuple[Any, ...]) -> tuple[ctypes.c_void_p, Any]:
        stream, lock = _recording_stream(self._device)
        graph = ctypes.c_void_p()
        with lock:
            check(driver().cuStreamBeginCapture_v2(stream, ctypes.c_int(_RELAXED)), "cannot record a library call")
            try:
                memory = self._record(stream.value, key[0], *arguments)
            finally:
                status = driver().cuStreamEndCapture(stream, ctypes.byref(graph))
            check(status, "cannot record a library call")
        return graph, memory


def _after(before: Sequence[ctypes.c_void_p]) -> tuple[Any, ctypes.c_size_t]:
    """Returns the dependencies of a node, as arguments of the functions that add one."""
    handles = (ctypes.c_void_p * len(before))(*(handle.value for handle in before)) if before else None
    return handles, ctypes.c_size_t(len(before))


@memoized("the stream that library calls are recorded from", key="device", most=None, bound="GPUs", clears=False)
def _recording_stream(device: int) -> tuple[ctypes.c_void_p, threading.Lock]:
    """Returns a stream of the current device, and the lock of its use."""
    stream = ctypes.c_void_p()
    check(driver().cuStreamCreate(ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING)), "cannot create a stream")
    return stream, threading.Lock()
