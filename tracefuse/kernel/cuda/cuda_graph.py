"""A chain of kernels launched as one CUDA graph, with node updates only where a call's arguments change.

The first call builds the graph. A later call compares each kernel's arguments with those of the previous call and
updates only the nodes whose arguments differ, so a chain of kernels between two arrays costs two updates and one
launch. The driver serializes launches of the same graph across streams.

Structures and functions follow the CUDA driver API from version 12 (CUDA_KERNEL_NODE_PARAMS_v2).
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.caches import memoized
from tracefuse.errors import DeviceError
from tracefuse.generated_code import compile_function
from tracefuse.kernel.cuda.cuda_functions import CudaFunction, grid_texts


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
def _driver() -> Any:
    """Return the driver library. Calls hold the GIL: none of the functions used here waits for the GPU."""
    return ctypes.PyDLL("libcuda.so.1")


def _check(status: int, action: str) -> None:
    if status:
        name = ctypes.c_char_p()
        _driver().cuGetErrorName(status, ctypes.byref(name))
        raise DeviceError(f"{action}: {(name.value or b'unknown error').decode()}")


class _Node:
    """One kernel node of a graph. arguments: the arguments it was last set to, None if unknown."""

    def __init__(self, function: CudaFunction, device: int) -> None:
        self.loaded, handle = function.load(device)
        count = len(function.kernel.parameters)
        self._buffer = ctypes.create_string_buffer(8 * max(count, 1))
        start = ctypes.addressof(self._buffer)
        self._pointers = (ctypes.c_void_p * max(count, 1))(*(start + 8 * k for k in range(count)))
        threads = (ctypes.c_uint * 3)(function.kernel.threads, 1, 1)
        self.parameters = _NodeParameters(handle, (ctypes.c_uint * 3)(1, 1, 1), threads, function.shared_bytes)
        self.parameters.parameters = ctypes.addressof(self._pointers)
        self.address = ctypes.addressof(self.parameters)
        self.handle = ctypes.c_void_p()
        self.arguments: tuple[Any, ...] | None = None
        self.runs = True
        self.fill = self._generate_fill(function)

    def _generate_fill(self, function: CudaFunction) -> Callable[..., bool]:
        """Return a function that packs arguments, sets the grid and returns whether the grid has any blocks."""
        names, packed, bits = function.packing()
        grid = [*grid_texts(function.kernel, names), "1", "1"][:3]
        lines = [f"def fill({', '.join(names)}):", f"    x, y, z = {', '.join(grid)}"]
        lines += ["    if not (0 < x <= 2147483647 and 0 < y <= 65535 and 0 < z <= 65535):"]
        lines += ["        no_grid(x, y, z)", "        return False"]
        lines += ["    blocks[0], blocks[1], blocks[2] = x, y, z", f"    pack(buffer, 0, {', '.join(packed)})"]
        scope = {
            "blocks": self.parameters.blocks, "pack": function.pack, "buffer": self._buffer,
            "no_grid": function.no_grid, **bits,
        }  # fmt: skip
        text, purpose = "\n".join([*lines, "    return True"]), f"graph node of {function.kernel.name}"
        return compile_function(text, "fill", scope, purpose)  # type: ignore[no-any-return]


class CudaGraph:
    """A chain of kernels on one GPU, called with the address of a stream and each kernel's arguments in order.

    Arguments are those of `CudaFunction.launcher`. Raises DeviceError for a grid beyond the hardware limits and for
    errors of the driver. Thread-safe.
    """

    def __init__(self, functions: Sequence[CudaFunction], device: int) -> None:
        self._nodes = [_Node(function, device) for function in functions]
        self._graph, self._executable = ctypes.c_void_p(), ctypes.c_void_p()
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._lock = threading.Lock()
        driver = _driver()
        self._set, self._enable, self._launch = (
            driver.cuGraphExecKernelNodeSetParams_v2, driver.cuGraphNodeSetEnabled, driver.cuGraphLaunch
        )  # fmt: skip
        self._set.argtypes = (ctypes.c_void_p,) * 3
        self._enable.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
        self._launch.argtypes = (ctypes.c_void_p,) * 2

    def __call__(self, stream: int, arguments: Sequence[tuple[Any, ...]]) -> None:
        with self._lock:
            executable = self._executable.value
            if executable is None:
                executable = self._build(arguments)
            else:
                for node, node_arguments in zip(self._nodes, arguments, strict=True):
                    if node.arguments != node_arguments:
                        self._update(executable, node, node_arguments)
            status = self._launch(executable, stream)
            if status:
                _check(status, "cannot launch a CUDA graph")

    def _update(self, executable: int, node: _Node, arguments: tuple[Any, ...]) -> None:
        node.arguments = None  # unknown if an update below fails
        runs = node.fill(*arguments)
        if runs:
            status = self._set(executable, node.handle.value, node.address)
            if status:
                _check(status, "cannot update a kernel node of a CUDA graph")
        if runs is not node.runs:
            _check(self._enable(executable, node.handle.value, int(runs)), "cannot enable or disable a CUDA graph node")
            node.runs = runs
        node.arguments = arguments

    def _build(self, arguments: Sequence[tuple[Any, ...]]) -> int:
        driver = _driver()
        self._drop()
        _check(driver.cuGraphCreate(ctypes.byref(self._graph), 0), "cannot create a CUDA graph")
        before: _Node | None = None
        for node, node_arguments in zip(self._nodes, arguments, strict=True):
            node.runs = node.fill(*node_arguments)
            after = None if before is None else (ctypes.c_void_p * 1)(before.handle.value)
            status = driver.cuGraphAddKernelNode_v2(
                ctypes.byref(node.handle),
                self._graph,
                after,
                ctypes.c_size_t(before is not None),
                ctypes.c_void_p(node.address),
            )
            _check(status, "cannot add a kernel node to a CUDA graph")
            before = node
        executable = ctypes.c_void_p()
        status = driver.cuGraphInstantiateWithFlags(ctypes.byref(executable), self._graph, ctypes.c_ulonglong(0))
        _check(status, "cannot instantiate a CUDA graph")
        for node, node_arguments in zip(self._nodes, arguments, strict=True):
            if not node.runs:
                _check(self._enable(executable, node.handle.value, 0), "cannot disable a CUDA graph node")
            node.arguments = node_arguments
        self._executable = executable
        assert executable.value is not None
        assert self._graph.value is not None
        self._finalizer = weakref.finalize(self, _destroy, self._graph.value, executable.value)
        self._finalizer.atexit = False  # the driver may already be shut down at exit
        return executable.value

    def _drop(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._graph, self._executable, self._finalizer = ctypes.c_void_p(), ctypes.c_void_p(), None


def _destroy(graph: int, executable: int) -> None:
    """Destroy a graph. The driver keeps it alive until pending launches finish."""
    _driver().cuGraphExecDestroy(ctypes.c_void_p(executable))
    _driver().cuGraphDestroy(ctypes.c_void_p(graph))
